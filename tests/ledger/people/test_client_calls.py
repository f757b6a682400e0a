"""Calls that the requester of their turn runs: who may answer them, how often, until when, and what follows (§19)."""

import json
from typing import Any, Literal

import pytest

from tests.support.ledger.agents import BOB, PROJECT, TARGET, begin, head, rows, value
from tests.support.ledger.calls import ask_to_stop, end, expire, settle, stop_on, tell, told, waits
from tests.support.ledger.people import (
    REJECT,
    RESPOND,
    answer,
    asking,
    call_row,
    decide,
    decide_on,
    pass_expiry,
    question,
)
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.operations import sweep
from turnstile.ledger.people.decisions import DecisionRecord, expire_interrupt, list_expired
from turnstile.ledger.people.interrupt_views import count_open_interrupts, list_client_calls, list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.rules.holds import client_hold
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InboxId, ToolCallId, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus
from turnstile.schema.states import HeadStatus
from turnstile.schema.turns import TurnRef

OWNER = "root"
ASKED = interrupt_id(ToolCallId("a"))
ROW = "INSERT INTO resource.tools (tool_name, project_id, after_execution) VALUES ('search', $1, 'terminate')"


async def held(pool: Pool, *calls: str, if_gone: Literal["timeout", "cancel"] = "timeout", **fields: Any) -> TurnRef:
    """A turn of the owner's that waits for its client about these calls."""
    hold = client_hold("search", fields.pop("seconds", 600.0), if_gone)
    return await asking(pool, *(calls or ("a",)), requester=OWNER, held=hold, wait_seconds=600.0, **fields)


async def code_of(pool: Pool, given: DecisionRecord = RESPOND, *, who: str = OWNER, **fields: Any) -> str:
    """`accepted`, or what the answer to the call is instead."""
    try:
        return (await decide(pool, "a", given, who=who, **fields)).verdict
    except Refused as refused:
        return refused.code


async def result(pool: Pool, call: str = "a") -> dict[str, Any]:
    """The content of the call's result."""
    return json.loads(await value(pool, "SELECT content FROM public.cards WHERE card_id = $1", f"{call}-result"))


async def test_the_requester_alone_answers_and_the_first_answer_counts(agents: Pool) -> None:
    await rows(agents, ROW, PROJECT)
    turn = await held(agents)
    assert [await code_of(agents, who="dora"), await code_of(agents, who="dora", operates=True)] == ["not_yours"] * 2
    assert await code_of(agents, REJECT, who="dora") == "not_yours"
    assert await code_of(agents, answer(Decision.APPROVE, action_digest=None)) == "decision_not_allowed"
    assert [await code_of(agents), await code_of(agents)] == ["accepted", "duplicate"]
    other = answer(Decision.RESPOND, action_digest=None, response="red")
    assert [await code_of(agents, other), await code_of(agents, who="dora")] == ["already_decided"] * 2
    assert (await result(agents))["after_execution"] == "suspend"  # whatever a row of this name says
    assert (await result(agents))["result"] == {"value": "blue"}
    applied = await settle(agents, turn, InboxId(f"decide-{ASKED}"))
    assert applied.status is HeadStatus.RUNNING
    [call] = (await begin(agents, turn, 2)).head.answered
    assert call.after_execution is None


async def test_a_function_that_failed_and_an_operator_who_rejects_are_results(agents: Pool) -> None:
    await held(agents)
    assert await code_of(agents, REJECT) == "accepted"
    assert (await result(agents))["error"] == {"code": "client_tool_failed", "message": "no"}
    await held(agents, "b", agent=BOB)
    done = await decide(agents, "b", REJECT, who="dora", operates=True)
    assert done.verdict == "accepted"
    assert (await question(agents, "b"))["decided_by"] == "dora"


async def test_no_tool_no_timeout_and_no_net_answers_or_sends_it(agents: Pool) -> None:
    turn = await held(agents)
    with pytest.raises(Refused, match="was not sent"):
        await tell(agents, "a")
    assert await expire(agents, turn) == []
    sent = await agents.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-1, row_limit=9))
    assert not sent
    assert (await head(agents))["resume_deadline"] is None


async def test_people_are_asked_nothing(agents: Pool) -> None:
    await held(agents)
    opened = InterruptStatus.OPEN
    assert await agents.run(lambda conn: count_open_interrupts(conn, PROJECT, most=9)) == 0
    assert await agents.run(lambda conn: list_interrupts(conn, PROJECT, status=opened, row_limit=9)) == []
    for reason in (InterruptReason.CLIENT_TOOL, "any"):
        found = await agents.run(
            lambda conn, reason=reason: list_interrupts(conn, PROJECT, status=opened, reason=reason, row_limit=9)
        )
        assert [i.interrupt_id for i in found] == [ASKED]
    [call] = await agents.run(lambda conn: list_client_calls(conn, PROJECT, ["a"]))
    assert (call.requester, call.status, call.step_id.endswith("-s1")) == (OWNER, "open", True)
    assert await agents.run(lambda conn: list_client_calls(conn, PROJECT, ["nothing"])) == []


async def test_unanswered_it_times_out_and_a_late_answer_is_told_so(agents: Pool) -> None:
    turn = await held(agents)
    await pass_expiry(agents)
    assert await code_of(agents) == "expired"
    [late] = await agents.run(lambda conn: list_expired(conn, [TARGET], older_seconds=0, row_limit=9))
    assert await expire_interrupt(agents, late.interrupt_id)
    content = await result(agents)
    assert (content["status"], content["error"]["code"], content["after_execution"]) == (
        *("timeout", "tool_timeout", "suspend"),
    )
    assert await code_of(agents) == "expired"
    assert (await settle(agents, turn, InboxId(f"decide-{ASKED}"))).status is HeadStatus.RUNNING


async def test_where_its_client_is_gone_it_ends_the_turn_unless_the_turns_own_time_was_over(agents: Pool) -> None:
    await held(agents, if_gone="cancel")
    await pass_expiry(agents)
    assert await expire_interrupt(agents, ASKED)
    content = await result(agents)
    assert (content["status"], content["error"]["code"], content["after_execution"]) == (
        *("canceled", "client_gone", "terminate"),
    )
    turn = await held(agents, "b", if_gone="cancel", agent=BOB)
    await rows(
        agents,
        "UPDATE state.agent_inbox SET payload = payload || jsonb_build_object('budget', jsonb_build_object('until',"
        " now() - interval '1 s')) WHERE inbox_id = $1",
        turn.inbox_id,
    )
    await pass_expiry(agents)
    assert await expire_interrupt(agents, interrupt_id(ToolCallId("b")))
    assert (await result(agents, "b"))["status"] == "timeout"


async def test_its_time_begins_when_nothing_else_is_waited_for(agents: Pool) -> None:
    turn = await held(agents, free=("tool",), if_gone="cancel")
    await pass_expiry(agents)
    assert not await expire_interrupt(agents, ASKED)
    assert (await question(agents, "a"))["expires_at"] > await value(agents, "SELECT now() + interval '590 s'")
    await pass_expiry(agents)
    await settle(agents, turn, await told(agents, "tool"))
    assert not await expire_interrupt(agents, ASKED)
    assert (await question(agents, "a"))["expires_at"] > await value(agents, "SELECT now() + interval '590 s'")
    await pass_expiry(agents)
    assert await code_of(agents) == "accepted"  # nobody has ended it
    assert await waits(agents) == {"a": "received", "tool": "applied"}


@pytest.mark.parametrize("ends", ["stop", "end"])
async def test_after_a_stop_or_the_end_it_is_withdrawn(agents: Pool, ends: str) -> None:
    turn = await held(agents)
    await (ask_to_stop(agents, turn.agent_turn_id) if ends == "stop" else end(agents, turn))
    assert await code_of(agents) == "withdrawn"
    assert await code_of(agents, REJECT, who="dora", operates=True) == "withdrawn"


async def test_an_answer_and_an_expiry_at_one_moment(counting: Counting) -> None:
    await held(counting, if_gone="cancel")
    await pass_expiry(counting)

    async def expires(conn: Connection) -> None:
        assert (await query("expire_interrupt").one(conn, interrupt_id=ASKED))["expired"]

    assert await overtaken(counting, expires, code_of(counting)) == "expired"
    turn = await held(counting, "b", agent=BOB)
    named = interrupt_id(ToolCallId("b"))

    async def answers(conn: Connection) -> None:
        await decide_on(conn, "b", RESPOND, who=OWNER)
        await conn.fetch("UPDATE state.interrupts SET expires_at = now() - interval '1 s'")

    assert not await overtaken(counting, answers, expire_interrupt(counting, named))
    assert (await call_row(counting, "b"))["wait_status"] == "received"
    await end(counting, turn)


async def test_an_answer_that_waited_for_a_stop_is_withdrawn(counting: Counting) -> None:
    turn = await held(counting)
    assert await overtaken(counting, lambda conn: stop_on(conn, turn), code_of(counting)) == "withdrawn"
    await end(counting, turn)


async def test_an_answer_that_waited_for_another_is_told_which_counts(counting: Counting) -> None:
    await held(counting)
    other = answer(Decision.RESPOND, action_digest=None, response="red")
    first = overtaken(counting, lambda conn: decide_on(conn, "a", RESPOND, who=OWNER), code_of(counting, other))
    assert await first == "already_decided"
    assert await code_of(counting) == "duplicate"
