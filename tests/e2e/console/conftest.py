"""A gateway beside the worker and bridge of the module's stack, and people who visit its console."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.console.visiting import visiting
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant


@pytest.fixture(scope="module")
async def url(here: Stack) -> AsyncIterator[str]:
    """Where the module's gateway serves."""
    async with serving(here) as address:
        yield address


@pytest.fixture
async def operator(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """An operator of the test's project, signed in."""
    async with visiting(url, await token_of(tenant.stack, tenant.project)) as made:
        yield made
