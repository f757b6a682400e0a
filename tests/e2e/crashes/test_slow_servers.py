"""PostgreSQL and Temporal that answer late: turns take longer, and none is stopped that nobody stopped."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import pytest

from lab.support.proxy import HOST, Proxy
from tests.support.databases import Databases
from tests.support.faults.points import DONE
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import unheard
from tests.support.processes.stack import Stack, open_stack, running_here
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import hand_of
from turnstile.embedded import Endpoints

NO_LAG = (0.0, 0.0)
TEMPORAL_LAG = (0.8, 0.8)
POSTGRES_LAG = (1.0, 1.2)


@dataclass(frozen=True)
class Slow:
    """The stack, and the proxies through which its worker and bridge reach two of the servers."""

    stack: Stack
    postgres: Proxy
    temporal: Proxy


@asynccontextmanager
async def proxied(port: int | None) -> AsyncGenerator[Proxy]:
    """A proxy before the server at this port, which passes everything on at once."""
    assert port is not None
    proxy = Proxy(lambda: port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture(scope="module")
async def slow(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Slow]:
    """Worker and bridge behind proxies; the test has the servers themselves."""
    name = await databases.create(migrated)
    endpoints = servers.model_copy(update={"database_url": databases.url(name)})
    url, address = urlsplit(endpoints.database_url), urlsplit(f"//{endpoints.temporal_address}")
    async with (
        proxied(url.port) as postgres,
        proxied(address.port) as temporal,
        open_stack(endpoints, tmp_path_factory.mktemp("stack")) as stack,
    ):
        through = url._replace(netloc=f"{url.netloc.rpartition('@')[0]}@{HOST}:{postgres.port}").geturl()
        seen = {"database_url": through, "temporal_address": f"{HOST}:{temporal.port}"}
        async with running_here(replace(stack, endpoints=endpoints.model_copy(update=seen))):
            yield Slow(stack, postgres, temporal)
    await databases.drop(name)


@pytest.fixture
async def tenant(slow: Slow) -> AsyncIterator[Tenant]:
    """A project of this test alone; what protocol §2 says holds when it ends, and the servers are fast again."""
    yield new_tenant(slow.stack)
    slow.postgres.lag = slow.temporal.lag = NO_LAG
    async with slow.stack.pool.connection() as conn:
        await assert_invariants(conn)


async def test_no_turn_is_stopped_where_ledger_and_engine_are_slow(
    slow: Slow, tenant: Tenant, request: pytest.FixtureRequest
) -> None:
    turns = int(str(request.config.getoption("--slow-turns")))
    if not turns:
        pytest.skip("a longer run: --slow-turns 120")
    async with hand_of(tenant):
        agents = await tenant.agents("player", turns)
        slow.postgres.lag, slow.temporal.lag = POSTGRES_LAG, TEMPORAL_LAG
        steps = json.dumps({"steps": [DONE]})
        for turn in [await unheard(tenant, agent, steps) for agent in agents]:
            await tenant.ended(turn, 60 + turns)
    found = await tenant.rows(
        "SELECT status, error_code, count(*) AS n FROM state.turn_outcomes WHERE project_id = $1 GROUP BY 1, 2",
        tenant.project,
    )
    assert [tuple(row.values()) for row in found] == [("success", None, turns)]
