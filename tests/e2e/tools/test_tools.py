"""A turn that calls tools, from its command to the answer that wakes it (protocol §6 report, §7.5)."""

import asyncio
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from tests.support.conditions import until
from tests.support.ledger.calls import TOOL, result_card, write_card, written_report
from tests.support.tenants import CHANNEL, Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of, heard_by_model
from turnstile.schema.ids import AgentTurnId, ToolCallId
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import ReportReply

THREE = calling("look", "find", "read", text="Three at once.")
TOOLS = [definition(name) for name in ("look", "find", "read")]


async def is_applied(hand: Hand, turn: AgentTurnId, call: ToolCallId) -> bool:
    return (await hand.waits(turn))[call] == "applied"


async def test_three_parallel_calls_answered_late_doubled_and_in_reverse_order_end_right(tenant: Tenant) -> None:
    async with hand_of(tenant, *TOOLS) as hand:
        turn = await hand.start(THREE)
        await hand.heard(3)
        calls = [call_of(turn, index) for index in range(3)]
        replies: list[ReportReply] = []
        for call in reversed(calls):
            replies += [await hand.report(call, f"first {call}") for _ in range(2)]
            await until(partial(is_applied, hand, turn, call), 25, f"{call} is applied")
        again = [await hand.report(call, f"again {call}") for call in calls]
        ended = await hand.ended(turn)
        late = await hand.report(calls[0], "after the end")
    assert [reply.duplicate for reply in replies] == [False, True] * 3
    assert all(reply.duplicate for reply in [*again, late])
    assert ended.view.status == "success"
    assert ended.types() == [
        "agent.thought",
        *["tool.call"] * 3,
        *["tool.result"] * 3,
        "agent.thought",
        "task.deliverable",
    ]
    results = [card for card in ended.cards if card.type == "tool.result"]
    assert [card.tool_call_id for card in results] == calls[::-1]  # in the order of time
    heard = [{"status": "success", "result": f"first {call}"} for call in calls]
    assert heard_by_model(ended) == heard  # in the order of the calls
    assert await hand.waits(turn) == dict.fromkeys(calls, "applied")
    assert Counter(command.call for command in hand.commands) == dict.fromkeys(calls, 1)
    edges = await tenant.rows(
        "SELECT primitive || '/' || edge_phase AS kind, correlation_id FROM state.execution_edges"
        " WHERE project_id = $1 AND primitive <> 'enqueue' ORDER BY 1, 2",
        tenant.project,
    )
    kinds = ("report/response", "tool_call/request")
    assert [(row["kind"], row["correlation_id"]) for row in edges] == [(k, c) for k in kinds for c in sorted(calls)]
    assert await tenant.task_events() == {turn: 1}


async def test_a_command_has_exactly_its_payload_subject_and_headers(tenant: Tenant) -> None:
    trace = headers.new_traceparent()
    told = {headers.TRACEPARENT: trace, headers.TRACESTATE: "a=b", headers.DEPTH: "2", headers.PARENT_STEP_ID: "s-0"}
    async with hand_of(tenant, definition("look", after_execution="terminate")) as hand:
        steps = json.dumps({"steps": [calling("look")]})
        reply = await tenant.ask({"agent_id": hand.agent, "instruction": steps}, headers=told)
        [command] = await hand.heard()
        turn = turn_of(reply)
        call = call_of(turn)
        await hand.report(call)
        ended = await hand.ended(turn)
    assert command.subject == f"cg.v1r4.{tenant.project}.{CHANNEL}.cmd.tool.look.run"
    assert command.payload == {
        "tool_call_card_id": f"{call}-call",
        "tool_name": "look",
        "after_execution": "terminate",
    }
    [card] = [card for card in ended.cards if card.type == "tool.call"]
    assert (card.card_id, card.tool_call_id) == (command.payload["tool_call_card_id"], call)
    sent = dict(command.headers)
    assert headers.trace_id(sent.pop(headers.TRACEPARENT)) == headers.trace_id(trace)
    assert sent.pop(headers.TIMESTAMP).isdigit()
    assert sent == {
        headers.TRACESTATE: "a=b",
        headers.DEPTH: "2",
        headers.PROJECT_ID: tenant.project,
        headers.CHANNEL_ID: CHANNEL,
        headers.AGENT_ID: hand.agent,
        headers.TURN_ID: turn,
        headers.TURN_EPOCH: "1",
        headers.STEP_ID: f"{turn}-s1",
        headers.TOOL_CALL_ID: call,
        headers.PARENT_STEP_ID: "s-0",
        headers.CONVERSATION_ID: reply.output_box_id,
        headers.VERSION: "v1r4",
        headers.MSG_TYPE: "tool_call",
        headers.SENDER: "turnstile.worker",
        headers.MSG_ID: f"tool-{call}",
    }
    [edge] = await tenant.rows("SELECT * FROM state.execution_edges WHERE edge_id = $1", f"tool-call-{call}")
    assert (edge["recursion_depth"], edge["trace_id"]) == (2, headers.trace_id(trace))


async def test_a_partial_set_stays_suspended_and_is_applied(tenant: Tenant) -> None:
    async with hand_of(tenant, *TOOLS) as hand:
        turn = await hand.suspended(THREE)
        first, second, third = (call_of(turn, index) for index in range(3))
        await hand.report(second)
        head = await hand.until_head(waiting_tool_count=2)
        assert head["status"] == "suspended"
        assert head["resume_deadline"] is not None
        assert await hand.waits(turn) == {first: "waiting", second: "applied", third: "waiting"}
        assert await hand.settled(second) == ("consumed", None)
        await hand.report(third)
        await hand.until_head(waiting_tool_count=1, status="suspended")
        await hand.report(first)
        ended = await hand.ended(turn)
    assert len(ended.steps) == 2
    assert [card.tool_call_id for card in ended.cards if card.type == "tool.result"] == [second, third, first]


async def test_all_that_is_due_at_one_wake_up_is_one_batch(tenant: Tenant) -> None:
    """Reports that no doorbell announced: the safety net finds them together, and they wake the turn once."""
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL, TOOL, TOOL))
        ref = await hand.ref(turn)
        calls = [call_of(turn, index) for index in range(3)]
        later = datetime.now(UTC) + timedelta(hours=1)
        for call in reversed(calls):
            card = await write_card(tenant.pool, result_card(ref, call), tenant.project)
            await written_report(tenant.pool, ref, call, card, next_retry_at=later)
        await tenant.rows("UPDATE state.agent_inbox SET next_retry_at = now() WHERE next_retry_at = $1", later)
        ended = await hand.ended(turn)
        activities = await tenant.stack.activities(turn)
    assert [card.tool_call_id for card in ended.cards if card.type == "tool.result"] == calls[::-1]
    assert activities == ["run_step", "run_step"], "nothing was applied by halves"


async def test_a_report_points_to_a_card(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL))
        call = call_of(turn)
        card = await write_card(tenant.pool, result_card(await hand.ref(turn), call), tenant.project)
        await hand.report(call, tool_result_card_id=card)
        ended = await hand.ended(turn)
    assert [c.card_id for c in ended.cards if c.type == "tool.result"] == [card]
    assert heard_by_model(ended) == [{"status": "success", "result": "by card"}]


async def test_a_failed_report_is_what_the_model_hears(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        await hand.report(call_of(turn), status="failed", error={"code": "no_disk", "message": "the disk is full"})
        await hand.report(call_of(turn, 1), None, status="canceled")
        ended = await hand.ended(turn)
    assert ended.results() == [
        ("failed", "no_disk", "the disk is full"),
        ("canceled", "tool_canceled", "the tool gave no reason"),
    ]
    heard, _ = heard_by_model(ended)
    assert heard == {"status": "failed", "error": {"code": "no_disk", "message": "the disk is full"}}


async def test_a_report_written_by_sql_is_applied(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL))
        ref, call = await hand.ref(turn), call_of(turn)
        card = await write_card(tenant.pool, result_card(ref, call), tenant.project)
        await written_report(tenant.pool, ref, call, card)
        ended = await hand.ended(turn)
    assert heard_by_model(ended) == [{"status": "success", "result": "by card"}]
    assert await hand.settled(call) == ("consumed", None)
    assert await hand.waits(turn) == {call: "applied"}


async def deferred(hand: Hand, call: str, retries: int) -> dict[str, Any]:
    """The row of a report whose card is not there, once it was deferred so often."""

    async def there() -> dict[str, Any] | None:
        [row] = await hand.inbox(call)
        return row if (row["status"], row["retry_count"]) == ("deferred", retries) else None

    return await until(there, 25, f"the report is deferred {retries} times")


async def hurry(tenant: Tenant) -> None:
    """What is deferred is due now."""
    await tenant.rows("UPDATE state.agent_inbox SET next_retry_at = now() WHERE status = 'deferred'")


async def test_a_card_that_becomes_visible_late_is_applied_then(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL))
        ref, call = await hand.ref(turn), call_of(turn)
        made = result_card(ref, call)
        await written_report(tenant.pool, ref, call, made.card_id)
        row = await deferred(hand, call, 1)
        assert (row["defer_reason"], row["last_error"]) == ("card_not_visible", "card_not_visible")
        assert await hand.waits(turn) == {call: "waiting"}
        await write_card(tenant.pool, made, tenant.project)
        await hurry(tenant)
        ended = await hand.ended(turn)
    assert heard_by_model(ended) == [{"status": "success", "result": "by card"}]
    assert (len(ended.steps), await hand.settled(call)) == (2, ("consumed", None))


async def test_a_card_that_never_appears_exhausts_its_retries_and_fails_the_call(tenant: Tenant) -> None:
    async with hand_of(tenant, definition(TOOL)) as hand:
        turn = await hand.suspended(calling(TOOL, TOOL))
        ref, call = await hand.ref(turn), call_of(turn)
        await hand.report(call_of(turn, 1), "the other")
        await written_report(tenant.pool, ref, call, "card-of-nobody")
        delays: list[float] = []
        for retries in (1, 2, 3):
            row = await deferred(hand, call, retries)
            [age] = await tenant.rows(
                "SELECT next_retry_at - now() AS left FROM state.agent_inbox WHERE inbox_id = $1", row["inbox_id"]
            )
            delays.append(age["left"] / timedelta(seconds=1))
            await hurry(tenant)
        ended = await hand.ended(turn)
    assert all(most / 2 < delay <= most for delay, most in zip(delays, (1.5, 3, 6), strict=True)), delays
    assert await hand.settled(call) == ("error", "resume_retry_exhausted")
    exhausted, other = heard_by_model(ended)
    assert (exhausted["status"], exhausted["error"]["code"]) == ("failed", "resume_retry_exhausted")
    assert other == {"status": "success", "result": "the other"}


async def test_a_suspended_turn_holds_no_database_connection(tenant: Tenant) -> None:
    """More turns sleep at once than the pools have connections, and the agents of others go on."""
    size = tenant.stack.settings.worker.database_pool_size + tenant.stack.settings.bridge.database_pool_size
    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", size + 3, allowed_tools=["search"])
        turns = await asyncio.gather(*(Hand(tenant, agent, hand.commands).start(calling("search")) for agent in agents))
        await hand.heard(len(turns))
        assert await tenant.count("state.agent_state_head", "status = 'suspended'") == len(turns)

        async def none_open() -> bool:
            [row] = await tenant.rows(
                "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND (state = 'active' OR xact_start IS NOT NULL)"
            )
            return row["n"] == 0

        await until(none_open, 25, "no connection is in use")
        other = await hand.start()
        assert (await hand.ended(other)).view.status == "success"
        await asyncio.gather(*(hand.report(call_of(turn)) for turn in turns))
        await tenant.all_ended([*turns, other], 20)
