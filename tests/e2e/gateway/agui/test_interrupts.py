"""Runs of `/agui` that wait for people: what they are asked and answer, and how turns go on (protocol §17.4)."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.agui.front_end import FrontEnd, Told, answer_to
from tests.e2e.people.asking import PAY
from tests.support.conditions import until
from tests.support.gateway import client, token_of
from tests.support.people import Person
from tests.support.tenants import Tenant
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.ledger.people.unknown_calls import UnsureCall, begin_call, list_unsure, settle_unknown
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import ToolCallId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.wire.subjects import agent_event

pytestmark = pytest.mark.shared_stack

OPEN: dict[str, Any] = {"requester_may_decide": True}


@pytest.fixture
async def paying(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait for people, who may be those that asked, and which may ask them."""
    tools = (PAY, definition())
    async with hand_of(
        tenant, *tools, interrupt_on={"pay": OPEN}, allowed_tools=["pay", "search", "ask_human"]
    ) as hand:
        yield hand


def script(*calls: Any, end: str = "all done") -> str:
    return json.dumps({"steps": [calling(*calls), {"text": end}]})


async def paid(front: FrontEnd, *calls: Any) -> Told:
    """A run that waits for an approval."""
    told = await front.run(script(*(calls or (("pay", {"amount": 5}),))))
    assert told.outcome == "interrupt"
    return told


async def test_a_run_that_waits_for_an_approval_ends_and_goes_on_as_another(
    web: httpx.AsyncClient, paying: Hand
) -> None:
    front = FrontEnd(web)
    told = await paid(front)
    [asked] = told.interrupts
    assert (asked.reason, asked.id) == ("tool_call", f"int-{asked.tool_call_id}-1")
    assert asked.metadata is not None
    own = asked.metadata["turnstile"]
    assert own["arguments"] == {"amount": 5, "account": f"of {paying.tenant.project}"}
    assert own["allowed_decisions"] == ["approve", "edit", "reject", "respond"]
    assert asked.response_schema is not None
    assert "editedArgs" in asked.response_schema["properties"]
    assert asked.expires_at is not None
    answer = answer_to(asked, {"approved": True})
    going = asyncio.create_task(front.resume(answer, runId="second"))
    [command] = await paying.heard()
    assert command.call == asked.tool_call_id
    await paying.report(command.call, "paid")
    on = await going
    assert on.turn == told.turn
    assert on.kinds == [
        *("RUN_STARTED", "TOOL_CALL_RESULT", "STEP_STARTED"),
        *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_FINISHED"),
    ]
    assert (on.outcome, on.said[1:]) == ("success", [("tool", "paid"), ("assistant", "all done")])
    again = await front.resume(answer, runId="second")
    assert again.kinds[1] == "MESSAGES_SNAPSHOT"
    assert (again.turn, again.outcome, again.said) == (told.turn, "success", on.said)
    assert len(paying.commands) == 1


@pytest.mark.parametrize(
    ("payload", "result"),
    [
        ({"decision": "edit", "arguments": {"amount": 7}}, None),
        ({"approved": True, "editedArgs": {"amount": 7}}, None),
        ({"decision": "reject", "message": "too much"}, "too much"),
        ({"approved": False}, "rejected"),
        ({"decision": "respond", "response": {"paid": "yesterday"}}, "yesterday"),
    ],
)
async def test_each_decision_becomes_of_the_call_what_it_says(
    web: httpx.AsyncClient, paying: Hand, payload: Any, result: str | None
) -> None:
    front = FrontEnd(web)
    [asked] = (await paid(front)).interrupts
    going = asyncio.create_task(front.resume(answer_to(asked, payload)))
    if result is None:
        [command] = await paying.heard()
        await paying.report(command.call, "paid 7")
    on = await going
    assert on.outcome == "success"
    [told] = [text for role, text in on.said if role == "tool"]
    assert (result or "paid 7") in told
    if result is None:
        card = (await paying.tenant.ended(on.turn)).cards
        assert any(str(each.content).find("'amount': 7") >= 0 for each in card)


async def test_a_question_is_answered_by_what_its_schema_says(web: httpx.AsyncClient, paying: Hand) -> None:
    front = FrontEnd(web)
    told = await front.run(script(("ask_human", {"question": "Which?", "choices": ["a", "b"]})))
    [asked] = told.interrupts
    assert (asked.reason, asked.message, asked.response_schema) == ("input_required", "Which?", {"enum": ["a", "b"]})
    wrong = await front.resume(answer_to(asked, "c"))
    assert wrong.outcome == "error: invalid_response"
    on = await front.resume(answer_to(asked, "b"))
    assert json.loads(on.said[1][1]) == {"value": "b"}
    assert on.outcome == "success"


async def test_all_open_questions_are_told_and_what_stays_open_ends_the_next_run(
    web: httpx.AsyncClient, paying: Hand
) -> None:
    front = FrontEnd(web)
    told = await paid(front, ("pay", {"amount": 1}), ("pay", {"amount": 2}), "search")
    first, second = told.interrupts
    assert [each.metadata["turnstile"]["arguments"]["amount"] for each in (first, second) if each.metadata] == [1, 2]
    half = await front.resume(answer_to(first, {"approved": False}))
    assert [interrupt.id for interrupt in half.interrupts] == [second.id]
    answers = (answer_to(first, {"approved": False}), answer_to(second, status="cancelled"))
    rest = asyncio.create_task(front.resume(*answers))
    [command] = await paying.heard()
    await paying.report(command.call, "found")
    on = await rest
    assert on.outcome == "success"
    assert len([role for role, _ in on.said if role == "tool"]) == 3
    assert await paying.tenant.count("state.agent_inbox", "message_type = 'turn'") == 1


async def test_an_approval_names_what_was_shown(web: httpx.AsyncClient, paying: Hand) -> None:
    front = FrontEnd(web)
    [asked] = (await paid(front)).interrupts
    for metadata in (None, {"turnstile": {"action_digest": "0" * 64}}):
        told = await front.resume(answer_to(asked, {"approved": True}, metadata=metadata))
        assert told.outcome == "error: digest_mismatch"
    for payload in ("yes", None, {}, {"approved": "yes"}, {"approved": True, "decision": "approve"}, {"yes": 1}):
        assert (await front.resume(answer_to(asked, payload))).outcome == "error: invalid_response"
    assert (await front.resume(answer_to(asked, {"decision": "explode"}))).outcome == "error: bad_request"
    assert paying.commands == []
    assert (await front.resume(answer_to(asked, {"approved": False}))).outcome == "success"


async def test_a_thread_that_waits_for_people_takes_no_other_run(web: httpx.AsyncClient, paying: Hand) -> None:
    front = FrontEnd(web)
    told = await paid(front)
    [asked] = told.interrupts
    assert (await front.run("never mind")).outcome == "error: interrupts_pending"
    del front.messages[-1]
    other = FrontEnd(web)
    assert (await other.resume(answer_to(asked, {"approved": True}))).outcome == "error: unknown_interrupt"
    assert (
        await front.resume({"interruptId": "int-nothing", "status": "cancelled"})
    ).outcome == "error: unknown_interrupt"
    person = Person(paying.tenant)
    [question] = await person.asked()
    await person.decide(question, Decision.REJECT, message="no")
    assert (await front.resume(answer_to(asked, {"approved": True}))).outcome == "error: already_decided"
    on = await front.resume(answer_to(asked, status="cancelled"))
    assert (on.turn, on.outcome) == (told.turn, "success")


async def test_who_asked_decides_only_where_the_policy_lets_them(
    url: str, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}) as hand:
        front = FrontEnd(web)
        [asked] = (await paid(front)).interrupts
        assert (await front.resume(answer_to(asked, {"approved": True}))).outcome == "error: own_request"
        for role in (GatewayRole.CLIENT, GatewayRole.VIEWER):
            async with client(url, await token_of(tenant.stack, tenant.project, role)) as other:
                refused = FrontEnd(other, front.agent, front.thread, front.messages)
                assert await refused.refusal(resume=[answer_to(asked, {"approved": True})]) == (403, "forbidden", None)
        async with client(url, await token_of(tenant.stack, tenant.project, channel="u_ada")) as other:
            stranger = FrontEnd(other, front.agent, front.thread)
            told = await stranger.resume(answer_to(asked, {"approved": True}))
            assert told.outcome == "error: unknown_interrupt"
        async with client(url, await token_of(tenant.stack, tenant.project, GatewayRole.APPROVER)) as other:
            person = FrontEnd(other, front.agent, front.thread, front.messages)
            going = asyncio.create_task(person.resume(answer_to(asked, {"approved": True})))
            [command] = await hand.heard()
            await hand.report(command.call, "paid")
            assert (await going).outcome == "success"


async def test_a_question_that_comes_while_the_turn_sleeps_ends_the_run(web: httpx.AsyncClient, tenant: Tenant) -> None:
    """As when nobody knows whether a call was run: nothing of the turn changes but that."""
    async with hand_of(tenant) as hand:
        front = FrontEnd(web)
        front.says(script("search"))
        going = asyncio.create_task(front.run())
        [command] = await hand.heard()
        await doubted(hand, command.call)
        told = await going
        [asked] = told.interrupts
        assert (asked.reason, asked.tool_call_id) == ("confirmation", command.call)
        on = await front.resume(answer_to(asked, {"decision": "respond", "response": "it was done"}))
        assert (on.turn, on.outcome) == (told.turn, "success")
        assert "it was done" in on.said[1][1]


async def doubted(hand: Hand, call: ToolCallId) -> None:
    """A person is asked whether a call was run, and the bridge tells that, as its rule does."""
    tenant, [target] = hand.tenant, hand.tenant.stack.settings.worker.worker_targets

    async def opened() -> UnsureCall | None:
        async with tenant.pool.connection() as conn:
            await begin_call(conn, tenant.project, call, "run.1")
            found = await list_unsure(conn, [target], older_seconds=-9, row_limit=100)
            own = [each for each in found if each.tool_call_id == call]
            for each in own:
                await settle_unknown(conn, each, "Was it done?", "d" * 64)
        return own[0] if own else None

    asked = await until(opened, 25, "a person is asked")
    subject = agent_event(tenant.project, asked.channel_id, asked.agent_id, "interrupt")
    payload = json.dumps({"agent_turn_id": asked.agent_turn_id}).encode()
    await tenant.stack.conn.js.publish(subject, payload)
