"""Models `local/NAME`: llama.cpp's server, through litellm like any other server that speaks OpenAI's protocol.

Where the server is, says `[model.api_bases]`, else `address`, which may start it first; so the first request waits
until the weights are loaded. Who starts servers, and which, `turnstile.local` decides.

With `tool_choice: required`, or a function's name, in `llm_config.params`, llama.cpp lets a model write text without
end before its call, and small models never make it. So these requests say in the prompt what the functions are, and
bind the answer to the JSON of one call by a grammar. Such an answer is not streamed: it becomes a call at its end.
"""

import copy
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from pydantic import JsonValue, ValidationError

from turnstile.activities.models.access import ModelAccess
from turnstile.activities.models.provider import LitellmModel, OwnServer
from turnstile.runtime.ports import (
    ContentDelta,
    ModelDone,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    TokenCount,
    ToolCallDelta,
)
from turnstile.schema.base import JsonObject, Tolerant

_SIMPLE: list[JsonValue] = [{"type": name} for name in ("string", "number", "boolean", "null")]
"""What stands for "any JSON value": free to nest, small models do so without end."""
_DESCRIBED = (
    'Answer with one JSON object {"name": …, "arguments": …} and nothing else. It calls one of these functions:'
)


class LocalModel:
    """A `Model` for ids `local/NAME`; `check` raises `ModelError` if NAME cannot be served on this machine."""

    def __init__(
        self,
        real: LitellmModel,
        access: ModelAccess,
        address: Callable[[str], Awaitable[str]],
        check: Callable[[str], None],
    ) -> None:
        self._real = real
        self._access = access
        self._address = address
        self._check = check

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yields the answer as it arrives; raises what `address` and `LitellmModel.stream` raise."""
        model = request.config.model
        name = _name(model)
        base = self._access.api_base(model) or await self._address(name)
        offered = must_call(request)
        bound = bound_to_call(request, offered) if offered else request
        async with aclosing(self._real.stream(bound, OwnServer(base, name))) as events:
            async for event in _as_call(events) if offered else events:
                yield event

    async def count(self, request: ModelRequest) -> TokenCount:
        """An estimate: the tokens are counted with another model's encoding."""
        return await self._real.count(request, is_local=True)

    async def check(self, model: str) -> None:
        """Raises `ModelError` if the model cannot be served here and no other server is set for it."""
        if self._access.api_base(model) is None:
            self._check(_name(model))

    async def warm_up(self, model: str) -> None:
        """Start the model's server now; raises what `address` raises."""
        if self._access.api_base(model) is None:
            await self._address(_name(model))

    async def close(self) -> None:
        """Nothing to close: litellm's clients are those of the other models, and servers are their starter's."""


def must_call(request: ModelRequest) -> tuple[JsonObject, ...]:
    """The functions of which the answer has to call one; empty if it is free."""
    functions = tuple(tool["function"] for tool in request.tools)
    offered = tuple(function for function in functions if isinstance(function, dict))
    match request.config.provider_params.get("tool_choice"):
        case "required" | "any":
            return offered
        case {"function": {"name": str(name)}}:
            return tuple(f for f in offered if f.get("name") == name)
        case _:
            return ()


def bound_to_call(request: ModelRequest, functions: Sequence[JsonObject]) -> ModelRequest:
    """The request without tools, with the functions in its prompt, and an answer that is the JSON of one call."""
    schema: JsonObject = {"anyOf": [_call_schema(function) for function in functions]}
    params = {name: value for name, value in request.config.provider_params.items() if name not in _OF_TOOLS}
    form: JsonObject = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
    config = request.config.model_copy(update={"params": {**params, "response_format": form}})
    text = "\n".join((_DESCRIBED, *(json.dumps(function, ensure_ascii=False) for function in functions)))
    return ModelRequest(
        config=config,
        messages=_with_system(tuple(_flat(message) for message in request.messages), text),
        tools=(),
        step=request.step,
        attempt=request.attempt,
        timeout_seconds=request.timeout_seconds,
        before_send=request.before_send,
    )


_OF_TOOLS = ("tool_choice", "parallel_tool_calls", "response_format")


def _call_schema(function: JsonObject) -> JsonObject:
    parameters = function.get("parameters")
    return {
        "type": "object",
        "properties": {
            "name": {"const": function.get("name")},
            "arguments": _simple(copy.deepcopy(parameters)) if isinstance(parameters, dict) else {"type": "object"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _simple(schema: JsonValue) -> JsonValue:
    """The schema with each place for any value written as a choice of simple types."""
    if not isinstance(schema, dict):
        return schema
    if not schema.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const", "properties"}:
        return {**schema, "anyOf": _SIMPLE}
    changed: JsonObject = dict(schema)
    if isinstance(properties := schema.get("properties"), dict):
        changed["properties"] = {name: _simple(p) for name, p in properties.items()}
    if isinstance(items := schema.get("items"), dict):
        changed["items"] = _simple(items)
    return changed


def _flat(message: ModelMessage) -> ModelMessage:
    """The message without calls: a call as the JSON that the model gave, its result as what a user says."""
    if message.tool_calls:
        calls = [
            f'{{"name": {json.dumps(tool_call.name)}, "arguments": {tool_call.arguments}}}'
            for tool_call in message.tool_calls
        ]
        text = "\n".join(filter(None, (message.content, *calls)))
        return ModelMessage(role=message.role, content=text)
    if message.role == "tool":
        return ModelMessage(role="user", content=f"The result: {message.content}")
    return message


def _with_system(messages: tuple[ModelMessage, ...], text: str) -> tuple[ModelMessage, ...]:
    if messages and messages[0].role == "system":
        first, *rest = messages
        return (ModelMessage(role="system", content=f"{first.content}\n\n{text}".strip()), *rest)
    return (ModelMessage(role="system", content=text), *messages)


async def _as_call(events: AsyncGenerator[ModelEvent, None]) -> AsyncGenerator[ModelEvent, None]:
    """The answer's text as one tool call; as it is if it was cut off before it was whole."""
    text: list[str] = []
    async for event in events:
        if isinstance(event, ContentDelta):
            text.append(event.text)
        elif isinstance(event, ModelDone) and (call := _read("".join(text))) is not None:
            yield ToolCallDelta(0, "call_0", *call)
            yield replace(event, finish_reason="tool_calls")
        elif isinstance(event, ModelDone):
            yield ContentDelta("".join(text))
            yield event
        else:
            yield event


class _Call(Tolerant):
    """The JSON that an answer was bound to."""

    name: str
    arguments: JsonObject


def _read(text: str) -> tuple[str, str] | None:
    """Name and arguments of the call, as JSON text."""
    try:
        call = _Call.model_validate_json(text)
    except ValidationError:
        return None
    return call.name, json.dumps(call.arguments, ensure_ascii=False)


def _name(model: str) -> str:
    return model.partition("/")[2]
