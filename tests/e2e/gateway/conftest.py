"""A gateway beside the worker and bridge of the module's stack."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.support.gateway import client, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant


@pytest.fixture(scope="module")
async def url(here: Stack) -> AsyncIterator[str]:
    """Where the module's gateway serves."""
    async with serving(here) as address:
        yield address


@pytest.fixture
async def web(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """A client with a token of an operator of the test's project."""
    async with client(url, await token_of(tenant.stack, tenant.project)) as made:
        yield made
