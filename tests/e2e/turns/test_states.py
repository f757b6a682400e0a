"""The state machine of the head, row by row of the table of protocol §3, in the stack as it runs."""

import json
from typing import Any

import pytest
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import WorkflowHandle

from tests.support.conditions import until
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.states import HeadStatus
from turnstile.workflows.options import TURN_PROJECT, TURN_STATUS, WORKER_TARGET, turn_workflow_id

pytestmark = pytest.mark.shared_stack

SLOW: JsonObject = {"text": "one two three four", "chunks": 4, "delay_seconds": 0.1}
CLOSE = definition("close", after_execution="terminate")


async def unserved(tenant: Tenant) -> Hand:
    """An agent whose worker target nobody serves: its turns stay dispatched."""
    profile = Profile(name="far", worker_target="far_away", llm_config=LlmConfig(model="scripted/player"))
    await put_profile(tenant.pool, tenant.project, profile)
    await add_agent(tenant.pool, tenant.project, AgentId("far"), "far")
    return Hand(tenant, AgentId("far"))


async def test_idle_to_dispatched_by_the_lease_of_an_enqueue(tenant: Tenant) -> None:
    hand = await unserved(tenant)
    reply = await tenant.enqueue(hand.agent)
    head = await hand.head()
    assert (head["status"], head["turn_epoch"], head["active_agent_turn_id"]) == ("dispatched", 1, reply.agent_turn_id)
    assert (head["trace_id"], head["active_recursion_depth"]) == (reply.trace_id, 0)
    assert (str(head["context_box_id"]), str(head["output_box_id"])) == (reply.context_box_id, reply.output_box_id)
    assert (reply.turn_epoch, reply.inbox_status) == (1, "pending")


async def test_dispatched_to_running_when_the_worker_enters(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.start(SLOW)
        head = await hand.until_head(status="running")
        assert (head["active_agent_turn_id"], head["turn_epoch"]) == (turn, 1)
        assert head["started_at"] is not None
        assert (await tenant.rows("SELECT status FROM state.agent_inbox WHERE agent_turn_id = $1", turn)) == [
            {"status": "consumed"}
        ]
        await hand.ended(turn)


async def test_running_to_suspended_when_the_calls_are_sent(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        head = await hand.head()
        assert (head["status"], head["turn_epoch"], head["waiting_tool_count"]) == ("suspended", 1, 2)
        assert (head["expecting_correlation_id"], head["resume_deadline"] > head["updated_at"]) == (None, True)
        assert await hand.waits(turn) == {call_of(turn): "waiting", call_of(turn, 1): "waiting"}
        for index in range(2):
            await hand.report(call_of(turn, index))
        await hand.ended(turn)
    states = [event.payload for event in await tenant.events("agent.*.state")]
    suspended = next(state["metadata"] for state in states if state["status"] == "suspended")
    assert suspended == {"activity": "awaiting_tool_result", "current_tool": "search", "waiting_tool_count": 2}


async def test_suspended_to_running_when_no_call_waits_and_none_terminates(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), SLOW)
        await hand.report(call_of(turn))
        head = await hand.until_head(status="running")
        assert (head["turn_epoch"], head["waiting_tool_count"], head["resume_deadline"]) == (1, 0, None)
        await hand.ended(turn)


async def idle(hand: Hand, epoch: int) -> None:
    """The head is idle, at this epoch, and holds nothing of a turn."""
    head = await hand.head()
    assert (head["status"], head["turn_epoch"]) == ("idle", epoch)
    assert [head[name] for name in ("active_agent_turn_id", "context_box_id", "output_box_id")] == [None] * 3
    assert (head["waiting_tool_count"], head["resume_deadline"]) == (0, None)


async def test_running_to_idle_when_the_deliverable_is_written(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        ended = await hand.ended(await hand.start({"text": "done"}))
        assert ended.deliverable() == "done"
        await idle(hand, 1)


async def test_suspended_to_idle_when_a_call_terminates(tenant: Tenant) -> None:
    async with hand_of(tenant, CLOSE) as hand:
        turn = await hand.suspended(calling("close"))
        await hand.report(call_of(turn), {"n": 1})
        assert (await hand.ended(turn)).deliverable() == {"n": 1}
        await idle(hand, 1)


async def test_the_next_queued_turn_is_leased_with_the_end_of_the_last(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        first = await hand.start(SLOW)
        queued = await tenant.enqueue(hand.agent, json.dumps({"steps": [SLOW]}))
        assert (queued.inbox_status, queued.turn_epoch) == ("queued", 0)
        await hand.ended(first)
        assert (await hand.head())["active_agent_turn_id"] == queued.agent_turn_id
        assert (await hand.ended(turn_of(queued))).view.turn_epoch == 2
    states = [event.payload for event in await tenant.events("agent.*.state")]
    assert [state["status"] for state in states if state["agent_turn_id"] == first] == ["dispatched", "running"]


async def in_status(hand: Hand, status: HeadStatus) -> AgentTurnId:
    """A turn whose head has this status for a while."""
    if status is HeadStatus.DISPATCHED:
        return turn_of(await hand.tenant.enqueue(hand.agent))
    if status is HeadStatus.SUSPENDED:
        return await hand.suspended(calling("search", "search"))
    turn = await hand.start({**SLOW, "chunks": 1000, "text": "x" * 1000})
    await hand.until_head(status="running")
    return turn


@pytest.mark.parametrize("status", [HeadStatus.DISPATCHED, HeadStatus.RUNNING, HeadStatus.SUSPENDED])
async def test_dispatched_running_and_suspended_to_idle_by_a_stop_with_a_raised_epoch(
    tenant: Tenant, status: HeadStatus
) -> None:
    async with hand_of(tenant) as served:
        hand = await unserved(tenant) if status is HeadStatus.DISPATCHED else served
        turn = await in_status(hand, status)
        await tenant.client.request("stop", {"agent_turn_id": turn})
        ended = await hand.ended(turn)
    assert (ended.view.status, ended.view.error_code, ended.view.turn_epoch) == ("canceled", "stopped", 1)
    await idle(hand, 2)
    fallback: Any = ended.deliverable()
    assert (fallback["terminal_status"], ended.cards[-1].metadata.partial) == ("canceled", True)
    unanswered = 2 if status is HeadStatus.SUSPENDED else 0
    assert [result[:2] for result in ended.results()] == [("canceled", "canceled")] * unanswered
    assert list((await hand.waits(turn)).values()) == ["dropped"] * unanswered


async def test_a_queued_turn_behind_a_stopped_one_is_leased_with_its_end(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        queued = await tenant.enqueue(hand.agent, json.dumps({"steps": [{"text": "next"}]}))
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert (await hand.ended(turn)).view.status == "canceled"
        ended = await hand.ended(turn_of(queued))
    assert (ended.deliverable(), ended.view.turn_epoch) == ("next", 2)


async def test_the_engine_shows_what_a_turn_waits_for_and_how_it_ended(tenant: Tenant) -> None:
    """As its Web UI does: test_web_ui.py looks at it in a browser."""
    [target] = tenant.stack.settings.worker.worker_targets
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        head = await hand.until_head(status="suspended")
        flow = tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn))

        async def listed() -> bool:
            found = (await flow.describe()).typed_search_attributes
            assert (found[TURN_PROJECT], found[WORKER_TARGET]) == (tenant.project, target)
            return found[TURN_STATUS] == "suspended"

        await until(listed, 25, "its search attribute says that it is suspended")
        deadline = head["resume_deadline"].isoformat(timespec="seconds")
        calls = [call_of(turn, 0), call_of(turn, 1)]
        shown = await details(flow)
        for part in (f"**{hand.agent}** in {tenant.project}", "epoch 1: suspended", "search, search", deadline, *calls):
            assert part in shown
        for call in calls:
            await hand.report(call)
        ended = await hand.ended(turn)
        await flow.result()
        assert f"card {ended.view.deliverable_card_id}" in await details(flow)
        refused = await hand.start({"error": {"code": "context_too_long", "retryable": False}})
        await hand.ended(refused)
        flow = tenant.stack.temporal.get_workflow_handle(turn_workflow_id(refused))
        assert (await flow.result())["outcome"]["error_code"] == "context_too_long"
        shown = await details(flow)
        assert "❌ failed: context_too_long" in shown
        assert "outcome" in shown
        assert "(context_too_long)" in shown


async def details(flow: WorkflowHandle[Any, Any]) -> str:
    """The details that a workflow shows now."""
    query = "__temporal_workflow_metadata"
    return (await flow.query(query, result_type=WorkflowMetadata)).current_details
