"""JSON that is nested without end: how deep is counted, and what anyone has stored is cut, not a reader's end."""

import json
from typing import Any

import pytest

from turnstile.ledger.turns.cards import card_of
from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import DEEPEST, DEEPEST_STORED, stored_json, too_deep
from turnstile.schema.cards import content_of, value_of
from turnstile.schema.json_reading import MOST_VALUES


def nested(levels: int) -> str:
    """A text of so many lists."""
    return "[" * levels + "]" * levels


def test_levels_are_counted() -> None:
    assert not too_deep("a")
    assert not too_deep(json.loads(nested(DEEPEST)))
    assert too_deep(json.loads(nested(DEEPEST + 1)))
    assert too_deep({"a": [1, {"b": 2}]}, 2)
    assert not too_deep({"a": [1, {"b": 2}], "c": [[]]}, 3)


@pytest.mark.parametrize("levels", [65, 198, 480, 900, 5_000, 15_000])
def test_deep_arguments_are_none_and_said(levels: int) -> None:
    text = f'{{"q": {nested(levels)}}}'
    assert parse_arguments(text) is None
    assert bad_arguments("search", text) == "The arguments of search are nested deeper than 64 levels."


def test_arguments_of_too_many_values_are_none_and_said() -> None:
    text = f'{{"q": [{"0," * MOST_VALUES}0]}}'
    assert parse_arguments(text) is None
    assert f"more than {MOST_VALUES} values" in bad_arguments("search", text)


@pytest.mark.parametrize("levels", [1, DEEPEST_STORED, 200, 254, 480, 900, 5_000, 100_000])
def test_a_card_of_any_depth_is_read_and_can_be_sent_on(levels: int) -> None:
    content = f'{{"__type__": "JsonContent", "data": {nested(levels)}}}'
    row: Any = {
        "card_id": "c",
        "content": content,
        "tool_calls": None,
        "tool_call_id": None,
        "metadata": '{"type": "task.deliverable"}',
    }
    card = card_of(row)
    assert not too_deep(card.content, DEEPEST_STORED)
    assert ("nested too deeply" in card.model_dump_json()) == (levels >= DEEPEST_STORED)
    if isinstance(card.content, dict):
        content_of(card)
    assert json.dumps(value_of(card))


def test_what_is_not_deep_is_stored_as_it_is() -> None:
    wide = json.dumps([[{"a": "{["}]] * 1_000)
    assert stored_json(wide) == json.loads(wide)
