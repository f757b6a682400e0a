"""JSON schemas that strangers wrote: bounded before anything walks them, checked on entry, compiled once. Pure.

A schema has at most `MOST_BYTES`, `MOST_PARTS` parts and `DEEPEST` levels, and its patterns weigh at most
`MOST_PATTERN_WEIGHT`; one that is within them costs some 20 ms to compile at most, and a check with it as much
(`turnstile.schema.checks`). What cannot be enforced as it is written is refused where it enters, with its keyword.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

from turnstile.schema.base import DEEPEST, JsonObject
from turnstile.schema.checks import Checks, Mismatch, SchemaTooCostly, Unusable
from turnstile.schema.patterns import LONGEST, weight

__all__ = [
    "Checks",
    "Mismatch",
    "SchemaTooCostly",
    "Unusable",
    "checked_schema",
    "checks",
    "object_schema",
    "within_bounds",
]

MOST_BYTES = 65_536
"""Of one schema as JSON."""
MOST_PARTS = 8_000
"""Values within a schema, or within those of one request together."""
MOST_PATTERN_WEIGHT = 64
"""What the patterns of a schema, or of those of one request together, may weigh."""
_KEPT = 256


def object_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema of type object; else raises `ValueError`, which says where it is not."""
    if value.get("type") != "object":
        raise ValueError("must be a JSON schema of type object")
    return checked_schema(value)


def checked_schema(value: JsonObject) -> JsonObject:
    """Return `value` if it is a JSON schema that can be enforced; else raises `ValueError`, which says what cannot."""
    checks(value)
    return value


def checks(schema: JsonObject) -> Checks:
    """The checks of a schema, compiled once; raises `ValueError`, which `Unusable` is, as `checked_schema` does."""
    within_bounds([schema])
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > MOST_BYTES or len(text.encode("utf-8", "surrogatepass")) > MOST_BYTES:
        raise ValueError(f"has more than {MOST_BYTES} bytes")
    return _compiled(text)


@lru_cache(_KEPT)
def _compiled(text: str) -> Checks:
    return Checks(json.loads(text))


def within_bounds(schemas: Iterable[object]) -> None:
    """Raise `ValueError` if the schemas of one request together have more parts or patterns than are looked at.

    They may be anything: this is asked before they are read. It looks at each part once, and at no more than allowed.
    """
    waiting: list[tuple[Any, int]] = [(schema, 1) for schema in schemas]
    parts, patterns = len(waiting), set[str]()
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, dict):
            keywords = cast("dict[Any, Any]", part)
            if isinstance(text := keywords.get("pattern"), str):
                patterns.add(text)
            if isinstance(named := keywords.get("patternProperties"), dict):
                patterns |= {str(p) for p in cast("dict[Any, Any]", named)}
            inner = [*keywords.values()]
        elif isinstance(part, list):
            inner = cast("list[Any]", part)
        else:
            continue
        parts += len(inner)
        if parts > MOST_PARTS:
            raise ValueError(f"has more than {MOST_PARTS} parts")
        if depth > DEEPEST:
            raise ValueError(f"is nested deeper than {DEEPEST} levels")
        waiting += [(i, depth + 1) for i in inner]
    if any(len(text) > LONGEST for text in patterns):
        raise ValueError(f"has a pattern of more than {LONGEST} characters")
    if sum(map(weight, patterns)) > MOST_PATTERN_WEIGHT:
        raise ValueError("has more patterns, or larger ones, than can be enforced: write fewer, or shorter repeats")
