"""What `schema/parameters.py` checks with: jsonschema's metaschema, and validators that count their looks. Pure."""

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
from pydantic_core import SchemaValidator
from referencing import Registry

from turnstile.schema.base import JsonObject
from turnstile.schema.check_bounds import MOST_LOOKS, UNCHECKED, SchemaTooCostly, linear

_LOOKS_OF_A_PATTERN = 1_000

Keyword = Callable[[Any, Any, Any, Any], Any]
"""The function of a keyword in jsonschema: validator, value, instance, schema; the stubs do not type them."""


def validator(schema: JsonObject) -> Validator:
    """A validator whose `iter_errors` raises `SchemaTooCostly` when the bounds are reached."""
    return _Bounded(schema, registry=Registry(), format_checker=_CheckBudget())


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
            self._patterns[pattern] = linear(pattern)
        found = self._patterns[pattern]
        return found is None or found.isinstance_python(text)


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


_KEYWORDS = cast("dict[str, Keyword]", Draft202012Validator.VALIDATORS)
METASCHEMA: Validator = Draft202012Validator(_flat_metaschema(), registry=Registry())
"""Checks schemas themselves."""
_Bounded = create(
    meta_schema=Draft202012Validator.META_SCHEMA,
    validators={
        name: _counted(check)
        for name, check in {**_KEYWORDS, "pattern": _pattern, "additionalProperties": _additional}.items()
        if name not in UNCHECKED
    },
)
