"""A right is checked before anything else of a request (protocol §14.3), and a token that was revoked gets no answer.

Every endpoint of every protocol, and every page of the console, is asked with a body that nobody could read, by each
role that lacks the right: `forbidden`, and not what is wrong with the body, says that nothing was parsed or looked up.
Every door that lets its client wait is left waiting by a token that is then revoked.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.mcp.official import enveloped
from tests.support.conditions import until
from tests.support.console.visiting import visiting
from tests.support.gateway import asking, client, composed, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import definition
from turnstile.gateway.a2a.rpc import OPERATIONS
from turnstile.gateway.app import Gateway
from turnstile.gateway.events import stream
from turnstile.gateway.http import bearers
from turnstile.gateway.http.endpoints import Endpoint
from turnstile.ledger.access.tokens import revoke_token
from turnstile.ledger.turns.roster import put_tool
from turnstile.runtime import outbound
from turnstile.schema.access import RIGHTS, GatewayRole, Right, new_secret, read_secret
from turnstile.schema.base import JsonObject

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


@pytest.mark.parametrize("method", OPERATIONS)
async def test_every_operation_of_a2a_checks_its_right_first(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Names of receivers are resolved for nobody else."""
    resolved: list[str] = []

    async def resolve(url: str, *_: Any, **__: Any) -> None:
        resolved.append(url)

    monkeypatch.setattr(outbound, "destination", resolve)
    right, tokens = OPERATIONS[method][0], await tokens_of(tenant)
    for params in ("x", {"message": "x", "configuration": {"taskPushNotificationConfig": {"url": "https://slow/"}}}):
        for role in lacking(right):
            async with asking(gateway, tokens[role]) as web:
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                answer = await web.post(f"/a2a/{ALICE}", json=body, headers={"a2a-version": "odd"})
                assert "may not" in answer.text, answer.text
    assert resolved == []


async def test_a_viewer_has_no_receiver_resolved(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one who may answer questions, and so send messages."""
    await tenant.agent("player")
    resolved: list[str] = []

    async def resolve(url: str, *_: Any, **__: Any) -> None:
        resolved.append(url)

    monkeypatch.setattr("turnstile.gateway.a2a.push_configs.destination", resolve)
    tokens = await tokens_of(tenant)
    message: JsonObject = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}
    params: JsonObject = {"message": message, "configuration": {"taskPushNotificationConfig": {"url": "https://slow/"}}}
    for role in (GatewayRole.VIEWER, GatewayRole.APPROVER):
        async with asking(gateway, tokens[role]) as web:
            body: JsonObject = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
            answer = await web.post(f"/a2a/{ALICE}", json=body, headers={"a2a-version": "1.0"})
            assert "may not" in answer.text, answer.text
    assert resolved == []


@pytest.mark.parametrize("name", ["nobody", "turn_stop"])
async def test_a_tool_of_mcp_checks_its_right_first(gateway: Gateway, tenant: Tenant, name: str) -> None:
    tokens = await tokens_of(tenant)
    headers, body = enveloped("tools/call", {"name": name, "arguments": {"odd": 1}})
    headers |= {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    for role in lacking(Right.ASK):
        async with asking(gateway, tokens[role]) as web:
            answer = await web.post("/mcp", content=body, headers=headers)
            assert "may not" in answer.text, answer.text


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


DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "a turn": ("/v1/turns", {"json": {"agent_id": ALICE, "instruction": SLOW}, "headers": {"prefer": "wait=20"}}),
    "a completion": ("/openai/v1/chat/completions", chat()),
    "a completion, streamed": ("/openai/v1/chat/completions", chat(stream=True)),
    "a response": ("/openai/v1/responses", {"json": {"model": ALICE, "input": SLOW}}),
    "a response, streamed": ("/openai/v1/responses", {"json": {"model": ALICE, "input": SLOW, "stream": True}}),
    "a message": (f"/a2a/{ALICE}", message("SendMessage")),
    "a message, streamed": (f"/a2a/{ALICE}", message("SendStreamingMessage")),
    "a tool": ("/mcp", tool_call()),
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
        await until(begun, 10, "the turn is asked for")
        await here.pool.run(lambda conn: revoke_token(conn, tenant.project, held.token_id))
        answer = await asyncio.wait_for(waiting, 10)
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


async def test_what_is_not_for_everybody_is_shown_to_operators_of_the_project_alone(
    gateway: Gateway, tenant: Tenant
) -> None:
    """Every address that is read, by every role, of the project and of a channel."""
    wiring = {"args": {"fixed": {"account": "fixed-secret"}}, "envs": {"key": "ENV_SECRET"}}
    await put_tool(tenant.pool, tenant.project, definition("pay", options=wiring))
    await tenant.agent("player", system_prompt_template="prompt-secret", allowed_tools=["pay"])
    said, settings = json.dumps({"steps": [{"text": "done"}]}), {"instructions": "instructions-secret"}
    turn = (await tenant.turn(ALICE, said, runtime_config=settings)).view
    cards = await tenant.rows("SELECT card_id FROM public.cards WHERE tenant_id = $1", tenant.project)
    paths = [f"/console/turns/{turn.agent_turn_id}/cards/{row['card_id']}" for row in cards]
    assert any(path.endswith("-prompt") for path in paths)
    names = {"turn_id": turn.agent_turn_id, "agent_id": ALICE, "agent": ALICE, "profile_name": f"{ALICE}-profile"}
    served = [*gateway.endpoints, *gateway.openai, *gateway.a2a, *gateway.pages]
    paths += [
        re.sub(r"\{(\w+)(:\w+)?\}", lambda found: names.get(found[1], "nobody"), endpoint.path)
        for endpoint in served
        if endpoint.method == "GET"
    ]
    secrets = ("prompt-secret", "instructions-secret", "fixed-secret", "ENV_SECRET")
    for role in GatewayRole:
        for channel in (None, "public"):
            token = await token_of(tenant.stack, tenant.project, role, channel=channel)
            shown: set[str] = set()
            async with asking(gateway, token) as web, visiting("http://127.0.0.1", token, gateway) as browser:
                for path in paths:
                    if not path.endswith(("/events", "/changes")):
                        text = (await (browser if path.startswith("/console") else web).get(path)).text
                        shown |= {secret for secret in secrets if secret in text}
            whole = role is GatewayRole.OPERATOR and channel is None
            assert shown == (set(secrets) if whole else set()), (role, channel)
