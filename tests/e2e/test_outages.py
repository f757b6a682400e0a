"""A server that is late, or dies in the middle: it is waited for, by name, and no turn is lost."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator

import pytest

from ledger.intake import enqueue
from schema.inbox import EnqueueRequest
from tests.support.conditions import until
from tests.support.invariants import assert_invariants
from tests.support.process import Processes, processes_of
from tests.support.stack import Stack, open_stack
from tests.support.tenants import CHANNEL, Tenant, new_tenant, turn_of
from turnstile.embedded import EmbeddedServers, ServerName

log = logging.getLogger(__name__)
AGENTS, EACH = 8, 5
TURNS = AGENTS * EACH


@pytest.fixture(scope="module")
async def own_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    """Servers that these tests may kill."""
    async with EmbeddedServers(tmp_path_factory.mktemp("own") / ".turnstile") as running:
        yield running


@pytest.fixture(scope="module")
async def stack(own_servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack on them."""
    async with open_stack(own_servers.endpoints, tmp_path_factory.mktemp("stack")) as opened:
        yield opened


async def test_what_starts_before_the_servers_waits_for_each(own_servers: EmbeddedServers, stack: Stack) -> None:
    names: tuple[tuple[ServerName, str], ...] = (("postgres", "PostgreSQL"), ("nats", "NATS"), ("temporal", "Temporal"))
    for name, _ in names:
        await own_servers.kill(name)
    async with processes_of(stack.config) as both:
        await both.worker.launch()
        await both.bridge.launch()
        for name, shown in names:
            for process in (both.worker, both.bridge):
                await process.until_it_says(f"waiting for {shown} at ")
                assert "serves" not in process.says()
            await own_servers.restart(name)
        for process in (both.worker, both.bridge):
            await process.until_it_says("serves")
        ended = await new_tenant(stack).run("plain")
        assert ended.view.status == "success"


@pytest.mark.parametrize("name", ["postgres", "nats", "temporal"])
async def test_what_waits_for_a_server_can_be_stopped(
    own_servers: EmbeddedServers, stack: Stack, name: ServerName
) -> None:
    await own_servers.kill(name)
    async with processes_of(stack.config) as both:
        await both.bridge.launch()
        await both.bridge.until_it_says("waiting for ")
        assert await both.bridge.stop() == 0
    await own_servers.restart(name)


@pytest.mark.parametrize("name", ["postgres", "nats", "temporal"])
async def test_turns_in_hand_survive_a_server_that_dies(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack, name: ServerName
) -> None:
    assert processes.worker.role == "worker"
    tenant = new_tenant(stack)
    agents = await tenant.agents("slow", AGENTS)
    turns = [turn_of(await tenant.enqueue(agent, "hello")) for agent in agents for _ in range(EACH)]
    await until(lambda: some_run(tenant), 20, "some turns ended, and some run")
    await own_servers.kill(name)
    down = time.monotonic()
    await own_servers.restart(name)
    back = time.monotonic()
    ended = await tenant.count("state.turn_outcomes")
    await until(lambda: more_than(tenant, min(ended, TURNS - 1)), 60, "turns end again")
    first = time.monotonic()
    await tenant.all_ended(turns, 60)
    log.info(
        "%s was down for %.1f s; the next of %d turns ended %.1f s later, the last %.1f s later",
        *(name, back - down, TURNS - ended, first - back, time.monotonic() - back),
    )
    rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert [row["status"] for row in rows] == ["success"] * TURNS
    assert await tenant.task_events() == dict.fromkeys(turns, 1)
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


async def some_run(tenant: Tenant) -> bool:
    """Whether the turns are under way."""
    ended = await tenant.count("state.turn_outcomes") >= AGENTS
    return ended and await tenant.count("state.agent_state_head", "status = 'running'") > 0


async def more_than(tenant: Tenant, count: int) -> bool:
    """Whether more turns ended."""
    return await tenant.count("state.turn_outcomes") > count


async def test_an_enqueue_into_the_ledger_while_nats_is_down_is_delivered(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack
) -> None:
    assert processes.bridge.role == "bridge"
    tenant = new_tenant(stack)
    agent = await tenant.agent("plain")
    await own_servers.kill("nats")
    request = EnqueueRequest(agent_id=agent, instruction="hello")
    done = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
    assert done.reply.inbox_status == "pending"
    turn = turn_of(done.reply)

    async def ended_unannounced() -> bool:
        return await tenant.count("state.turn_outcomes", "announced_at IS NULL") == 1

    await until(ended_unannounced, 20, "the turn ends without NATS")  # the safety net's poll is a doorbell to itself
    await own_servers.restart("nats")
    back = time.monotonic()
    ended = await tenant.ended(turn)
    log.info("announced %.1f s after NATS was back", time.monotonic() - back)
    assert ended.deliverable() == "It is done."
    await asyncio.wait_for(stack.conn.connected.wait(), 10)
    assert await tenant.task_events() == {turn: 1}
