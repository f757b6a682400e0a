"""Which characters people are shown: one decision for the console, the command line, logs and pins of MCP tools."""

import json
import logging
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnstile.cli.people.quoting import escaped
from turnstile.schema.visible import code_point, escape, hidden_places, is_hidden, visible
from turnstile.telemetry.logs import JsonFormatter, TextFormatter

HIDING = "\u202e\u200b\u2066\u00ad\ufeff\u115f\u3164\u2800\U000e0041\x1b\x7f\x9b\ue000"


def test_every_character_is_shown_or_written() -> None:
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"} and character not in "\n\t":
            assert is_hidden(character), hex(number)
            assert visible(character) == code_point(character)


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(HIDING + "\u200d\ufe0f"))))
def test_what_is_written_hides_nothing_and_json_reads_back(text: str) -> None:
    assert list(hidden_places(visible(text))) == []
    assert visible(visible(text)) == visible(text)
    said = visible(json.dumps(text, ensure_ascii=False), escape, exact=True)
    assert list(hidden_places(said, exact=True)) == []
    if not any("\ud800" <= each <= "\udfff" for each in text):
        assert json.loads(said) == text


@pytest.mark.parametrize("text", ["👩\u200d🚒", "❤\ufe0f", "1\ufe0f\u20e3", "می\u200cخواهم", "a b", "é\n\tß"])
def test_what_scripts_and_emoji_need_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", ["a\u200db", "a\ufe0f", "❤\ufe0f\ufe0f", "\u200dx", *HIDING])
def test_what_hides_is_written(text: str) -> None:
    assert visible(text) != text


def test_logs_and_quotes_decide_alike() -> None:
    record = logging.LogRecord("x", logging.WARNING, "x.py", 1, "said %s", (f"a{HIDING}z",), None)
    for line in (TextFormatter("%(message)s").format(record), JsonFormatter().format(record), escaped(f"a{HIDING}z")):
        assert list(hidden_places(line)) == []
    assert json.loads(JsonFormatter().format(record))["message"] == f"said a{HIDING}z"
