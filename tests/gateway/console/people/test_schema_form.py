"""A form made of a JSON schema reads as the arguments that it was made of, and as what was typed over them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.console.people.schema_form import ALL, SchemaForm, answer_form, arguments_form
from turnstile.gateway.schema_slots import MISSING
from turnstile.schema.base import JsonObject

SCHEMAS: JsonObject = {
    "text": {"type": "string"},
    "short": {"type": "string", "maxLength": 20},
    "count": {"type": "integer", "minimum": 1},
    "size": {"type": "number"},
    "flag": {"type": "boolean"},
    "kind": {"enum": ["a", "b", 1, True, None]},
    "names": {"type": "array", "items": {"type": "string"}},
    "sizes": {"type": "array", "items": {"type": "number"}},
    "any": {},
    "deep": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "maybe": {"type": ["string", "null"]},
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda scalar: st.lists(scalar, max_size=4) | st.dictionaries(st.text(), scalar, max_size=3)
)


def schema(*required: str, **more: Any) -> JsonObject:
    """An object of all kinds of properties."""
    return {"type": "object", "properties": SCHEMAS, "required": [*required], **more}


def by_label(form: SchemaForm) -> dict[str, str]:
    """The names of its fields by their labels."""
    return {field.label: field.name for field in form.fields()}


def untouched(form: SchemaForm) -> dict[str, str]:
    """What a browser sends of a form that nobody has touched: with its own line breaks."""
    sent: dict[str, str] = {}
    for field in form.fields():
        chosen = next((option.value for option in field.choices if option.selected), "")
        text = chosen if field.kind == "choice" else field.text
        sent[field.name] = text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")
    return sent


@given(st.dictionaries(st.sampled_from([*SCHEMAS]) | st.text(), VALUES, max_size=8))
def test_a_form_that_nobody_has_touched_reads_as_what_it_was_made_of(arguments: JsonObject) -> None:
    form = arguments_form({"type": "object", "properties": SCHEMAS}, arguments)
    read: JsonObject = {}
    for slot in form.slots:
        value = slot.read(untouched(form)[slot.name])
        if value is not MISSING:
            read |= value if slot.name == "rest" and isinstance(value, dict) else {slot.label: value}
    assert json.dumps(read, sort_keys=True) == json.dumps(arguments, sort_keys=True)


@pytest.mark.parametrize(
    ("label", "typed", "value"),
    [
        ("text", "a\r\nb", "a\nb"),
        ("text", " a ", " a "),
        ("count", " 12 ", 12),
        ("count", "9007199254740993", 9007199254740993),
        ("size", "1.50", 1.5),
        ("size", "-3", -3),
        ("size", "1e3", 1000.0),
        ("flag", "1", False),
        ("kind", "2", 1),
        ("kind", "3", True),
        ("kind", "4", None),
        ("names", "a\r\n\r\n b \r\n", ["a", "b"]),
        ("sizes", "1\n2.5", [1, 2.5]),
        ("any", '{"a": [null]}', {"a": [None]}),
        ("deep", '{"a": 1}', {"a": 1}),
        ("maybe", "null", None),
        ("maybe", '"x"', "x"),
    ],
)
def test_what_is_typed_is_read_by_its_kind(label: str, typed: str, value: Any) -> None:
    form = arguments_form(schema(), {})
    reading = form.read({by_label(form)[label]: typed})
    assert reading.faults == {}
    assert isinstance(reading.value, dict)
    assert list(reading.value.items()) == [(label, value)]
    assert type(reading.value[label]) is type(value)


@pytest.mark.parametrize(
    ("label", "typed", "words"),
    [
        ("count", "1.5", "whole number"),
        ("count", "0x1", "whole number"),
        ("count", "0", "less than the minimum of 1"),
        ("size", "1,5", "a number"),
        ("size", "NaN", "a number"),
        ("size", "0.12345678901234567890", "too many digits"),
        ("size", "1e999", "too many digits"),
        ("flag", "2", "from the list"),
        ("kind", "²", "from the list"),
        ("short", "x" * 21, "too long"),
        ("sizes", "1\ntwo", "a number"),
        ("any", "{", "line 1, column 2"),
        ("any", '{"a": 1, "a": 2}', "twice"),
        ("any", "[NaN]", "NaN is not valid JSON"),
        ("any", "[" * 10_000, "nested too deeply"),
        ("deep", '{"a": "b"}', "at a"),
        ("maybe", "1", "is not of type"),
    ],
)
def test_what_does_not_fit_is_told_at_its_field(label: str, typed: str, words: str) -> None:
    form = arguments_form(schema(), {})
    reading = form.read({by_label(form)[label]: typed})
    assert reading.value is None
    [(name, fault)] = reading.faults.items()
    assert (name, words in fault) == (by_label(form)[label], True), fault
    shown = next(field for field in form.fields({name: typed}, reading.faults) if field.name == name)
    assert (shown.text, shown.fault) == (typed, fault)


def test_what_is_emptied_is_left_out_unless_it_is_needed() -> None:
    given_: JsonObject = {"text": "a", "short": "b", "count": 1, "names": ["c"], "flag": True}
    form = arguments_form(schema("text", "count"), given_)
    names = by_label(form)
    assert form.read(dict.fromkeys(names.values(), "")).faults == {names["count"]: "This field is required."}
    reading = form.read(dict.fromkeys(names.values(), "") | {names["count"]: "2"})
    assert reading.value == {"text": "", "count": 2, "names": []}
    assert form.read({names["count"]: "2"}).value == {**given_, "count": 2}, "what was not sent is as it was"
    new = arguments_form(schema("text", "kind"), {})
    faults = new.read({}).faults
    assert faults == {
        by_label(new)["text"]: "This field is required.",
        by_label(new)["kind"]: "This field is required.",
    }


def test_what_an_operator_has_fixed_cannot_be_typed() -> None:
    whole = schema("text", additionalProperties=False)
    given_: JsonObject = {"text": "a", "count": 7, "key": {"$env": "KEY"}}
    form = arguments_form(whole, given_, fixed=frozenset({"count"}), envs=frozenset({"key"}))
    assert "count" not in by_label(form)
    assert form.fixed == {"count": 7}
    names = by_label(form)
    assert form.read({names["text"]: "b", "arg-99": "1"}).value == {"text": "b"}
    open_form = arguments_form({"type": "object"}, given_, fixed=frozenset({"count"}), envs=frozenset({"key"}))
    assert open_form.read({"rest": '{"count": 1}'}).faults == {"rest": "count: cannot be set here."}
    assert open_form.read({"rest": "[]"}).faults == {"rest": "Type a JSON object: {}."}
    assert open_form.read({"rest": '{"other": 1}'}).value == {"other": 1}


def test_what_is_not_of_one_field_is_told_for_all() -> None:
    whole = schema(anyOf=[{"required": ["text"]}, {"required": ["count"]}])
    form = arguments_form(whole, {})
    assert list(form.read({}).faults) == [ALL]
    assert form.read({by_label(form)["count"]: "3"}).value == {"count": 3}


def test_another_schema_makes_another_form_by_its_digest() -> None:
    digests = {
        arguments_form(each, {"text": "a"}, fixed=fixed).digest
        for each in (schema(), schema("text"), schema(title="t"))
        for fixed in (frozenset[str](), frozenset({"text"}))
    }
    assert len(digests) == 6
    assert arguments_form(schema(), {}).digest == arguments_form(schema(), {"text": "a"}).digest


@pytest.mark.parametrize(
    "wrong",
    [{"properties": []}, {"properties": {"a": 1}, "required": 3}, {"properties": {"a": {"enum": 3}}}, {"$ref": "#/x"}],
)
def test_a_schema_that_is_none_makes_a_form_all_the_same(wrong: Any) -> None:
    form = arguments_form({"type": "object", **wrong}, {"a": 1, "b": "two"})
    assert form.read(untouched(form)).value == {"a": 1, "b": "two"}


def test_many_properties_are_one_field() -> None:
    many: JsonObject = {f"p{n}": {"type": "integer"} for n in range(100)}
    form = arguments_form({"type": "object", "properties": many}, {"p1": 1})
    [field] = form.fields()
    assert field.kind == "json"
    assert form.read({field.name: '{"p2": 2}'}).value == {"p2": 2}
    assert "is not of type" in form.read({field.name: '{"p2": "x"}'}).faults[field.name]


def test_an_answer_is_a_text_a_choice_fields_or_json() -> None:
    assert answer_form(None).read({"answer": " as it is "}).value == " as it is "
    assert answer_form({"enum": ["yes", "no"]}).read({"answer": "1"}).value == "no"
    assert answer_form({"type": "integer"}).read({"answer": "3"}).value == 3
    assert answer_form({"type": "array"}).read({"answer": "[1]"}).value == [1]
    assert answer_form({"type": "array"}).read({"answer": "{}"}).faults == {"answer": "{} is not of type 'array'"}
    assert answer_form({"type": ["null", "object"]}).read({"answer": "null"}).value is None
    of_object = answer_form({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert of_object.read({"ans-0": "4"}).value == {"n": 4}
    assert of_object.read({}).faults == {"ans-0": "This field is required."}
