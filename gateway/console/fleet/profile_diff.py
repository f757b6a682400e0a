"""What changed between two versions of a profile, field by field, and long texts line by line. Pure."""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

Kind = Literal["added", "removed", "changed"]
LineKind = Literal["same", "added", "removed", "left out"]
_CONTEXT = 2
"""Lines that stayed and are shown around those that did not."""
_MOST_LINES = 400
_SHORT = 120


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a text, or the number of lines that stayed and are left out."""

    kind: LineKind
    text: str


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs: before and after on one line, or its text by lines."""

    field: str
    kind: Kind
    before: str
    after: str
    lines: tuple[Line, ...] = ()
    hidden: bool = False
    """Whether the reader may not see what it says."""


def changes(before: JsonValue, after: JsonValue) -> list[Change]:
    """The fields that differ, in the order in which the later version has them; none if the two say the same."""
    old, new = dict(_fields(before)), dict(_fields(after))
    names = [*new, *(name for name in old if name not in new)]
    return [_change(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def _fields(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Each field's path and its value as text; objects are walked, lists of simple values are one field."""
    match value:
        case dict() if value or not path:
            for name, item in value.items():
                yield from _fields(item, f"{path}.{name}" if path else name)
        case str():
            yield path or "text", value
        case list() if all(isinstance(item, str) for item in value):
            yield path or "list", "\n".join(str(item) for item in value) or "none"
        case _:
            yield path or "value", json.dumps(value, ensure_ascii=False, indent=1)


def _change(name: str, before: str | None, after: str | None) -> Change:
    kind: Kind = "added" if before is None else "removed" if after is None else "changed"
    old, new = before or "", after or ""
    if all("\n" not in text and len(text) <= _SHORT for text in (old, new)):
        return Change(name, kind, old, new)
    return Change(name, kind, old, new, tuple(_lines(old, new)))


def _lines(before: str, after: str) -> Iterator[Line]:
    """The lines of both, with those that stayed around a change; a very long difference is cut, and says so."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    sent = 0
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        skipped = group[0][1] if not sent else 0
        if skipped or sent:
            yield Line("left out", "…")
        for tag, first, last, start, stop in group:
            kept = [Line("same", text) for text in old[first:last]] if tag == "equal" else []
            gone = [Line("removed", text) for text in old[first:last]] if tag != "equal" else []
            come = [Line("added", text) for text in new[start:stop]] if tag != "equal" else []
            for line in (*kept, *gone, *come):
                if sent >= _MOST_LINES:
                    yield Line("left out", "the rest is too long to show")
                    return
                sent += 1
                yield line


def facts(data: JsonValue) -> Mapping[str, str]:
    """All fields of a version by their paths."""
    return dict(_fields(data))
