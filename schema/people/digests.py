"""The digest of an action: what a person's decision is bound to (protocol §13.2). Pure.

Two actions have one digest only if they are the same call of the same tool at the same target with the same arguments.
The form is RFC 8785 (JSON Canonicalization Scheme), so that programs in other languages can compute it. A number is
refused where that form would write another number: the one that was approved must be the one that runs. The same
arguments have one digest before and after they were in the ledger, whatever form PostgreSQL gives their numbers.
"""

import hashlib
import json
from decimal import Decimal

from pydantic import JsonValue

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest

_SAFE = 2**53 - 1
"""The largest integer up to which a double holds each one."""


class NotCanonical(BadRequest):
    """A value has no canonical form that means the same: a number too precise for a double, or half a character."""

    code: str = "not_canonical"


def action_digest(call_id: str, tool: str, target_subject: str, arguments: JsonObject) -> str:
    """SHA-256 of the call in hexadecimal digits; `arguments` are all of them, forced ones included.

    Raises `NotCanonical`.
    """
    action: JsonObject = {"call_id": call_id, "tool": tool, "target_subject": target_subject, "arguments": arguments}
    return hashlib.sha256(canonical(action)).hexdigest()


def parameters_digest(parameters: JsonObject) -> str:
    """SHA-256 of a tool's schema, by which a change of it is seen; numbers of any precision count."""
    text = json.dumps(parameters, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: JsonValue) -> bytes:
    """The value in the form of RFC 8785; raises `NotCanonical`."""
    try:
        return _text(value).encode()
    except UnicodeEncodeError:
        raise NotCanonical("a text has half of a surrogate pair, which has no canonical form") from None
    except RecursionError:
        raise NotCanonical("the value is nested too deeply") from None


def _text(value: JsonValue) -> str:
    match value:
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case int() | float():
            return _number(value)
        case list():
            return f"[{','.join(map(_text, value))}]"
        case dict():
            members = (f"{_text(name)}:{_text(value[name])}" for name in sorted(value, key=_utf16))
            return f"{{{','.join(members)}}}"


def _utf16(name: str) -> bytes:
    """Members are sorted by the UTF-16 code units of their names."""
    return name.encode("utf-16-be")


def _number(value: float) -> str:
    """The number as ECMAScript writes it; a large integer only if that is the same integer."""
    if isinstance(value, int) and abs(value) > _SAFE:
        try:
            shortest = float(value)
        except OverflowError:
            raise NotCanonical(_INEXACT) from None
        if int(Decimal(repr(shortest))) != value:
            raise NotCanonical(_INEXACT)
        value = shortest
    elif isinstance(value, int):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        raise NotCanonical("NaN and infinities are no JSON numbers")
    return _double(value)


_INEXACT = "a number has more digits than a double holds: pass it as text"


def _double(value: float) -> str:
    """ECMAScript's Number::toString of a finite double: Python's shortest digits, set as ECMAScript sets them."""
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 -- only infinities and NaN have letters there
    text = "".join(map(str, digits)).rstrip("0")
    if not text:
        return "0"
    point = len(digits) + exponent
    """Where the decimal point stands, counted from the first digit."""
    minus = "-" if sign else ""
    if len(text) <= point <= 21:
        return minus + text.ljust(point, "0")
    if 0 < point <= 21:
        return f"{minus}{text[:point]}.{text[point:]}"
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{text}"
    mantissa = text if len(text) == 1 else f"{text[0]}.{text[1:]}"
    return f"{minus}{mantissa}e{point - 1:+d}"
