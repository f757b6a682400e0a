"""A gateway beside the worker and bridge of the module's stack."""

import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.gateway import client, serving, token_of
from tests.support.guarded import CONNECTIONS, Guarded
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.embedded.ports import free_port
from turnstile.gateway.events import feeds

collect_ignore = [] if "REAL_CLIENTS" in os.environ else ["test_real_agents.py", "test_real_clients.py"]


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


@pytest.fixture(scope="module")
async def served(here: Stack) -> AsyncIterator[tuple[str, int]]:
    """Its address, and the port of its metrics."""
    changes: dict[str, Any] = {
        "request_timeout_seconds": 1.5,
        "idle_timeout_seconds": 1.0,
        "heartbeat_seconds": 0.2,
        "max_connections": CONNECTIONS,
        "requests_per_second": 0.0,
    }
    port = free_port()
    observed = here.settings.observability.model_copy(update={"metrics_port": port})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeds, "LINGER_SECONDS", 0.2)
        async with serving(here, here.settings.model_copy(update={"observability": observed}), **changes) as url:
            yield url, port


@pytest.fixture
async def guarded(served: tuple[str, int], tenant: Tenant) -> AsyncIterator[Guarded]:
    """The module's gateway, for the test's project; nothing is held when the test ends."""
    made = Guarded(*served, await token_of(tenant.stack, tenant.project))
    yield made
    await made.quiet()
