"""Conversations whose processes die: turns remember, and a memory is compacted once, with one summary.

A bridge that is killed after each commit of an enqueue for which others make way: a repeat gets the same reply, the
others end and are announced once, and the new turn runs.
"""

import asyncio
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes
from tests.support.tenants import ALICE, Tenant, turn_of
from turnstile.runtime.faults import Fault
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.inbox import EnqueueReply

pytestmark = pytest.mark.stack(HASTY)

POINTS = (Fault.STEP_BEGUN, Fault.SUMMARY_ANSWERED, Fault.MEMORY_CUT, Fault.STEP_PUBLISHED)
MEMORY = {"max_context_tokens": 60, "keep_last_turns": 1, "when_full": "summarize", "summary_model": "scripted/plain"}
FULL = 3
"""So many turns fit; the next one cuts."""
TEN_WORDS = "one two three four five six seven eight nine ten"


async def asked(tenant: Tenant, conversation: str) -> AgentTurnId:
    """The next turn of a conversation with an instance of `crew`."""
    wanted = {"profile_name": "crew", "conversation_id": conversation, "instruction": TEN_WORDS}
    return turn_of(await tenant.ask({**wanted}, timeout=30))


@pytest.mark.parametrize(
    "points",
    [pytest.param((Fault.MEMORY_CUT,), id="cut"), pytest.param(POINTS, id="every-point", marks=pytest.mark.long)],
)
async def test_a_memory_is_cut_once_wherever_the_worker_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: Sequence[Fault]
) -> None:
    await apart.profile("crew", "echo", instances=True, memory=MEMORY)
    turns = [await asked(apart, point.name) for _ in range(FULL) for point in points]
    await apart.all_ended(turns, timeout=60)
    for point in points:
        await processes.worker.stop()
        processes.worker.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await processes.worker.start()
        turn = await asked(apart, point.name)
        assert await processes.worker.died() == -signal.SIGKILL
        assert (tmp_path / point).exists()
        processes.worker.env = {}
        await processes.worker.start()
        ended = await apart.ended(turn, timeout=60)
        assert (ended.view.status, ended.deliverable()) == ("success", f"You said: {TEN_WORDS}"), point
        assert ended.types() == [
            *("memory.summary", "memory.cut", "task.instruction", "agent.thought", "task.deliverable")
        ], point
        assert len(ended.steps) == 2
    assert await apart.count("state.agent_steps", "metadata ? 'compaction'") == len(points)
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.long
async def test_two_turns_remember_though_everything_was_killed_in_between(
    apart: Tenant, processes: Processes, tmp_path: Path
) -> None:
    await apart.profile("crew", "chat", instances=True)
    asked: JsonObject = {"profile_name": "crew", "instruction": "one", "conversation_id": "c1", "correlation_id": "k1"}
    first = await apart.ended(turn_of(await apart.ask(asked)))
    await asyncio.gather(processes.worker.kill(), processes.bridge.kill())
    processes.bridge.env = {
        "TURNSTILE_FAULTS": f"{Fault.ENQUEUE_COMMITTED}=kill",
        "TURNSTILE_FAULTS_DIR": str(tmp_path),
    }
    await processes.ensure()
    asked |= {"instruction": "two", "correlation_id": "k2"}
    with pytest.raises(ServerUnavailable):
        await apart.ask(asked, timeout=5)
    await processes.bridge.died()
    await processes.ensure()
    again = await apart.ask(asked)
    assert again.duplicate
    ended = await apart.ended(turn_of(again))
    assert ended.deliverable() == "You said: two (before that: one)"
    assert ended.view.output_box_id == first.view.output_box_id
    assert await apart.rows("SELECT turn_count FROM state.conversations WHERE project_id = $1", apart.project) == [
        {"turn_count": 2}
    ]
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


WAY_POINTS = (Fault.ENQUEUE_COMMITTED, Fault.WAY_MADE, Fault.WAY_PUBLISHED)
ME = Caller("me")
STREAM: JsonObject = {"text": "All of this was said before. " * 20, "chunks": 200, "delay_seconds": 0.1}


async def request(tenant: Tenant, conversation: str, step: JsonObject, **fields: str) -> EnqueueReply:
    """Enqueue for `me`, which must be accepted."""
    asked: JsonObject = {"agent_id": ALICE, "conversation_id": conversation, **fields}
    asked["instruction"] = json.dumps({"steps": [step]})
    reply = EnqueueReply.model_validate(await tenant.client.request("enqueue", asked, caller=ME, timeout=30))
    assert reply.error_code is None, reply
    return reply


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((Fault.ENQUEUE_COMMITTED,), id="committed"),
        pytest.param(WAY_POINTS, id="every-point", marks=pytest.mark.long),
    ],
)
async def test_what_makes_way_ends_once_wherever_the_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path, points: Sequence[Fault]
) -> None:
    await apart.agent("talks")
    bridge = processes.bridge
    for point in points:
        struck = tmp_path / point
        struck.mkdir()
        turn = turn_of(await request(apart, point.replace(".", "-"), STREAM))

        async def running() -> bool:
            return await apart.count("state.agent_state_head", "status = 'running'") == 1

        await until(running, 60, "the first turn runs")
        queued = turn_of(await request(apart, point.replace(".", "-"), STREAM))
        await bridge.stop()
        bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
        await bridge.start()
        asked = {"multitask_strategy": "rollback", "correlation_id": point}
        first = asyncio.create_task(request(apart, point.replace(".", "-"), {"text": "now"}, **asked))
        assert await bridge.died() == -signal.SIGKILL
        first.cancel()
        bridge.env = {}
        await bridge.start()
        reply = await request(apart, point.replace(".", "-"), {"text": "now"}, **asked)
        assert (reply.duplicate, set(reply.stopped)) == (True, {turn, queued})
        assert (await apart.ended(turn_of(reply), timeout=60)).deliverable() == "now"
        for each in (turn, queued):
            ended = await apart.ended(each, timeout=60)
            assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
            assert ended.view.stats is not None
            assert ended.view.stats["rolled_back_by"] == reply.agent_turn_id
    assert set((await apart.task_events()).values()) == {1}
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
