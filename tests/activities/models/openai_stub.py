"""OpenAI's `POST /v1/chat/completions`, streamed; also what vLLM and other compatible servers speak."""

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
    *("model", "messages", "tools", "tool_choice", "stream", "stream_options", "temperature", "top_p", "max_tokens"),
    *("max_completion_tokens", "stop", "seed", "reasoning_effort", "parallel_tool_calls", "response_format", "user"),
    *("presence_penalty", "frequency_penalty", "logit_bias", "n", "service_tier", "verbosity", "metadata"),
}
_KEYS = {
    "system": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "reasoning_content"},
    "tool": {"role", "content", "tool_call_id", "name"},
}


class OpenAIStub(ProviderStub):
    """The stub."""

    prefix = "openai"
    model = "openai/gpt-4o"

    @property
    def api_base(self) -> str:
        return f"{self.url}/v1"

    def check(self, request: HttpRequest, body: Any) -> None:
        if (request.method, request.path) != ("POST", "/v1/chat/completions"):
            raise Refused(f"Invalid URL ({request.method} {request.path})", 404)
        if request.headers.get("authorization") != f"Bearer {API_KEY}":
            raise Refused("Incorrect API key provided", 401)
        for name in body:
            require(name in _PARAMETERS, f"Unrecognized request argument supplied: {name}")
        require(body.get("stream") is True, "this stub only streams")
        require(body.get("stream_options") == {"include_usage": True}, "no usage asked for")
        for tool in listed(body.get("tools")):
            _check_tool(tool)
        require("tools" not in body or body["tools"], "[] is too short - 'tools'")
        _check_messages(body.get("messages"))

    def render(self, said: Said) -> Iterable[bytes]:
        yield _chunk({"role": "assistant", "content": ""})
        for text in said.reasoning:
            yield _chunk({"reasoning_content": text})
        for text in said.text:
            yield _chunk({"content": text})
        for index, call in indexed(said.calls):
            function = {"name": call.name, "arguments": ""}
            first: dict[str, object] = {"index": index, "type": "function", "function": function}
            if call.id is not None:
                first["id"] = call.id
            yield _chunk({"tool_calls": [first]})
            for piece in call.arguments:
                yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield _chunk({}, said.finish or ("tool_calls" if said.calls else "stop"))
        if said.usage:
            total = PROMPT_TOKENS + COMPLETION_TOKENS
            usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS, "total_tokens": total}
            yield sse({**_ENVELOPE, "choices": [], "usage": usage})
        yield sse("[DONE]")

    def error_body(self, fault: Fault) -> JsonObject:
        return {"error": {"message": fault.message, "type": fault.error_type, "param": None, "code": fault.error_type}}


_ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}


def _chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    return sse({**_ENVELOPE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _check_messages(messages: Any) -> None:
    require(listed(messages), "[] is too short - 'messages'")
    awaited: list[str] = []
    for number, message in enumerate(listed(messages)):
        where = f"messages.[{number}]"
        role = message.get("role")
        require(role in _KEYS, f"{where}.role {role!r} is none of {sorted(_KEYS)}")
        extra = sorted(set(message) - _KEYS[role])
        require(not extra, f"Additional properties are not allowed ({extra} were unexpected) - '{where}'")
        if role == "tool":
            require(message.get("tool_call_id") in awaited, f"{where}: no preceding tool_calls with this id")
            awaited.remove(message["tool_call_id"])
            require(isinstance(message.get("content"), str), f"{where}.content must be a string")
            continue
        require(not awaited, f"{where}: tool_call_ids did not have response messages: {awaited}")
        calls = message.get("tool_calls")
        require(calls is None or calls, f"[] is too short - '{where}.tool_calls'")
        if role == "user" and isinstance(message.get("content"), list):
            _check_parts(message["content"], where)
        elif not calls:
            require(isinstance(message.get("content"), str), f"{where}: expected a string, got null")
        for call in listed(calls):
            _check_call(call, where)
            require(call["id"] not in awaited, f"{where}: duplicate tool call id {call['id']}")
            awaited.append(call["id"])
    require(not awaited, f"tool_call_ids did not have response messages: {awaited}")


def _check_parts(parts: Any, where: str) -> None:
    require(parts, f"{where}.content: [] is too short")
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                require(text, f"{where}.content: an empty text")
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                require(url.startswith("data:image/"), f"{where}.content: Invalid image URL")
            case {"type": "file", "file": {"filename": str(), "file_data": str(data)}}:
                require(data.startswith("data:application/pdf;base64,"), f"{where}.content: Invalid file data")
            case _:
                require(False, f"{where}.content: Invalid value: {part}")


def _check_call(call: Any, where: str) -> None:
    require(call.get("type") == "function", f"{where}.tool_calls: type must be function")
    call_id = call.get("id")
    fits = isinstance(call_id, str) and 0 < len(call_id) <= 40
    require(fits, f"{where}: tool call id {call_id!r} is too long or empty")
    require(PLAIN.match(call["function"]["name"]), f"{where}: string does not match pattern for a function name")
    require(isinstance(call["function"]["arguments"], str), f"{where}: arguments must be a string")


def _check_tool(tool: Any) -> None:
    require(set(tool) == {"type", "function"} and tool["type"] == "function", "tools: not a function")
    function = tool["function"]
    extra = set(function) - {"name", "description", "parameters", "strict"}
    require(not extra, f"tools: additional properties {sorted(extra)}")
    require(PLAIN.match(function["name"]), "tools.function.name: string does not match pattern")
    schema = function.get("parameters", {})
    require(schema.get("type") == "object" and "properties" in schema, "object schema missing properties")
