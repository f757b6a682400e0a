"""A right is checked before anything else of a request (protocol §14.3), and a token that was revoked gets no answer.

Every endpoint of every protocol, and every page of the console, is asked with a body that nobody could read, by each
role that lacks the right: `forbidden`, and not what is wrong with the body, says that nothing was parsed or looked up.
Every door that lets its client wait is left waiting by a token that is then revoked.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.agui.front_end import FrontEnd
from tests.e2e.gateway.mcp.official import ACCEPT, enveloped
from tests.support.conditions import until
from tests.support.console.visiting import visiting
from tests.support.gateway import asking, client, composed, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.gateway.a2a.rpc import OPERATIONS
from turnstile.gateway.app import Gateway
from turnstile.gateway.events import stream
from turnstile.gateway.http import bearers
from turnstile.gateway.http.endpoints import Endpoint
from turnstile.gateway.mcp.elicited import RequestState
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import RIGHTS, GatewayRole, Right, new_secret, read_secret
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import InterruptId

GARBAGE = b'{"a": [' * 20_000
"""What a reader refuses, after some work."""
SAID = "what a revoked token may not read"
SLOW = json.dumps({"steps": [{"text": SAID, "chunks": 4, "delay_seconds": 0.6}]})


@pytest.fixture(scope="module")
async def gateway(here: Stack) -> AsyncIterator[Gateway]:
    async with composed(here) as made:
        yield made


def needed(right: Right | frozenset[Right]) -> frozenset[Right]:
    """The rights of which one is enough."""
    return right if isinstance(right, frozenset) else frozenset({right})


def lacking(right: Right | frozenset[Right]) -> list[GatewayRole]:
    """The roles that have none of them."""
    return [role for role in GatewayRole if not RIGHTS[role] & needed(right)]


def path_of(path: str) -> str:
    """An address of nobody's."""
    return re.sub(r"\{\w+(:\w+)?\}", "nobody", path)


async def tokens_of(tenant: Tenant) -> dict[GatewayRole, str]:
    return {role: await token_of(tenant.stack, tenant.project, role) for role in GatewayRole}


async def test_every_endpoint_checks_its_right_before_it_reads(gateway: Gateway, tenant: Tenant) -> None:
    tokens, tried = await tokens_of(tenant), 0
    endpoints: list[Endpoint] = [*gateway.endpoints, *gateway.openai, *gateway.agui, *gateway.a2a]
    for endpoint in endpoints:
        for role in lacking(endpoint.right):
            async with asking(gateway, tokens[role]) as web:
                how: dict[str, Any] = {"params": {"unknown": "x"}, "headers": {"content-type": "text/odd"}}
                answer = await web.request(endpoint.method, path_of(endpoint.path), content=GARBAGE, **how)
                assert (answer.status_code, "may not" in answer.text) == (403, True), (endpoint.name, role, answer.text)
                tried += 1
        async with asking(gateway, new_secret().text) as web:
            answer = await web.request(endpoint.method, path_of(endpoint.path), content=GARBAGE)
            assert answer.status_code == 401, endpoint.name
    assert tried > len(endpoints) // 2


async def test_every_page_checks_its_right_before_it_reads(gateway: Gateway, tenant: Tenant) -> None:
    tokens = await tokens_of(tenant)
    pages = [page for page in gateway.pages if page.right is not Right.READ]
    assert len(pages) > 10
    for page in pages:
        for role in lacking(page.right):
            async with visiting("http://127.0.0.1", tokens[role], gateway) as web:
                assert (await web.get("/console")).status_code == 200, "signed in"
                answer = await web.request(page.method, path_of(page.path), content=GARBAGE)
                assert (answer.status_code, "may not" in answer.text) == (403, True), (page.name, role, answer.text)


@pytest.fixture(scope="module")
def looked_up() -> list[str]:
    """The names that this process asks to be resolved, from now on."""
    names: list[str] = []

    def heard(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            names.append(str(args[0]))

    sys.addaudithook(heard)
    return names


@pytest.mark.parametrize("method", OPERATIONS)
async def test_every_operation_of_a2a_checks_its_right_first(
    gateway: Gateway, tenant: Tenant, looked_up: list[str], method: str
) -> None:
    """Names of receivers are resolved for nobody else."""
    right, tokens = OPERATIONS[method][0], await tokens_of(tenant)
    for params in ("x", {"message": "x", "configuration": receiver("unread.invalid")}):
        for role in lacking(right):
            async with asking(gateway, tokens[role]) as web:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                answer = await web.post(f"/a2a/{ALICE}", json=body, headers={"a2a-version": "odd"})
                assert "may not" in answer.text, answer.text
    assert "unread.invalid" not in looked_up


def receiver(host: str) -> JsonObject:
    return {"taskPushNotificationConfig": {"url": f"https://{host}/"}}


async def test_a_name_of_a_receiver_is_resolved_for_those_alone_who_may_name_one(
    gateway: Gateway, tenant: Tenant, looked_up: list[str]
) -> None:
    """Not for one who may answer questions, and so send messages."""
    await tenant.agent("player")
    tokens = await tokens_of(tenant)
    message: JsonObject = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    for role in GatewayRole:
        host, may = f"{role}.invalid", role not in lacking(Right.ASK)
        async with asking(gateway, tokens[role]) as web:
            params: JsonObject = {"message": message, "configuration": receiver(host)}
            body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
            answer = await web.post(f"/a2a/{ALICE}", json=body, headers={"a2a-version": "1.0"})
        assert ("may not" in answer.text, "no public address" in answer.text) == (not may, may), answer.text
        assert (host in looked_up) is may, role


@pytest.mark.parametrize("name", ["nobody", "turn_stop"])
async def test_a_tool_of_mcp_checks_its_right_first(gateway: Gateway, tenant: Tenant, name: str) -> None:
    tokens = await tokens_of(tenant)
    headers, body = enveloped("tools/call", {"name": name, "arguments": {"odd": 1}})
    headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    for role in lacking(Right.ASK):
        async with asking(gateway, tokens[role]) as web:
            answer = await web.post("/mcp", content=body, headers=headers)
            assert "may not" in answer.text, answer.text


async def test_a_decision_through_mcp_checks_its_right_first(gateway: Gateway, tenant: Tenant) -> None:
    turn = (await tenant.run("player", json.dumps({"steps": [{"text": "done"}]}))).view.agent_turn_id
    state = RequestState(turn=turn, asked={InterruptId("int-nobody-1"): None}).text()
    given: dict[str, Any] = {
        "inputResponses": {"int-nobody-1": {"action": "accept", "content": {}}},
        "requestState": state,
    }
    headers, body = enveloped("tools/call", {"name": "turn_get", "arguments": {"turn_id": turn}, **given})
    tokens = await tokens_of(tenant)
    for role in GatewayRole:
        async with asking(gateway, tokens[role]) as web:
            answer = await web.post("/mcp", content=body, headers={**ACCEPT, **headers})
            assert ("may not" in answer.text) is (role in lacking(Right.DECIDE)), (role, answer.text)


async def test_a_run_of_agui_checks_the_right_of_what_it_says_first(gateway: Gateway, tenant: Tenant) -> None:
    tokens, front = await tokens_of(tenant), FrontEnd(httpx.AsyncClient())
    front.says("hello")
    answers: list[dict[str, Any]] = [{"interruptId": "int-nobody-1", "status": "resolved", "payload": {}}]
    for right, said in ((Right.ASK, front.input()), (Right.DECIDE, front.input(resume=answers))):
        for role in GatewayRole:
            async with asking(gateway, tokens[role]) as web:
                answer = await web.post("/agui/nobody", json=said)
                assert (answer.status_code == 403) is (role in lacking(right)), (right, role, answer.text)


def chat(**more: Any) -> dict[str, Any]:
    return {"json": {"model": ALICE, "messages": [{"role": "user", "content": SLOW}], **more}}


def message(method: str) -> dict[str, Any]:
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": SLOW}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": said}}
    return {"json": body, "headers": {"a2a-version": "1.0"}}


def tool_call() -> dict[str, Any]:
    headers, body = enveloped("tools/call", {"name": ALICE, "arguments": {"instruction": SLOW, "wait_seconds": 20}})
    return {
        "content": body,
        "headers": {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers},
    }


def run() -> dict[str, Any]:
    front = FrontEnd(httpx.AsyncClient())
    front.says(SLOW)
    return {"json": front.input()}


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "a turn": ("/v1/turns", {"json": {"agent_id": ALICE, "instruction": SLOW}, "headers": {"prefer": "wait=20"}}),
    "a completion": ("/openai/v1/chat/completions", chat()),
    "a completion, streamed": ("/openai/v1/chat/completions", chat(stream=True)),
    "a response": ("/openai/v1/responses", {"json": {"model": ALICE, "input": SLOW}}),
    "a response, streamed": ("/openai/v1/responses", {"json": {"model": ALICE, "input": SLOW, "stream": True}}),
    "a message": (f"/a2a/{ALICE}", message("SendMessage")),
    "a message, streamed": (f"/a2a/{ALICE}", message("SendStreamingMessage")),
    "a tool": ("/mcp", tool_call()),
    "a run, streamed": (f"/agui/{ALICE}", run()),
}


@pytest.mark.parametrize("door", DOORS)
async def test_a_token_that_is_revoked_while_it_waits_gets_no_answer(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.05)
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.05)
    await tenant.agent("player")
    held = read_secret(await token_of(here, tenant.project))
    assert held is not None
    path, sent = DOORS[door]

    async def begun() -> bool:
        return await tenant.count("state.agent_inbox") > 0

    async with serving(here, heartbeat_seconds=0.1) as url, client(url, held.text) as web:
        waiting = asyncio.create_task(read(web, path, sent))
        await until(begun, 25, "the turn is asked for")
        await here.pool.run(lambda conn: revoke_token(conn, tenant.project, held.token_id))
        answer = await asyncio.wait_for(waiting, 25)
    assert re.search(rf'[^\\]"{SAID}', answer) is None  # the request itself, which a task repeats, has it in escapes
    assert "unauthenticated" in answer or "not valid" in answer or not answer or "streamed" in door


async def read(web: httpx.AsyncClient, path: str, sent: dict[str, Any]) -> str:
    """All that is answered, as far as it comes."""
    parts: list[str] = []
    try:
        async with web.stream("POST", path, **sent) as answer:
            async for text in answer.aiter_text():
                parts += [text]
    except httpx.RemoteProtocolError:
        pass
    return "".join(parts)
