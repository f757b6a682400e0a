"""What turns ask people, over HTTP: who sees it, who decides, and both ways of the Python client (protocol §13)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.people.asking import PAY, asked
from tests.support.gateway import client, token_of
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of, calling, hand_of, heard_by_model
from turnstile import Client, Refused, SyncClient
from turnstile.schema.access import SEEN_BY, Detail, GatewayRole
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack


@pytest.fixture
async def paying(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent whose payments wait for people, and which may ask them."""
    async with hand_of(tenant, PAY, interrupt_on={"pay": True}, allowed_tools=["pay", "ask_human"]) as hand:
        yield hand


async def waiting(hand: Hand, tool: str = "pay") -> tuple[AgentTurnId, str]:
    """A turn that asks, and what."""
    call = ("pay", {"amount": 5}) if tool == "pay" else ("ask_human", {"question": "Which?", "choices": ["a", "b"]})
    turn = await hand.start(calling(call))
    [held] = await asked(hand, turn)
    return turn, held.id


async def as_role(url: str, hand: Hand, role: GatewayRole, channel: str | None = None) -> str:
    """A token of the project."""
    return await token_of(hand.tenant.stack, hand.tenant.project, role, channel)


async def test_all_roles_see_what_is_asked_and_two_decide(url: str, paying: Hand) -> None:
    turn, interrupt = await waiting(paying)
    path = f"/v1/interrupts/{interrupt}"
    digest = ""
    for role in GatewayRole:
        async with client(url, await as_role(url, paying, role)) as web:
            page = (await web.get("/v1/interrupts", params={"status": "open", "agent_turn_id": turn})).json()
            assert [each["interrupt_id"] for each in page["interrupts"]] == [interrupt]
            assert "arguments" not in page["interrupts"][0]
            seen = (await web.get(path)).json()
            fixed = {"account": f"of {paying.tenant.project}"} if role in SEEN_BY[Detail.ADDED] else {}
            assert (seen["arguments"], seen["arguments_left_out"]) == ({"amount": 5, **fixed}, not fixed)
            digest = seen["action_digest"]
            made = {"decision": "approve", "action_digest": "0" * 64}
            refused = await web.post(f"{path}/decision", json=made)
            code = "forbidden" if role in (GatewayRole.VIEWER, GatewayRole.CLIENT) else "digest_mismatch"
            assert (refused.json()["code"], refused.status_code) == (code, 403 if code == "forbidden" else 409)
    token = await as_role(url, paying, GatewayRole.APPROVER)
    async with client(url, token) as web:
        made = {"decision": "approve", "action_digest": digest}
        answers: list[httpx.Response] = [await web.post(f"{path}/decision", json=made) for _ in range(2)]
        assert [(answer.status_code, answer.json()["duplicate"]) for answer in answers] == [(200, False), (200, True)]
        by = (await web.get(path)).json()["decided_by"]
        assert by == f"token.{token.split('_')[1]}"
    await paying.heard()
    await paying.report(call_of(turn), "paid")
    assert heard_by_model(await paying.ended(turn)) == [{"status": "success", "result": "paid"}]


async def test_a_token_of_another_channel_neither_sees_nor_decides(url: str, paying: Hand) -> None:
    turn, interrupt = await waiting(paying)
    async with client(url, await as_role(url, paying, GatewayRole.APPROVER, "u_ada")) as web:
        assert (await web.get("/v1/interrupts")).json()["interrupts"] == []
        assert (await web.get(f"/v1/interrupts/{interrupt}")).status_code == 404
        made = await web.post(f"/v1/interrupts/{interrupt}/decision", json={"decision": "reject"})
        assert (made.status_code, made.json()["code"]) == (404, "unknown_interrupt")
        other = await web.get("/v1/interrupts", params={"channel_id": "public"})
        assert (other.status_code, other.json()["code"]) == (403, "forbidden")
    await paying.tenant.client.request("stop", {"agent_turn_id": turn})
    await paying.ended(turn)


async def test_who_asked_over_http_does_not_decide_unless_the_policy_lets_them(url: str, paying: Hand) -> None:
    token = await as_role(url, paying, GatewayRole.OPERATOR)
    async with Client(url, token=token) as own:
        turn = own.ask(paying.agent, '{"steps": [{"tool_calls": [{"name": "pay", "arguments": {"amount": 1}}]}]}')
        named = await turn.start()
        await asked(paying, named)
        [interrupt] = await own.interrupts(agent_turn_id=named)
        with pytest.raises(Refused) as refused:
            await interrupt.approve()
        assert refused.value.code == "own_request"
        async with Client(url, token=await as_role(url, paying, GatewayRole.APPROVER)) as other:
            [seen] = await other.interrupts(agent_turn_id=named)
            assert (await seen.reject("no")).decision == "reject"
            assert await other.interrupts() == []
        with pytest.raises(Refused) as refused:
            await interrupt.reject()
        assert refused.value.code == "already_decided"
        assert (await turn.result()).ok


async def test_programs_without_an_event_loop_answer_questions_both_ways(url: str, paying: Hand) -> None:
    token = await as_role(url, paying, GatewayRole.APPROVER)
    for address, more in ((url, {"token": token}), (None, {"project": str(paying.tenant.project)})):
        where = address or paying.tenant.stack.endpoints.nats_url
        turn, interrupt = await waiting(paying, "ask_human")

        def answer(where: str = where, more: dict[str, Any] = more, interrupt: str = interrupt) -> str:
            with SyncClient(where, **more) as asks:
                [found] = asks.interrupts()
                assert (found.id, found.message) == (interrupt, "Which?")
                with pytest.raises(Refused) as refused:
                    found.respond("c")
                assert refused.value.code == "invalid_response"
                return str(asks.interrupt(interrupt).respond("b").decision)

        assert await asyncio.to_thread(answer) == "respond"
        assert heard_by_model(await paying.ended(turn)) == [{"status": "success", "result": {"value": "b"}}]
