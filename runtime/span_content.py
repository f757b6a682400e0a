"""Span attributes that hold what was said, in the GenAI conventions' JSON (docs/observability.md, content).

They are made only for a tracer that asks for them. Secrets are taken out first; then long texts are cut, long lists and
objects lose their ends, and of a long history the earliest messages after the first are left out, so that an attribute
has at most `LIMIT_BYTES` and is still JSON. Pure; raises for nothing that a model or a tool may write.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Final

from pydantic import JsonValue

from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.ports import ModelMessage, ModelToolCall

Clear = Callable[[str], str]
"""Takes secrets out of a text."""

LIMIT_BYTES: Final = 32_768
_TEXT: Final = 4096
_ITEMS: Final = 64
_DEPTH: Final = 8
_CUT: Final = "…"
_FINISHED: Final = {"tool_calls": "tool_call", "function_call": "tool_call"}
"""The conventions' words for reasons that providers word otherwise."""


def asked(messages: Sequence[ModelMessage], clear: Clear) -> Attributes:
    """`gen_ai.input.messages` of a request."""
    bodies: list[JsonValue] = [_message(message, clear) for message in messages]
    while len(bodies) > 1 and _size(bodies) > LIMIT_BYTES:
        del bodies[1 if len(bodies) > 2 else 0]
    return {"gen_ai.input.messages": _json(bodies)}


def answered(text: str, calls: Sequence[ModelToolCall], finish_reason: str, clear: Clear) -> Attributes:
    """`gen_ai.output.messages` of an answer, whole or as far as it came."""
    message = ModelMessage(role="assistant", content=text, tool_calls=tuple(calls))
    bodies: JsonValue = [{**_message(message, clear), "finish_reason": _FINISHED.get(finish_reason, finish_reason)}]
    return {"gen_ai.output.messages": _json(bodies)}


def call_content(arguments: JsonValue, result: JsonValue, clear: Clear) -> Attributes:
    """`gen_ai.tool.call.arguments` and, if there is a result, `gen_ai.tool.call.result`."""
    attributes: Attributes = (
        {} if arguments is None else {"gen_ai.tool.call.arguments": _json(_bounded(arguments, clear))}
    )
    return attributes if result is None else attributes | {"gen_ai.tool.call.result": _json(_bounded(result, clear))}


def _message(message: ModelMessage, clear: Clear) -> dict[str, JsonValue]:
    parts: list[JsonValue] = []
    if message.role == "tool":
        response = _bounded(_parsed(message.content), clear)
        parts.append({"type": "tool_call_response", "id": message.tool_call_id, "response": response})
    elif message.content:
        parts.append({"type": "text", "content": _bounded(message.content, clear)})
    for call in message.tool_calls[:_ITEMS]:
        arguments = _bounded(_parsed(call.arguments), clear)
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments})
    return {"role": message.role, "parts": parts}


def _bounded(value: JsonValue, clear: Clear, depth: int = 0) -> JsonValue:
    """The value without secrets, and without what is too long or too deep."""
    match value:
        case str():
            text = clear(value)
            return text if len(text) <= _TEXT else text[:_TEXT] + _CUT
        case list() | dict() if depth >= _DEPTH:
            return _CUT
        case list():
            return [_bounded(item, clear, depth + 1) for item in value[:_ITEMS]]
        case dict():
            kept = list(value.items())[:_ITEMS]
            return {clear(name)[:_TEXT]: _bounded(item, clear, depth + 1) for name, item in kept}
        case float() if not math.isfinite(value):  # JSON has no such number
            return str(value)
        case _:
            return value


def _parsed(text: str) -> JsonValue:
    """What a JSON text says; any other text as it is."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value


def _json(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text.encode(errors="replace")) <= LIMIT_BYTES else json.dumps(_CUT)


def _size(value: JsonValue) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
