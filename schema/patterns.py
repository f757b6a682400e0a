"""Patterns that strangers wrote, matched by RE2: in time linear in the text, however the pattern is made. Pure.

A pattern is one of ECMA-262 as JSON Schema recommends it, without look-around and backreferences, which have no linear
form; `\\p{…}` and named groups are understood. What a pattern costs is bounded before it is compiled (`weight`), while
it is (its program has at most `_PROGRAM_BYTES`), and before each match (`cost`).
"""

import re
from functools import lru_cache
from typing import Any, cast

import re2  # pyright: ignore[reportMissingTypeStubs] -- it has none

LONGEST = 1_000
"""The most characters of a pattern."""
_PROGRAM_BYTES = 1 << 18
_KEPT = 1_024
_NO_PATTERN = cast("type[Exception]", cast("Any", re2).error)
_CLASS_WEIGHT = 5
_REPEATS_OF_WEIGHT, _LENGTH_OF_WEIGHT = 100, 200
_LOOKS_OF_MATCH, _INSTRUCTION_BYTES_OF_LOOK = 4, 40
"""A byte of text costs at most some 15 ns for each instruction of the program, and a look of a check 0.7 µs."""
_ESCAPE = re.compile(
    r"\\(?:u\{(?P<braced>[0-9A-Fa-f]{1,6})\}|u(?P<unit>[0-9A-Fa-f]{4})|(?P<sign>[pP])\{(?:[A-Za-z_]+=)?(?P<name>\w+)\}"
    r"|(?P<other>.))|(?P<empty>\[\^?\])|(?P<opens>\[\^?)|(?P<closes>\])",
    re.DOTALL,
)
_SPACES = r"\s\x0b\x{a0}\x{feff}\pZ"
_CATEGORIES = {
    "Letter": "L",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
}


class Pattern:
    """A compiled pattern."""

    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        """Compile it; raises `ValueError` for what has no linear form, is no pattern, or makes too large a program."""
        options = re2.Options()
        options.max_mem, options.log_errors, options.never_capture = _PROGRAM_BYTES, False, True
        try:
            # the library's types: it has no stubs
            self._compiled = cast("Any", re2).compile(_translated(text), options=options)
        except (_NO_PATTERN, ValueError):
            raise ValueError("no pattern, or one without a form that is matched in linear time") from None
        self._size: int = self._compiled.programsize

    def cost(self, text: str) -> int:
        """How many looks of a check one match of this text is worth."""
        return _LOOKS_OF_MATCH + len(text) * self._size // _INSTRUCTION_BYTES_OF_LOOK

    def fits(self, text: str) -> bool:
        """Whether the pattern is anywhere in the text."""
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


@lru_cache(_KEPT)
def pattern(text: str) -> Pattern:
    """The pattern, compiled once; raises `ValueError` as it does, and for one that is too long."""
    if len(text) > LONGEST:
        raise ValueError(f"a pattern of more than {LONGEST} characters")
    return Pattern(text)


def weight(text: str) -> int:
    """How much it may cost to compile the pattern, in steps of some 0.5 ms; estimated without compiling it."""
    classes = text.count("\\p") + text.count("\\P") + text.count("(?i")
    repeats = sum(int(repeat[:4]) for repeat in re.findall(r"[0-9]+(?=[,}])", text[:LONGEST]))
    return 1 + _CLASS_WEIGHT * classes + repeats // _REPEATS_OF_WEIGHT + len(text) // _LENGTH_OF_WEIGHT


def _translated(text: str) -> str:
    """The pattern in RE2's syntax; what it says otherwise than ECMA-262 is spelled out."""
    inside = False

    def spelled(match: re.Match[str]) -> str:
        nonlocal inside
        if match["empty"] and not inside:
            raise ValueError("an empty class, which RE2 reads as another")
        if match["opens"] or match["empty"]:
            opens = ("\\" if inside else "") + match[0]
            inside = not match["empty"]
            return opens
        if match["closes"]:
            inside = False
            return "]"
        if (digits := match["braced"] or match["unit"]) is not None:
            return rf"\x{{{digits}}}"
        if match["name"]:
            return rf"\{match['sign']}{{{_CATEGORIES.get(match['name'], match['name'])}}}"
        match match["other"]:
            case "s":
                return _SPACES if inside else f"[{_SPACES}]"
            case "S" if not inside:
                return f"[^{_SPACES}]"
            case "Z":  # Python's end of the text
                return r"\z"
            case _:
                return match[0]

    return _ESCAPE.sub(spelled, text)
