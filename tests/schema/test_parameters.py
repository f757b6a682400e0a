"""Schemas of strangers: what is refused where they enter, and that none of them hangs who uses it."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import BaseModel, Field

from turnstile.schema.base import JsonObject
from turnstile.schema.check_bounds import SchemaTooCostly
from turnstile.schema.parameters import bounded, object_schema


class Item(BaseModel):
    """A part of the order."""

    name: str = Field(pattern=r"^[a-z]+$", max_length=10)
    count: int = Field(ge=1)


class Order(BaseModel):
    """An order with every shape of schema that payloads have."""

    title: str
    note: str | None = None
    items: list[Item] = Field(min_length=1)
    tags: dict[str, str] = Field(default_factory=dict)


ORDER = cast("JsonObject", Order.model_json_schema())
GOOD: Any = {"title": "t", "items": [{"name": "a", "count": 1}]}


def faults(schema: JsonObject, arguments: JsonObject) -> list[str]:
    """What is wrong, and where."""
    found = bounded(schema).iter_errors(arguments)
    return [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in found]


def nested(depth: int, schema: Any) -> Any:
    """The schema, so many objects down."""
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({}, "type object"),
        ({"type": "array"}, "type object"),
        ({"type": ["object"]}, "type object"),
        ({"type": "object", "properties": {"q": {"type": "secret"}}}, "at /properties/q/type"),
        ({"type": "object", "properties": ["secret"]}, "at /properties"),
        ({"type": "object", "properties": {"q": 1}}, "at /properties/q"),
        ({"type": "object", "required": "secret"}, "at /required"),
        ({"type": "object", "$defs": {"x": {"minLength": "secret"}}}, r"at /\$defs/x/minLength"),
        ({"type": "object", "required": [1, "a"] * 50_000}, "at /required/0"),
        (nested(500, {}), "too deep"),
    ],
)
def test_what_is_no_schema_is_said_without_quoting_it(schema: JsonObject, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        object_schema(schema)
    assert "secret" not in str(raised.value)


_WORDS = st.sampled_from(
    [
        *("type", "properties", "items", "required", "enum", "const", "anyOf", "not", "$ref", "$defs", "minimum"),
        *("pattern", "prefixItems", "dependentRequired", "additionalProperties", "uniqueItems", "title"),
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["object", "string", "#", "^a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS | st.just("x"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(_WORDS, _VALUES, max_size=4))
def test_it_is_the_metaschema_of_the_library(schema: JsonObject) -> None:
    schema = {**schema, "type": "object"}
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        with pytest.raises(ValueError, match="no JSON schema"):
            object_schema(schema)
    else:
        assert object_schema(schema) == schema


def test_arguments_are_checked_within_bounds_as_without() -> None:
    assert faults(ORDER, GOOD) == []
    bad: Any = {"note": 1, "items": [{"name": "A1", "count": 0}, {"name": "a"}], "tags": {"x": 1}}
    free = cast("list[ValidationError]", list(Draft202012Validator(ORDER).iter_errors(bad)))  # pyright: ignore[reportUnknownMemberType]
    expected = [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in free]
    assert faults(ORDER, bad) == expected
    assert len(expected) == 6


def test_a_long_answer_is_not_too_costly() -> None:
    long: Any = {**GOOD, "items": GOOD["items"] * 1_000}
    assert faults(ORDER, long) == []


DOUBLED: Any = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
COSTLY: dict[str, tuple[Any, Any]] = {
    "references that double": ({"$defs": {**DOUBLED, "d40": {}}, "$ref": "#/$defs/d0"}, {}),
    "many alternatives": (
        {"properties": {"q": {"items": {"anyOf": [{"type": "string"}] * 1_000}}}},
        {"q": [1] * 1_000},
    ),
    "many patterns": (
        {"properties": {"q": {"allOf": [{"pattern": rf"[\w]{{1,{n}}}"} for n in range(1, 101)]}}},
        {"q": "a"},
    ),
}


@pytest.mark.parametrize("case", COSTLY)
def test_a_check_without_end_is_given_up(case: str) -> None:
    schema, arguments = COSTLY[case]
    with pytest.raises(SchemaTooCostly):
        faults(object_schema({"type": "object", **schema}), arguments)


BACKTRACKING = "^(a+)+$"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"q": {"pattern": BACKTRACKING}}},
        {"properties": {"q": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": BACKTRACKING}}},
        {"propertyNames": {"pattern": BACKTRACKING}},
        {"patternProperties": {BACKTRACKING: {"type": "string"}}, "additionalProperties": False},
        {"patternProperties": {BACKTRACKING: {"type": "string"}}, "unevaluatedProperties": False},
    ],
)
def test_a_pattern_never_backtracks(schema: JsonObject) -> None:
    text = "a" * 10_000 + "!"
    assert len(faults(object_schema({"type": "object", **schema}), {"q": text, text: "x"})) <= 2


def test_what_is_not_checked() -> None:
    """What has no bound; whoever reads the arguments may check it."""
    schema: Any = {
        "type": "object",
        "properties": {"look": {"pattern": "(?=b)b"}, "set": {"uniqueItems": True}},
        "patternProperties": {"^n": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert faults(object_schema(schema), {"look": "a", "set": [1, 1], "n": "one", "other": 1}) == []


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema: JsonObject = {"type": "object", "properties": {"$schema": {"type": "integer"}, "pattern": {"type": "null"}}}
    assert len(faults(object_schema(schema), {"$schema": "x", "pattern": "x"})) == 2
