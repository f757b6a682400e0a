"""Shows what a model or a tool wrote as data: quoted, and with every character that shows as something else escaped.

A text must not look like a line of ours, move the cursor, turn the direction of writing, or hide a part of itself: a
person decides by what stands here.
"""

import json

from pydantic import JsonValue

from turnstile.schema.parameters import checks
from turnstile.schema.visible import escape, visible

BAR = "│ "


def escaped(text: str) -> str:
    """`text` in which what does not show as itself is written as JSON writes it (`\\u202e`)."""
    return visible(text, escape, exact=True).replace("\n", "\\n").replace("\t", "\\t")


def quoted_value(value: JsonValue) -> list[str]:
    """The lines of a JSON value, each behind a bar; exact, so that it can be read back."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    return [BAR + escaped(line) for line in lines]


def quoted_text(text: str) -> list[str]:
    """The lines of a text, each behind a bar."""
    return [BAR + escaped(part) for part in text.split("\n")]


def answer_of(text: str, schema: dict[str, JsonValue] | None) -> JsonValue:
    """What a person typed as an answer: the text, or the JSON that it is where the schema wants no text."""
    if schema is None or _fits(schema, text):
        return text
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value if _fits(schema, value) else text


def _fits(schema: dict[str, JsonValue], value: JsonValue) -> bool:
    try:
        return checks(schema).fault(value) is None
    except Exception:  # noqa: BLE001 -- a model wrote the schema; the bridge says what is wrong with the answer
        return False
