"""Typed answers: which schemas may be asked for, what a model is offered, and what its answers come to (§18)."""

import json
from typing import Any, cast

import pytest
from pydantic import BaseModel, JsonValue, ValidationError

from tests.rules.test_choices import BARE, CHOICES, SEND, SUBMIT, TURN, Said, made, refusals
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Decision, Deliver, StepRequest, decide, repairs
from turnstile.rules.resume import termination
from turnstile.rules.tool_specs import build_tool_specs, submit_value_spec
from turnstile.rules.turn_config import TurnConfig
from turnstile.rules.turn_step import ReportedCall
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, Role, ToolResultContent, make_card, value_of
from turnstile.schema.ids import CardId, ToolCallId
from turnstile.schema.parameters import checks
from turnstile.schema.profiles import NOT_SUPPORTED, LlmConfig, Profile, RuntimeConfig
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.tools import ToolRow
from turnstile.schema.wire.inbox import EnqueueRequest

ORDER: JsonObject = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["id"],
    "additionalProperties": False,
}
GOOD: JsonObject = {"id": 7}


def submit(value: Any) -> Said:
    """A call with this value."""
    return "submit_result", {"value": value}


def step(
    *calls: Said, text: str = "", number: int = 1, tried: int = 0, schema: JsonObject = ORDER, **config: Any
) -> Decision:
    """What a step of at most nine comes to in which the model says and calls this."""
    row = ToolRow(tool_name="search", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.search.run")
    settings: dict[str, Any] = {"max_steps": 9, "must_end_with": [], "tools": {"search": row}, **config}
    pinned = TurnConfig(profile_name="x", llm_config=LlmConfig(model="m"), output_schema=schema, **settings)
    answer = ModelAnswer(text, "", tuple(made(*calls)), "stop", {}, None, "unknown", None)
    return decide(StepRequest(TURN, number, pinned, (), "", Patience(), repairs=tried), answer)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([submit(GOOD)], "Here it is."),
        ([], json.dumps(GOOD)),
        ([], f"\n {json.dumps(GOOD, indent=2)}\n"),
        ([], f"```json\n{json.dumps(GOOD)}\n```"),
        ([], f"This is the order:\n\n```\n{json.dumps(GOOD)}\n```\nAsk me for more."),
    ],
    ids=["call", "text", "spaced", "fence", "words around a fence"],
)
def test_a_value_that_matches_is_the_deliverable(calls: list[Said], text: str) -> None:
    for tried in (0, 2):
        ended = step(*calls, text=text, tried=tried)
        assert isinstance(ended, Deliver)
        assert (ended.status, ended.error_code) == (TurnStatus.SUCCESS, None)
        assert value_of(ended.cards[-1]) == {"value": GOOD}
        assert ended.cards[-1].metadata.partial is None


@pytest.mark.parametrize("value", [True, None, 4, "x", [1, {"a": None}], {}, 1.5])
def test_a_value_may_be_of_any_type(value: Any) -> None:
    ended = step(submit(value), schema={})
    assert isinstance(ended, Deliver)
    assert value_of(ended.cards[-1]) == {"value": value}


BAD: list[tuple[list[Said], str, str]] = [
    ([submit({"id": "7"})], "", "at id"),
    ([submit({})], "", "id"),
    ([submit({"id": 7, "more": 1})], "", "more"),
    ([("submit_result", GOOD)], "", '{"value": …}'),
    ([("submit_result", "{")], "", "not a JSON object"),
    ([SUBMIT], "", '{"value": …}'),
    ([], "It is order 7.", "submit_result"),
    ([], json.dumps({"id": "7"}), "at id"),
    ([], f"{json.dumps(GOOD)} is the order.", "submit_result"),
    ([], f"```\n{json.dumps(GOOD)}\n```\nor\n```\n{json.dumps(GOOD)}\n```", "submit_result"),
    ([], "[" * 70 + "]" * 70, "nested"),
    ([], '{"id": NaN}', "submit_result"),
    ([], "```json\n{}\n", "submit_result"),
]


@pytest.mark.parametrize(("calls", "text", "said"), BAD)
def test_another_answer_goes_back_twice_and_then_the_turn_is_partial(calls: list[Said], text: str, said: str) -> None:
    for tried in (0, 1):
        again = step(*calls, text=text, tried=tried)
        assert isinstance(again, Continue)
        last = again.cards[-1]
        assert last.type == (CardType.TOOL_RESULT if calls else CardType.MUST_END_WITH_REQUIRED)
        assert said in (refusals(again.cards)[0][1] if calls else str(value_of(last)))
        assert repairs(again.cards) == 1
    for ended in (step(*calls, text=text, tried=2), step(*calls, text=text, number=9)):
        assert isinstance(ended, Deliver)
        assert (ended.status, ended.error_code) == (TurnStatus.PARTIAL, "output_invalid")
    assert isinstance(step(*calls, text=text, output_repairs=0), Deliver)


def test_what_there_is_is_delivered_and_marked() -> None:
    called, said = step(submit({"id": "7"}), tried=2), step(text="It is order 7.", tried=2)
    assert isinstance(called, Deliver)
    assert isinstance(said, Deliver)
    assert [value_of(each.cards[-1]) for each in (called, said)] == [{"value": {"id": "7"}}, "It is order 7."]
    assert [each.cards[-1].metadata.partial for each in (called, said)] == [True, True]


def test_calls_of_tools_are_no_tries_and_a_call_beside_the_value_is_refused() -> None:
    assert not isinstance(step(("search", {}), tried=2), Deliver)
    beside = step(("search", {}), submit(GOOD), tried=2)
    assert isinstance(beside, Continue)
    assert {code for code, _ in refusals(beside.cards)} == {"invalid_submission"}
    assert repairs(beside.cards) == 0
    ended = step(text=json.dumps(GOOD), must_end_with=["search"])
    assert isinstance(ended, Continue)  # a tool must end it


@pytest.mark.parametrize(
    ("result", "status", "delivered"),
    [(GOOD, "success", {"value": GOOD}), ({"id": "7"}, "partial", {"value": {"id": "7"}}), (None, "partial", None)],
)
def test_the_result_of_a_tool_that_ends_the_turn_must_match_too(result: Any, status: str, delivered: Any) -> None:
    content = ToolResultContent(
        status=TurnStatus.SUCCESS, after_execution=AfterExecution.TERMINATE, result=result, error=None
    )
    card = make_card(CardId("c"), CardType.TOOL_RESULT, Role.TOOL, content, author="tool", turn=TURN.agent_turn_id)
    call = ReportedCall(
        tool_call_id=ToolCallId("k"), tool_name="search", tool_result_card_id=card.card_id, after_execution="terminate"
    )
    ended = termination(TURN, [call], [card], {}, ORDER)
    assert ended is not None
    assert (ended.status.value, ended.error_code) == (status, None if status == "success" else "output_invalid")
    assert value_of(ended.deliverable) == (delivered or {"value": None})
    plain = termination(TURN, [call], [card], {})
    assert plain is not None
    assert (plain.status, value_of(plain.deliverable)) == (TurnStatus.SUCCESS, result)


class Leaf(BaseModel):
    """A part."""

    name: str
    leaves: list["Leaf"] = []


class Tree(BaseModel):
    """A value with definitions that refer to themselves."""

    root: Leaf
    kind: str = "$ref"


def test_the_spec_of_a_schema_takes_what_the_schema_takes() -> None:
    of_self: JsonObject = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    of_part: JsonObject = {
        "properties": {"const": {"$ref": "#/properties/a/items"}, "a": {"items": {"type": "integer"}}},
        "enum": [{"const": 1, "$ref": "#"}],
    }
    tree: JsonObject = Tree.model_json_schema()
    cases: list[tuple[JsonObject, Any, Any]] = [
        (tree, {"root": {"name": "a", "leaves": [{"name": "b"}]}}, {"root": {"name": "a", "leaves": [{}]}}),
        (of_self, {"next": {"next": {}}}, {"next": {"other": 1}}),
        (of_part, {"const": 1, "$ref": "#"}, {"const": 2}),
        ({"type": "array", "items": {"type": "string"}}, ["a"], [1]),
    ]
    for schema, good, bad in cases:
        function = submit_value_spec(schema)["function"]
        assert isinstance(function, dict)
        parameters = function["parameters"]
        assert isinstance(parameters, dict)
        assert checks(parameters).fault({"value": good}) is None
        assert checks(parameters).fault({"value": bad}) is not None
        assert [checks(schema).fault(good) is None, checks(schema).fault(bad) is None] == [True, False]
    assert build_tool_specs([], [], (), ORDER).specs == (submit_value_spec(ORDER),)


REFUSED: list[tuple[JsonObject, str]] = [
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"pattern": r"(a)\1"}, "pattern"),
    ({"$ref": "https://example.org/schema"}, "$ref"),
    ({"type": "nothing"}, "no JSON schema"),
    ({"allOf": cast("list[JsonValue]", [{}] * 9000)}, "8000 parts"),
    ({"description": "x" * 70_000}, "65536 bytes"),
]


@pytest.mark.parametrize(("schema", "named"), REFUSED)
def test_what_cannot_be_enforced_is_refused_when_it_is_put(schema: JsonObject, named: str) -> None:
    forms: list[tuple[type[BaseModel], JsonObject]] = [
        (Profile, {"name": "p", "llm_config": {"model": "m"}, "output_schema": schema}),
        (RuntimeConfig, {"output_schema": schema}),
        (EnqueueRequest, {"agent_id": "a", "instruction": "x", "runtime_config": {"output_schema": schema}}),
    ]
    for form, fields in forms:
        with pytest.raises(ValidationError) as refused:
            form.model_validate(fields)
        [error] = refused.value.errors()
        assert named in error["msg"]
        assert error["type"] in (NOT_SUPPORTED, "value_error")


def test_an_answer_has_one_form() -> None:
    choice = SEND.model_dump()
    with pytest.raises(ValidationError, match="either output_schema or choices"):
        RuntimeConfig.model_validate({"output_schema": ORDER, "choices": [choice]})
    with pytest.raises(ValidationError, match=r"either result_fields or runtime_config\.output_schema"):
        EnqueueRequest.model_validate(
            {"agent_id": "a", "result_fields": [{"name": "x"}], "runtime_config": {"output_schema": ORDER}}
        )
    ended = step(BARE, schema=ORDER, choices=CHOICES)  # a row that somebody wrote: what ends the turn is taken
    assert isinstance(ended, Deliver)
