"""Reads JSON that strangers wrote: counted before it is parsed, so that no text within the limits of bytes is dear.

A parser takes 0.2 us for an empty list, and a second for a number of 100,000 digits. So values, levels and digits are
bounded by passes over the bytes, about 1 ms for each MB; only what is near a bound is looked at again, without its
strings. What is read here may be walked in Python: it has at most `MOST_VALUES` values. Here, too, texts of strangers
become ours (`storable`): PostgreSQL stores neither NUL nor half of a surrogate pair, and models, tools and clients send
both.
"""

import json
import re
from math import isfinite
from typing import cast

from pydantic import JsonValue
from pydantic_core import from_json

from turnstile.schema.base import DEEPEST_STORED, JsonObject, too_deep
from turnstile.schema.errors import BadRequest

MOST_VALUES = 20_000
"""The most values of one request, in lists and objects of any level."""
MOST_DIGITS = 256
"""The most digits of one number."""
_ZEROS = bytes.maketrans(b"123456789.", b"0" * 10)
_LONG = b"0" * (MOST_DIGITS + 1)
_EXPONENTS = (b"e", b"E")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(data: bytes, *, mended: bool = False) -> JsonValue:
    """The JSON in `data`; raises `BadRequest` for anything else, for what is beyond a bound, and for 1e999.

    With `mended` its texts become `storable` instead, and numbers that JSON has not, or out of range, null: for what a
    tool has done, which is not lost for them.
    """
    check_json(data)
    halves = mended and _HALF.search(data) is not None
    try:
        # pydantic's parser bounds nesting and refuses lone surrogates; `json` would raise RecursionError
        loaded = json.loads(data.decode()) if halves else from_json(data, allow_inf_nan=mended)
        value = cast("JsonValue", loaded)
        value = storable_json(value) if mended else value
    except ValueError:
        raise BadRequest("the payload is not valid JSON, or holds a number out of range") from None
    except RecursionError:
        raise _too_deep(DEEPEST_STORED) from None
    if _opened(data) > DEEPEST_STORED and too_deep(value, DEEPEST_STORED):
        raise _too_deep(DEEPEST_STORED)
    if not mended and any(exponent in data for exponent in _EXPONENTS) and _has_infinity(value):
        raise BadRequest("the payload holds a number out of range")
    return value


def read_json_object(data: bytes, *, mended: bool = False) -> JsonObject:
    """The JSON object in `data`; raises `BadRequest` as `read_json` does, and for anything else."""
    value = read_json(data, mended=mended)
    if not isinstance(value, dict):
        raise BadRequest("the payload must be a JSON object")
    return value


def read_json_text(text: str) -> JsonValue:
    """The JSON in a text of a model or a person, lone surrogates included; raises `BadRequest`, also for NaN."""
    check_json(text.encode("utf-8", "surrogatepass"))
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except ValueError:
        raise BadRequest("this is not valid JSON, or holds a number out of range") from None
    except RecursionError:
        raise _too_deep(DEEPEST_STORED) from None
    if too_deep(value, DEEPEST_STORED):
        raise _too_deep(DEEPEST_STORED)
    return value


def storable(text: str) -> str:
    """`text` without NUL, with split surrogate pairs joined and lone halves replaced by U+FFFD."""
    text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def storable_json(value: JsonValue) -> JsonValue:
    """`value` with every string and key in it `storable`, and null for numbers that JSON has not: NaN, infinity."""
    match value:
        case str():
            return storable(value)
        case float():
            return value if isfinite(value) else None
        case list():
            return [storable_json(item) for item in value]
        case dict():
            return storable_object(value)
        case _:
            return value


def storable_object(value: JsonObject) -> JsonObject:
    """`storable_json` for an object."""
    return {storable(key): storable_json(item) for key, item in value.items()}


def check_json(data: bytes, most: int = MOST_VALUES) -> None:
    """Raises `BadRequest` if a parser would find more values or digits than there may be. Reads no value."""
    many, long = _values(data) > most, _LONG in data.translate(_ZEROS)
    if not many and not long:
        return
    bare = _without_strings(data)
    if many and _values(bare) > most:
        raise _too_many()
    if long and _LONG in bare.translate(_ZEROS):
        raise BadRequest(f"the payload holds a number of more than {MOST_DIGITS} digits")


def _too_many() -> BadRequest:
    return BadRequest(
        f"the payload has more than {MOST_VALUES} values in its lists and objects: send less at a time, or one text"
    )


def _too_deep(most: int) -> BadRequest:
    return BadRequest(f"the payload is nested deeper than {most} levels")


def _no_number(name: str) -> JsonValue:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(text)
    return value


def _opened(data: bytes) -> int:
    return data.count(b"[") + data.count(b"{")


def _values(data: bytes) -> int:
    """At least as many as a parser would find: each stands after a comma, or is the first of a list or an object."""
    return data.count(b",") + _opened(data) + 1


def _without_strings(data: bytes) -> bytes:
    """What is outside of strings, each of which is a value or a key; raises `BadRequest` if they are too many."""
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in data else data
    if plain.count(b'"') > 4 * MOST_VALUES:
        raise _too_many()
    return b'""'.join(plain.split(b'"')[::2])


def _has_infinity(value: JsonValue) -> bool:
    """Whether a number was too large to be one: 1e999 is valid JSON."""
    level: list[JsonValue] = [value]
    while level:
        inner: list[JsonValue] = []
        for part in level:
            if isinstance(part, float) and part - part != 0:
                return True
            if isinstance(part, list):
                inner += part
            elif isinstance(part, dict):
                inner += part.values()
        level = inner
    return False
