"""200 turns of 20 agents, undisturbed and with a process killed in the middle: every turn ends once, in its order."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes
from tests.support.tenants import Tenant, turn_of
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.inbox import EnqueueReply

log = logging.getLogger(__name__)
AGENTS, EACH = 20, 10
TURNS = AGENTS * EACH


async def patiently(tenant: Tenant, payload: JsonObject) -> EnqueueReply:
    """Enqueue as a client does that does not give up: the same correlation until there is an answer."""
    while True:
        try:
            reply = await tenant.ask(payload, timeout=2)
        except ServerUnavailable:
            await asyncio.sleep(0.1)
            continue
        if reply.status is not ReplyStatus.ERROR:
            return reply


async def enqueue_all(tenant: Tenant, agents: list[AgentId]) -> dict[AgentId, list[AgentTurnId]]:
    """The turns of each agent in the order in which their enqueues were answered, all agents at once."""

    async def one(agent: AgentId) -> list[AgentTurnId]:
        asked: list[JsonObject] = [
            {"agent_id": agent, "instruction": f"number {number}", "correlation_id": f"{agent}-{number}"}
            for number in range(EACH)
        ]
        return [turn_of(await patiently(tenant, each)) for each in asked]

    return dict(zip(agents, await asyncio.gather(*map(one, agents)), strict=True))


async def check(tenant: Tenant, turns: Mapping[AgentId, list[AgentTurnId]]) -> None:
    """All of them ended once and well, each agent's one after the other."""
    rows = await tenant.rows(
        "SELECT agent_id, agent_turn_id, turn_epoch, status, started_at, ended_at FROM state.turn_outcomes"
        " WHERE project_id = $1 ORDER BY agent_id, turn_epoch",
        tenant.project,
    )
    assert len(rows) == TURNS
    assert {row["status"] for row in rows} == {"success"}
    for agent, wanted in turns.items():
        ran = [row for row in rows if row["agent_id"] == agent]
        assert [row["agent_turn_id"] for row in ran] == wanted
        assert [row["turn_epoch"] for row in ran] == list(range(1, EACH + 1))
        assert all(row["started_at"] <= row["ended_at"] for row in ran)
        assert all(before["ended_at"] <= after["started_at"] for before, after in pairwise(ran))
    assert await tenant.task_events() == {turn: 1 for of_agent in turns.values() for turn in of_agent}
    assert await tenant.count("state.agent_steps") == TURNS
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


async def run_all(tenant: Tenant, disturb: Callable[[], Awaitable[None]]) -> None:
    """Enqueue while `disturb` does its work, wait for the end, and check."""
    agents = await tenant.agents("slow", AGENTS)
    began = time.monotonic()
    turns, _ = await asyncio.gather(enqueue_all(tenant, agents), disturb())
    await tenant.all_ended([turn for of_agent in turns.values() for turn in of_agent], 60)
    log.info("%d turns ended in %.1f s", TURNS, time.monotonic() - began)
    await check(tenant, turns)


@pytest.mark.long
async def test_every_turn_ends_once(apart: Tenant) -> None:
    await run_all(apart, lambda: asyncio.sleep(0))
    [target] = apart.stack.settings.worker.worker_targets
    bell = await apart.rung(target)
    assert bell is not None
    assert bell.reason == "next_turn", "the worker's, which is no bridge: a bridge rings at its own claims"


@pytest.mark.long
@pytest.mark.parametrize("victim", ["bridge", "worker"])
async def test_every_turn_ends_once_though_a_process_is_killed(
    apart: Tenant, processes: Processes, victim: str
) -> None:
    process = processes.bridge if victim == "bridge" else processes.worker

    async def kill() -> None:
        await until(lambda: amid(apart), 60, "a fifth of the turns ended, and some run")
        await process.kill()
        assert await apart.count("state.turn_outcomes") < TURNS
        await process.start()

    await run_all(apart, kill)


async def amid(tenant: Tenant) -> bool:
    """Whether a fifth of the turns ended, and some run."""
    ended = await tenant.count("state.turn_outcomes") >= TURNS // 5
    return ended and await tenant.count("state.agent_state_head", "status = 'running'") > 0


async def test_an_enqueue_made_while_the_bridge_is_down_is_delivered(apart: Tenant, processes: Processes) -> None:
    agent = await apart.agent("plain")
    await processes.bridge.kill()
    with pytest.raises(ServerUnavailable, match="no bridge is running"):
        await apart.ask({"agent_id": agent, "instruction": "hello"})
    assert await apart.client.command("enqueue", {"agent_id": agent, "instruction": "hello"}, "while-down")
    assert await apart.count("state.agent_inbox") == 0
    await processes.bridge.start()

    async def acknowledged() -> JsonObject | None:
        acks = await apart.events("sys.bridge.enqueue_ack")
        return acks[0].payload if acks else None

    ack = await until(acknowledged, 25, "the enqueue is answered")
    assert (ack["status"], ack["request_id"]) == ("accepted", "while-down")
    ended = await apart.ended(turn_of(EnqueueReply.model_validate(ack)))
    assert ended.deliverable() == "It is done."
    assert len(await apart.events("sys.bridge.enqueue_ack")) == 1


async def test_a_worker_told_to_stop_gives_its_step_back(apart: Tenant, processes: Processes, tmp_path: Path) -> None:
    agent = await apart.agent("gated")
    turn = turn_of(await apart.enqueue(agent, str(tmp_path)))

    async def asked(attempt: int) -> bool:
        return tmp_path.joinpath(f"asked-1-{attempt}").exists()

    await until(lambda: asked(1), 25, "the model is asked")
    assert await processes.worker.stop() == 0
    assert await apart.count("state.agent_state_head", "status = 'running'") == 1
    await processes.worker.start()
    await until(lambda: asked(2), 25, "the model is asked again")
    tmp_path.joinpath("1").touch()
    tmp_path.joinpath("2").touch()
    ended = await apart.ended(turn)
    assert ended.view.status == "success"
    assert await apart.task_events() == {turn: 1}
