"""Servers at their limits: no connection left, statements cut short, sessions ended, requests throttled.

Each refusal says why, nothing is lost, and all goes on when the limit is lifted, in the same processes.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import nats.errors
import pytest
from nats.aio.client import Client

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import repairs, restarts, unheard, visible
from tests.support.processes.stack import QUICK, Config, Stack, open_stack, running_here
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.bridge.safety.reconciler import FRESH_SECONDS
from turnstile.embedded import EmbeddedServers, nats_server, postgres_server, temporal_server
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Pool
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import ReplyStatus

CONNECTIONS = 24
"""That PostgreSQL and NATS have at all."""
REQUESTS_PER_SECOND = 12
"""That Temporal's namespace may have where it is throttled: fewer than the turns of a test need at once."""
SLOW = json.dumps({"steps": [{"text": "slowly", "delay_seconds": 0.5}]})
FEW: Config = {
    **QUICK,
    "worker": {**QUICK["worker"], "database_pool_size": 4},
    "bridge": {**QUICK["bridge"], "database_pool_size": 4, "engine_interval_seconds": 0.5},
    "tools": {"suspend_timeout_seconds": 120.0},
}


@pytest.fixture(scope="module")
async def own_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    """Servers with few connections."""
    few = tuple(setting for setting in postgres_server.SETTINGS if "max_connections" not in setting)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postgres_server, "SETTINGS", (*few, f"max_connections={CONNECTIONS}"))
        patch.setattr(nats_server, "_CONFIG", f"{nats_server._CONFIG}max_connections: {CONNECTIONS}\n")
        async with EmbeddedServers(tmp_path_factory.mktemp("few") / ".turnstile") as running:
            yield running


@pytest.fixture(scope="module")
async def stack(own_servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack on them, which uses half of the connections."""
    async with open_stack(own_servers.endpoints, tmp_path_factory.mktemp("stack"), FEW) as opened:
        yield opened


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """What protocol §2 says holds when the test ends."""
    yield new_tenant(stack)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


@asynccontextmanager
async def no_session_left(url: str) -> AsyncGenerator[None]:
    """End all sessions at PostgreSQL, and take every connection that there is."""
    held: list[Any] = []

    async def take() -> None:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                held.append(await connect_to_host(url, server_settings={"application_name": "greedy"}))

    await take()
    others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'greedy'"
    while await held[0].fetch(f"SELECT pg_terminate_backend(pid, 1000) {others}"):  # they come back before it is taken
        await take()
    try:
        yield
    finally:
        for each in held:
            await each.close()


@asynccontextmanager
async def no_client_left(url: str) -> AsyncGenerator[None]:
    """Take every connection that NATS has left."""
    held: list[Client] = []
    with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):  # it says so, or closes before that is read
        while True:
            client = Client()
            await client.connect(url, allow_reconnect=False, connect_timeout=1)  # pyright: ignore[reportUnknownMemberType] -- bare **options
            held.append(client)
    try:
        yield
    finally:
        for each in held:
            await each.close()


async def all_succeed(tenant: Tenant, turns: list[AgentTurnId]) -> None:
    """Each of them ends well and is announced once."""
    for turn in turns:
        assert (await tenant.ended(turn, 60)).view.status == "success"
    assert await tenant.task_events() == dict.fromkeys(turns, 1)


async def test_without_a_connection_to_postgres_callers_are_told_and_turns_go_on_afterwards(
    stack: Stack, tenant: Tenant
) -> None:
    async with running_here(stack):
        agents = await tenant.agents("player", 4)
        turns = [turn_of(await tenant.enqueue(agent, SLOW)) for agent in agents]
        async with no_session_left(stack.endpoints.database_url):
            asked: JsonObject = {"agent_id": agents[0], "instruction": SLOW}
            refused = await tenant.ask(asked)
        assert (refused.status, refused.error_code) == (ReplyStatus.ERROR, "server_unavailable")
        assert "the database has no connection left (53300)" in str(refused.error)
        turns.append(turn_of(await tenant.enqueue(agents[0], SLOW)))
        await all_succeed(tenant, turns)


@pytest.mark.long
async def test_statements_that_are_cut_short_are_run_again(stack: Stack, tenant: Tenant) -> None:
    """`statement_timeout`, `lock_timeout` and `idle_session_timeout` of the role, while a head is locked."""
    admin = Pool(stack.endpoints.database_url, size=1, name="admin")
    async with admin.connection() as conn:
        for limit in ("statement_timeout = 400", "lock_timeout = 200", "idle_session_timeout = 700"):
            await conn.execute(f"ALTER ROLE turnstile SET {limit}")
    try:
        async with running_here(stack):
            agents = await tenant.agents("player", 4)
            turns = [turn_of(await tenant.enqueue(agent, SLOW)) for agent in agents]
            async with admin.connection() as conn, conn.transaction():  # its session is older than the limits
                await conn.fetch("SELECT FROM state.agent_state_head WHERE project_id = $1 FOR UPDATE", tenant.project)
                refused = await tenant.ask({"agent_id": agents[0], "instruction": SLOW})
            assert (refused.status, refused.error_code) == (ReplyStatus.ERROR, "server_unavailable")
            await all_succeed(tenant, turns)
            await asyncio.sleep(1)  # every idle session is ended meanwhile
            later = [turn_of(await tenant.enqueue(agent, SLOW)) for agent in agents]
            for turn in later:
                assert (await tenant.ended(turn)).view.status == "success"
    finally:
        async with admin.connection() as conn:
            await conn.execute("ALTER ROLE turnstile RESET ALL")
        await admin.close()


@pytest.mark.long
async def test_without_a_connection_to_nats_turns_of_the_ledger_run_and_are_told_afterwards(
    stack: Stack, tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    await tenant.agent("player")
    with caplog.at_level(logging.INFO):
        async with AsyncExitStack() as running:
            async with AsyncExitStack() as held:
                await held.enter_async_context(no_client_left(stack.endpoints.nats_url))
                await running.enter_async_context(running_here(stack))
                turn = await unheard(tenant, instruction=SLOW)

                async def over() -> bool:
                    return await tenant.count("state.turn_outcomes") == 1

                await until(over, 30, "the turn ends")
                assert "maximum connections exceeded" in caplog.text
                assert await tenant.task_events() == {}
            await all_succeed(tenant, [turn])


@pytest.mark.long
async def test_a_visibility_that_lags_starts_no_turn_again(
    own_servers: EmbeddedServers, stack: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal writes to it once a second, so many workflows are not listed although their turns sleep for long."""
    before = await repairs(stack.pool)
    with monkeypatch.context() as patch:
        slow = "system.visibilityPersistenceMaxWriteQPS=1"
        patch.setattr(temporal_server, "DYNAMIC_CONFIG", (*temporal_server.DYNAMIC_CONFIG, slow))
        await own_servers.restart("temporal")
    try:
        async with running_here(stack), hand_of(tenant) as hand:
            agents = await tenant.agents("player", 20, allowed_tools=["search"])
            turns = [await Hand(tenant, agent).start(calling("search")) for agent in agents]
            await hand.heard(len(turns))
            unseen = 0
            await asyncio.sleep(FRESH_SECONDS + 1)  # from now on their heads are not fresh
            for _ in range(6):
                unseen = max(unseen, len(set(turns) - await visible(stack)))
                await asyncio.sleep(1)  # the rule *engine* looks meanwhile
            assert unseen > 0, "visibility did not lag"
            assert await restarts(tenant, turns) == [0] * len(turns)
            for turn in turns:
                await hand.report(call_of(turn))
            await all_succeed(tenant, turns)
    finally:
        await own_servers.restart("temporal")
    assert (await repairs(stack.pool)).get("engine", 0) == before.get("engine", 0)


@pytest.mark.long
async def test_a_temporal_that_throttles_delays_turns_and_loses_none(
    own_servers: EmbeddedServers, stack: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its namespace may be asked a few times a second: workflows start late, steps are taken late."""
    limits = (f"frontend.namespaceRPS={REQUESTS_PER_SECOND}", "frontend.namespaceBurstRatio=1.0")
    agents = await tenant.agents("player", 20)
    with monkeypatch.context() as patch:
        patch.setattr(temporal_server, "DYNAMIC_CONFIG", (*temporal_server.DYNAMIC_CONFIG, *limits))
        await own_servers.restart("temporal")
    try:
        async with running_here(stack):
            turns = [turn_of(await tenant.enqueue(agent, SLOW)) for agent in agents]
            await tenant.all_ended(turns, 120)
            await all_succeed(tenant, turns)
    finally:
        await own_servers.restart("temporal")
