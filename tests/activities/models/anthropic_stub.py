"""Anthropic's `POST /v1/messages`, streamed."""

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.activities.models.http_stub import HttpRequest
from tests.activities.models.provider_stub import (
    API_KEY,
    COMPLETION_TOKENS,
    PLAIN,
    PROMPT_TOKENS,
    Fault,
    ProviderStub,
    Refused,
    Said,
    indexed,
    listed,
    require,
    sse,
)
from turnstile.schema.base import JsonObject

_PARAMETERS = {
    *("model", "messages", "system", "tools", "tool_choice", "stream", "temperature", "top_p", "top_k", "max_tokens"),
    *("stop_sequences", "thinking", "metadata", "service_tier", "output_config"),
}
_CALL_ID = re.compile(r"[A-Za-z0-9_-]+\Z")


class AnthropicStub(ProviderStub):
    """The stub."""

    prefix = "anthropic"
    model = "anthropic/claude-sonnet-4-5"

    @property
    def api_base(self) -> str:
        return self.url

    def check(self, request: HttpRequest, body: Any) -> None:
        if (request.method, request.path) != ("POST", "/v1/messages"):
            raise Refused(f"not found: {request.method} {request.path}", 404)
        if request.headers.get("x-api-key") != API_KEY:
            raise Refused("invalid x-api-key", 401)
        require("anthropic-version" in request.headers, "anthropic-version: header is required")
        for name in body:
            require(name in _PARAMETERS, f"{name}: Extra inputs are not permitted")
        require(isinstance(body.get("max_tokens"), int), "max_tokens: Field required")
        require(body.get("stream") is True, "this stub only streams")
        require(body.get("temperature", 0) <= 1, "temperature: range: 0..1")
        blank = [text for text in listed(body.get("stop_sequences")) if not text.strip()]
        require(not blank, "stop_sequences: each must contain non-whitespace")
        for block in _blocks(body.get("system", "x")):
            _check_text(block, "system")
        names = [_check_tool(tool) for tool in listed(body.get("tools"))]
        require(len(names) == len(set(names)), "tools: Tool names must be unique.")
        _check_messages(body.get("messages"), has_tools=bool(names))
        _check_thinking(body)

    def render(self, said: Said) -> Iterable[bytes]:
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 1} if said.usage else {}
        content: list[object] = []
        message = {"id": "msg_1", "type": "message", "role": "assistant", "content": content, "model": "claude"}
        yield _event("message_start", message={**message, "stop_reason": None, "usage": usage})
        block = 0
        if said.reasoning:
            deltas = [{"type": "thinking_delta", "thinking": text} for text in said.reasoning]
            deltas.append({"type": "signature_delta", "signature": "c2ln"})
            yield from _block(block, {"type": "thinking", "thinking": ""}, deltas)
            block += 1
        if said.text:
            deltas = [{"type": "text_delta", "text": text} for text in said.text]
            yield from _block(block, {"type": "text", "text": ""}, deltas)
            block += 1
        for index, call in indexed(said.calls):
            start: dict[str, object] = {"type": "tool_use", "id": call.id or "", "name": call.name}
            start["input"] = dict[str, object]()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in call.arguments]
            yield from _block(block + index, start, deltas)
        finish = said.finish or ("tool_use" if said.calls else "end_turn")
        usage = {"output_tokens": COMPLETION_TOKENS} if said.usage else {}
        yield _event("message_delta", delta={"stop_reason": finish, "stop_sequence": None}, usage=usage)
        yield _event("message_stop")

    def error_body(self, fault: Fault) -> JsonObject:
        return {"type": "error", "error": {"type": fault.error_type, "message": fault.message}}


def _event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _block(index: int, start: dict[str, object], deltas: list[dict[str, str]]) -> Iterable[bytes]:
    yield _event("content_block_start", index=index, content_block=start)
    for delta in deltas:
        yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else listed(content)


def _check_text(block: Any, where: str) -> None:
    if block["type"] == "text":
        require(block["text"], f"{where}: text content blocks must be non-empty")
        require(block["text"].strip(), f"{where}: text content blocks must contain non-whitespace text")


def _check_messages(messages: Any, *, has_tools: bool) -> None:
    require(listed(messages), "messages: at least one message is required")
    require(messages[0]["role"] == "user", "messages: first message must use the user role")
    seen: set[str] = set()
    awaited: list[str] = []
    for number, message in enumerate(listed(messages)):
        where = f"messages.{number}"
        require(message["role"] in ("user", "assistant"), f"{where}: role {message['role']!r}")
        blocks = _blocks(message["content"])
        require(blocks, f"{where}: all messages must have non-empty content")
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        require(set(results) <= set(awaited), f"{where}: unexpected tool_use_id found in tool_result blocks: {results}")
        require(len(results) == len(set(results)), f"{where}: each tool_use must have a single result")
        require(set(awaited) <= set(results), f"{where}: tool_use ids were found without tool_result blocks: {awaited}")
        kinds = [block["type"] == "tool_result" for block in blocks]
        require(kinds == sorted(kinds, reverse=True), f"{where}: tool_result blocks must come first")
        awaited = []
        for block in blocks:
            _check_text(block, where)
            if block["type"] == "tool_use":
                require(message["role"] == "assistant", f"{where}: tool_use blocks can only be in assistant messages")
                require(_CALL_ID.match(block["id"]), f"{where}: tool_use.id: String should match pattern")
                require(PLAIN.match(block["name"]), f"{where}: tool_use.name: String should match pattern")
                require(isinstance(block["input"], dict), f"{where}: tool_use.input: should be a valid dictionary")
                require(block["id"] not in seen, f"{where}: `tool_use` ids must be unique")
                seen.add(block["id"])
                awaited.append(block["id"])
            if block["type"] == "tool_result":
                for inner in _blocks(block.get("content", "x")):
                    _check_text(inner, where)
    require(not awaited, f"tool_use ids were found without tool_result blocks immediately after: {awaited}")
    require(has_tools or not seen, "Requests which include tool_use or tool_result blocks must define tools")
    last = messages[-1]
    require(last["role"] == "user", "This model does not support assistant message prefill")


def _check_thinking(body: Any) -> None:
    thinking: Any = body.get("thinking")
    if thinking is None or thinking.get("type") != "enabled":
        return
    budget = thinking.get("budget_tokens", 0)
    require(budget < body["max_tokens"], "max_tokens must be greater than budget_tokens")
    require(body.get("temperature", 1) == 1, "temperature may only be set to 1 when thinking is enabled")
    blocks = [_blocks(m["content"]) for m in body["messages"] if m["role"] == "assistant"]
    if blocks and any(block["type"] == "tool_use" for block in blocks[-1]):
        found = blocks[-1][0]["type"]
        signed = found in ("thinking", "redacted_thinking")
        require(signed, f"Expected `thinking` or `redacted_thinking`, but found `{found}`")


def _check_tool(tool: Any) -> str:
    require(PLAIN.match(tool["name"]), "tools: name: String should match pattern")
    schema = tool["input_schema"]
    require(schema.get("type") == "object", "tools: input_schema.type: Field required")
    require(isinstance(schema.get("properties", {}), dict), f"tools: JSON schema is invalid: {json.dumps(schema)}")
    return str(tool["name"])
