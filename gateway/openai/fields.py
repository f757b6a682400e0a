"""Fields of OpenAI's requests: those that are supported are read, and others are refused by name, never ignored. Pure.

A value that is OpenAI's default for a field (`n: 1`, `tool_choice: "none"`) changes nothing: it passes, as null does.
"""

from collections.abc import Mapping
from typing import ClassVar, cast

from pydantic import JsonValue, model_validator

from turnstile.gateway.http.problems import BadField, Unsupported
from turnstile.schema.base import JsonObject, Strict

NOTES = "openai"
"""The key in a turn's metadata under which a request's own notes are."""


class OpenAiRequest(Strict):
    """A request in OpenAI's words; raises `Unsupported`, which names the field, for what it does not have."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {}
    """Values of fields that it does not have, each of which changes nothing."""
    within: ClassVar[str] = ""
    """Of a part of a request: the field that it is, and a dot."""

    @model_validator(mode="before")
    @classmethod
    def _supported(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        fields = cast("JsonObject", given)
        for name, value in fields.items():
            if name not in cls.model_fields and not _passes(value, cls.harmless.get(name, ())):
                raise unsupported(f"{cls.within}{name}", known=name in cls.harmless)
        return {name: value for name, value in fields.items() if name in cls.model_fields and value is not None}


def unsupported(param: str, *, known: bool = False) -> Unsupported:
    """The error for a field; `known`: some of its values are supported."""
    name = param if 0 < len(param) <= 100 and param.isprintable() else "a field"
    return Unsupported(f"{name}: this value is not supported" if known else f"{name} is not supported", name)


def notes_of(metadata: Mapping[str, str] | None, **named: str | None) -> JsonObject:
    """The turn's metadata: what a request notes and no model sees; raises `BadField` beyond OpenAI's limits."""
    if metadata is not None and (
        len(metadata) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in metadata.items())
    ):
        raise BadField("metadata: at most 16 pairs, keys of 64 and values of 512 characters", "metadata")
    notes: JsonObject = {name: value for name, value in named.items() if value is not None}
    if metadata is not None:
        notes["metadata"] = dict(metadata)
    return {NOTES: notes} if notes else {}


def _passes(value: JsonValue, harmless: tuple[JsonValue, ...]) -> bool:
    return value is None or any(type(value) is type(each) and value == each for each in harmless)
