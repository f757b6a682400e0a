"""Stops while the worker dies, or is not there: the turn ends all the same, and who comes late finds it over."""

import json
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from tests.support.processes.process import Processes
from tests.support.processes.stack import QUICK
from tests.support.tenants import Ended, Tenant, turn_of
from tests.support.tools import Hand, calling, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId
from turnstile.workflows.options import turn_workflow_id

GRACE = 1.0
CONFIG = {
    **QUICK,
    "worker": {**QUICK["worker"], "activity_heartbeat_timeout_seconds": 2.0},
    "bridge": {**QUICK["bridge"], "stop_grace_seconds": GRACE},
}
# A stack that fences soon.
pytestmark = pytest.mark.stack(CONFIG)
STREAM: JsonObject = {"text": "words " * 2000, "chunks": 2000, "delay_seconds": 0.02}


async def result(tenant: Tenant, turn: AgentTurnId) -> Any:
    """What the turn's workflow returned; it did not fail."""
    handle = tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn))
    found = await handle.result()
    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
    return found


async def fenced(hand: Hand, turn: AgentTurnId) -> Ended:
    """The turn, ended by the safety net after the grace."""
    ended = await hand.ended(turn)
    assert (ended.view.status, ended.view.error_code, ended.view.turn_epoch) == ("canceled", "stopped", 1)
    [row] = await hand.inbox(turn, "stop")
    assert ended.view.ended_at is not None
    assert ended.view.ended_at - row["created_at"] >= timedelta(seconds=GRACE)
    assert row["status"] == "consumed"
    return ended


async def test_a_worker_killed_right_after_the_stop_is_fenced_and_its_clean_up_is_stale(
    apart: Tenant, processes: Processes
) -> None:
    async with hand_of(apart) as hand:
        turn = await hand.start(STREAM)
        await hand.until_head(status="running")
        queued = await apart.enqueue(hand.agent, json.dumps({"steps": [{"text": "next"}]}))
        reply = await apart.client.request("stop", {"agent_turn_id": turn})
        await processes.worker.kill()
        assert reply["status"] == "accepted"
        ended = await fenced(hand, turn)
        head = await hand.head()
        assert (head["turn_epoch"], head["active_agent_turn_id"]) == (2, queued.agent_turn_id)
        await processes.worker.start()
        following = await hand.ended(turn_of(queued))
        found = await result(apart, turn)
    assert found["outcome"] is None or found["outcome"]["error_code"] == "stopped"
    assert following.deliverable() == "next"
    assert (await hand.ended(turn)).cards == ended.cards
    assert await apart.task_events() == {turn: 1, turn_of(queued): 1}


@pytest.mark.long
async def test_a_sleeping_turn_whose_worker_is_dead_is_fenced(apart: Tenant, processes: Processes) -> None:
    async with hand_of(apart) as hand:
        turn = await hand.suspended(calling("search"))
        await processes.worker.kill()
        await apart.client.request("stop", {"agent_turn_id": turn})
        ended = await fenced(hand, turn)
        assert [r[:2] for r in ended.results()] == [("canceled", "canceled")]
        await processes.worker.start()
        await result(apart, turn)
    assert (await hand.ended(turn)).cards == ended.cards
    assert await apart.task_events() == {turn: 1}


async def test_a_dispatched_turn_without_a_worker_ends_at_once_and_a_worker_that_comes_finds_it_over(
    apart: Tenant, processes: Processes
) -> None:
    await processes.worker.kill()
    async with hand_of(apart) as hand:
        turn = await hand.start()
        await hand.until_head(status="dispatched")
        reply = await apart.client.request("stop", {"agent_turn_id": turn})
        ended = await hand.ended(turn)
        again = await apart.client.request("stop", {"agent_turn_id": turn})
        assert (reply["status"], reply["already_final"], again["already_final"]) == ("accepted", False, True)
        assert (ended.view.error_code, ended.types(), ended.steps) == ("stopped", ["task.deliverable"], [])
        await processes.worker.start()
        assert (await hand.ended(await hand.start({"text": "next"}))).deliverable() == "next"
    assert (await hand.ended(turn)).cards == ended.cards
    assert (await apart.task_events())[turn] == 1
