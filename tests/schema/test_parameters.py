"""Schemas of strangers: what is refused where they enter, what is checked, and that none of them holds who uses it."""

import json
import re
from contextlib import suppress
from decimal import Decimal
from itertools import count
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from pydantic import BaseModel, Field

from tests.support.cpu import cheap
from turnstile.schema.base import DEEPEST, JsonObject
from turnstile.schema.checks import is_multiple, key
from turnstile.schema.parameters import MOST_BYTES, MOST_PARTS, SchemaTooCostly, checks, object_schema
from turnstile.schema.patterns import Pattern, pattern, weight

MOST_SECONDS = 0.05
"""What a check, or a refusal, may take of a loop."""


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


def faults(schema: JsonObject, value: Any) -> list[str]:
    """What is wrong, and where."""
    return [f"{'/'.join(map(str, fault.path))}: {fault.message}" for fault in checks(schema).faults(value)]


def fits(schema: JsonObject, value: Any) -> bool:
    """Whether the value matches."""
    return checks(schema).fault(value) is None


def is_valid(schema: JsonObject, value: Any) -> bool:
    """Whether the value matches for the library."""
    return cast("Any", Draft202012Validator(schema)).is_valid(value)


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
        ({"type": "object", "required": [1, "a"]}, "at /required/0"),
        ({"type": "object", "required": [1, "a"] * 50_000}, f"more than {MOST_PARTS} parts"),
        ({"type": "object", "description": "secret" * 20_000}, f"more than {MOST_BYTES} bytes"),
        (nested(DEEPEST, {}), f"nested deeper than {DEEPEST}"),
        (nested(500, {}), f"nested deeper than {DEEPEST}"),
        ({"type": "object", "allOf": [True] * 100_000}, f"more than {MOST_PARTS} parts"),
    ],
)
def test_what_is_no_schema_is_said_without_quoting_it(schema: JsonObject, told: str) -> None:
    with pytest.raises(ValueError, match=told) as raised:
        object_schema(schema)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("keyword", "schema"),
    [
        ("pattern", {"pattern": "(?=b)b"}),
        ("pattern", {"pattern": r"(a)\1"}),
        ("pattern", {"pattern": "("}),
        ("pattern", {"pattern": r"\p{L}{900}"}),
        ("pattern", {"not": {"pattern": "(?!b)"}}),
        ("patternProperties", {"patternProperties": {"(?<=a)b": {}}}),
        ("unevaluatedProperties", {"unevaluatedProperties": False}),
        ("unevaluatedItems", {"items": {"unevaluatedItems": False}}),
        ("$dynamicRef", {"$dynamicRef": "#a"}),
        ("$ref", {"$ref": "#/$defs/none"}),
        ("$ref", {"$ref": "https://example.com/schema.json"}),
        ("$ref", {"$ref": "#anchor"}),
        ("$id", {"properties": {"a": {"$id": "https://example.com/a"}}}),
    ],
)
def test_what_will_not_be_enforced_is_refused_by_its_keyword(keyword: str, schema: JsonObject) -> None:
    for whole in ({"type": "object", **schema}, {"type": "object", "$defs": {"unused": schema}}):
        with pytest.raises(ValueError, match=f"has {re.escape(keyword)} at /.*cannot be enforced"):
            object_schema(cast("JsonObject", whole))


_WORDS = st.sampled_from(
    [
        *("type", "properties", "items", "required", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$defs"),
        *("if", "then", "else", "minimum", "exclusiveMaximum", "multipleOf", "minLength", "maxItems", "contains"),
        *("pattern", "prefixItems", "dependentRequired", "dependentSchemas", "additionalProperties", "uniqueItems"),
        *("patternProperties", "propertyNames", "minContains", "minProperties", "title", "description", "default"),
    ]
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([0.5, 1.0, "object", "string", "integer", "^a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_WORDS | st.just("x"), inner, max_size=3),
    max_leaves=8,
)
_INSTANCES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from([0.5, 1.0, "", "a", "ab"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "a", "type"]), inner, max_size=3),
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


_MEANT: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        st.booleans(),
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "string", "integer", "number", "array", ["null", "boolean"]]),
                "enum": st.lists(_INSTANCES, max_size=3),
                "const": _INSTANCES,
                "minimum": st.integers(-1, 2),
                "exclusiveMaximum": st.sampled_from([0.5, 2]),
                "multipleOf": st.sampled_from([0.5, 2, 1.0]),
                "minLength": st.integers(0, 2),
                "maxItems": st.integers(0, 2),
                "minProperties": st.integers(0, 2),
                "pattern": st.sampled_from(["^a", "b$", "[ab]{2}"]),
                "uniqueItems": st.booleans(),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "items": _MEANT,
                "prefixItems": st.lists(_MEANT, min_size=1, max_size=2),
                "contains": _MEANT,
                "minContains": st.integers(0, 2),
                "maxContains": st.integers(0, 2),
                "properties": st.dictionaries(st.sampled_from(["x", "a"]), _MEANT, max_size=2),
                "patternProperties": st.dictionaries(st.sampled_from(["^a", "x"]), _MEANT, max_size=2),
                "additionalProperties": _MEANT,
                "propertyNames": _MEANT,
                "required": st.just(["a"]),
                "dependentRequired": st.just({"a": ["x"]}),
                "dependentSchemas": st.dictionaries(st.just("a"), _MEANT, max_size=1),
            },
        ),
        st.fixed_dictionaries(
            {},
            optional={
                "allOf": st.lists(_MEANT, min_size=1, max_size=2),
                "anyOf": st.lists(_MEANT, min_size=1, max_size=2),
                "oneOf": st.lists(_MEANT, min_size=1, max_size=3),
                "not": _MEANT,
                "if": _MEANT,
                "then": _MEANT,
                "else": _MEANT,
            },
        ),
    )
)


@given(st.dictionaries(st.just("s"), _MEANT, min_size=1, max_size=1), _INSTANCES)
def test_a_value_fits_as_it_does_for_the_library(named: JsonObject, value: Any) -> None:
    schema: JsonObject = {"$defs": named, "$ref": "#/$defs/s"}
    assert fits(schema, value) == is_valid(schema, value)


def test_what_is_wrong_is_said_as_the_library_says_it() -> None:
    assert faults(ORDER, GOOD) == []
    bad: Any = {"note": 1, "items": [{"name": "A1", "count": 0}, {"name": "a"}], "tags": {"x": 1}}
    free = cast("list[ValidationError]", list(Draft202012Validator(ORDER).iter_errors(bad)))  # pyright: ignore[reportUnknownMemberType]
    expected = [f"{'/'.join(map(str, each.absolute_path))}: {each.message}" for each in free]
    assert sorted(faults(ORDER, bad)) == sorted(expected)
    assert len(expected) == 6


def test_the_fault_of_the_alternative_that_was_meant_is_said() -> None:
    schema: JsonObject = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"n": {"maximum": 3}}}]}
    fault = checks(schema).fault({"n": 4})
    assert fault is not None
    assert (fault.path, fault.message) == (("n",), "4 is greater than the maximum of 3")
    assert fault.schema_path == ("anyOf", 1, "properties", "n", "maximum")


def test_a_long_answer_is_not_too_costly() -> None:
    long: Any = {**GOOD, "items": GOOD["items"] * 1_000}
    assert faults(ORDER, long) == []


def test_references_that_double_cost_no_more_than_those_that_do_not() -> None:
    assert faults({"$defs": {**DOUBLED, "d40": {"type": "object"}}, "$ref": "#/$defs/d0"}, {}) == []
    assert not fits({"$defs": {**DOUBLED, "d40": {"type": "null"}}, "$ref": "#/$defs/d0"}, {})


DOUBLED: Any = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
LONG = 500_000
COSTLY: dict[str, tuple[Any, Any]] = {
    "references that double": ({"$defs": {**DOUBLED, "d40": {"type": "null"}}, "$ref": "#/$defs/d0"}, {}),
    "a reference to itself": ({"$ref": "#"}, {}),
    "many alternatives": ({"items": {"anyOf": [{"type": "string"}] * 1_000}}, [1] * 1_000),
    "many faults": ({"items": {"type": "string"}}, [1] * 100_000),
    "many schemas": ({"allOf": [{}] * 7_000}, 1),
    "many parts": ({"items": {"type": "integer"}}, [1] * 200_000),
    "many equal items": ({"uniqueItems": True}, [{"a": [1, 2]}] * 50_000),
    "many different items": ({"uniqueItems": True}, [{"a": [n]} for n in range(50_000)]),
    "numbers of one hash": ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(30_000)]),
    "names of one pattern": (
        {"patternProperties": {f"^[a-z]{{{n}}}": {} for n in range(60)}},
        {f"p{n}": 1 for n in range(20_000)},
    ),
    "a long text": ({"pattern": r"^(\w+\s?)*$"}, "a" * LONG + "!"),
    "a text that keeps a pattern busy": ({"pattern": "[ab]*a[ab]{200}c"}, "ab" * (LONG // 2)),
    "many patterns": ({"allOf": [{"pattern": rf"\w{{{400 + n}}}"} for n in range(45)]}, "a" * 1_000),
    "classes": ({"allOf": [{"pattern": rf"\p{{L}}{{6}}a{{{n}}}"} for n in range(10)]}, "é" * 10_000),
    "a large number": ({"multipleOf": 1e-300, "enum": [10**4000]}, 10**4000),
    "a deep value": (
        {"anyOf": [{"type": "null"}, {"items": {"$ref": "#"}}]},
        json.loads("[" * 900 + "]" * 900),
    ),
}


@pytest.mark.parametrize("case", COSTLY)
def test_no_schema_and_no_value_hold_a_process(case: str) -> None:
    schema, value = COSTLY[case]
    runs = count()

    def first_use() -> None:
        pattern.cache_clear()
        different: JsonObject = {**schema, "title": f"{case} {next(runs)}"}
        with suppress(ValueError, SchemaTooCostly):
            checks(different).fault(value)

    cheap(MOST_SECONDS, first_use, case)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"q": {"pattern": "^(a+)+$"}}},
        {"properties": {"q": {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}}},
        {"propertyNames": {"pattern": "^(a+)+$"}},
        {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False},
    ],
)
def test_a_pattern_never_backtracks(schema: JsonObject) -> None:
    text = "a" * 10_000 + "!"
    assert 1 <= len(faults(object_schema({"type": "object", **schema}), {"q": text, text: "x"})) <= 2


@pytest.mark.parametrize(
    ("written", "right", "wrong"),
    [
        (r"^\p{Lu}\p{Letter}+$", "Übermut", "übermut"),
        (r"^\p{Script=Greek}+$", "αβγ", "abc"),
        (r"^\P{L}+$", "12", "1a"),
        (r"^(?<year>\d{4})-(?P<month>\d\d)$", "2026-11", "26-11"),
        ("^\\u00e9\\u{1F600}$", "é😀", "e😀"),
        (r"^[\s\S]$", "\n", "ab"),
        (r"^\s$", "\u00a0", "a"),
        (r"^\S+\Z", "ab", "a\u2003b"),
        (r"^[[\]]+$", "[]", "a"),
        (r"a/b\-c", "xa/b-cx", "a/b"),
        (r"^[\w.-]+@[\w-]+\.[a-z]{2,}$", "a.b@c-d.org", "a@b"),
        (r"^$", "", "\n"),
    ],
)
def test_patterns_mean_what_ecma_says(written: str, right: str, wrong: str) -> None:
    assert Pattern(written).fits(right)
    assert not Pattern(written).fits(wrong)
    assert fits({"pattern": written}, right)


@given(st.text(alphabet=r"ab[]{}()^$*+?.|\pLuswSW09-,<>:=!i", max_size=40))
def test_any_text_is_a_pattern_or_none_in_bounded_time(text: str) -> None:
    assert weight(text) >= 1

    def use() -> None:
        with suppress(ValueError):
            Pattern(text).fits("ab\u00e9[")

    cheap(MOST_SECONDS, use, text)


def test_numbers_are_the_decimals_that_they_are_written_as() -> None:
    assert fits({"multipleOf": 0.01}, 19.99)
    assert not fits({"multipleOf": 0.01}, 19.995)
    assert fits({"multipleOf": 0.1}, 1e300)
    assert not fits({"multipleOf": 1e300}, 0.1)
    assert fits({"multipleOf": 3}, 3 * 10**400)


@given(st.integers(-(10**6), 10**6), st.integers(-8, 8), st.integers(1, 10**4), st.integers(-8, 8))
def test_multiples_are_exact(a: int, i: int, b: int, j: int) -> None:
    value, of = float(f"{a}e{i}"), float(f"{b}e{j}")
    exact = Decimal(repr(value)) / Decimal(repr(of))
    remainder = Decimal(repr(value)).scaleb(20) % Decimal(repr(of)).scaleb(20)
    assert is_multiple(value, of) == (remainder == 0), (value, of, exact)


@given(_INSTANCES, _INSTANCES)
def test_equal_values_have_one_key(one: Any, other: Any) -> None:
    assert (key(one) == key(other)) == is_valid({"const": one}, other)


def test_lists_of_items_and_dependencies_are_those_of_earlier_drafts_where_they_are_named() -> None:
    early: JsonObject = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "items": [{"type": "string"}],
        "additionalItems": {"type": "integer"},
        "dependencies": {"a": ["b"], "c": {"required": ["d"]}},
        "definitions": {"x": {"type": "null"}},
    }
    assert fits(early, ["a", 1])
    assert not fits(early, [1])
    assert not fits(early, ["a", "b"])
    assert not fits(early, {"a": 1})
    assert not fits(early, {"c": 1})
    with pytest.raises(ValueError, match="no JSON schema at /items"):
        checks({"items": [{}]})


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema: JsonObject = {"type": "object", "properties": {"$schema": {"type": "integer"}, "pattern": {"type": "null"}}}
    assert len(faults(object_schema(schema), {"$schema": "x", "pattern": "x"})) == 2


def test_a_schema_is_compiled_once() -> None:
    assert checks({"title": "once"}) is checks({"title": "once"})
