"""What strangers post to `/mcp`: no protocol, nearly the protocol, and other people's names (protocol §17.2)."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.mcp.official import ACCEPT, STATELESS, Door, enveloped, request
from tests.e2e.gateway.mcp.test_handles import opened
from tests.support.fuzz import TEXTS, Dice
from tests.support.gateway import asking, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import read_secret
from turnstile.schema.ids import AgentTurnId

SHARE = 0.04


def error_of(answer: httpx.Response) -> tuple[int, int]:
    """The HTTP status, and the JSON-RPC code."""
    body = answer.json()
    assert (body["jsonrpc"], "result" in body) == ("2.0", False), body
    return answer.status_code, body["error"]["code"]


async def test_who_has_no_token_comes_nowhere(operator: Door, tenant: Tenant) -> None:
    for token in (None, "x", f"{operator.token}x"):
        async with Door(operator.url, token).raw() as web:
            answer = await web.post("/mcp", content=request("tools/list"))
            assert error_of(answer) == (401, -32000)
            assert answer.headers["www-authenticate"] == "Bearer"
    token = await token_of(tenant.stack, tenant.project)
    secret = read_secret(token)
    assert secret is not None
    await tenant.pool.run(lambda conn: revoke_token(conn, tenant.project, secret.token_id))
    async with Door(operator.url, token).raw() as web:
        assert error_of(await web.post("/mcp", content=request("tools/list"))) == (401, -32000)


async def test_what_is_no_message_is_refused(operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    call = request("tools/list")
    refused: list[tuple[str | bytes, dict[str, str], tuple[int, int]]] = [
        ("{", {}, (400, -32700)),
        (b"\xff", {}, (400, -32700)),
        ('{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"x": NaN}}', {}, (400, -32700)),
        ("[" * 100_000, {}, (400, -32700)),
        ('{"a":' * 5000 + "1" + "}" * 5000, {}, (400, -32700)),
        (f"[{call}]", {}, (400, -32600)),
        ("[]", {}, (400, -32600)),
        ("5", {}, (400, -32600)),
        ("{}", {}, (400, -32600)),
        ('{"jsonrpc": "1.0", "id": 1, "method": "ping"}', {}, (400, -32600)),
        ('{"jsonrpc": "2.0", "id": null, "method": "ping"}', {}, (400, -32600)),
        ('{"jsonrpc": "2.0", "id": {}, "method": "ping"}', {}, (400, -32600)),
        ('{"jsonrpc": "2.0", "id": 1, "method": 5}', {}, (400, -32600)),
        ('{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": [1]}', {}, (400, -32600)),
        ("x" * (2 << 20), {}, (413, -32000)),
        (call, {"content-type": "text/plain"}, (415, -32000)),
        (call, {"content-encoding": "gzip"}, (415, -32000)),
        (call, {"accept": "application/json"}, (406, -32000)),
        (call, {"accept": "text/html"}, (406, -32000)),
        (call, {"mcp-session-id": "mine"}, (404, -32000)),
        (call, {"origin": "http://evil.example"}, (403, -32000)),
        (call, {"host": "evil.example"}, (421, -32000)),
        (call, {"mcp-protocol-version": "1999-01-01"}, (400, -32602)),
        (call, {"mcp-protocol-version": STATELESS}, (400, -32602)),
    ]
    async with operator.raw() as web:
        for body, headers, wanted in refused:
            assert error_of(await web.post("/mcp", content=body, headers=headers)) == wanted, (body[:100], headers)
        for method in ("GET", "DELETE", "PUT"):
            answer = await web.request(method, "/mcp")
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        assert (await web.post("/mcp?token=x", content=call)).status_code == 200


async def test_headers_that_say_something_else_than_the_body_are_refused(operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    headers, body = enveloped("tools/call", {"name": ALICE, "arguments": {"instruction": "x"}})
    async with operator.raw() as web:
        for wrong in ({"mcp-method": "tools/list"}, {"mcp-name": "turn_get"}, {"mcp-protocol-version": "2027-01-01"}):
            assert error_of(await web.post("/mcp", content=body, headers={**headers, **wrong}))[0] == 400
        twice = [*headers.items(), ("mcp-name", "turn_get")]
        assert error_of(await web.post("/mcp", content=body, headers=twice)) == (400, -32020)
    assert await tenant.count("state.agent_inbox") == 0


async def test_without_the_package_there_is_no_such_address(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with composed(here) as gateway, asking(gateway, await token_of(here, tenant.project)) as web:
        assert gateway.missing == ["mcp"]
        assert error_of(await web.post("/mcp", content=request("ping"), headers=ACCEPT)) == (404, -32000)
        assert (await web.get("/health")).status_code == 200
        assert (await web.get("/v1/agents")).status_code == 200


async def test_a_token_has_so_many_open_calls(here: Stack, tenant: Tenant) -> None:
    token = await token_of(here, tenant.project)
    await tenant.agent("player")
    async with composed(here, token_streams=0) as gateway, asking(gateway, token) as web:
        call = request("tools/call", {"name": ALICE, "arguments": {"instruction": "x"}})
        answer = await web.post("/mcp", content=call, headers=ACCEPT)
        assert answer.json()["result"]["structuredContent"]["error_code"] == "too_many_streams"


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The answer, also if heartbeats came before it."""
    if response.headers["content-type"].startswith("text/event-stream"):
        return json.loads(response.text.rpartition("data: ")[2])
    return response.json()


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("tools/call", {"name": ALICE, "arguments": {"instruction": "x", "wait_seconds": 0}}),
    ("tools/call", {"name": "turn_get", "arguments": {"turn_id": "x"}, "requestState": "e30", "inputResponses": {}}),
    ("tools/call", {"name": "turn_stop", "arguments": {"turn_id": "x", "reason": "y"}}),
    ("tools/list", {"cursor": "alice"}),
    ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}),
    ("notifications/cancelled", {"requestId": 1}),
    ("server/discover", {}),
    ("ping", {}),
    ("person", {"action": "accept", "content": {"decision": "approve"}}),
]


@pytest.mark.fuzz
async def test_messages_of_any_kind_are_answered(
    here: Stack, tenant: Tenant, fuzz_share: Callable[[float], int]
) -> None:
    """Valid, nearly valid and invalid, in both generations, with headers that fit and that do not."""
    await tenant.agent("mirror")
    token = await token_of(here, tenant.project)
    seen: Counter[int] = Counter()
    async with composed(here) as gateway, asking(gateway, token) as web:
        web.headers.update(ACCEPT)
        session = await opened(web)
        slots = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            dice = Dice.of(number)
            method, params = dice.pick.choice(MESSAGES)
            headers, body = enveloped(method, params)
            if dice.chance(0.5):
                headers = {"mcp-session-id": session} if dice.chance(0.8) else {}
            message = json.loads(body)
            if method == "person":
                message = {"jsonrpc": "2.0", "id": "person/int-x-1/", "result": params}
            given = dice.bent(message) if dice.chance(0.8) else message
            sent = {**ACCEPT, **headers}
            if dice.chance(0.2):
                name = dice.pick.choice([*sent])
                sent[name] = dice.pick.choice(TEXTS).encode("ascii", "ignore").decode()[:100].strip()
            async with slots, asyncio.timeout(60):
                content = json.dumps(given, ensure_ascii=True)
                answer = await web.post("/mcp", content=content, headers=sent)
            seen[answer.status_code] += 1
            assert answer.status_code < 500, (number, answer.text)
            assert "Traceback" not in answer.text
            if answer.status_code != 202:
                found = answer_of(answer)
                assert found["jsonrpc"] == "2.0", (number, answer.text)
                assert found.get("error", {}).get("code") != -32603, (number, answer.text)

        await asyncio.gather(*(one(number) for number in range(fuzz_share(SHARE))))
        assert gateway.access.open_streams == 0
    assert min(seen[200], seen[400], 3 * seen[202]) >= 3, seen
    for row in await tenant.rows("SELECT agent_turn_id FROM state.agent_inbox WHERE project_id = $1", tenant.project):
        await tenant.ended(AgentTurnId(row["agent_turn_id"]))
