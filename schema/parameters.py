"""JSON schemas of parameters from outside: validated on entry, and used within bounds. Pure.

Every client may send a schema, and it must not block the process that uses it: a few mutual references can cause
billions of checks, and a pattern can backtrack without end. So a check is aborted after `MOST_LOOKS`, patterns are
matched in linear time, and nothing is fetched. Not checked are `uniqueItems`, `patternProperties` (and
`additionalProperties` beside it), `unevaluatedItems`, `unevaluatedProperties`, and patterns with look-around or
backreferences. A look costs about 10 µs.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import urljoin

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import create  # pyright: ignore[reportUnknownVariableType] -- the stubs leave it open
from jsonschema_specifications import REGISTRY
from pydantic import JsonValue
from pydantic_core import SchemaError, SchemaValidator, core_schema
from referencing import Registry

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import TurnstileError

MOST_LOOKS = 50_000
"""The most keywords evaluated in one check, each counted with the length of its value."""
_LOOKS_OF_A_PATTERN = 1_000
_UNCHECKED = {"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"}
_OTHERWISE_READ = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "format"}
_SCHEMAS_BY_NAME = {"properties", "$defs", "dependentSchemas"}
_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_ONE_SCHEMA = {"not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames"}

Keyword = Callable[[Any, Any, Any, Any], Any]
"""The function of a keyword in jsonschema: validator, value, instance, schema; the stubs do not type them."""


class SchemaTooCostly(TurnstileError):
    """Checking arguments against a schema takes too long."""

    code: str = "schema_too_costly"


def object_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema of type object; else raises `ValueError`, which says where it is not."""
    if value.get("type") != "object":
        raise ValueError("must be a JSON schema of type object")
    return json_schema(value)


def json_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema; else raises `ValueError`, which says where it is not."""
    try:
        error = next(iter(_METASCHEMA.iter_errors(value)), None)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path)
        raise ValueError(f"is no JSON schema at /{where[:200]}")
    return value


def bounded(schema: JsonObject) -> Validator:
    """A validator of arguments; its `iter_errors` raises `SchemaTooCostly` when the bounds are reached."""
    plain = cast("JsonObject", _without_dialects(schema))
    return _Bounded(plain, registry=Registry(), format_checker=_CheckBudget())


def unchecked(schema: JsonValue) -> str | None:
    """The keyword of a schema that `bounded` does not check as it is written, or might not; None if there is none.

    Where a schema decides something, such a keyword would let through what its author meant to stop.
    """
    if not isinstance(schema, dict):
        return None
    for name, value in schema.items():
        match name, value:
            case "pattern", str() if _linear(value) is None:
                return name
            case "$ref", str() if value != "#" and not value.startswith("#/$defs/"):
                return name
            case _ if name in _UNCHECKED or name in _OTHERWISE_READ:
                return name
            case _:
                pass
        if (found := next(filter(None, map(unchecked, _parts(name, value))), None)) is not None:
            return found
    return None


def _parts(keyword: str, value: JsonValue) -> Iterable[JsonValue]:
    """The schemas in the value of a keyword."""
    match value:
        case dict() if keyword in _SCHEMAS_BY_NAME:
            return value.values()
        case dict() if keyword in _ONE_SCHEMA:
            return [value]
        case list() if keyword in _SCHEMAS:
            return value
        case _:
            return ()


def _flat_metaschema() -> JsonObject:
    """The metaschema of draft 2020-12 as one schema: with jsonschema's eight parts a check takes eight times as long.

    `uniqueItems` is left out: its cost grows with the square of the number of items.
    """
    root = cast("dict[str, Any]", Draft202012Validator.META_SCHEMA)  # schemas, of any shape
    pieces = [cast("dict[str, Any]", REGISTRY.contents(urljoin(root["$id"], each["$ref"]))) for each in root["allOf"]]
    merged: dict[str, Any] = {"type": ["object", "boolean"], "properties": {}, "$defs": {}}
    for piece in (root, *pieces):
        merged["properties"] |= piece.get("properties", {})
        merged["$defs"] |= piece.get("$defs", {})
    text = json.dumps(merged).replace('"$dynamicRef": "#meta"', '"$ref": "#"')
    text = re.sub(r'"meta/[a-z-]+#', '"#', text).replace('"uniqueItems": true', '"uniqueItems": false')
    return json.loads(text)


class _CheckBudget(FormatChecker):
    """The remaining looks of a check, and the patterns compiled so far.

    It is a format checker because jsonschema passes that object unchanged to all parts of a check.
    """

    def __init__(self) -> None:
        super().__init__(formats=())
        self._left = MOST_LOOKS
        self._patterns: dict[str, SchemaValidator | None] = {}

    def spend(self, looks: int) -> None:
        """Count looks; raises `SchemaTooCostly` when none are left."""
        self._left -= looks
        if self._left < 0:
            raise SchemaTooCostly("checking the arguments takes too long")

    def fits(self, pattern: str, text: str) -> bool:
        """Whether the text matches the pattern; True if the pattern cannot be matched in linear time."""
        if pattern not in self._patterns:
            self.spend(_LOOKS_OF_A_PATTERN)
            self._patterns[pattern] = _linear(pattern)
        found = self._patterns[pattern]
        return found is None or found.isinstance_python(text)


def _linear(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None


def _counted(keyword: Keyword) -> Keyword:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        length = len(cast("list[object] | dict[str, object]", value)) if isinstance(value, list | dict) else 0
        validator.format_checker.spend(1 + length)
        return keyword(validator, value, instance, schema)

    return counted


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[ValidationError]:
    if isinstance(instance, str) and not validator.format_checker.fits(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
    if "patternProperties" in schema:
        return None
    return _KEYWORDS["additionalProperties"](validator, value, instance, schema)


def _without_dialects(schema: JsonValue) -> JsonValue:
    """The schema without `$schema`, which would make jsonschema use another dialect's keywords instead of ours."""
    match schema:
        case list():
            return [_without_dialects(each) for each in schema]
        case dict():
            named = {key: each for key, each in schema.items() if key != "$schema" or not isinstance(each, str)}
            return {key: _without_dialects(each) for key, each in named.items()}
        case _:
            return schema


_KEYWORDS = cast("dict[str, Keyword]", Draft202012Validator.VALIDATORS)
_METASCHEMA: Validator = Draft202012Validator(_flat_metaschema(), registry=Registry())
_Bounded = create(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators={
        name: _counted(check)
        for name, check in {**_KEYWORDS, "pattern": _pattern, "additionalProperties": _additional}.items()
        if name not in _UNCHECKED
    },
)
