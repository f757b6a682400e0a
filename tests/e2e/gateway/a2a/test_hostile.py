"""Hostile clients of A2A: what they send is answered in A2A's words, and harms nobody (protocol §17.3)."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from tests.support.fuzz import Dice
from tests.support.gateway import asking, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant

SHARE = 0.1
"""Of `--fuzz-cases`."""
PATH = f"/a2a/{ALICE}"
METHODS: dict[str, dict[str, Any]] = {
    "SendMessage": {"message": {}, "configuration": {}, "metadata": {}},
    "SendStreamingMessage": {"message": {}, "configuration": {}},
    "GetTask": {"id": "x", "historyLength": 1},
    "ListTasks": {"contextId": "c", "status": 1, "pageSize": 1, "pageToken": "x", "includeArtifacts": True},
    "CancelTask": {"id": "x"},
    "SubscribeToTask": {"id": "x"},
    "CreateTaskPushNotificationConfig": {"taskId": "x", "url": "https://x/", "token": "t", "id": "i"},
    "GetTaskPushNotificationConfig": {"taskId": "x", "id": "i"},
    "DeleteTaskPushNotificationConfig": {"taskId": "x", "id": "i"},
    "GetExtendedAgentCard": {},
    "tasks/get": {"id": "x"},
}
MESSAGE: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}], "contextId": "c"}
DEEP = "[" * 150 + "]" * 150


@pytest.fixture
async def web(here: Stack, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    await tenant.agent("echo")
    async with (
        composed(here) as gateway,
        asking(gateway, await token_of(here, tenant.project)) as made,
    ):
        made.headers["a2a-version"] = "1.0"
        yield made


def request(dice: Dice) -> bytes:
    """A request that is nearly one."""
    pick, method = dice.pick, dice.pick.choice([*METHODS])
    params = json.loads(json.dumps(METHODS[method]))
    if "message" in params:
        params["message"] = {**MESSAGE, "messageId": f"m{pick.random()}", "taskId": "nothing"}
    for _ in range(pick.randrange(1, 4)):
        where = params
        if isinstance(params.get("message"), dict) and dice.chance(0.7):
            where = params["message"]
        where[pick.choice([*where, "more"] if where else ["more"])] = dice.odd()
    made: dict[str, Any] = {"jsonrpc": "2.0", "id": pick.randrange(9), "method": method, "params": params}
    if dice.chance(0.2):
        made[pick.choice([*made])] = dice.odd()
    text = dice.encoded(made)
    return text[: pick.randrange(len(text))] if dice.chance(0.05) else text


@pytest.mark.fuzz
async def test_requests_of_any_kind_are_answered_in_a2as_words(
    web: httpx.AsyncClient, tenant: Tenant, fuzz_share: Callable[[float], int]
) -> None:
    seen = set[int]()
    for number in range(fuzz_share(SHARE)):
        body = request(Dice.of(number))
        answer = await web.post(PATH, content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (200, 400, 413), (number, body, answer.text)
        if answer.headers["content-type"].startswith("text/event-stream"):
            continue
        told = answer.json()
        assert told["jsonrpc"] == "2.0", (number, body)
        assert ("result" in told) != ("error" in told), (number, body)
        if "error" in told:
            seen.add(told["error"]["code"])
            assert told["error"]["code"] != -32603, (number, body, told)
            assert len(answer.content) < 8_000, (number, body)
    assert {-32602, -32001, -32600} <= seen
    assert await tenant.count("state.agent_inbox", "status = 'error'") == 0


async def test_large_and_deep_bodies_are_refused(web: httpx.AsyncClient, tenant: Tenant) -> None:
    json_type = {"content-type": "application/json"}
    for body, status, code in (
        (b"{", 200, -32700),
        (b"[]", 200, -32600),
        (b'{"jsonrpc": "2.0", "id": true, "method": "GetTask"}', 200, -32600),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}', 200, -32601),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": []}', 200, -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"status": "BUSY"}}', 200, -32602),
        (f'{{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {{"id": {DEEP}}}}}'.encode(), 200, -32700),
        (b"[" * 100_000, 200, -32700),
        (b'{"x": "' + b"x" * (1 << 20) + b'"}', 413, -32000),
    ):
        answer = await web.post(PATH, content=body, headers=json_type)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), body[:80]
    part = {"data": json.loads(DEEP)}
    deep = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {**MESSAGE, "parts": [part]}}}
    assert (await web.post(PATH, json=deep)).json()["error"]["code"] == -32700
    assert (await web.post(PATH, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    del web.headers["a2a-version"]
    plain = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
    assert (await web.post(PATH, json=plain)).json()["error"]["code"] == -32009
    assert await tenant.count("state.agent_inbox") == 0
