"""Fields of OpenAI's requests: those that are supported are read, and others are refused by name, never ignored. Pure.

A value that is OpenAI's default for a field (`n: 1`, `tool_choice: "none"`) changes nothing: it passes, as null does,
and as hints do that only change what an answer costs.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple, cast

from pydantic import BeforeValidator, Field, JsonValue, model_validator

from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.parameters import checked_schema
from turnstile.schema.profiles import NOT_SUPPORTED

PASSED = frozenset({"cache_control", "prompt_cache_options", "prompt_cache_retention"})
"""Fields of a request that change nothing of what is answered here, whatever their value."""
Effort = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[A-Za-z0-9_-]+$")]
"""A word of the provider's, such as `low`."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
Stop = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=512)]],
    BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    Field(max_length=16),
]
"""Texts that end an answer; one may stand alone."""
Note = Annotated[str, Field(max_length=512)]
"""A text that is recorded with the turn, and read by no model."""
NOTES = "openai"
"""The key in a turn's metadata under which a request's own notes are."""


class OpenAiRequest(Strict):
    """A request in OpenAI's words; raises `Unsupported`, which names the field, for what it does not have."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {}
    """Values of fields, each of which changes nothing: OpenAI's defaults."""
    within: ClassVar[str] = ""
    """Of a part of a request: the field that it is, and a dot."""

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, body: object) -> object:
        if not isinstance(body, dict):
            return body
        fields = cast("JsonObject", body)
        meant = {name: v for name, v in fields.items() if v is not None and not _passes(v, cls.harmless.get(name, ()))}
        for name, value in meant.items():
            if name not in cls.model_fields and name not in PASSED:
                raise unsupported(f"{cls.within}{name}", value, cls.harmless.get(name, ()))
        return {name: value for name, value in meant.items() if name in cls.model_fields}


def unsupported(param: str, sent: JsonValue = None, accepted: Sequence[JsonValue] = (), hint: str = "") -> Unsupported:
    """The error for a field: what was sent, which values are accepted, and what to do."""
    name = param if 0 < len(param) <= 100 and param.isprintable() else "a field"
    field = name.rpartition(".")[2]
    what = "" if sent is None else f" ({_shown(sent)} was sent)"
    if accepted and field not in _HINTS:
        message = f"{name}: this value is not supported{what}; send {' or '.join(_shown(a) for a in accepted)}"
    else:
        message = f"{name} is not supported{what}; {hint or _HINTS.get(field, 'omit it')}"
    return Unsupported(message, name)


_HINTS: Mapping[str, str] = {
    "functions": "send functions that you run as tools; `turnstile tool put` adds a tool that the agent runs",
    "logit_bias": "omit it: its tokens are of one model, and the profile says which models answer",
}


def _shown(value: JsonValue) -> str:
    """A value of a request as its sender knows it: small ones as they are, others by their kind."""
    match value:
        case bool() | int() | float():
            return json.dumps(value)[:40]
        case str() if len(value) <= 40 and value.isprintable():
            return json.dumps(value, ensure_ascii=False)
        case str():
            return "a text"
        case list():
            return f"a list of {len(value)}" if value else "[]"
        case dict():
            kind = value.get("type")
            return f"an object of type {kind}" if isinstance(kind, str) and kind.isidentifier() else "an object"
        case None:
            return "null"


class UnsupportedSchema(BadField):
    """The schema of an answer has a keyword that cannot be enforced, or is none."""

    code: str = NOT_SUPPORTED


class OutputFormat(NamedTuple):
    """What an answer shall be (protocol §18)."""

    output_schema: JsonObject
    """What its value must match."""
    noted: JsonObject
    """How the request named it, without the schema."""


def output_format(value: JsonValue, param: str) -> OutputFormat | None:
    """A `response_format` or a `text.format`; None if any text will do.

    Raises `BadField`, `Unsupported`, or `UnsupportedSchema` with the keyword that cannot be enforced.
    """
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return OutputFormat({"type": "object"}, {"type": "json_object"})
        case {"type": "json_schema", "json_schema": dict(named)} | {"type": "json_schema", **named}:
            pass
        case dict() if "type" in value:
            raise unsupported(f"{param}.type", value["type"], ("text", "json_object", "json_schema"))
        case _:
            raise BadField(f"{param}: must be an object with a type: text, json_object or json_schema", param)
    name, schema = named.get("name"), named.get("schema")
    if not isinstance(name, str) or not 0 < len(name) <= 64:
        raise BadField(f"{param}.name: 1 to 64 characters", f"{param}.name")
    if schema is not None and not isinstance(schema, dict):
        raise BadField(f"{param}.schema: must be a JSON schema", f"{param}.schema")
    try:
        checked = checked_schema(schema if schema is not None else {"type": "object"})
    except ValueError as error:
        raise UnsupportedSchema(f"{param}.schema: it {error}", f"{param}.schema") from None
    noted: JsonObject = {"type": "json_schema", "name": name}
    noted |= {key: named[key] for key in ("strict", "description") if isinstance(named.get(key), bool | str)}
    return OutputFormat(checked, noted)


def notes_of(metadata: Mapping[str, str] | None, **named: JsonValue) -> JsonObject:
    """The turn's metadata: what a request notes and no model sees; raises `BadField` beyond OpenAI's limits."""
    if metadata is not None and (
        len(metadata) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in metadata.items())
    ):
        raise BadField(
            "metadata: at most 16 pairs, with keys of at most 64 and values of at most 512 characters", "metadata"
        )
    notes: JsonObject = {name: value for name, value in named.items() if value is not None}
    if metadata is not None:
        notes["metadata"] = dict(metadata)
    return {NOTES: notes} if notes else {}


def end_user_of(user: str | None, safety_identifier: str | None) -> JsonObject:
    """The enqueue's end user: `user`, else its newer name `safety_identifier`."""
    named = user or safety_identifier
    return {} if named is None else {"end_user": named}


def is_empty(value: object) -> bool:
    """Whether a value asks for nothing: null, an empty text or list, or an object whose values all do."""
    if isinstance(value, dict):
        return all(is_empty(v) for v in cast("dict[str, object]", value).values())
    return value is None or value in ("", [])


def _passes(value: JsonValue, harmless: tuple[JsonValue, ...]) -> bool:
    if isinstance(value, dict) and any(isinstance(h, dict) for h in harmless) and is_empty(value):
        return True
    return any(type(value) is type(h) and value == h for h in harmless)
