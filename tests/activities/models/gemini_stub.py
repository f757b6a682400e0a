"""Gemini's `POST /v1beta/models/{model}:streamGenerateContent?alt=sse`."""

import json
import re
from collections.abc import Iterable
from typing import Any

from tests.activities.models.http_stub import HttpRequest
from tests.activities.models.provider_stub import (
    API_KEY,
    COMPLETION_TOKENS,
    PROMPT_TOKENS,
    Call,
    Fault,
    ProviderStub,
    Refused,
    Said,
    listed,
    require,
    sse,
)
from turnstile.schema.base import JsonObject

_PATH = re.compile(r"/v1beta/models/(?P<model>[^/:]+):streamGenerateContent")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")
_PARAMETERS = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings"}
_SCHEMA = {
    *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required"),
    *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example", "anyOf", "propertyOrdering"),
    *("default", "items", "minimum", "maximum"),
}
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED"}


class GeminiStub(ProviderStub):
    """The stub."""

    prefix = "gemini"
    model = "gemini/gemini-2.5-flash"

    @property
    def api_base(self) -> str:
        return f"{self.url}/v1beta"

    def check(self, request: HttpRequest, body: Any) -> None:
        path = _PATH.match(request.path)
        if request.method != "POST" or path is None or request.query.get("alt") != ["sse"]:
            raise Refused(f"not found: {request.method} {request.path}", 404)
        if API_KEY not in (request.headers.get("x-goog-api-key"), *request.query.get("key", [])):
            raise Refused("API key not valid. Please pass a valid API key.")
        for name in body:
            plain = re.sub(r"_([a-z])", lambda found: found[1].upper(), name)
            require(plain in _PARAMETERS, f'Unknown name "{name}": Cannot find field.')
        system = body.get("system_instruction", body.get("systemInstruction"))
        if system is not None:
            _check_parts(system["parts"], "system_instruction")
        for tool in listed(body.get("tools")):
            for function in listed(tool.get("function_declarations", tool.get("functionDeclarations"))):
                _check_function(function)
        _check_contents(body.get("contents"), signed=path["model"].startswith("gemini-3"))

    def render(self, said: Said) -> Iterable[bytes]:
        calls = [{"name": call.name, "args": json.loads("".join(call.arguments))} for call in said.calls]
        parts: list[dict[str, object]] = [
            *({"text": text, "thought": True} for text in said.reasoning),
            *({"text": text} for text in said.text),
            *({"functionCall": call, **_signature(said.calls[place])} for place, call in enumerate(calls)),
        ]
        for part in parts:
            yield sse(_candidate(part))
        usage = {
            "promptTokenCount": PROMPT_TOKENS,
            "candidatesTokenCount": COMPLETION_TOKENS,
            "totalTokenCount": PROMPT_TOKENS + COMPLETION_TOKENS,
        }
        last = _candidate({"text": ""}, said.finish or "STOP")
        yield sse({**last, "usageMetadata": usage} if said.usage else last)

    def error_body(self, fault: Fault) -> JsonObject:
        status = _STATUS.get(fault.status, "UNAVAILABLE" if fault.status == 503 else "INTERNAL")
        return {"error": {"code": fault.status, "message": fault.message, "status": status}}


def _signature(call: Call) -> dict[str, object]:
    return {} if call.signature is None else {"thoughtSignature": call.signature}


def _candidate(part: dict[str, object], finish: str | None = None) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"role": "model", "parts": [part]}, "index": 0}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini", "responseId": "r1"}


def _check_parts(parts: Any, where: str) -> None:
    require(parts, f"{where}.parts must not be empty")
    for part in parts:
        kinds = ("function_call", "function_response", "inline_data", "functionCall", "functionResponse", "inlineData")
        data = {"text", *kinds} & set(part)
        require(data, f"{where}.parts: required oneof field 'data' must have one initialized field")
        require(part.get("text", "x"), f"{where}: Unable to submit request because it must have a text parameter")


def _call(part: Any) -> Any:
    return part.get("functionCall", part.get("function_call"))


def _response(part: Any) -> Any:
    return part.get("functionResponse", part.get("function_response"))


def _check_contents(contents: Any, *, signed: bool) -> None:
    require(contents, "contents is not specified")
    require(contents[0].get("role", "user") == "user", "Please ensure that multiturn requests begin with a user role")
    awaited: list[str] = []
    for number, content in enumerate(contents):
        where = f"contents[{number}]"
        role = content.get("role", "user")
        require(role in ("user", "model"), f"{where}: Please use a valid role: user, model.")
        _check_parts(content["parts"], where)
        answered = [_response(part)["name"] for part in content["parts"] if _response(part)]
        if awaited:
            enough = len(answered) == len(awaited)
            require(enough, f"{where}: the number of function response parts must equal the calls")
        paired = sorted(answered) == sorted(awaited)
        require(paired, f"{where}: function response turn without its function call turn")
        calls = [_call(part) for part in content["parts"] if _call(part)]
        if calls:
            after_user = role == "model" and number > 0 and contents[number - 1].get("role") == "user"
            require(after_user, f"{where}: function call turn must come after a user turn")
        for part in content["parts"]:
            if response := _response(part):
                struct = isinstance(response.get("response"), dict)
                require(struct, f"{where}: function_response.response must be a Struct")
            if call := _call(part):
                require(_NAME.match(call["name"]), f"{where}: Invalid function name")
                require(isinstance(call.get("args", {}), dict), f"{where}: function_call.args must be a Struct")
        if signed and calls:
            first = next(part for part in content["parts"] if _call(part))
            sent = first.get("thoughtSignature", first.get("thought_signature"))
            require(sent, f"{where}: Function call is missing a thought_signature in functionCall parts.")
        awaited = [call["name"] for call in calls]
    require(not awaited, "the number of function response parts must equal the calls")
    require(contents[-1].get("role", "user") == "user", "the last turn must be of the user")


def _check_function(function: Any) -> None:
    require(_NAME.match(function["name"]), f"Invalid function name {function['name']!r}: must start with a letter or _")
    if "parameters" in function:
        _check_schema(function["parameters"], function["name"])


def _check_schema(schema: Any, where: str) -> None:
    extra = sorted(set(schema) - _SCHEMA)
    require(not extra, f'Invalid JSON payload received. Unknown name "{extra}" at {where}')
    kind = str(schema.get("type", "")).lower()
    if kind == "object":
        given = schema.get("properties", "none given")
        require(given, f"{where}.properties: should be non-empty for OBJECT type")
    if kind == "array":
        require("items" in schema, f"{where}.items: missing field.")
    properties: dict[str, Any] = schema.get("properties") or {}
    for name, inner in properties.items():
        _check_schema(inner, f"{where}.{name}")
    required = set(listed(schema.get("required")))
    require(required <= set(properties), f"{where}.required: property is not defined")
    if isinstance(schema.get("items"), dict):
        _check_schema(schema["items"], f"{where}.items")
