"""JSON of strangers is counted before it is parsed: what is beyond a bound is refused soon, and all else is read.

What is nested without end is cut where it was stored, and ends no reader.
"""

import json
from functools import partial
from typing import Any

import pytest

from tests.support.cpu import cheap
from tests.support.fuzz import Dice
from tests.support.hostile import BODY_BYTES, fragment
from turnstile.ledger.turns.cards import card_of
from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import DEEPEST, DEEPEST_STORED, stored_json, too_deep
from turnstile.schema.cards import content_of, value_of
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import MOST_DIGITS, MOST_VALUES, read_json

SECONDS = 0.05
"""Of CPU, for a megabyte."""


def _read(text: bytes) -> Any:
    """The value, or `None` where it is refused."""
    try:
        return read_json(text)
    except BadRequest:
        return None


@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * MOST_VALUES + "1]",
        "[" + "null," * MOST_VALUES + "1]",
        "{" + ",".join(f'"{number}":1' for number in range(MOST_VALUES)) + "}",
        "[" + '"",' * (BODY_BYTES // 4) + "1]",
        '"' + '\\"' * 200_000 + '","' * 100_000,
        "1" * (MOST_DIGITS + 1),
        '{"a":0.' + "1" * 300_000 + "}",
        "[" * 150 + "]" * 150,
        "[" * 100_000,
        '{"a":1e999}',
        "[-1e999]",
        '"\\ud800"',
        "NaN",
        "",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_beyond_a_bound_is_refused_soon(text: str) -> None:
    assert cheap(SECONDS, lambda: _read(text.encode())) is None


@pytest.mark.parametrize(
    "value",
    [
        "1,2,[3],{4}\n" * 80_000,
        '"1","2"\\' * 100_000,
        "\\" * 400_000,
        "9" * 1_000_000,
        {"a": [1.5e308, -0.0, 10**255, "e999"], "[": {",": "{"}},
        [["x"] * 99] * 99,
    ],
    ids=["commas", "quotes", "backslashes", "digits", "numbers", "values"],
)
def test_what_strings_hold_is_not_counted(value: object) -> None:
    text = json.dumps(value).encode()
    assert cheap(SECONDS, lambda: read_json(text)) == value


@pytest.mark.fuzz
def test_no_text_of_a_megabyte_is_dear() -> None:
    for number in range(300):
        text = fragment(Dice.of(number), BODY_BYTES).encode("utf-8", "surrogatepass")
        value = cheap(SECONDS, partial(_read, text), (number, text[:100]))
        assert value is None or value == json.loads(text), number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\ud83d"', "a\ufffd"),
        (r'{"\udc00\u0000": ["\ud83d\ude00", "a\u0000b"]}', {"\ufffd": ["😀", "ab"]}),
        (r'"\\ud83d"', r"\ud83d"),
        ("[1e3, 1]", [1000.0, 1]),
    ],
)
def test_texts_of_a_result_are_made_storable_and_nothing_else_is_changed(text: str, value: object) -> None:
    assert read_json(text.encode(), mended=True) == value


def test_of_a_result_numbers_that_json_has_not_are_null() -> None:
    text = r'{"a": [NaN, -Infinity, 1e999, 2], "b": "\ud83d"}'
    assert read_json(text.encode(), mended=True) == {"a": [None, None, None, 2], "b": "\ufffd"}
    assert read_json(b'{"a": [NaN, 1e999]}', mended=True) == {"a": [None, None]}


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
