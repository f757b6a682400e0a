"""Which characters of a stranger's text are shown to people, and how the others are written. Pure.

One decision for the console, the command line, logs and the definitions of MCP tools: a text must not look like one of
ours, move the cursor, turn the direction of writing, or say to a model what it does not say to people.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Final

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Control and format characters, unassigned and private ones, and separators of lines."""
_BLANK: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Letters and marks that show nothing."""
_JOINERS: Final = "\u200c\u200d"
_LINES: Final = "\n\t"
_SUSPECT: Final = re.compile(r"[^\x20-\x7e\n\t]")
Write = Callable[[str], str]


def is_hidden(character: str, *, exact: bool = False) -> bool:
    """Whether a character is not seen; `exact`: or looks like another one, as the spaces beside the usual one do."""
    category = unicodedata.category(character)
    space = exact and category == "Zs" and character != " "
    return category in _HIDDEN or space or character in _BLANK or _selects(character)


def hidden_places(text: str, *, exact: bool = False) -> Iterator[int]:
    """Where in a text a character is that must not be shown as it is; line breaks and tabs are shown.

    Unless `exact`, joiners stay where scripts and emoji need them, and one variation selector behind a character.
    """
    for match in _SUSPECT.finditer(text):
        place = match.start()
        if is_hidden(match[0], exact=exact) and (exact or not _is_needed(text, place)):
            yield place


def code_point(character: str) -> str:
    """`[U+202E]`: for people."""
    return f"[U+{ord(character):04X}]"


def escape(character: str) -> str:
    """As JSON writes it (`\\u202e`): for what is read back."""
    return json.dumps(character)[1:-1] if character > "\x7e" or character < " " else f"\\u{ord(character):04x}"


def visible(text: str, write: Write = code_point, *, exact: bool = False) -> str:
    """The text with what is hidden in it written by `write`."""
    places = set(hidden_places(text, exact=exact))
    if not places:
        return text
    return "".join(write(character) if place in places else character for place, character in enumerate(text))


def _is_needed(text: str, place: int) -> bool:
    """Whether a joiner stands between two letters or emoji, or a selector behind what it selects."""
    character, before = text[place], text[place - 1 : place]
    if character in _JOINERS:
        return 0 < place < len(text) - 1 and not (before + text[place + 1]).isascii()
    selects = "\ufe00" <= character <= "\ufe0f"
    return selects and bool(before) and (not before.isascii() or before in "0123456789#*") and not _selects(before)


def _selects(character: str) -> bool:
    """Whether it is a variation selector: any number of them show nothing."""
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"
