"""How templates show moments, amounts and names. Pure.

What strangers named cannot mislead: characters that are not seen, or that turn the order of others round, are shown by
their code point.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from markupsafe import Markup
from pydantic_core import to_jsonable_python

from turnstile.schema.amounts import rough_duration
from turnstile.schema.visible import visible

_SENDER: Final = "token."
_SHOWN_ID: Final = 6


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


def caller_name(labels: Mapping[str, str], sender: str | None) -> Markup | str:
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
    pieces = (Markup("<code>{}</code>" if place % 2 else "{}").format(part) for place, part in enumerate(parts))  # noqa: S704 -- two literals
    return Markup("").join(pieces)


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
    words = (
        "now" if abs(passed) < 1 else f"{rough_duration(passed)} ago" if passed > 0 else f"in {rough_duration(-passed)}"
    )
    return Markup('<time class="ago" datetime="{}" title="{} UTC">{}</time>').format(
        at.isoformat(timespec="milliseconds"), at.strftime("%Y-%m-%d %H:%M:%S"), words
    )


def part(value: object) -> str:
    """A name as a part of an address."""
    return quote(str(value), safe="")


def as_json(value: object) -> str:
    """A value as JSON, indented."""
    return json.dumps(to_jsonable_python(value, fallback=str), indent=2, ensure_ascii=False)
