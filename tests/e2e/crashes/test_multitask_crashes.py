"""A bridge that is killed after each commit of an enqueue for which others make way: a repeat is answered the same, the
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
from turnstile.schema.wire.inbox import EnqueueReply

pytestmark = pytest.mark.stack(HASTY)

POINTS = (Fault.ENQUEUE_COMMITTED, Fault.WAY_MADE, Fault.WAY_PUBLISHED)
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
        pytest.param(POINTS, id="every-point", marks=pytest.mark.long),
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
