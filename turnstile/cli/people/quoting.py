"""Shows what a model or a tool wrote as data: quoted, and with every character that shows as something else escaped.

A text must not look like a line of ours, move the cursor, turn the direction of writing, or hide a part of itself: a
person decides by what stands here.
"""

import json
import unicodedata

from pydantic import JsonValue

from turnstile.schema.parameters import checks

BAR = "│ "
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Control and format characters, unassigned and private ones, and separators of lines."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that show nothing."""


def escaped(text: str) -> str:
    """`text` in which what does not show as itself is written as JSON writes it (`\\u202e`)."""
    return "".join(_shown(each) for each in text)


def quoted_value(value: JsonValue) -> list[str]:
    """The lines of a JSON value, each behind a bar; exact, so that it can be read back."""
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    return [BAR + escaped(each) for each in lines]


def quoted_text(text: str) -> list[str]:
    """The lines of a text, each behind a bar."""
    return [BAR + escaped(each) for each in text.split("\n")]


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


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    space = category == "Zs" and character != " "
    if category not in _HIDDEN and not space and character not in _BLANK and not _selects(character):
        return character
    return json.dumps(character)[1:-1] if character > "\x7e" or character < " " else f"\\u{ord(character):04x}"


def _selects(character: str) -> bool:
    """Whether it is a variation selector: any number of them show nothing."""
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef" or character == "\u180f"
