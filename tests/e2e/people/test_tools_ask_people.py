"""A user's tool asks people while it answers a call (protocol §13.8): its question holds nothing, and is asked once."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.support.conditions import until
from tests.support.delegation import CHIEF, answer, result, running, serving, steps
from tests.support.people import Person
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, hand_of
from turnstile import ToolCall, ToolService
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, ChannelId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import InterruptEvent, InterruptReason, InterruptStatus
from turnstile.sdk.client import BridgeClient

pytestmark = pytest.mark.shared_stack

COLORS = ["red", "blue"]


def asker(tenant: Tenant, timeout_seconds: float = 30) -> ToolService:
    """A tool that asks one question, which the model may choose."""
    service = ToolService(tenant.project, drain_seconds=0.1)

    @service.tool(target="office", suffix="order", timeout_seconds=timeout_seconds)
    async def order(call: ToolCall, asked: dict[str, Any]) -> JsonObject:
        """Order something, as a person says."""
        told = await call.ask_human(**asked)
        return {"decision": told.decision, "response": told.response, "message": told.message}

    del order  # the service has it
    return service


async def starts(tenant: Tenant, caller: str = "ada", **asked: Any) -> AgentTurnId:
    """A turn whose tool asks this."""
    given: JsonObject = {"agent_id": CHIEF, "instruction": steps(calling(("order", {"asked": asked})))}
    reply = await tenant.client.request("enqueue", given, caller=Caller(caller))
    assert reply["status"] == "accepted", reply
    return AgentTurnId(str(reply["agent_turn_id"]))


async def waiting_call(tenant: Tenant, turn: AgentTurnId) -> Any:
    [row] = await tenant.rows("SELECT * FROM state.turn_waiting_tools WHERE agent_turn_id = $1", turn)
    return row


@asynccontextmanager
async def people_hear(tenant: Tenant) -> AsyncGenerator[Callable[[], Awaitable[InterruptEvent]]]:
    """The next event that somebody is asked."""
    heard: asyncio.Queue[InterruptEvent] = asyncio.Queue()

    async def put(msg: Msg) -> None:
        heard.put_nowait(InterruptEvent.model_validate_json(msg.data))

    subject = f"cg.v1r4.{tenant.project}.*.evt.agent.*.interrupt"
    subscription = await tenant.stack.conn.subscribe(subject, put)
    try:
        yield lambda: asyncio.wait_for(heard.get(), 25)
    finally:
        await tenant.stack.conn.unsubscribe(subscription)


async def test_a_tool_asks_a_person_and_goes_on_with_the_answer(tenant: Tenant) -> None:
    dora, ada = Person(tenant), Person(tenant, "ada")
    async with serving(tenant, asker(tenant)):
        turn = await starts(tenant, question="Which?", choices=COLORS)
        [asked] = await dora.asked()
        call = call_of(turn)
        assert (asked.interrupt_id, asked.reason) == (f"int-{call}~1", InterruptReason.INPUT_REQUIRED)
        assert (asked.message, asked.tool_name, asked.asked_by_tool) == ("Which?", "order", True)
        assert asked.response_schema == {"enum": COLORS}
        assert (await waiting_call(tenant, turn))["held_by"] is None
        assert await ada.refusal(asked, Decision.RESPOND, response="green") == "invalid_response"
        assert await ada.refusal(asked, Decision.APPROVE) == "decision_not_allowed"
        await ada.decide(asked, Decision.RESPOND, response="blue")  # who asked for the turn may answer
        assert (await ada.decide(asked, Decision.RESPOND, response="blue")).duplicate
        assert await dora.refusal(asked, Decision.REJECT) == "already_decided"
        ended = await tenant.ended(turn)
        assert result(ended) == {"decision": "respond", "response": "blue", "message": ""}
        turn = await starts(tenant, question="Shall I?")
        [asked] = await dora.asked()
        assert asked.response_schema == {"type": "string"}
        await dora.decide(asked, Decision.REJECT, message="not today")
        told = result(await tenant.ended(turn))
        assert told == {"decision": "reject", "response": None, "message": "not today"}


async def test_another_run_of_the_call_finds_what_was_asked(tenant: Tenant) -> None:
    """The first replica is stopped while it waits, and the second one asks the same by the same key."""
    dora = Person(tenant)
    async with serving(tenant, asker(tenant)):
        turn = await starts(tenant, question="Which?")
        [asked] = await dora.asked()
    await dora.decide(asked, Decision.RESPOND, response="this")
    async with running(tenant, asker(tenant)):
        ended = await tenant.ended(turn)
    assert result(ended)["response"] == "this"
    assert len(await dora.all()) == 1


async def test_while_a_tool_asks_its_call_does_not_time_out(tenant: Tenant) -> None:
    """The function may take a second, and the turn waits for two: both stand still while a person thinks."""
    dora = Person(tenant)
    async with serving(tenant, asker(tenant, timeout_seconds=1)):
        await tenant.rows(
            "UPDATE resource.tools SET options = '{\"suspend_timeout_seconds\": 2}' WHERE project_id = $1",
            tenant.project,
        )
        turn = await starts(tenant, question="Which?", expires_after_seconds=3600)
        [asked] = await dora.asked()
        call = await waiting_call(tenant, turn)
        assert call["left_seconds"] > 0
        assert abs((call["deadline"] - asked.expires_at).total_seconds() - call["left_seconds"]) < 1

        async def thought_it_over() -> bool:
            [row] = await tenant.rows("SELECT now() - $1::timestamptz > interval '3 s' AS is_over", call["created_at"])
            return row["is_over"]

        await until(thought_it_over, 25, "the call would be late")
        await dora.decide(asked, Decision.RESPOND, response="at last")
        assert result(await tenant.ended(turn))["response"] == "at last"


async def test_whom_the_profile_lets_answer_may_answer(tenant: Tenant) -> None:
    rule = {"requester_may_decide": False, "expires_after_seconds": 60}
    async with serving(tenant, asker(tenant), interrupt_on={"ask_human": rule}):
        turn = await starts(tenant, question="Which?", expires_after_seconds=3600)
        [asked] = await Person(tenant).asked()
        assert (asked.requester, asked.requester_may_decide) == ("ada", False)
        assert (asked.expires_at - asked.created_at).total_seconds() < 61
        assert await Person(tenant, "ada").refusal(asked, Decision.RESPOND, response="mine") == "own_request"
        await Person(tenant).decide(asked, Decision.RESPOND, response="hers")
        assert result(await tenant.ended(turn))["response"] == "hers"


async def test_a_question_that_nobody_answers_is_no_answer_and_a_malformed_one_asks_nobody(tenant: Tenant) -> None:
    async with serving(tenant, asker(tenant)):
        turn = await starts(tenant, question="Which?", expires_after_seconds=1)
        told = answer(await tenant.ended(turn))
        assert (told.error and told.error.code) == "no_answer"
        [asked] = await Person(tenant).all()
        assert asked.status is InterruptStatus.EXPIRED
        faults: list[dict[str, Any]] = [{"question": ""}, {"choices": []}, {"response_schema": {"type": 1}}]
        for more in faults:
            wrong = {"question": "Which?", **more}
            told = answer(await tenant.ended(await starts(tenant, **wrong)))
            assert (told.error and told.error.code) == "invalid_arguments", wrong
        assert len(await Person(tenant).all()) == 1


async def test_a_stop_of_the_turn_withdraws_what_its_tool_asks(tenant: Tenant) -> None:
    dora = Person(tenant)
    async with serving(tenant, asker(tenant)):
        turn = await starts(tenant, question="Which?")
        [asked] = await dora.asked()
        await tenant.client.request("stop", {"agent_turn_id": turn})
        assert (await tenant.ended(turn)).view.status == "canceled"
        assert await dora.refusal(asked, Decision.RESPOND, response="late") == "withdrawn"
        [closed] = await dora.closed()
        assert closed.status is InterruptStatus.WITHDRAWN


async def test_a_forged_question_asks_nobody(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand, people_hear(tenant) as heard:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        asked: JsonObject = {"tool_call_id": call, "key": "1", "tool": "ask_human", "arguments": {"question": "Q"}}
        elsewhere = BridgeClient(tenant.stack.conn, tenant.project, ChannelId("other"))
        cases: tuple[tuple[BridgeClient, JsonObject, dict[str, str], str], ...] = (
            (tenant.client, {"tool_call_id": "call_none"}, {}, "unknown_call"),
            (tenant.client, {"key": "a~b"}, {}, "bad_request"),
            (tenant.client, {"arguments": {"question": "Q", "wait": True}}, {}, "invalid_arguments"),
            (tenant.client, {}, {"CG-Turn-Id": "other"}, "not_your_call"),
            (tenant.client, {}, {"CG-Agent-Id": "other"}, "not_your_call"),
            (elsewhere, {}, {}, "unknown_call"),
        )
        for client, given, named, code in cases:
            told = await client.request("delegate", asked | given, headers=named)
            assert (told["status"], told["error_code"]) == ("rejected", code), given
        assert await Person(tenant).all() == []
        first = await tenant.client.request("delegate", asked)
        assert (first["status"], first["duplicate"], first["answer"]) == ("accepted", False, None)
        assert (await tenant.client.request("delegate", asked))["duplicate"] is True
        changed: JsonObject = {"arguments": {"question": "R"}}
        other = await tenant.client.request("delegate", asked | changed)
        assert other["error_code"] == "key_conflict"
        event = await heard()
        assert (event.interrupt_id, event.reason, event.tool_name) == (
            first["interrupt_id"],
            "input_required",
            "search",
        )
        await hand.report(call)  # it does not wait for the answer
        assert (await tenant.client.request("delegate", asked))["error_code"] == "parent_over"
        await hand.ended(turn)
    [asked_of_people] = await Person(tenant).all()
    assert asked_of_people.status is InterruptStatus.WITHDRAWN
