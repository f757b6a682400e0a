"""Cards as items, and sequence numbers, which rise with their places."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.gateway.events.positions import BEGIN, END, Position, reset_position
from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.responses.items import ItemLog
from turnstile.gateway.openai.responses.numbers import FIRST, MOST, Mark, Sub, read_number
from turnstile.gateway.openai.responses.objects import Message
from turnstile.schema.api import CardAnswer
from turnstile.schema.base import JsonObject


def card(kind: str, name: str, content: Any, **fields: Any) -> CardAnswer:
    return CardAnswer.model_validate({"card_id": name, "type": kind, "content": content, **fields})


def texts(*cards: CardAnswer) -> list[str]:
    log = ItemLog()
    for place, each in enumerate(cards, 1):
        log.take(Position(1, 1, place, 0), each)
    return [item.text if isinstance(item, Message) else item.type for item in log.items]


def text(said: str) -> dict[str, str]:
    return {"__type__": "TextContent", "text": said}


def data(value: object) -> dict[str, object]:
    return {"__type__": "JsonContent", "data": value}


def test_a_deliverable_that_repeats_is_no_item() -> None:
    thought, deliverable = card("agent.thought", "t", text("so")), card("task.deliverable", "d", text("so"))
    assert texts(thought, deliverable) == ["so"]
    assert texts(thought, card("task.deliverable", "d", text("else"))) == ["so", "\n\nelse"]
    assert texts(thought, card("agent.thought", "u", text("so"))) == ["so", "\n\nso"]
    assert texts(card("task.deliverable", "d", data({"fields": [{"name": "a", "value": 1}]}))) == [
        '{"fields":[{"name":"a","value":1}]}'
    ]


def test_the_kernels_account_is_no_item() -> None:
    fallback: JsonObject = {"reason": "r", "last_thought": None, "tool_results": [], "terminal_status": "failed"}
    assert texts(card("task.deliverable", "d", data(fallback))) == []


def test_calls_and_results_are_items_in_their_order() -> None:
    calls = [{"tool_call_id": f"c{n}", "tool_name": "search", "arguments": "{"} for n in range(2)]
    result = {"__type__": "ToolResultContent", "status": "failed", "error": {"code": "x", "message": "no"}}
    made = texts(
        card("agent.thought", "t", text(""), tool_calls=calls), card("tool.result", "r", result, tool_call_id="c1")
    )
    assert made == ["mcp_call", "mcp_call"]


def test_cards_that_cannot_be_read_are_no_items() -> None:
    contents: list[Any] = [None, 3, "text", [], {}, {"__type__": "TextContent"}, {"__type__": 3}]
    for content in contents:
        for kind in ("agent.thought", "tool.result", "task.deliverable", "tool.call", "made.up"):
            assert texts(card(kind, "c", content, tool_call_id="c1")) == []


PLACES = st.builds(
    Position, st.integers(1, 4094), st.integers(0, 3), st.integers(0, 510), st.integers(0, (1 << 18) - 2)
) | st.integers(1, 4094).map(reset_position)
MARKS = st.builds(Mark, PLACES, st.sampled_from(Sub), st.integers(0, 255), st.booleans())


@given(MARKS)
def test_a_number_says_its_place(mark: Mark) -> None:
    assert mark.number is not None
    assert read_number(mark.number) == mark


@given(MARKS, MARKS)
def test_numbers_rise_with_their_places(one: Mark, other: Mark) -> None:
    assert one.number is not None
    assert other.number is not None
    if (one.position, one.sub) < (other.position, other.sub):
        assert one.number < other.number
    assert FIRST.number == 0 < one.number < (Mark(END, Sub.RESPONSE).number or 0) <= MOST


@given(st.integers(0, MOST))
def test_any_number_is_a_place(number: int) -> None:
    assert read_number(number).sub in Sub


@pytest.mark.parametrize("number", [-1, MOST + 1])
def test_other_numbers_are_refused(number: int) -> None:
    with pytest.raises(BadField):
        read_number(number)


@pytest.mark.parametrize("place", [Position(1, 0, 600, 1), Position(1, 0, 1, 1 << 18), Position(5000, 1, 1, 0)])
def test_a_place_beyond_the_bounds_has_no_number(place: Position) -> None:
    assert Mark(place, Sub.DELTA).number is None
    assert Mark(BEGIN, Sub.ADDED).number is not None
