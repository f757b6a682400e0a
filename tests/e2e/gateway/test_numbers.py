"""Numbers of any size and kind, wherever a request of any door has a value, are no fault of it (protocol §14)."""

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.support.gateway import asking, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant

NUMBERS = (
    "-1",
    "99",
    "0",
    "1.5",
    "-0.0",
    "1e999",
    "-1e999",
    "1e308",
    "2147483648",
    "9223372036854775808",
    "1" + "0" * 400,
)
SAID = {"role": "user", "content": '{"steps": [{"text": "x"}]}'}
SENT = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x", "data": None}], "contextId": "c", "taskId": "t"}
LIST = {
    "contextId": "c",
    "status": 1,
    "pageSize": 1,
    "historyLength": 1,
    "statusTimestampAfter": "2026-01-01T00:00:00Z",
}
PUSH = {"taskId": "t", "id": "i", "url": "https://x/", "pageSize": 1}


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A request of JSON-RPC."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/turns",
        {
            "agent_id": ALICE,
            "instruction": "x",
            "conversation_id": "c",
            "budget": {"max_tokens": 1, "max_cost_usd": 1, "max_turns": 1, "max_seconds": 1, "warn_percent": 1},
            "runtime_config": {"temperature": 0, "max_tokens": 1},
            "result_fields": [{"name": "a"}],
            "metadata": {"a": 1},
        },
    ),
    ("/v1/turns/t/stop", {"reason": "x"}),
    ("/v1/turns/t/steer", {"text": "x"}),
    ("/v1/interrupts/i/decide", {"decision": "respond", "response": {"a": 1}}),
    ("/v1/budgets/b/raise", {"max_tokens": 1, "max_cost_usd": 1}),
    (
        "/openai/v1/chat/completions",
        {"model": "nobody", "messages": [SAID], "temperature": 0, "max_tokens": 1, "n": 1, "top_p": 1, "stream": False},
    ),
    (
        "/openai/v1/responses",
        {
            "model": "nobody",
            "input": [SAID, {"type": "item_reference", "id": "msg_x"}],
            "temperature": 0,
            "max_output_tokens": 1,
            "metadata": {"a": "b"},
            "conversation": {"id": "c"},
        },
    ),
    *(
        (f"/a2a/{ALICE}", rpc(method, params))
        for method, params in (
            ("SendMessage", {"message": SENT, "configuration": {"historyLength": 1, "acceptedOutputModes": ["text"]}}),
            ("SendStreamingMessage", {"message": SENT, "metadata": {"a": 1}}),
            ("GetTask", {"id": "x", "historyLength": 1}),
            ("ListTasks", LIST),
            ("CancelTask", {"id": "x"}),
            ("SubscribeToTask", {"id": "x"}),
            ("CreateTaskPushNotificationConfig", PUSH),
            ("ListTaskPushNotificationConfigs", PUSH),
        )
    ),
    (
        "/agui/nobody",
        {
            "threadId": "t",
            "runId": "r",
            "messages": [{"id": "1", **SAID}],
            "tools": [{"name": "t", "description": "d", "parameters": {}}],
            "context": [{"description": "d", "value": "v"}],
            "state": {},
            "forwardedProps": {"a": 1},
            "resume": [{"interruptId": "i", "status": "resolved", "payload": {"a": 1}}],
        },
    ),
    (
        "/mcp",
        rpc("tools/call", {"name": ALICE, "arguments": {"instruction": 3, "wait_seconds": 1}, "_meta": {"a": 1}}),
    ),
    ("/mcp", rpc("tools/call", {"name": "turn_get", "arguments": {"turn_id": "t", "wait_seconds": 1}})),
    ("/mcp", rpc("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x"}})),
]
PLACE = "\x00here"


def replaced(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced, one at a time."""
    yield PLACE
    if isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        for name, each in known.items():
            for other in replaced(each):
                yield {**known, name: other}
    elif isinstance(value, list):
        items = cast("list[Any]", value)
        for place, each in enumerate(items):
            for other in replaced(each):
                yield [*items[:place], other, *items[place + 1 :]]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda each: each[:20])
async def test_a_number_anywhere_is_an_answer_and_no_fault(number: str, here: Stack, tenant: Tenant) -> None:
    await tenant.agent("echo")
    token = await token_of(here, tenant.project)
    headers = {
        "content-type": "application/json",
        "accept": "application/json, text/event-stream",
        "a2a-version": "1.0",
    }
    async with composed(here) as gateway, asking(gateway, token) as web:
        for path, request in REQUESTS:
            for value in replaced(request):
                body = json.dumps(value).replace(json.dumps(PLACE), number)
                answer = await web.post(path, content=body, headers=headers)
                assert answer.status_code < 500, (path, body, answer.text)
                assert "-32603" not in answer.text, (path, body, answer.text)
                assert answer.headers["x-request-id"]


async def test_limits_that_limit_nothing_are_none(here: Stack, tenant: Tenant) -> None:
    await tenant.agent("echo")
    async with composed(here) as gateway, asking(gateway, await token_of(here, tenant.project)) as web:
        made = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": "x", "budget": {}})
        assert made.status_code in (201, 202), made.text
        await tenant.ended(made.json()["agent_turn_id"])
