"""Converts a request to litellm's arguments, valid for its provider. Pure; the result shares no object with its input.

`llm_config.params` may hold parameters that shape the answer. Parameters that would redirect the request, read a file
or change retries are refused (see `turnstile.activities.models.access`). Two providers need more than litellm does:

- Gemini has no schema for "any JSON value", and litellm would make it an object, so it is written as a choice of types.
- Anthropic refuses thinking if the last assistant message has calls without the signed thoughts before them, as where
  another provider made them: then reasoning is left out.
"""

import copy
from collections.abc import Collection, Iterator, Sequence

from pydantic import JsonValue

from turnstile.activities.models.reasoning import SIGNED, lacks_signed_thoughts, put_back
from turnstile.rules.model_files import shown_files
from turnstile.runtime.ports import ModelFile, ModelMessage, ModelRequest, ModelToolCall
from turnstile.schema.base import JsonObject, too_deep
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import PROVIDER_PARAMS, LlmConfig

_NAMED = {"temperature", "top_p", "max_tokens", "stop", "seed", "reasoning_effort"}
_REASONING = ("reasoning_effort", "thinking")
_OF_TOOLS = ("tool_choice", "parallel_tool_calls")
"""Parameters that providers refuse in a request without tools."""
_CHOICE: list[JsonValue] = [
    {"type": "string"},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "object"},
    {"type": "array", "items": {"type": "string"}},
]


def request_form(
    request: ModelRequest,
    provider: str,
    origin: str | None = None,
    *,
    takes_schema: bool = False,
    takes: Collection[str] = (),
) -> JsonObject:
    """Model, messages, tools and parameters; raises `ModelError` (`model_request_invalid`) for a refused parameter.

    `origin`: the name under which reasoning of this provider is kept, if that is not the provider's. A model that
    `takes_schema` gets that of the answer in place of the tool that takes the answer. `takes`: which kinds of files the
    model is sent, beside texts.
    """
    messages = list(_messages(request, origin or provider, takes))
    form: JsonObject = {
        "model": request.config.model,
        "messages": [*messages],
        **_parameters(request.config),
    }
    schema, tools = request.output_schema, request.tools
    if takes_schema and schema is not None and schema.get("type") == "object":  # no other root is taken
        named: JsonObject = {"name": "answer", "schema": copy.deepcopy(schema), "strict": is_strict(schema)}
        form["response_format"] = {"type": "json_schema", "json_schema": named}
        tools = ()
    if not tools:
        for name in _OF_TOOLS:
            form.pop(name, None)
    else:
        form["tools"] = [_tool(tool, provider) for tool in tools]
    if provider in SIGNED and lacks_signed_thoughts(messages):
        for name in _REASONING:
            form.pop(name, None)
    return form


_STRICT = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "$ref", "$defs"),
        *("title", "description"),
    }
)
_DEEPEST_STRICT = 20
"""Levels of JSON, two for each of the ten levels that OpenAI takes."""


def is_strict(schema: JsonObject) -> bool:
    """Whether the schema is of the subset that a provider can hold a model to: OpenAI refuses others with `strict`."""
    return schema.get("type") == "object" and not too_deep(schema, _DEEPEST_STRICT) and _is_strict_part(schema)


def _is_strict_part(schema: JsonValue) -> bool:
    if not isinstance(schema, dict) or schema.keys() - _STRICT:
        return False
    fields, definitions, either = (schema.get(name, {}) for name in ("properties", "$defs", "anyOf"))
    if not isinstance(fields, dict) or not isinstance(definitions, dict):
        return False
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not (kinds or schema.keys() & {"enum", "anyOf", "$ref"}) or ("array" in kinds and "items" not in schema):
        return False
    if "object" in kinds or "properties" in schema:
        required = schema.get("required", [])
        whole = isinstance(required, list) and {str(name) for name in required} == fields.keys()
        if not whole or schema.get("additionalProperties") is not False:
            return False
    parts = [*fields.values(), *definitions.values(), *(either if isinstance(either, list) else ())]
    return all(map(_is_strict_part, [*parts, schema["items"]] if "items" in schema else parts))


def _parameters(config: LlmConfig) -> JsonObject:
    if refused := sorted(config.params.keys() - PROVIDER_PARAMS):
        message = f"llm_config.params: {', '.join(refused)} not allowed; allowed: {', '.join(sorted(PROVIDER_PARAMS))}"
        raise ModelError("model_request_invalid", message, retryable=False)
    fields = config.model_dump(mode="json", exclude_none=True, include=_NAMED)
    return {**copy.deepcopy(config.provider_params), **fields}


def _messages(request: ModelRequest, origin: str, takes: Collection[str]) -> Iterator[JsonObject]:
    """The messages in the provider's form.

    Files are in user messages alone, as every provider takes them: those of results and answers are in the next one.
    """
    waiting: list[ModelFile] = []
    for message in request.messages:
        if waiting and message.role == "assistant":
            yield {"role": "user", "content": _content("", waiting)}
            waiting = []
        form = _message(message)
        waiting += [f for f in shown_files(message, request.files) if f.kind in ("text", "note", *takes)]
        if waiting and message.role == "user":
            form["content"] = _content(message.content, waiting)
            waiting = []
        yield put_back(form, message.reasoning, origin)
    if waiting:
        yield {"role": "user", "content": _content("", waiting)}


def _content(text: str, files: Sequence[ModelFile]) -> JsonValue:
    """A text and its files: as one text where they are texts, else as parts, each after its line."""
    texts = [text] if text else []
    if all(file.kind in ("text", "note") for file in files):
        return "\n\n".join((*texts, *(file.text for file in files)))
    parts: list[JsonValue] = [{"type": "text", "text": text} for text in texts]
    for file in files:
        parts.append({"type": "text", "text": file.text})
        if file.kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": file.url}})
        elif file.kind == "pdf":
            parts.append({"type": "file", "file": {"filename": file.filename, "file_data": file.url}})
    return parts


def _message(message: ModelMessage) -> JsonObject:
    form: JsonObject = {"role": message.role, "content": message.content}
    if message.tool_calls:
        form["content"] = message.content or None
        form["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        form["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        form["name"] = message.name
    return form


def _call(call: ModelToolCall) -> JsonObject:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: JsonObject, provider: str) -> JsonObject:
    """A copy of the tool, since litellm changes schemas in place."""
    copied = copy.deepcopy(tool)
    function = copied.get("function")
    if provider in ("gemini", "vertex_ai") and isinstance(function, dict):
        parameters = function.get("parameters")
        if isinstance(parameters, dict):
            function["parameters"] = _gemini_schema(parameters)
    return copied


def _gemini_schema(schema: JsonValue) -> JsonValue:
    """The schema with every "any value" written as a choice of types."""
    if not isinstance(schema, dict):
        return {"anyOf": copy.deepcopy(_CHOICE)}
    spelled = dict(schema)
    if not spelled.keys() & {"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "properties"}:
        spelled["anyOf"] = copy.deepcopy(_CHOICE)
        return spelled
    properties, items = spelled.get("properties"), spelled.get("items")
    if isinstance(properties, dict):
        spelled["properties"] = {name: _gemini_schema(p) for name, p in properties.items()}
    if isinstance(items, dict | bool):
        spelled["items"] = _gemini_schema(items)
    return spelled
