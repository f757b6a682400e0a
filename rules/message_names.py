"""Makes names and ids that every provider accepts: letters, digits, `_` and `-`, of bounded length. Pure.

A name starts with a letter or `_` (Gemini refuses others), an id with any of these characters. The kernel's own ids
are never changed (protocol §10), only those on cards that others wrote.
"""

import re

_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_NAME_LENGTH = 64
_ID_LENGTH = 40


def function_name(name: str) -> str:
    """`name` as a function name."""
    plain = _OTHER.sub("_", name) or "unnamed"
    return (plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}")[:_NAME_LENGTH]


class CallNames:
    """The call ids of one request: makes each acceptable and unique."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def new_id(self, given: str) -> str:
        """`given` if it is acceptable and unused, else a similar id."""
        plain = _OTHER.sub("_", given)[:_ID_LENGTH] or "call"
        unique, number = plain, 1
        while unique in self._used:
            number += 1
            unique = f"{plain[: _ID_LENGTH - len(str(number)) - 1]}-{number}"
        self._used.add(unique)
        return unique
