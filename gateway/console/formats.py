"""How templates show moments, amounts and names. Pure.

What strangers named cannot mislead: characters that are not seen, or that turn the order of others round, are shown by
their code point.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from urllib.parse import quote

from markupsafe import Markup
from pydantic_core import to_jsonable_python

from turnstile.schema.visible import visible

_SENDER: Final = "token."
_SHOWN_ID: Final = 6
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_THOUSAND, _MILLION = 1000, 1_000_000


class Kept(str):
    """Text that a page must hold as it is, such as the value of a field; it is escaped all the same."""

    __slots__ = ()


def finalized(value: object) -> object:
    """What an expression of a template puts out: nothing for None, and text that hides nothing."""
    if value is None:
        return ""
    if isinstance(value, Markup | Kept) or not isinstance(value, str):
        return value
    return visible(value)


def kept(value: object) -> Kept:
    """`value` as it is, for the value of a field and the content of a text area."""
    return Kept("" if value is None else value)


def called(labels: Mapping[str, str], sender: str | None) -> Markup | str:
    """Who asked: a token by its label with the begin of its id, which no label can stand for; anybody else as named."""
    if sender is None or (label := labels.get(sender)) is None:
        return sender or ""
    return Markup('<span class="person" title="{}">{} <span class="id">{}</span></span>').format(
        visible(sender), visible(label), sender.removeprefix(_SENDER)[:_SHOWN_ID]
    )


def coded(text: str) -> Markup:
    """A message of ours with what stands in back-ticks as code."""
    parts = visible(text).split("`")
    if len(parts) % 2 == 0:  # one of them begins nothing
        return Markup("{}").format(visible(text))
    shown = (Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(parts))  # noqa: S704 -- two literals
    return Markup("").join(shown)


def moment(value: datetime) -> Markup:
    """A moment in UTC; the script shows it in the reader's zone."""
    at = value.astimezone(UTC)
    return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def ago(value: datetime | None) -> Markup | str:
    """A moment as how long ago it is, or how long from now."""
    if value is None:
        return "never"
    at = value.astimezone(UTC)
    passed = (datetime.now(UTC) - at).total_seconds()
    words = "now" if abs(passed) < 1 else f"{_about(passed)} ago" if passed > 0 else f"in {_about(-passed)}"
    return Markup('<time class="ago" datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S"), words
    )


def _about(seconds: float) -> str:
    """As `duration`, in its largest unit: `3 min`, `2 h`, `5 d`."""
    whole = round(seconds)
    for size, unit in ((2 * _DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if whole >= size:
            return f"{whole // (_DAY if unit == 'd' else size)} {unit}"
    return f"{whole} s"


def duration(value: float | timedelta | None) -> str:
    """Seconds in words: `0.3 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole // _MINUTE, "min", whole % _MINUTE, "s")
    if whole < _DAY:
        return _two(whole // _HOUR, "h", whole % _HOUR // _MINUTE, "min")
    return _two(whole // _DAY, "d", whole % _DAY // _HOUR, "h")


def _two(large: int, name: str, small: int, smaller: str) -> str:
    return f"{large} {name} {small} {smaller}" if small else f"{large} {name}"


def money(value: Decimal | float | None) -> str:
    """US dollars: `$0.0042`, `$1.20`; a dash if it is not known."""
    if value is None:
        return "–"
    amount = Decimal(value)
    if amount == 0:
        return "$0"
    sign, size = ("-" if amount < 0 else ""), abs(amount)
    if size >= 1:
        return f"{sign}${size:,.2f}"
    if size < Decimal("0.000001"):
        return f"{sign}<$0.000001"
    shown = f"{size:.2f}" if size >= Decimal("0.1") else f"{size:.2g}" if size >= Decimal("0.0001") else f"{size:.6f}"
    return f"{sign}${shown}"


def tokens(value: float | None) -> str:
    """A count of tokens: `950`, `12.4k`, `1.2M`; a dash if it is not known."""
    if value is None:
        return "–"
    if value < _THOUSAND:
        return f"{value:.0f}"
    if value < _MILLION:
        return f"{value / _THOUSAND:.1f}k"
    return f"{value / _MILLION:.1f}M"


def part(value: object) -> str:
    """A name as a part of an address."""
    return quote(str(value), safe="")


def as_json(value: object) -> str:
    """A value as JSON, indented."""
    return json.dumps(to_jsonable_python(value, fallback=str), indent=2, ensure_ascii=False)
