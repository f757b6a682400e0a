"""Choices: what an enqueue may say, what the model is offered, and what its calls come to (protocol §7.3, §7.4)."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import JsonValue, ValidationError

from turnstile.rules.answer import AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Decision, Deliver, StepRequest, Suspend, decide
from turnstile.rules.tool_specs import (
    SUBMIT_RESULT_SPEC,
    Accepted,
    Refusal,
    build_tool_specs,
    chosen,
    ending,
    has_fields,
    last_specs,
)
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import STORED, JsonObject
from turnstile.schema.cards import (
    Card,
    CardType,
    JsonContent,
    ResultField,
    TextContent,
    ToolResultContent,
    content_of,
)
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ChannelId, InboxId, ProjectId
from turnstile.schema.profiles import Choice, LlmConfig, RuntimeConfig
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.tools import ToolRow
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.inbox import EnqueueRequest

TURN = TurnRef(
    project_id=ProjectId("p"),
    channel_id=ChannelId("public"),
    agent_id=AgentId("a"),
    agent_turn_id=AgentTurnId("t1"),
    turn_epoch=1,
    inbox_id=InboxId("i"),
    worker_target="w",
    profile_box_id=BoxId("b1"),
    context_box_id=BoxId("b2"),
    output_box_id=BoxId("b3"),
    trace_id="trace",
)
MAIL: JsonObject = {
    "type": "object",
    "properties": {"subject": {"type": "string", "minLength": 1}, "copies": {"type": "integer", "default": 1}},
    "required": ["subject"],
    "additionalProperties": False,
}
SEND = Choice(name="send_b", description="Send a mail to b.", parameters=MAIL)
THINK = Choice(name="think", description="Think on.")
CHOICES = {each.name: each.parameters for each in (SEND, THINK)}
TOOL = ToolRow(tool_name="search", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.search.run")
Said = tuple[str, Any]
"""A call as a test writes it: its name, and its arguments as an object or as text."""
GOOD: Said = ("send_b", {"subject": "hello"})
BARE: Said = ("think", {})
LOOK: Said = ("search", {})
SUBMIT: Said = ("submit_result", {"fields": []})


def made(*named: Said) -> list[AnsweredCall]:
    """The calls as a model makes them."""
    texts = [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in named]
    return [AnsweredCall(f"call_{place}", name, text) for place, (name, text) in enumerate(texts)]


def step(
    *named: Said,
    text: str = "",
    number: int = 1,
    must_end_with: Sequence[str] = (),
    wanted: Sequence[ResultField] = (),
) -> Decision:
    """What a step of at most two comes to in which the model says and calls this."""
    config = TurnConfig(
        profile_name="x",
        llm_config=LlmConfig(model="m"),
        max_steps=2,
        must_end_with=list(must_end_with),
        tools={"search": TOOL},
        choices=CHOICES,
    )
    calls = tuple(made(*named))
    answer = ModelAnswer(text, "", calls, "stop", {}, None, "unknown", None)
    return decide(StepRequest(TURN, number, config, wanted, "", Patience()), answer)


def delivered(decision: Decision) -> JsonValue:
    """The deliverable of a turn that ended well, and that its result is the one the outcome names."""
    assert isinstance(decision, Deliver)
    assert (decision.status, decision.error_code) == (TurnStatus.SUCCESS, None)
    *_, result, deliverable = decision.cards
    assert (result.type, result.card_id) == (CardType.TOOL_RESULT, decision.tool_result)
    assert (deliverable.type, deliverable.card_id) == (CardType.DELIVERABLE, decision.deliverable)
    content = content_of(deliverable)
    assert isinstance(content, JsonContent)
    return content.data


def refusals(cards: Sequence[Card]) -> list[tuple[str, str]]:
    """Code and message of each failed result, one for each call of the thought."""
    found: list[tuple[str, str]] = []
    [thought] = [card for card in cards if card.type == CardType.THOUGHT]
    results = [card for card in cards if card.type == CardType.TOOL_RESULT]
    assert [card.tool_call_id for card in results] == [call.tool_call_id for call in thought.tool_calls or ()]
    for card in results:
        content = content_of(card)
        assert isinstance(content, ToolResultContent)
        assert (content.status, content.after_execution) == (TurnStatus.FAILED, AfterExecution.SUSPEND)
        assert content.error is not None
        found.append((content.error.code, content.error.message))
    return found


# What an enqueue may say


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"name": "submit_result"}, "name"),
        ({"name": "9lives"}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "a\n"}, "name"),
        ({"name": "n" * 65}, "name"),
        ({"description": ""}, "description"),
        ({"description": "x" * 16_385}, "description"),
        ({"parameters": {"type": "array"}}, "parameters"),
        ({"parameters": {"type": "object", "properties": {"q": {"type": "secret"}}}}, "parameters"),
        ({"urgent": True}, "urgent"),
    ],
)
def test_a_bad_choice_is_refused_by_the_name_of_its_field(changed: JsonObject, field: str) -> None:
    given: JsonObject = {"name": "x", "description": "X.", **changed}
    with pytest.raises(ValidationError) as raised:
        EnqueueRequest.model_validate({"agent_id": "a", "runtime_config": {"choices": [SEND.model_dump(), given]}})
    [error] = raised.value.errors()
    assert error["loc"] == ("runtime_config", "choices", 1, field)
    assert "secret" not in error["msg"]


@pytest.mark.parametrize("choices", [[SEND, SEND], [THINK.model_copy(update={"name": f"c{n}"}) for n in range(257)]])
def test_names_are_distinct_and_at_most_256(choices: list[Choice]) -> None:
    with pytest.raises(ValidationError) as raised:
        RuntimeConfig(choices=choices)
    assert raised.value.errors()[0]["loc"] == ("choices",)


def test_a_row_is_not_checked_again() -> None:
    """Nor does a step fail over what somebody wrote by SQL: the model hears of it where it chooses."""
    row: JsonObject = {"choices": [{"name": "x", "description": "X.", "parameters": {"type": "nonsense"}}]}
    assert RuntimeConfig.model_validate(row, context=STORED).choices[0].parameters == {"type": "nonsense"}
    found = ending(made(("x", {})), {"x": {"type": "nonsense"}}, [])
    assert isinstance(found, Refusal)
    assert "cannot be called" in found.message


def test_a_request_without_choices_is_written_as_ever() -> None:
    """Its digest, which another version may compare, the inbox row and the pinned configuration."""
    for text in ('{"agent_id":"a"}', '{"agent_id":"a","instruction":"x","runtime_config":{"max_steps":3}}'):
        assert EnqueueRequest.model_validate_json(text).digest() == hashlib.sha256(text.encode()).hexdigest()
    none = EnqueueRequest(agent_id=AgentId("a"), runtime_config=RuntimeConfig(choices=[], instructions=None))
    assert none.digest() == EnqueueRequest(agent_id=AgentId("a")).digest()
    assert RuntimeConfig(max_steps=3).model_dump_json(exclude_none=True) == '{"max_steps":3}'
    config = TurnConfig(
        profile_name="x", llm_config=LlmConfig(model="m"), max_steps=2, must_end_with=[], tools={}, choices={}
    )
    assert "choices" not in config.model_dump(mode="json")
    assert TurnConfig.model_validate(config.model_dump(mode="json")) == config


def test_choices_and_instructions_are_part_of_the_digest_and_of_the_text() -> None:
    def request(**runtime: Any) -> EnqueueRequest:
        return EnqueueRequest(agent_id=AgentId("a"), runtime_config=RuntimeConfig(**runtime))

    requests = [request(), request(choices=[SEND]), request(choices=[THINK]), request(instructions="Be ä.")]
    assert len({r.digest() for r in requests}) == 4
    assert requests[3].text_bytes() == 6
    written = len(json.dumps(MAIL)) + len(SEND.name) + len(SEND.description)
    assert (requests[0].text_bytes(), requests[1].text_bytes()) == (0, written)


# What the model is offered


def test_choices_stand_between_tools_and_submit_result() -> None:
    found = build_tool_specs([TOOL], ["search"], [SEND, THINK])
    assert [spec["function"]["name"] for spec in found.specs] == [  # pyright: ignore[reportIndexIssue, reportArgumentType, reportOptionalSubscript, reportCallIssue] -- a spec, in a test
        *("search", "send_b", "think", "submit_result")
    ]
    assert found.specs[1] == {
        "type": "function",
        "function": {"name": "send_b", "description": "Send a mail to b.", "parameters": MAIL},
    }
    assert (found.rows, found.warnings) == ({"search": TOOL}, ())
    assert last_specs(found.specs, CHOICES) == found.specs[1:]
    assert last_specs(found.specs, ()) == (SUBMIT_RESULT_SPEC,)


def test_a_choice_without_parameters_has_empty_properties() -> None:
    bare = Choice(name="think", description="Think on.", parameters={"type": "object"})
    assert build_tool_specs([], [], [bare]).specs == build_tool_specs([], [], [THINK]).specs


def test_a_tool_of_the_name_of_a_choice_is_left_out() -> None:
    row = TOOL.model_copy(update={"tool_name": "think"})
    found = build_tool_specs([row, TOOL], ["think", "search"], [THINK])
    assert list(found.rows) == ["search"]
    assert len(found.specs) == 3
    [warning] = found.warnings
    assert "think" in warning
    assert build_tool_specs([row], [], [THINK]).warnings == ()  # nobody would have been offered it


# What calls come to


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (GOOD, {"subject": "hello"}),
        (BARE, JsonObject()),
        (("think", ""), JsonObject()),
        (("send_b", r'{"subject": "\u0000\ud83d\ude00"}'), {"subject": "😀"}),
    ],
)
@pytest.mark.parametrize("must_end_with", [[], ["submit_result"], ["other"]])
@pytest.mark.parametrize("number", [1, 2])
def test_a_choice_alone_ends_the_turn(call: Said, arguments: JsonObject, must_end_with: list[str], number: int) -> None:
    decision = step(call, text="So be it.", number=number, must_end_with=must_end_with)
    assert delivered(decision) == {"choice": call[0], "arguments": arguments}
    assert isinstance(decision, Deliver)
    assert [card.type for card in decision.cards] == ["agent.thought", "tool.result", "task.deliverable"]
    content = content_of(decision.cards[1])
    assert isinstance(content, ToolResultContent)
    assert (content.status, content.after_execution) == (TurnStatus.SUCCESS, AfterExecution.TERMINATE)
    assert content.result == {"accepted": True}
    assert decision.cards[1].metadata.function_name == call[0]


def test_a_choice_is_not_asked_for_the_wanted_fields() -> None:
    assert delivered(step(GOOD, wanted=[ResultField(name="answer")])) == {
        "choice": "send_b",
        "arguments": {"subject": "hello"},
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{", "The arguments of send_b are not a JSON object."),
        ("[]", "The arguments of send_b are not a JSON object."),
        ({}, "do not fit its parameters: 'subject' is a required property"),
        ({"subject": 7}, "do not fit its parameters at subject: 7 is not of type 'string'"),
        ({"subject": ""}, "at subject: '' should be non-empty"),
        ({"subject": "x", "urgent": True}, "Additional properties are not allowed ('urgent' was unexpected)"),
    ],
)
def test_bad_arguments_are_told_and_another_step_follows(arguments: Any, told: str) -> None:
    decision = step(("send_b", arguments))
    assert isinstance(decision, Continue)
    [(code, message)] = refusals(decision.cards)
    assert code == "invalid_choice"
    assert told in message


@pytest.mark.parametrize(
    ("calls", "code", "told"),
    [
        ([GOOD, BARE], "invalid_choice", "Each of send_b, think must be the only call of its step"),
        ([GOOD, GOOD], "invalid_choice", "send_b must be the only call of its step"),
        ([LOOK, GOOD], "invalid_choice", "send_b must be the only call of its step"),
        ([GOOD, ("nosuch", "{}")], "invalid_choice", "send_b must be the only call of its step"),
        ([GOOD, SUBMIT], "invalid_submission", "Each of send_b, submit_result must be"),
        ([LOOK, SUBMIT], "invalid_submission", "submit_result must be the only"),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_choice_beside_any_call_fails_all_of_them(calls: list[Said], code: str, told: str, number: int) -> None:
    decision = step(*calls, number=number)
    assert not isinstance(decision, Suspend)
    found = refusals(decision.cards)
    assert [each[0] for each in found] == [code] * len(calls)
    assert all(told in each[1] and "nothing of this step was done" in each[1] for each in found)
    if number == 2:
        assert isinstance(decision, Deliver)
        assert (decision.status, decision.deliverable, decision.error_code) == (TurnStatus.PARTIAL, None, "max_steps")
    else:
        assert isinstance(decision, Continue)


@pytest.mark.parametrize(
    ("must_end_with", "status"), [([], TurnStatus.SUCCESS), (["submit_result"], TurnStatus.PARTIAL)]
)
def test_an_invalid_choice_on_the_last_step_leaves_its_text(must_end_with: list[str], status: TurnStatus) -> None:
    decision = step(("send_b", {}), text="My last words.", number=2, must_end_with=must_end_with)
    assert isinstance(decision, Deliver)
    assert decision.status is status
    assert content_of(decision.cards[-1]) == TextContent(text="My last words.")
    assert decision.tool_result is None


def test_other_calls_are_as_ever() -> None:
    assert isinstance(step(LOOK), Suspend)
    assert delivered(step(("submit_result", {"fields": [{"name": "a", "value": 1}]}))) == {
        "fields": [{"name": "a", "value": 1}]
    }
    text = step(text="Just text.")
    assert isinstance(text, Deliver)
    assert content_of(text.cards[-1]) == TextContent(text="Just text.")
    assert ending(made(LOOK), CHOICES, []) is None
    assert ending(made(GOOD), CHOICES, []) == Accepted({"choice": "send_b", "arguments": {"subject": "hello"}})


@pytest.mark.parametrize("number", [1, 2])
def test_an_unknown_tool_is_told_the_choices(number: int) -> None:
    decision = step(("send_c", {}), number=number)
    [(code, message)] = refusals(decision.cards)
    assert code == "unknown_tool"
    assert message.endswith(f"Available: {'search, ' if number == 1 else ''}send_b, think, submit_result.")


def test_a_text_that_does_not_end_the_turn_is_answered_with_the_choices() -> None:
    decision = step(text="Done.", must_end_with=["submit_result"])
    assert isinstance(decision, Continue)
    content = content_of(decision.cards[-1])
    assert isinstance(content, TextContent)
    assert content.text.endswith("one of these tools: submit_result, send_b, think.")


WANTED = [ResultField(name="answer", description=""), ResultField(name="unit", description="")]


def test_text_does_not_end_a_turn_whose_fields_are_wanted() -> None:
    decision = step(text="Done.", wanted=WANTED, must_end_with=["search"])
    assert isinstance(decision, Continue)
    content = content_of(decision.cards[-1])
    assert isinstance(content, TextContent)
    assert content.text.endswith(
        "one of these tools: search, send_b, think, submit_result."
        " submit_result must have each of these fields once: answer, unit."
    )


@pytest.mark.parametrize("calls", [(), (SUBMIT,), (LOOK,), (GOOD, LOOK)])
def test_the_last_step_without_the_wanted_fields_is_partial(calls: tuple[Said, ...]) -> None:
    decision = step(*calls, text="My last words.", number=2, wanted=WANTED)
    assert isinstance(decision, Deliver)
    assert (decision.status, decision.error_code) == (TurnStatus.PARTIAL, "result_fields_missing")
    assert content_of(decision.cards[-1]) == TextContent(text="My last words.")
    assert decision.cards[-1].metadata.partial


def test_a_choice_ends_a_turn_without_the_wanted_fields() -> None:
    assert delivered(step(GOOD, number=2, wanted=WANTED)) == {"choice": "send_b", "arguments": {"subject": "hello"}}


@pytest.mark.parametrize(
    ("value", "has"),
    [
        ({"fields": [{"name": "answer", "value": 1}, {"name": "unit", "value": None}]}, True),
        ({"fields": [{"name": "answer", "value": 1}]}, False),
        ({"fields": "answer, unit"}, False),
        ({"answer": 1, "unit": "kg"}, False),
        ("answer: 1 kg", False),
        (None, False),
    ],
)
def test_a_deliverable_has_the_fields_or_not(value: JsonValue, *, has: bool) -> None:
    assert has_fields(WANTED, value) is has


@pytest.mark.parametrize(
    "data",
    [None, "send_b", [], {"choice": "x"}, {"choice": 1, "arguments": {}}, {"choice": "x", "arguments": {}, "more": 1}],
)
def test_what_no_choice_made(data: JsonValue) -> None:
    assert chosen(data) is None
