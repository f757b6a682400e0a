"""JSON of strangers is counted before it is parsed: what is beyond a bound is refused soon, and all else is read."""

import gc
import json
import time
from collections.abc import Iterator

import pytest

from tests.support.fuzz import Dice
from tests.support.hostile import BODY_BYTES, fragment
from turnstile.schema.errors import BadRequest
from turnstile.schema.json_reading import MOST_DIGITS, MOST_VALUES, read_json, storable_json

SECONDS = 0.05
"""Of CPU, for a megabyte."""


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """A collection would look at all that other tests left."""
    gc.disable()
    yield
    gc.enable()


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
        '["\\ud800", NaN]',
        "NaN",
        "",
    ],
    ids=lambda text: text[:12],
)
def test_what_is_beyond_a_bound_is_refused_soon(text: str) -> None:
    began = time.thread_time()
    with pytest.raises(BadRequest):
        read_json(text.encode())
    assert time.thread_time() - began < SECONDS


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
    began = time.thread_time()
    assert read_json(json.dumps(value).encode()) == value
    assert time.thread_time() - began < SECONDS


@pytest.mark.fuzz
def test_no_text_of_a_megabyte_is_dear() -> None:
    for number in range(300):
        text = fragment(Dice.of(number), BODY_BYTES).encode("utf-8", "surrogatepass")
        began = time.thread_time()
        try:
            value = read_json(text)
        except BadRequest:
            value = None
        assert time.thread_time() - began < SECONDS, (number, text[:100])
        assert value is None or value == storable_json(json.loads(text)), number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\ud83d"', "a\ufffd"),
        (r'{"\udc00\u0000": ["\ud83d\ude00", "a\u0000b"]}', {"\ufffd": ["😀", "ab"]}),
        (r'"\\ud83d"', r"\ud83d"),
        ("[1e3, 1]", [1000.0, 1]),
    ],
)
def test_texts_are_made_storable_and_nothing_else_is_changed(text: str, value: object) -> None:
    assert read_json(text.encode()) == value


def test_of_a_result_numbers_that_json_has_not_are_null() -> None:
    text = r'{"a": [NaN, -Infinity, 1e999, 2], "b": "\ud83d"}'
    assert read_json(text.encode(), null_numbers=True) == {"a": [None, None, None, 2], "b": "\ufffd"}
    assert read_json(b'{"a": [NaN, 1e999]}', null_numbers=True) == {"a": [None, None]}
