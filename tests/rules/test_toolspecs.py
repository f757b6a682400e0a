"""Tool specs and the built-in `submit_result` (protocol §7.3, §7.4)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.rules.text import parse_arguments
from turnstile.rules.tool_specs import (
    SUBMIT_RESULT_SPEC,
    build_tool_specs,
    check_fields,
    parse_submit_result,
    wanted_fields,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    CardContent,
    CardType,
    FieldsSchemaContent,
    ResultField,
    Role,
    SubmittedField,
    TextContent,
    make_card,
)
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import CardId
from turnstile.schema.json_reading import storable
from turnstile.schema.tools import ToolRow, options_of

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "key": {"type": "string"}, "lang": {"type": "string"}, "n": {}},
    "required": ["q", "key", "lang", "n"],
    "additionalProperties": False,
}


def row(name: str = "search", **more: object) -> ToolRow:
    fields: dict[str, object] = {"tool_name": name, "target_subject": "cg.x", "parameters": SCHEMA, **more}
    return ToolRow.model_validate(fields)


def test_forced_arguments_are_hidden() -> None:
    options = {"args": {"fixed": {"lang": "en"}, "defaults": {"n": 10}}, "envs": {"key": "SEARCH_KEY"}}
    specs = build_tool_specs([row(description="Search.", options=options)], ["search"])
    assert specs.warnings == ()
    assert specs.rows.keys() == {"search"}
    assert specs.specs == (
        {
            "type": "function",
            "function": {
                "name": "search",
                "description": "Search.",
                "parameters": {
                    "type": "object",
                    "properties": {"q": {"type": "string"}, "n": {}},
                    "required": ["q"],
                    "additionalProperties": False,
                },
            },
        },
        SUBMIT_RESULT_SPEC,
    )
    assert "lang" in json.dumps(SCHEMA)


def test_the_whitelist_decides_and_mismatches_are_warnings() -> None:
    rows = [row("b"), row("a"), row("c"), row("submit_result")]
    specs = build_tool_specs(rows, ["a", "b", "gone", "a", "submit_result"])
    assert list(specs.rows) == ["a", "b"]
    assert len(specs.specs) == 3
    assert [("gone" in text, "submit_result" in text) for text in specs.warnings] == [(False, True), (True, False)]
    assert build_tool_specs(rows[:3], []).specs == (SUBMIT_RESULT_SPEC,)


@pytest.mark.parametrize(
    "bad",
    [
        row("no good"),
        row(target_subject=None),
        row(parameters={"type": "array"}),
        row(parameters={"properties": ["q"]}),
        row(parameters={"properties": {"q": "string"}}),
        row(parameters={"required": "q"}),
        row(options={"args": []}),
        row(options={"envs": {"key": 1}}),
    ],
)
def test_a_row_that_cannot_become_a_spec_costs_a_warning(bad: ToolRow) -> None:
    specs = build_tool_specs([bad, row("good")], [bad.tool_name, "good"])
    assert list(specs.rows) == ["good"]
    (warning,) = specs.warnings
    assert bad.tool_name in warning


def test_a_row_without_parameters_or_options() -> None:
    specs = build_tool_specs([row(parameters=None, options=None, description=None)], ["search"])
    assert specs.specs[0]["function"] == {
        "name": "search",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    }


def test_options_that_cannot_be_read_name_tool_and_option() -> None:
    with pytest.raises(BadRequest, match=r"search: options\.args"):
        options_of(row(options={"args": []}))


def test_a_dotted_name_is_offered_with_underscores_unless_another_tool_has_that() -> None:
    rows = [row("skills.load"), row("skills_load"), row("submit.result")]
    for allowed, names in ((None, ["skills_load"]), (["skills.load"], ["skills_load"]), ([], [])):
        specs = build_tool_specs(rows, allowed, submit_result=allowed is None)
        called = [*names, *(["submit_result"] if allowed is None else [])]
        assert [spec["function"]["name"] for spec in specs.specs] == called  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
        assert list(specs.rows) == (["skills.load"] if names else [])
        assert specs.warnings == (
            ("allowed tool skills_load is not offered: another one is called skills_load",) if allowed is None else ()
        )


@pytest.mark.parametrize("fields", [{"fields": [{"name": "a", "value": "1"}]}, {"a": "1"}])
def test_submit_result_is_parsed_as_v1r4_describes_it(fields: JsonObject) -> None:
    assert parse_submit_result(json.dumps({"result": fields})) == [SubmittedField(name="a", value="1")]


def test_submit_result_is_parsed() -> None:
    text = '{"fields": [{"name": "a", "value": {"x": [1, null]}}, {"name": "b", "value": null, "note": 1}]}'
    assert parse_submit_result(text) == [
        SubmittedField(name="a", value={"x": [1, None]}),
        SubmittedField(name="b", value=None),
    ]
    assert parse_submit_result('{"fields": []}') == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"fields": {}}', '{"fields": [{"name": "a"}]}', '{"fields": [{"name": " ", "value": 1}]}'],
)
def test_what_is_no_submission_is_a_problem_that_says_how(text: str) -> None:
    problem = parse_submit_result(text)
    assert isinstance(problem, str)
    assert '"fields"' in problem


def test_check_fields() -> None:
    wanted = [ResultField(name="a"), ResultField(name="b")]
    a, b, c = (SubmittedField(name=name, value=1) for name in "abc")
    assert check_fields(wanted, [a, b, c, c]) is None
    assert check_fields([], [a]) is None
    assert check_fields(wanted, [a, a]) == (
        "The result must have each of these fields once: a, b; missing are b; repeated are a."
    )


def test_wanted_fields() -> None:
    def card(card_id: str, content: CardContent) -> None:
        cards.append(make_card(CardId(card_id), CardType.RESULT_FIELDS, Role.SYSTEM, content, author="system"))

    cards = [make_card(CardId("i"), CardType.INSTRUCTION, Role.USER, TextContent(text="x"), author="user")]
    card("f1", FieldsSchemaContent(fields=[ResultField(name="a", description="first"), ResultField(name="b")]))
    card("f2", FieldsSchemaContent(fields=[ResultField(name="a"), ResultField(name="c")]))
    card("f3", TextContent(text="a, b"))
    wanted = wanted_fields(cards)
    assert [(field.name, field.description) for field in wanted.fields] == [("a", "first"), ("b", ""), ("c", "")]
    assert wanted.unreadable == ("f3",)


@pytest.mark.parametrize("text", ["{", "1", '{"a": NaN}', '{"a": 1e999}', "[" * 100_000, "9" * 5000])
def test_arguments_that_are_no_json_object(text: str) -> None:
    assert parse_arguments(text) is None


def test_arguments_become_storable() -> None:
    assert parse_arguments(r'{"a\u0000": ["\ud83d\ude00", "\ud83d!"]}') == {"a": ["😀", "�!"]}


@given(st.text(st.characters(exclude_categories=[])))
def test_storable_text_can_be_stored(text: str) -> None:
    stored = storable(text)
    assert "\x00" not in stored
    stored.encode()
    assert storable(stored) == stored
