"""JSON schemas of parameters from outside: validated on entry, and used within bounds. Pure.

Every client may send a schema, and it must not block the process that uses it: a few mutual references can cause
billions of checks, and a pattern can backtrack without end. So a check is aborted after `MOST_LOOKS`, patterns are
matched in linear time, and nothing is fetched. Not checked are `uniqueItems`, `patternProperties` (and
`additionalProperties` beside it), `unevaluatedItems`, `unevaluatedProperties`, and patterns with look-around or
backreferences. A look costs about 10 µs.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from pydantic import JsonValue

from turnstile.schema.base import JsonObject
from turnstile.schema.check_bounds import UNCHECKED, linear

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_OTHERWISE_READ = {"$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "format"}
_SCHEMAS_BY_NAME = {"properties", "$defs", "dependentSchemas"}
_SCHEMAS = {"allOf", "anyOf", "oneOf", "prefixItems"}
_ONE_SCHEMA = {"not", "if", "then", "else", "items", "contains", "additionalProperties", "propertyNames"}


def object_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema of type object; else raises `ValueError`, which says where it is not."""
    if value.get("type") != "object":
        raise ValueError("must be a JSON schema of type object")
    return json_schema(value)


def json_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema; else raises `ValueError`, which says where it is not."""
    from turnstile.schema import bounded_checks  # noqa: PLC0415 -- jsonschema is slow to import, and clients need it seldom

    try:
        error = next(iter(bounded_checks.METASCHEMA.iter_errors(value)), None)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path)
        raise ValueError(f"is no JSON schema at /{where[:200]}")
    return value


def bounded(schema: JsonObject) -> "Validator":
    """A validator of arguments; its `iter_errors` raises `SchemaTooCostly` when the bounds are reached."""
    from turnstile.schema import bounded_checks  # noqa: PLC0415 -- as above

    return bounded_checks.validator(cast("JsonObject", _without_dialects(schema)))


def unchecked(schema: JsonValue) -> str | None:
    """The keyword of a schema that `bounded` does not check as it is written, or might not; None if there is none.

    Where a schema decides something, such a keyword would let through what its author meant to stop.
    """
    if not isinstance(schema, dict):
        return None
    for name, value in schema.items():
        match name, value:
            case "pattern", str() if linear(value) is None:
                return name
            case "$ref", str() if value != "#" and not value.startswith("#/$defs/"):
                return name
            case _ if name in UNCHECKED or name in _OTHERWISE_READ:
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
