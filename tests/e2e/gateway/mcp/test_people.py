"""Turns that ask people, through clients of MCP that can ask theirs (protocol §13, §17.2)."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from tests.e2e.gateway.mcp.official import Door, enveloped, request, told
from tests.e2e.gateway.mcp.test_handles import opened
from tests.e2e.people.asking import PAY, asked
from tests.support.gateway import serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentId, AgentTurnId

pytestmark = pytest.mark.shared_stack

QUESTION = ("ask_human", {"question": "Which?", "choices": ["a", "b"]})
PAYMENT = ("pay", {"amount": 5})


@pytest.fixture
async def paying(door: Door, tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait for people, who asked or not, and which may ask them."""
    rule: Any = {"pay": {"requester_may_decide": True}}
    async with hand_of(tenant, PAY, interrupt_on=rule, allowed_tools=["pay", "ask_human"]) as hand:
        yield hand


class Person:
    """Who sits before a client."""

    def __init__(self, action: Any = "accept", **content: Any) -> None:
        self.shown: list[ElicitRequestParams] = []
        self._answer = ElicitResult(action=action, content=content or None)

    async def __call__(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.shown.append(params)
        return self._answer


def play(*calls: Any) -> dict[str, Any]:
    """What the agent is asked."""
    return {"instruction": json.dumps({"steps": [calling(*calls)]})}


def heard(answer: dict[str, Any]) -> Any:
    """What the agent's model got as the result of its call, which it answers."""
    messages = json.loads(answer["value"])["messages"]
    return json.loads([content for role, content in messages if role == "tool"][-1])


async def test_a_question_is_answered_by_the_clients_person(door: Door, paying: Hand) -> None:
    person = Person(answer="b")
    async with door.client(elicitation_callback=person) as mcp:
        answer = told(await mcp.call_tool(paying.agent, play(QUESTION)))
    assert (answer["status"], heard(answer)) == ("success", {"status": "success", "result": {"value": "b"}})
    [shown] = person.shown
    form = shown.model_dump(by_alias=True)
    assert "Which?" in form["message"]
    assert form["requestedSchema"]["properties"]["answer"] == {"type": "string", "enum": ["a", "b"]}


async def test_an_approval_shows_the_call_and_lets_it_go_out(door: Door, paying: Hand) -> None:
    person = Person(decision="approve")
    async with door.client(elicitation_callback=person) as mcp:
        asking = asyncio.create_task(mcp.call_tool(paying.agent, play(PAYMENT)))
        [command] = await paying.heard()
        await paying.report(command.call, "paid")
        answer = told(await asking)
    assert heard(answer) == {"status": "success", "result": "paid"}
    message = person.shown[0].message
    statement = "SELECT action_digest, decided_by FROM state.interrupts WHERE project_id = $1"
    [row] = await paying.tenant.rows(statement, paying.tenant.project)
    assert row["action_digest"] in message
    assert row["decided_by"] == f"token.{str(door.token).split('_')[1]}"
    assert all(each in message for each in ('"amount": 5', f'"account": "of {paying.tenant.project}"', "pay"))


async def test_a_call_is_edited_and_rejected(door: Door, paying: Hand) -> None:
    edited = Person(decision="edit", arguments='{"amount": 3}')
    async with door.client(elicitation_callback=edited) as mcp:
        asking = asyncio.create_task(mcp.call_tool(paying.agent, play(PAYMENT)))
        [command] = await paying.heard()
        [card] = await paying.tenant.rows(
            "SELECT content FROM public.cards WHERE card_id = $1", f"{command.call}-call-2"
        )
        assert json.loads(card["content"])["arguments"] == {"amount": 3, "account": f"of {paying.tenant.project}"}
        await paying.report(command.call, "paid")
        assert told(await asking)["status"] == "success"
    for person, reason in ((Person(decision="reject", message="no"), "no"), (Person("decline"), "declined")):
        async with door.client(elicitation_callback=person) as mcp:
            answer = told(await mcp.call_tool(paying.agent, play(PAYMENT)))
        assert heard(answer)["error"]["code"] == "rejected"
        assert reason in heard(answer)["error"]["message"]


async def test_who_dismisses_the_question_gets_the_handle(door: Door, paying: Hand) -> None:
    async with door.client(elicitation_callback=Person("cancel")) as mcp:
        answer = told(await mcp.call_tool(paying.agent, play(QUESTION)))
        assert answer["status"] == "waiting_for_person"
        [interrupt] = answer["interrupt_ids"]
        assert str(call_of(AgentTurnId(answer["turn_id"]))) in interrupt
    async with door.client(elicitation_callback=Person(answer="a")) as mcp:
        found = told(await mcp.call_tool("turn_get", {"turn_id": answer["turn_id"], "wait_seconds": 20}))
    assert heard(found) == {"status": "success", "result": {"value": "a"}}


async def test_a_client_that_cannot_ask_its_person_gets_the_handle_at_once(door: Door, paying: Hand) -> None:
    async with door.client() as mcp:
        answer = told(await mcp.call_tool(paying.agent, {**play(PAYMENT), "wait_seconds": 300}))
        assert (answer["status"], len(answer["interrupt_ids"])) == ("waiting_for_person", 1)
        assert (await door.call("turn_stop", turn_id=answer["turn_id"]))["status"] == "canceled"


async def test_a_token_that_may_not_decide_is_asked_nothing(door: Door, paying: Hand) -> None:
    """A client's, and one that has asked for the turn itself where the policy wants somebody else."""
    stack, project = paying.tenant.stack, paying.tenant.project
    person = Person(decision="approve")
    client = Door(door.url, await token_of(stack, project, GatewayRole.CLIENT), door.mode)
    async with client.client(elicitation_callback=person) as mcp:
        answer = told(await mcp.call_tool(paying.agent, play(PAYMENT)))
    assert answer["status"] == "waiting_for_person"
    await door.call("turn_stop", turn_id=answer["turn_id"])
    async with hand_of(paying.tenant, PAY, agent=AgentId("strict"), interrupt_on={"pay": True}) as strict:
        async with door.client(elicitation_callback=person) as mcp:
            answer = told(await mcp.call_tool(strict.agent, play(PAYMENT)))
            assert answer["status"] == "waiting_for_person"
        await door.call("turn_stop", turn_id=answer["turn_id"])
    assert person.shown == []


async def test_a_state_that_was_made_up_gives_no_right(operator: Door, paying_once: Hand) -> None:
    tenant = paying_once.tenant
    turn = await paying_once.start(calling(PAYMENT))
    [held] = await asked(paying_once, turn)

    def resumed(state: Any, response: Any) -> tuple[dict[str, str], str]:
        given = base64.urlsafe_b64encode(json.dumps(state).encode()).decode()
        params = {"name": "turn_get", "arguments": {"turn_id": turn}, "requestState": given}
        return enveloped("tools/call", {**params, "inputResponses": {held.id: response}})

    approve = {"action": "accept", "content": {"decision": "approve"}}
    viewer = Door(operator.url, await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER))
    stranger = Door(operator.url, await token_of(tenant.stack, tenant.named(f"{tenant.project}-x").project))
    digest = held.view.action_digest
    right, wrong = {"turn": turn, "asked": {held.id: digest}}, {"turn": turn, "asked": {held.id: "0" * 64}}
    cases = [
        (viewer, right, approve, "forbidden"),
        (stranger, right, approve, "unknown_turn"),
        (operator, wrong, approve, "digest_mismatch"),
        (operator, right, {"action": "accept", "content": {"decision": "never"}}, "bad_request"),
        (operator, right, {"action": "accept"}, "bad_request"),
        (operator, {"turn": turn, "asked": {"int-x-1": None}}, approve, None),
        (operator, {"turn": turn}, approve, "bad_request"),
        (operator, ["x"], approve, "bad_request"),
    ]
    for door, state, response, code in cases:
        headers, body = resumed(state, response)
        async with door.raw(**headers) as web:
            found = (await web.post("/mcp", content=body)).json()["result"]["structuredContent"]
        assert found.get("error_code") == code, (state, response, found)
    [still] = await asked(paying_once, turn)
    assert still.view.status == "open"
    headers, body = resumed(right, approve)
    async with operator.raw(**headers) as web:
        await web.post("/mcp", content=body)
        await web.post("/mcp", content=body)
    [command] = await paying_once.heard()
    await paying_once.report(command.call, "paid")
    assert (await operator.call("turn_get", turn_id=turn, wait_seconds=20))["status"] == "success"


@pytest.fixture
async def paying_once(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait for people."""
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}) as hand:
        yield hand


async def test_a_reply_of_a_session_that_was_made_up_decides_nothing(operator: Door, paying_once: Hand) -> None:
    turn = await paying_once.start(calling(PAYMENT))
    [held] = await asked(paying_once, turn)
    approve = {"action": "accept", "content": {"decision": "approve"}}
    async with operator.raw() as web:
        headers = {"mcp-session-id": await opened(web)}

        async def replied(name: Any, result: Any) -> int:
            body = json.dumps({"jsonrpc": "2.0", "id": name, "result": result})
            return (await web.post("/mcp", content=body, headers=headers)).status_code

        assert await replied(f"person/{held.id}/{'0' * 64}", approve) == 409
        assert await replied("person/int-x-1/", approve) == 404
        assert await replied(f"person/{held.id}/{held.view.action_digest}", {"action": "explode"}) == 400
        for name in (1, "x", f"person/{held.id}", "person//", f"person/{'x' * 999}/"):
            assert await replied(name, approve) == 202
        [still] = await asked(paying_once, turn)
        assert still.view.status == "open"
        assert await replied(f"person/{held.id}/{held.view.action_digest}", approve) == 202
    [command] = await paying_once.heard()
    await paying_once.report(command.call, "paid")
    assert (await operator.call("turn_get", turn_id=turn, wait_seconds=20))["status"] == "success"


async def test_a_reply_counts_at_any_gateway(here: Stack, operator: Door, tenant: Tenant) -> None:
    """In a session: the call waits at one, and the person's reply comes to another."""
    await tenant.agent("player", allowed_tools=["ask_human"])
    async with serving(here) as second, operator.raw() as web, Door(second, operator.token).raw() as other:
        headers = {"mcp-session-id": await opened(web, elicitation={})}
        call = request("tools/call", {"name": ALICE, "arguments": play(QUESTION)})
        async with web.stream("POST", "/mcp", content=call, headers=headers) as stream:
            lines = stream.aiter_lines()
            question = json.loads(await next_data(lines))
            assert question["method"] == "elicitation/create"
            answer = {"action": "accept", "content": {"answer": "b"}}
            reply = json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": answer})
            accepted = await other.post("/mcp", content=reply, headers=headers)
            assert (accepted.status_code, accepted.content) == (202, b"")
            result = json.loads(await next_data(lines))["result"]
    assert heard(result["structuredContent"]) == {"status": "success", "result": {"value": "b"}}


async def next_data(lines: AsyncIterator[str]) -> str:
    """The data of the next event."""
    while not (line := await anext(lines)).startswith("data: "):
        pass
    return line.removeprefix("data: ")
