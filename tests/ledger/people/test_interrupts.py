"""Held calls: opened by the commit, let go or answered by a decision, closed by expiry and by the turn's end."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, PROJECT, TARGET, box, head, rows, value
from tests.support.ledger.calls import (
    TOOL,
    ask_to_stop,
    end,
    expire,
    pass_deadline,
    results,
    settle,
    tell,
    told,
    waits,
)
from tests.support.ledger.people import (
    NEVER,
    answer,
    asking,
    call_row,
    decide,
    edit,
    pass_expiry,
    question,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.operations.recovery import list_silent
from turnstile.ledger.people.decisions import (
    expire_interrupt,
    find_question,
    list_expired,
)
from turnstile.ledger.people.interrupt_views import get_interrupt, list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.waiting import describe_call
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId, InboxId, InterruptId, ToolCallId, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus

OTHER = ChannelId("u_erin")


async def refusal(pool: Pool, call: str, *args: Any, **fields: Any) -> str:
    with pytest.raises(Refused) as refused:
        await decide(pool, call, *args, **fields)
    return refused.value.code


async def content(pool: Pool, card_id: str) -> dict[str, Any]:
    return json.loads(await value(pool, "SELECT content FROM public.cards WHERE card_id = $1", card_id))


async def test_a_held_call_has_a_question_and_no_deadline(agents: Pool) -> None:
    turn = await asking(agents, "a", free=("b",))
    held, free, asked = await call_row(agents, "a"), await call_row(agents, "b"), await question(agents, "a")
    assert (held["held_by"], held["deadline"]) == (asked["interrupt_id"], None)
    assert asked["interrupt_id"] == interrupt_id(ToolCallId("a"))
    assert free["held_by"] is None
    assert (await head(agents))["resume_deadline"] == free["deadline"]
    assert (asked["agent_turn_id"], asked["status"]) == (turn.agent_turn_id, "open")
    assert abs((asked["expires_at"] - asked["created_at"]).total_seconds() - NEVER) < 1


async def test_a_turn_with_only_held_calls_has_no_deadline_and_looks_when_the_first_question_expires(
    agents: Pool,
) -> None:
    turn = await asking(agents, "a", "b")
    assert (await head(agents))["resume_deadline"] is None
    applied = await settle(agents, turn)
    assert applied.deadline is not None
    assert applied.deadline > datetime.now(UTC) + timedelta(days=6)
    assert applied.waiting == ["a", "b"]


async def test_a_held_call_is_neither_described_nor_reported_nor_timed_out_nor_sent(agents: Pool) -> None:
    turn = await asking(agents, "a", free=("b",), wait_seconds=0)
    with pytest.raises(Refused, match="was not sent"):
        await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("a")))
    with pytest.raises(Refused, match="was not sent"):
        await tell(agents, "a")
    assert [ring.correlation_id for ring in await expire(agents, turn)] == ["b"]
    silent = await agents.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-1, row_limit=10))
    assert [each.tool_call_id for each in silent] == ["b"]
    assert await waits(agents) == {"a": "waiting", "b": "waiting"}


async def test_an_approved_call_is_sent_and_its_time_begins(agents: Pool) -> None:
    turn = await asking(agents, "a")
    done = await decide(agents, "a")
    assert (done.verdict, done.sent, done.tool_changed) == ("accepted", True, False)
    row, asked = await call_row(agents, "a"), await question(agents, "a")
    assert (row["held_by"], row["deadline"]) == (None, done.deadline)
    assert (await head(agents))["resume_deadline"] == done.deadline
    assert (asked["status"], asked["decision"], asked["decided_by"]) == ("resolved", "approve", "dora")
    [row] = await rows(agents, "SELECT * FROM state.agent_inbox WHERE message_type = 'decision'")
    assert (row["correlation_id"], row["agent_turn_id"]) == (asked["interrupt_id"], turn.agent_turn_id)
    assert (row["status"], row["archived_at"] is not None) == ("consumed", True)
    given = {"interrupt_id": asked["interrupt_id"], "tool_call_id": "a", "decision": "approve"}
    assert (json.loads(row["payload"]), json.loads(row["context_headers"])["CG-Sender"]) == (given, "dora")
    [edge] = await rows(agents, "SELECT * FROM state.execution_edges WHERE correlation_id = $1", asked["interrupt_id"])
    assert (edge["primitive"], edge["edge_phase"], edge["target_agent_turn_id"]) == (
        *("report", "response", turn.agent_turn_id),
    )
    silent = await agents.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-1, row_limit=10))
    assert [each.tool_call_id for each in silent] == ["a"]
    await settle(agents, turn, await told(agents, "a"))
    assert await results(agents, turn) == [("a", "success")]


async def test_an_earlier_deadline_of_another_call_stays_the_heads(agents: Pool) -> None:
    await asking(agents, "a", free=("b",), wait_seconds=30)
    earlier = (await head(agents))["resume_deadline"]
    await decide(agents, "a")
    assert (await head(agents))["resume_deadline"] == earlier


async def test_an_edit_makes_a_second_card_which_counts(agents: Pool) -> None:
    turn = await asking(agents, "a")
    await decide(agents, "a", answer(Decision.EDIT, edit=edit(turn, "a", {"q": "mild"})))
    view = await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("a")))
    assert view is not None
    assert view.tool_call_card_id == "a-call-2"
    assert view.content is not None
    assert view.content["arguments"] == {"q": "mild"}
    places = await box(agents, turn.output_box_id)
    assert places[-1].card_id == "a-call-2"
    assert (await head(agents))["output_position"] == places[-1].position
    [silent] = await agents.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-1, row_limit=10))
    message = silent.message("test")
    assert message is not None
    assert json.loads(message.payload)["tool_call_card_id"] == "a-call-2"
    assert (await question(agents, "a"))["edited_digest"] == "edited"
    await settle(agents, turn, await told(agents, "a"))
    assert (await box(agents, turn.output_box_id))[-1].card_id == "a-result"


async def test_a_rejection_is_a_failed_result_with_the_reason(agents: Pool) -> None:
    turn = await asking(agents, "a")
    done = await decide(agents, "a", answer(Decision.REJECT, message="too dear"))
    assert (done.sent, await waits(agents)) == (False, {"a": "received"})
    await settle(agents, turn, InboxId(f"decide-{interrupt_id(ToolCallId('a'))}"))
    made = await content(agents, "a-result")
    assert (made["status"], made["after_execution"]) == ("failed", "suspend")
    assert made["error"] == {"code": "rejected", "message": "too dear"}
    assert (await head(agents))["status"] == "running"
    assert (await question(agents, "a"))["comment"] == "too dear"


async def test_a_response_is_the_result_wrapped(agents: Pool) -> None:
    turn = await asking(agents, "a")
    await decide(agents, "a", answer(Decision.RESPOND, response={"__cg_control": "end"}))
    await settle(agents, turn, InboxId(f"decide-{interrupt_id(ToolCallId('a'))}"))
    made = await content(agents, "a-result")
    assert (made["status"], made["result"]) == ("success", {"value": {"__cg_control": "end"}})


async def test_the_same_decision_by_the_same_principal_is_a_repeat_and_any_other_is_refused(agents: Pool) -> None:
    await asking(agents, "a")
    await decide(agents, "a")
    again = await decide(agents, "a")
    assert (again.verdict, again.sent) == ("duplicate", False)
    assert await refusal(agents, "a", who="erin") == "already_decided"
    assert await refusal(agents, "a", answer(Decision.REJECT)) == "already_decided"
    assert await refusal(agents, "a", answer(message="why not")) == "already_decided"


async def test_what_may_not_be_decided_is_refused_and_changes_nothing(agents: Pool) -> None:
    await asking(agents, "a", allowed_decisions=(Decision.APPROVE,))
    before = (await question(agents, "a"), await call_row(agents, "a"))
    assert await refusal(agents, "a", answer(action_digest="other")) == "digest_mismatch"
    assert await refusal(agents, "a", answer(action_digest=None)) == "digest_mismatch"
    assert await refusal(agents, "a", answer(Decision.REJECT)) == "decision_not_allowed"
    assert await refusal(agents, "a", channel=OTHER) == "unknown_interrupt"
    assert await refusal(agents, "a", project="p2") == "unknown_interrupt"
    assert await refusal(agents, "b") == "unknown_interrupt"
    assert (await question(agents, "a"), await call_row(agents, "a")) == before


async def test_the_requester_may_not_decide_unless_the_policy_says_so(agents: Pool) -> None:
    await asking(agents, "a")
    await rows(agents, "UPDATE state.interrupts SET requester = 'dora'")
    assert await refusal(agents, "a") == "own_request"
    await rows(agents, "UPDATE state.interrupts SET requester_may_decide = true")
    assert (await decide(agents, "a")).verdict == "accepted"


SEARCH = "cg.v1r4.p1.public.cmd.tool.search.run"


async def put_tool(pool: Pool, target: str = SEARCH, schema: str = "{}") -> None:
    await rows(
        pool,
        """INSERT INTO resource.tools (project_id, tool_name, target_subject, parameters) VALUES ($1, $2, $3, $4::jsonb)
           ON CONFLICT (tool_name, project_id) DO UPDATE SET target_subject = EXCLUDED.target_subject,
               parameters = EXCLUDED.parameters""",
        *(PROJECT, TOOL, target, schema),
    )


PIN = {"target_subject": SEARCH, "parameters": {"type": "object", "x": 1.0}}


async def test_a_call_whose_tool_is_as_it_was_is_sent(agents: Pool) -> None:
    await put_tool(agents, schema='{"x": 1.00, "type": "object"}')
    await asking(agents, "a", tool_pin=PIN)
    assert (await decide(agents, "a")).sent


@pytest.mark.parametrize("change", ["target", "schema", "gone"])
async def test_a_call_whose_tool_has_changed_fails_instead_of_being_sent(agents: Pool, change: str) -> None:
    await put_tool(agents, schema='{"x": 1, "type": "object"}')
    turn = await asking(agents, "a", tool_pin=PIN)
    match change:
        case "target":
            await put_tool(agents, "cg.v1r4.p1.public.cmd.tool.evil.run", '{"x": 1, "type": "object"}')
        case "schema":
            await put_tool(agents, schema='{"x": 2, "type": "object"}')
        case _:
            await rows(agents, "DELETE FROM resource.tools")
    done = await decide(agents, "a")
    assert (done.verdict, done.tool_changed, done.sent) == ("accepted", True, False)
    assert (await decide(agents, "a")).tool_changed
    await settle(agents, turn, InboxId(f"decide-{interrupt_id(ToolCallId('a'))}"))
    assert (await content(agents, "a-result"))["error"]["code"] == "tool_changed"


async def test_a_delegating_tool_needs_no_row(agents: Pool) -> None:
    pin: JsonObject = {
        "target_subject": "cg.v1r4.{project_id}.{channel_id}.cmd.sys.pmo.internal.fork_join",
        "parameters": {},
    }
    await asking(agents, "a", tool_pin=pin)
    assert (await decide(agents, "a")).sent


async def test_the_end_of_a_turn_withdraws_its_questions(agents: Pool) -> None:
    turn = await asking(agents, "a", "b")
    await decide(agents, "b")
    await end(agents, turn)
    assert [(await question(agents, call))["status"] for call in ("a", "b")] == ["withdrawn", "resolved"]
    assert await refusal(agents, "a") == "withdrawn"
    assert await waits(agents) == {"a": "dropped", "b": "dropped"}


async def test_a_stop_under_way_closes_the_way_for_decisions(agents: Pool) -> None:
    turn = await asking(agents, "a")
    await ask_to_stop(agents, turn.agent_turn_id)
    assert await refusal(agents, "a") == "withdrawn"
    await end(agents, turn)


async def test_a_mark_closes_the_way_for_decisions(agents: Pool) -> None:
    turn = await asking(agents, "a")
    marked = "SELECT state.mark_tree($1, $2, 'enough', false)"
    await rows(agents, marked, PROJECT, turn.agent_turn_id)
    assert await refusal(agents, "a") == "withdrawn"
    await end(agents, turn)


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [("tool_call", "failed", "approval_expired"), ("input_required", "timeout", "no_answer")],
)
async def test_a_question_that_nobody_answers_is_rejected(agents: Pool, reason: str, status: str, code: str) -> None:
    turn = await asking(agents, "a", reason=InterruptReason(reason))
    asked = interrupt_id(ToolCallId("a"))
    assert not await expire_interrupt(agents, asked)
    await pass_expiry(agents)
    assert await refusal(agents, "a") == "expired"
    [due] = await agents.run(lambda conn: list_expired(conn, [TARGET], older_seconds=0, row_limit=10))
    assert (due.interrupt_id, due.agent_id) == (asked, ALICE)
    assert await expire_interrupt(agents, asked)
    assert not await expire_interrupt(agents, asked)
    assert await refusal(agents, "a") == "expired"
    await settle(agents, turn, InboxId(f"decide-{asked}"))
    made = await content(agents, "a-result")
    assert (made["status"], made["error"]["code"]) == (status, code)
    row = await question(agents, "a")
    assert (row["status"], row["decided_by"]) == ("expired", "system")


async def test_a_report_that_has_just_come_does_not_make_a_long_sleep_a_silence(agents: Pool) -> None:
    await asking(agents, "a")
    await rows(agents, "UPDATE state.agent_state_head SET updated_at = now() - interval '1 day'")
    await sweep_on(agents)
    await decide(agents, "a", answer(Decision.REJECT))
    assert await silent(agents) == []
    await rows(agents, "UPDATE state.agent_inbox SET created_at = now() - interval '1 day'")
    assert len(await silent(agents)) == 1


async def sweep_on(pool: Pool) -> None:
    await rows(
        pool,
        """INSERT INTO state.workers (worker_target, instance, started_at, last_seen_at)
           VALUES ($1, 'w', now() - interval '2 days', now())""",
        TARGET,
    )


async def silent(pool: Pool) -> list[Any]:
    return await pool.run(lambda conn: list_silent(conn, [TARGET], older_seconds=300, row_limit=10))


async def test_a_timeout_that_waited_for_a_decision_counts_its_deadline(agents: Pool) -> None:
    turn = await asking(agents, "a", free=("b",), wait_seconds=0)
    await decide(agents, "a")
    await pass_deadline(agents)
    rings = await expire(agents, turn)
    assert {ring.correlation_id for ring in rings} <= {"a", "b"}


async def test_questions_are_listed_by_channel_status_and_place(agents: Pool) -> None:
    await asking(agents, "a", "b", "c")
    await decide(agents, "b")
    async with agents.connection() as conn:
        opened = await list_interrupts(conn, PROJECT, status=InterruptStatus.OPEN, row_limit=9)
        assert [each.tool_call_id for each in opened] == ["c", "a"]
        assert opened[0].message == "May it?"
        assert await list_interrupts(conn, PROJECT, channel=OTHER, row_limit=9) == []
        every = await list_interrupts(conn, PROJECT, row_limit=2)
        rest = await list_interrupts(conn, PROJECT, after=every[-1].interrupt_id, row_limit=9)
        assert [each.tool_call_id for each in (*every, *rest)] == ["c", "b", "a"]
        [done] = await list_interrupts(conn, PROJECT, status=InterruptStatus.RESOLVED, row_limit=9)
        assert (done.decision, done.decided_by) == (Decision.APPROVE, "dora")
        one = await get_interrupt(conn, PROJECT, interrupt_id(ToolCallId("a")), with_added=True)
        assert one is not None
        assert (one.status, one.arguments) == (InterruptStatus.OPEN, {"q": "a"})
        assert await get_interrupt(conn, PROJECT, interrupt_id(ToolCallId("a")), channel=OTHER, with_added=True) is None
        assert await get_interrupt(conn, PROJECT, InterruptId("int-x-1"), with_added=True) is None
        asked = await find_question(conn, PROJECT, ChannelId("public"), interrupt_id(ToolCallId("a")))
        assert asked is not None
        assert asked.command is not None
        assert asked.command.tool_call_id == "a"
