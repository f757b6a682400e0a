"""What of a project not everybody sees who may read (protocol §14.3): `SEEN_BY`, at every address and in every event.

Every endpoint that is read and every page is asked by every role, of the project and of a channel, about turns whose
calls have arguments that a tool's options added; so are the doors that answer with questions. Each secret is a word
that nothing else has.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.agui.front_end import FrontEnd
from tests.e2e.gateway.mcp.official import ACCEPT, enveloped
from tests.support.console.visiting import visiting
from tests.support.gateway import asking, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.gateway.app import Gateway
from turnstile.schema.access import RIGHTS, SEEN_BY, Caller, Detail, GatewayRole, Right
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, interrupt_id, uuid7

pytestmark = pytest.mark.shared_stack

PROMPTS = ("prompt-secret", "instructions-secret")
ADDED = ("fixed-secret", "ENV_SECRET")
"""Of the tool and of its calls."""
OPEN: dict[str, Any] = {"requester_may_decide": True}
PAY = definition(
    "pay",
    parameters={
        "type": "object",
        "properties": {"amount": {"type": "number"}, "account": {"type": "string"}},
        "required": ["amount", "account"],
    },
    options={"args": {"fixed": {"account": "fixed-secret"}}, "envs": {"key": "ENV_SECRET"}, "interrupt_on": OPEN},
)
WHO = [(role, channel) for role in GatewayRole for channel in (None, "public")]


@pytest.fixture(scope="module")
async def gateway(here: Stack) -> AsyncIterator[Gateway]:
    async with composed(here) as made:
        yield made


@pytest.fixture
async def hand(tenant: Tenant) -> AsyncIterator[Hand]:
    async with hand_of(tenant, PAY, system_prompt_template="prompt-secret") as made:
        yield made


def script(amount: int) -> str:
    return json.dumps({"steps": [calling(("pay", {"amount": amount})), {"text": "done"}]})


async def decided(tenant: Tenant, turn: AgentTurnId, **more: Any) -> JsonObject:
    """Decide the question about a turn's only call."""
    named: JsonObject = {"interrupt_id": interrupt_id(call_of(turn))}
    caller = Caller("ann", operates=True)
    view: Any = (await tenant.client.request("interrupt.get", named))["interrupt"]
    return await tenant.client.request(
        "decide", {**named, "action_digest": view["action_digest"], **more}, caller=caller
    )


async def waiting(hand: Hand, turn: AgentTurnId) -> AgentTurnId:
    """The turn, once it asks."""
    async with asyncio.timeout(25):
        while await hand.tenant.count("state.interrupts", f"agent_turn_id = '{turn}'") == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return turn


async def lived(hand: Hand) -> list[AgentTurnId]:
    """Turns: a call was edited and answered, one had instructions, one read calls, a call is out, one waits."""
    tenant = hand.tenant
    edited = await waiting(hand, await hand.start(calling(("pay", {"amount": 1})), {"text": "done"}))
    assert (await decided(tenant, edited, decision="edit", arguments={"amount": 2}))["status"] == "accepted"
    [command] = await hand.heard()
    await hand.report(command.call, "paid")
    ended = await hand.ended(edited)
    told = await tenant.turn(
        hand.agent, json.dumps({"steps": [{"text": "x"}]}), runtime_config={"instructions": "instructions-secret"}
    )
    reader = await tenant.agent("talks", AgentId("reader"))  # its context has the cards of calls
    again = await tenant.turn(reader, json.dumps({"steps": [{"text": "x"}]}), context_box_id=ended.view.output_box_id)
    out = await waiting(hand, await hand.start(calling(("pay", {"amount": 3})), {"text": "done"}))
    await decided(tenant, out, decision="approve")
    await hand.heard(2)
    asker = await tenant.agent("player", AgentId("asker"), allowed_tools=["pay"])
    asks = await waiting(hand, turn_of(await tenant.enqueue(asker, script(4))))
    return [edited, told.view.agent_turn_id, again.view.agent_turn_id, out, asks]


async def addresses(gateway: Gateway, hand: Hand, turns: list[AgentTurnId]) -> list[str]:
    """All addresses that are read, of each of these turns."""
    tenant = hand.tenant
    cards = await tenant.rows(
        "SELECT card_id, metadata ->> 'agent_turn_id' AS turn FROM public.cards WHERE tenant_id = $1", tenant.project
    )
    paths = {f"/console/turns/{row['turn']}/cards/{row['card_id']}" for row in cards}
    paths |= {f"/console/turns/{turns[2]}/cards/{row['card_id']}" for row in cards if row["turn"] == turns[0]}
    assert any(path.endswith("-call-2") for path in paths)
    served = [*gateway.endpoints, *gateway.openai, *gateway.a2a, *gateway.pages]
    gets = [each.path for each in served if each.method == "GET"]
    for turn in turns:
        names = {
            "turn_id": turn,
            "agent_id": hand.agent,
            "agent": hand.agent,
            "profile_name": f"{hand.agent}-profile",
            "interrupt_id": interrupt_id(call_of(turn)),
            "tool_call_id": call_of(turn),
            "response_id": f"resp_{turn}",
            "tool_name": "pay",
            "name": "pay",
            "conversation_id": "~",
        }
        paths |= {re.sub(r"\{(\w+)(:\w+)?\}", lambda one: names.get(one[1], "nobody"), path) for path in gets}  # noqa: B023
    ended = turns[0]
    return sorted(
        path for path in paths if not path.endswith(("/events", "/changes")) or path.endswith(f"/turns/{ended}/events")
    )


def secrets_in(text: str) -> Iterator[str]:
    return (secret for secret in (*PROMPTS, *ADDED) if secret in text)


async def shown(web: httpx.AsyncClient, browser: httpx.AsyncClient, paths: list[str]) -> dict[str, set[str]]:
    """Where each secret is shown."""
    found: dict[str, set[str]] = {}
    for path in paths:
        text = (await (browser if path.startswith("/console") else web).get(path)).text
        for secret in secrets_in(text):
            found.setdefault(secret, set()).add(path)
    return found


async def test_every_address_shows_each_role_what_it_sees_and_no_more(gateway: Gateway, hand: Hand) -> None:
    turns = await lived(hand)
    paths = await addresses(gateway, hand, turns)
    asked = f"/v1/interrupts/{interrupt_id(call_of(turns[-1]))}"
    assert {asked, f"/v1/turns/{turns[0]}/events", f"/console/calls/{call_of(turns[3])}"} <= {*paths}
    for role, channel in WHO:
        token = await token_of(hand.tenant.stack, hand.tenant.project, role, channel=channel)
        async with asking(gateway, token) as web, visiting("http://127.0.0.1", token, gateway) as browser:
            found = await shown(web, browser, paths)
            view = (await web.get(asked)).json()
        sees = {detail for detail in Detail if channel is None and role in SEEN_BY[detail]}
        expected = {
            *(PROMPTS if Detail.PROMPTS in sees else ()),
            *(ADDED if sees & {Detail.WIRING, Detail.ADDED} else ()),
        }
        assert found.keys() == expected, (role, channel, found)
        whole = Detail.ADDED in sees
        assert view["arguments"]["amount"] == 4
        assert view["arguments_left_out"] is not whole, "who decides knows that there is more"
        assert view["action_digest"]
        if whole and Detail.WIRING not in sees:
            assert not any("/tools" in path for path in found["fixed-secret"]), "of its calls, not of the tool"
    async with asking(gateway, await token_of(hand.tenant.stack, hand.tenant.project)) as web:
        for turn in turns[-2:]:
            await web.post(f"/v1/turns/{turn}/stop", json={})
    for turn in turns[-2:]:
        await hand.ended(turn)


def doors(agent: str) -> dict[str, dict[str, Any]]:
    """Requests that end with the question, of each protocol that shows a call's arguments with it."""
    said = {"messageId": uuid7(), "role": "ROLE_USER", "parts": [{"text": script(5)}]}
    front = FrontEnd(httpx.AsyncClient())
    front.says(script(5))
    headers, call = enveloped("tools/call", {"name": agent, "arguments": {"instruction": script(5)}})
    call = json.loads(call)
    call["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {"elicitation": {"form": {}}}
    return {
        f"/agui/{agent}": {"json": front.input()},
        f"/a2a/{agent}": {
            "json": {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": said}},
            "headers": {"a2a-version": "1.0"},
        },
        "/mcp": {"json": call, "headers": {**ACCEPT, **headers}},
    }


async def test_every_door_that_asks_shows_each_role_what_it_sees_and_no_more(gateway: Gateway, hand: Hand) -> None:
    """AG-UI's run, A2A's message and a call of MCP end with the question, and what a person is to see of its call."""
    tenant = hand.tenant
    for role, channel in WHO:
        if not RIGHTS[role] >= {Right.ASK, Right.DECIDE}:
            continue
        token = await token_of(tenant.stack, tenant.project, role, channel=channel)
        async with asking(gateway, token) as web:
            for path, sent in doors(hand.agent).items():
                answer = re.sub(r"[\\\s]", "", (await web.post(path, **sent)).text)
                assert '"amount":5' in answer, (path, answer)
                whole = channel is None and role in SEEN_BY[Detail.ADDED]
                assert {*secrets_in(answer)} == ({*ADDED} if whole else set()), (role, channel, path, answer)
                [row] = await tenant.rows(
                    "SELECT agent_turn_id FROM state.interrupts WHERE project_id = $1 AND status = 'open'",
                    tenant.project,
                )
                await decided(tenant, row["agent_turn_id"], decision="reject")
                await hand.ended(row["agent_turn_id"])
    told = "".join(f"{event.payload}{event.headers}" for event in await tenant.events(">"))
    assert not [*secrets_in(told)], "events are read by whoever may hear the project's"
