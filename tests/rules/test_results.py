"""Long results are shown in part, and `read_result` reads the rest (protocol §7.3)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from tests.rules.test_choices import TURN
from turnstile.rules.answer import AnsweredCall, ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import Continue, Deliver, StepRequest, Suspend, decide
from turnstile.rules.messages import build_messages
from turnstile.rules.results import SHORT_CHARS, ResultView, read_result, result_text
from turnstile.rules.turn_config import TurnConfig
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardType,
    Role,
    TextContent,
    ThoughtCall,
    ToolError,
    ToolResultContent,
    content_of,
    make_card,
)
from turnstile.schema.ids import CardId, ToolCallId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import TurnStatus
from turnstile.schema.tools import ToolRow

LIMIT = 2_000
RESULTS = st.recursive(
    st.text(max_size=3_000) | st.integers() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def result(number: int, value: JsonValue, error: str | None = None) -> list[Card]:
    """A thought with a call, and the result of the call."""
    call = ToolCallId(f"{TURN.agent_turn_id}-s{number}-c0")
    status = TurnStatus.SUCCESS if error is None else TurnStatus.FAILED
    failure = None if error is None else ToolError(code="broken", message=error)
    content = ToolResultContent(status=status, result=value, error=failure)
    calls = [ThoughtCall(tool_call_id=call, tool_name="look", arguments="{}")]
    said = TextContent(text="")
    return [
        make_card(CardId(f"s{number}"), CardType.THOUGHT, Role.ASSISTANT, said, author="x", tool_calls=calls),
        make_card(CardId(f"r{number}"), CardType.TOOL_RESULT, Role.TOOL, content, author="x", tool_call=call),
    ]


def asked(*results: list[Card], short: int = 0) -> list[tuple[JsonObject, bool]]:
    """What a request shows of these, and whether in part."""
    instruction = make_card(CardId("i"), CardType.INSTRUCTION, Role.USER, TextContent(text="go"), author="x")
    cards = [card for r in results for card in r]
    messages = build_messages("", (), [instruction], cards, ResultView(LIMIT, short))
    return [(json.loads(message.content), message.shortened) for message in messages if message.role == "tool"]


def read_whole(cards: list[Card], call: str, limit: int | None = None) -> str:
    """Everything that `read_result` reads of a result, from its head to its end."""
    text, left = "", 1
    while left:
        arguments: JsonObject = {"tool_call_id": call, "offset": len(text), "limit": limit}
        part = read_result(cards, json.dumps(arguments), LIMIT)
        assert isinstance(part, dict)
        assert len(json.dumps(part, ensure_ascii=False)) <= LIMIT
        said, left = part["text"], part["left"]
        assert isinstance(said, str)
        assert said or not left
        text += said
    return text


@given(RESULTS)
def test_every_result_is_shown_within_its_bounds_and_read_whole(value: JsonValue) -> None:
    cards = result(1, value)
    [(shown, in_part)] = asked(cards)
    content = content_of(cards[1])
    assert isinstance(content, ToolResultContent)
    said = result_text(content)
    assert len(json.dumps(shown, ensure_ascii=False)) <= LIMIT + 400
    assert ("result_is_long" in shown) == in_part
    assert read_whole(cards, cards[1].tool_call_id or "") == said
    if in_part:
        long = shown["result_is_long"]
        assert isinstance(long, dict)
        assert long["characters"] == len(said)
        assert (said.startswith(str(long["head"])), said.endswith(str(long["tail"]))) == (True, True)


def test_the_oldest_are_shown_short_where_that_is_asked() -> None:
    long, small = "x" * 1_500, "y" * 20
    shown = asked(result(1, long), result(2, small), result(3, long), result(4, long), short=3)
    assert [in_part for _, in_part in shown] == [True, False, True, False]
    assert all(len(json.dumps(each)) <= 2 * SHORT_CHARS + 100 for each, in_part in shown if in_part)
    assert not any(in_part for _, in_part in asked(result(1, long), result(2, small)))


def test_of_a_failed_call_the_code_is_shown_and_the_message_read() -> None:
    cards = result(1, None, "because " * 1_000)
    [(shown, in_part)] = asked(cards)
    assert (in_part, shown["error"], shown["status"]) == (True, {"code": "broken"}, "failed")
    assert read_whole(cards, f"{TURN.agent_turn_id}-s1-c0", 999) == ("because " * 1_000).rstrip()


def step(*calls: AnsweredCall, number: int = 1, cards: tuple[Card, ...] = ()) -> Continue | Deliver | Suspend:
    """What follows from these calls."""
    row = ToolRow(tool_name="look", target_subject="cg.v1r4.{project_id}.{channel_id}.cmd.tool.look.run")
    config = TurnConfig(
        profile_name="x",
        llm_config=LlmConfig(model="x/y"),
        max_steps=5,
        must_end_with=[],
        tools={"look": row},
        inline_result_chars=LIMIT,
    )
    answer = ModelAnswer("", "", calls, "stop", {}, None, "unknown", None)
    return decide(StepRequest(TURN, number, config, (), "", Patience(), cards), answer)


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ({"tool_call_id": f"{TURN.agent_turn_id}-s1-c0", "offset": 4_990}, "success", '"text":"xxxxxxxxxx"'),
        ({"tool_call_id": f"{TURN.agent_turn_id}-s1-c0", "offset": 9_999}, "success", '"text":""'),
        ({"tool_call_id": "nosuch"}, "failed", "There is no result of the call 'nosuch'"),
        ({"offset": -1}, "failed", "do not fit"),
        ("[", "failed", "not a JSON object"),
    ],
)
def test_a_call_of_read_result_is_answered_in_its_step(arguments: JsonObject | str, status: str, says: str) -> None:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    read, cards = AnsweredCall(None, "read_result", text), tuple(result(1, "x" * 5_000))
    decision = step(read, cards=cards)
    assert isinstance(decision, Continue)
    content = content_of(decision.cards[-1])
    assert isinstance(content, ToolResultContent)
    assert (content.status.value, says in content.model_dump_json()) == (status, True)
    beside = step(AnsweredCall(None, "look", "{}"), read, cards=cards)
    assert isinstance(beside, Suspend)
    assert [command.tool_name for command in beside.commands] == ["look"]
    last = step(read, number=5, cards=cards)
    assert isinstance(last, Deliver)
