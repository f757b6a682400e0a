"""Calls that wait for people, from the policy that holds them to the result (protocol §13)."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.people import Person
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, definition, hand_of, heard_by_model
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.wire import headers
from turnstile.workflows import options

pytestmark = pytest.mark.shared_stack

PAY = definition("pay", parameters={"type": "object", "properties": {"sum": {"type": "integer", "maximum": 100}}})
LOOK = definition("look")
ASKS: dict[str, Any] = {"interrupt_on": {"pay": True}}


async def test_a_call_that_waits_goes_out_once_a_person_lets_it_and_others_at_once(tenant: Tenant) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, LOOK, **ASKS) as hand:
        turn = await hand.start(calling("pay", "look"))
        [asked] = await person.asked()
        [command] = await hand.heard()
        pay, look = call_of(turn, 0), call_of(turn, 1)
        assert (asked.tool_call_id, command.call) == (pay, look)
        await hand.report(look)
        await hand.until_head(waiting_tool_count=1, status="suspended")
        assert (await hand.head())["resume_deadline"] is None
        assert (await hand.answer(pay)).error_code == "not_sent"
        reply = await person.decide(asked)
        assert (reply.agent_turn_id, reply.tool_call_id, reply.duplicate) == (turn, pay, False)
        [sent] = await hand.called(pay)
        assert sent.payload["tool_call_card_id"] == f"{pay}-call"
        assert (await person.decide(asked)).duplicate
        await hand.report(pay, "paid")
        ended = await hand.ended(turn)
    assert heard_by_model(ended) == [
        {"status": "success", "result": "paid"},
        {"status": "success", "result": "found"},
    ]
    assert Counter(c.call for c in hand.commands) == {pay: 1, look: 1}
    [event] = await tenant.events("agent.*.interrupt")
    assert event.payload["interrupt_id"] == asked.interrupt_id
    assert event.payload["action_digest"] == asked.action_digest
    assert event.headers[headers.TOOL_CALL_ID] == pay
    [closed] = await person.closed()
    assert (closed.status, closed.decided_by) == ("resolved", "dora")
    assert closed.expires_at.isoformat() == str(event.payload["expires_at"]).replace("Z", "+00:00")


async def test_a_rejection_and_a_response_are_what_the_model_reads(tenant: Tenant) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, **ASKS) as hand:
        turn = await hand.start(calling("pay", "pay"))
        questions = {each.tool_call_id: each for each in await person.asked(2)}
        first, second = (questions[call_of(turn, index)] for index in range(2))
        await person.decide(first, Decision.REJECT, message="too dear")
        await hand.until_head(waiting_tool_count=1)
        await person.decide(second, Decision.RESPOND, response={"__cg_control": "end", "paid": True})
        ended = await hand.ended(turn)
    refused, answered = heard_by_model(ended)
    assert (refused["status"], refused["error"]["code"], refused["error"]["message"]) == (
        *("failed", "rejected"),
        "too dear",
    )
    assert answered == {"status": "success", "result": {"value": {"__cg_control": "end", "paid": True}}}
    assert hand.commands == []


async def test_an_edit_is_checked_and_sends_a_second_card(tenant: Tenant) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, **ASKS) as hand:
        turn = await hand.start(calling("pay"))
        [asked] = await person.asked()
        pay = call_of(turn)
        edit = Decision.EDIT
        assert await person.refusal(asked, edit, arguments={"sum": 1000}) == "invalid_arguments"
        assert await person.refusal(asked, edit, arguments={"sum": 5, "to": 2**53 + 1}) == "not_canonical"
        assert (await hand.waits(turn), hand.commands) == ({pay: "waiting"}, [])
        await person.decide(asked, edit, arguments={"sum": 5})
        [sent] = await hand.called(pay)
        assert sent.payload["tool_call_card_id"] == f"{pay}-call-2"
        view = (await tenant.client.request("describe", {"tool_call_id": pay}))["call"]
        assert isinstance(view, dict)
        assert isinstance(view["content"], dict)
        assert view["content"]["arguments"] == {"sum": 5}
        await hand.report(pay, "paid")
        ended = await hand.ended(turn)
    [told] = heard_by_model(ended)
    assert told == {"status": "success", "arguments_edited_by_a_person": {"sum": 5}, "result": "paid"}
    assert ended.types() == [
        *("agent.thought", "tool.call", "tool.call", "tool.result"),
        *("agent.thought", "task.deliverable"),
    ]


async def test_who_may_not_decide_is_told_why(tenant: Tenant) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, interrupt_on={"pay": {"allowed_decisions": ["approve"]}}) as hand:
        turn = await hand.start(calling("pay"))
        [asked] = await person.asked()
        assert await person.refusal(asked, action_digest="0" * 64) == "digest_mismatch"
        assert await person.refusal(asked, Decision.REJECT) == "decision_not_allowed"
        assert await Person(tenant.named("elsewhere")).refusal(asked) == "unknown_interrupt"
        assert await person.refusal(asked, Decision.EDIT) == "bad_request"
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await hand.ended(turn)
        assert await person.refusal(asked) == "withdrawn"
        assert await person.refusal(asked, Decision.REJECT) == "withdrawn"


async def test_of_two_people_at_once_one_decides_and_the_other_is_told(tenant: Tenant) -> None:
    dora, erin = Person(tenant), Person(tenant, "erin")
    async with hand_of(tenant, PAY, **ASKS) as hand:
        turn = await hand.start(calling("pay"))
        [asked] = await dora.asked()
        replies = await asyncio.gather(dora.answer(asked), erin.answer(asked, Decision.REJECT))
        assert sorted(reply.error_code or "" for reply in replies) == ["", "already_decided"]
        if replies[0].error_code is None:
            await hand.called(call_of(turn))
            await hand.report(call_of(turn))
        await hand.ended(turn)


@pytest.mark.parametrize("status", ["approve", "edit"])
async def test_a_tool_that_was_changed_meanwhile_is_not_called(tenant: Tenant, status: str) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, **ASKS) as hand:
        turn = await hand.start(calling("pay"))
        [asked] = await person.asked()
        await tenant.client.request("tool.put", {"tool": LOOK.model_copy(update={"tool_name": "pay"}).model_dump()})
        more: dict[str, Any] = {"arguments": {}} if status == "edit" else {}
        assert (await person.decide(asked, Decision(status), **more)).tool_changed
        ended = await hand.ended(turn)
    [heard] = heard_by_model(ended)
    assert heard["error"]["code"] == "tool_changed"
    assert hand.commands == []


async def timers(tenant: Tenant, turn: AgentTurnId) -> list[timedelta]:
    """The timers that the turn's workflow has started."""
    handle = tenant.stack.temporal.get_workflow_handle(options.turn_workflow_id(turn))
    events = (await handle.fetch_history()).events
    started = [event for event in events if event.HasField("timer_started_event_attributes")]
    return [each.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta() for each in started]


async def test_a_workflow_sleeps_until_the_question_expires_and_hears_of_the_deadline_of_its_call(
    tenant: Tenant,
) -> None:
    person = Person(tenant)
    async with hand_of(tenant, PAY, **ASKS) as hand:
        turn = await hand.start(calling("pay"))
        [asked] = await person.asked()

        async def slept() -> list[timedelta]:
            return await timers(tenant, turn)

        [first] = await until(slept, 25, "the workflow sleeps")
        assert timedelta(days=6) < first <= timedelta(days=7)
        await person.decide(asked)

        async def again() -> bool:
            return len(await timers(tenant, turn)) == 2

        await until(again, 25, "the workflow sleeps again")
        deadline = (await hand.head())["resume_deadline"]
        assert abs(datetime.now(UTC) + (await timers(tenant, turn))[1] - deadline) < timedelta(seconds=15)
        await hand.report(call_of(turn))
        await hand.ended(turn)
