"""How moments, amounts and names look on a page."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from markupsafe import Markup, escape

from turnstile.gateway.console.formats import (
    ago,
    coded,
    finalized,
    kept,
    moment,
    part,
)
from turnstile.schema.amounts import duration, money, tokens
from turnstile.schema.visible import visible


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 ms"),
        (0.0421, "42 ms"),
        (0.9996, "1.0 s"),
        (3.14, "3.1 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3 * 3600 + 240, "3 h 4 min"),
        (90_000, "1 d 1 h"),
        (-3, "0 ms"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words
    assert seconds is None or duration(timedelta(seconds=seconds)) == words


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        (None, "–"),
        (0, "$0"),
        (Decimal("0.000042"), "$0.000042"),
        (Decimal("0.00421"), "$0.0042"),
        (Decimal("0.1"), "$0.10"),
        (1234.5, "$1,234.50"),
        (Decimal("-0.5"), "-$0.50"),
        (Decimal("0.0000001"), "<$0.000001"),
    ],
)
def test_money(usd: Decimal | float | None, words: str) -> None:
    assert money(usd) == words


def test_tokens() -> None:
    assert [tokens(n) for n in (None, 0, 950, 12_400, 1_200_000)] == ["–", "0", "950", "12.4k", "1.2M"]


def test_moments_are_utc_whatever_their_zone() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    shown = '<time datetime="2026-01-02T01:04:05.000+00:00" title="2026-01-02 01:04:05 UTC">2026-01-02 01:04:05</time>'
    assert moment(at) == shown
    assert ">5 s ago<" in ago(datetime.now(UTC) - timedelta(seconds=5))
    assert ">47 h ago<" in ago(datetime.now(UTC) - timedelta(hours=47, minutes=59))
    assert ">2 d ago<" in ago(datetime.now(UTC) - timedelta(hours=48))
    assert ">in 1 h" in ago(datetime.now(UTC) + timedelta(seconds=3605))
    assert ago(None) == "never"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("agent-1", "agent-1"),
        ("Grüße, 世界", "Grüße, 世界"),
        ("a\u202eb", "a[U+202E]b"),
        ("a\u200bb", "a[U+200B]b"),
        ("a\u200db", "a[U+200D]b"),
        ("\U0001f469\u200d\U0001f467", "\U0001f469\u200d\U0001f467"),
        ("\U000e0069gnore", "[U+E0069]gnore"),
        ("a\0b\x1bc", "a[U+0000]b[U+001B]c"),
        ("half \ud83d of a pair", "half [U+D83D] of a pair"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
    ],
)
def test_what_is_not_seen_is_shown(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_back_ticks_are_code_and_nothing_else_is_markup() -> None:
    assert coded("run `turnstile up` <b>") == "run <code>turnstile up</code> &lt;b&gt;"
    assert coded("one ` alone <i>") == "one ` alone &lt;i&gt;"
    assert coded("`<script>`\u202e") == "<code>&lt;script&gt;</code>[U+202E]"


def test_what_a_template_puts_out() -> None:
    assert finalized(None) == ""
    assert finalized(Markup("<b>\u202e</b>")) == "<b>\u202e</b>"
    assert finalized("\u202e") == "[U+202E]"
    assert finalized(kept("\u202e<b>")) == "\u202e<b>"
    assert escape(kept("<b>")) == "&lt;b&gt;"  # what is kept is escaped all the same
    assert finalized(3) == 3


def test_a_name_is_one_part_of_an_address() -> None:
    assert part("a/b?c#d e\u202e") == "a%2Fb%3Fc%23d%20e%E2%80%AE"
