"""Bar charts as SVG, made on the server: attributes and classes, no style, no script. Pure.

Every chart has a title and a description for readers, an axis from zero with round ticks, and a tooltip for each bar.
What strangers named is escaped. The page shows the same figures as a table beside it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Words = Callable[[float], str]
"""A value as text."""
_TICKS = 4
_CHAR = 7.0
"""The width of a character of the charts' text, about."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar; `about` is its tooltip, besides name and value."""

    name: str
    value: float
    about: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """What a chart is called; `key` is unique on its page."""

    key: str
    title: str
    says: str
    words: Words


def ticks(most: float) -> list[float]:
    """Round values from 0 to at least `most`; 0 and 1 where there is nothing."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / _TICKS
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * (1 - 1e-9))
    return [step * number for number in range(math.ceil(most / step - 1e-9) + 1)]


def columns(frame: Frame, bars: Sequence[Bar], *, wide: bool) -> Markup:
    """Upright bars in their order, such as days; `wide` for a desk, else for a phone. Names stand below, as fit."""
    width, height, left, top, bottom = (1160 if wide else 360), (250 if wide else 210), 58, 12, 26
    marks = ticks(max((bar.value for bar in bars), default=0.0))
    base, room = height - bottom, height - bottom - top
    slot = (width - left - 6) / max(1, len(bars))
    thick = max(1.0, min(44.0, slot * 0.72))
    every = max(1, math.ceil(max((len(bar.name) for bar in bars), default=1) * _CHAR * 1.4 / slot))
    parts = [_tick(mark, frame.words, left, width, base - room * mark / marks[-1]) for mark in marks]
    for place, bar in enumerate(bars):
        middle = left + slot * (place + 0.5)
        high = room * bar.value / marks[-1]
        parts.append(
            Markup(
                '<g class="bar"><title>{about}</title><rect class="hit" x="{hit:.1f}" y="{top}" width="{slot:.1f}" '
                'height="{room}"/><rect x="{x:.1f}" y="{y:.1f}" width="{thick:.1f}" height="{high:.1f}" rx="2"/></g>'
            ).format(
                about=_about(frame, bar),
                hit=middle - slot / 2,
                top=top,
                slot=slot,
                room=room,
                x=middle - thick / 2,
                y=base - high,
                thick=thick,
                high=high,
            )
        )
        if (len(bars) - 1 - place) % every == 0:
            label = Markup('<text class="name" x="{:.1f}" y="{}" text-anchor="middle">{}</text>')
            edge = min(middle, width - len(bar.name) * _CHAR / 2 - 2)
            parts.append(label.format(edge, height - 8, bar.name))
    return _whole(frame, width, height, "wide" if wide else "narrow", parts)


def rows(frame: Frame, bars: Sequence[Bar]) -> Markup:
    """Lying bars under each other with their values, such as agents; long names are cut, and whole in the tooltip."""
    width, line = 400, 26
    height = line * max(1, len(bars)) + 4
    most = max((bar.value for bar in bars), default=0.0) or 1.0
    left = min(172.0, 10 + max((len(_cut(bar.name)) for bar in bars), default=1) * _CHAR)
    right = 8 + max((len(frame.words(bar.value)) for bar in bars), default=1) * (_CHAR + 0.4)
    parts: list[Markup] = [
        Markup('<line class="axis" x1="{0:.1f}" y1="0" x2="{0:.1f}" y2="{1}"/>').format(left, height)
    ]
    for place, bar in enumerate(bars):
        y, long = place * line + 4, (width - left - right) * bar.value / most
        parts.append(
            Markup(
                '<g class="bar"><title>{about}</title><rect class="hit" x="0" y="{y}" width="{width}" height="{line}"/>'
                '<text class="name" x="{end:.1f}" y="{middle}" text-anchor="end">{name}</text>'
                '<rect x="{left:.1f}" y="{y}" width="{long:.1f}" height="{thick}" rx="2"/>'
                '<text class="value" x="{after:.1f}" y="{middle}">{value}</text></g>'
            ).format(
                about=_about(frame, bar),
                y=y,
                width=width,
                line=line - 4,
                end=left - 6,
                middle=y + 14,
                name=_cut(bar.name),
                left=left,
                long=max(1.0, long),
                thick=line - 8,
                after=left + max(1.0, long) + 6,
                value=frame.words(bar.value),
            )
        )
    return _whole(frame, width, height, "rows", parts)


def _about(frame: Frame, bar: Bar) -> str:
    return f"{bar.name}: {frame.words(bar.value)}{f', {bar.about}' if bar.about else ''}"


def _cut(name: str, most: int = 22) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _tick(mark: float, words: Words, left: int, width: int, y: float) -> Markup:
    return Markup(
        '<line class="{kind}" x1="{left}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}"/>'
        '<text class="words" x="{end}" y="{low:.1f}" text-anchor="end">{words}</text>'
    ).format(kind="grid" if mark else "axis", left=left, y=y, width=width, end=left - 6, low=y + 4, words=words(mark))


def _whole(frame: Frame, width: int, height: int, kind: str, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg class="chart {kind}" viewBox="0 0 {width} {height}" role="img" '
        'aria-labelledby="{key}-{kind}-title {key}-{kind}-desc"><title id="{key}-{kind}-title">{title}</title>'
        '<desc id="{key}-{kind}-desc">{says}</desc>{parts}</svg>'
    ).format(
        kind=kind,
        width=width,
        height=height,
        key=frame.key,
        title=frame.title,
        says=frame.says,
        parts=Markup("").join(parts),
    )
