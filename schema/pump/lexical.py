"""Converts values to the text of XML elements and back, and restricts values to those that have such a text.

Each kind is a type of XML Schema. `read` accepts the texts that the schema accepts, except those that Python cannot
represent. `read(kind, write(kind, value)) == value` holds for every value returned by `fitted`.
"""

import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import assert_never, cast
from xml.sax.saxutils import escape

from pydantic_core import PydanticCustomError

MAX_DIGITS = 1_000
"""The most digits of an integer, and of a decimal on each side of its point."""
_TOO_LARGE = 10**MAX_DIGITS
_MAX_TEXT = 2 * MAX_DIGITS + 100
_MAX_OFFSET = timedelta(hours=14)

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot hold: most control characters, lone surrogates, U+FFFE and U+FFFF."""


class Kind(StrEnum):
    """A kind of text; the values are the names of XML Schema's types."""

    STRING = "string"
    INTEGER = "integer"
    DECIMAL = "decimal"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    DATE = "date"
    TIME = "time"
    DATETIME = "dateTime"


KINDS: dict[object, Kind] = {
    str: Kind.STRING,
    int: Kind.INTEGER,
    Decimal: Kind.DECIMAL,
    float: Kind.DOUBLE,
    bool: Kind.BOOLEAN,
    date: Kind.DATE,
    time: Kind.TIME,
    datetime: Kind.DATETIME,
}

_FIXED = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]|[+-]14:00)?"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_READERS: dict[Kind, tuple[re.Pattern[str], Callable[[str], object]]] = {
    Kind.INTEGER: (re.compile(r"[+-]?[0-9]+"), int),
    Kind.DECIMAL: (re.compile(_FIXED), Decimal),
    Kind.DOUBLE: (re.compile(rf"{_FIXED}(?:[eE][+-]?[0-9]+)?"), float),
    Kind.BOOLEAN: (re.compile("true|false|1|0"), _BOOLEANS.__getitem__),
    Kind.DATE: (re.compile(_DATE), date.fromisoformat),
    Kind.TIME: (re.compile(_TIME), time.fromisoformat),
    Kind.DATETIME: (re.compile(f"{_DATE}T{_TIME}"), datetime.fromisoformat),
}
_TRIMMED = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.BOOLEAN})


def read(kind: Kind, text: str) -> object:
    """The value of an element's text; raises `ValueError` if the text is no value of the kind."""
    if kind is Kind.STRING:
        return text
    if kind in _TRIMMED:
        text = text.strip(" \t\r\n")
    form, value = _READERS[kind]
    if len(text) > _MAX_TEXT or not form.fullmatch(text):
        raise ValueError(f"not a text of xs:{kind}")
    return value(text)


def write(kind: Kind, value: object) -> str:
    """The text of a value, escaped; raises `ValueError` for a string that XML cannot hold."""
    value = value.value if isinstance(value, Enum) else value
    match kind:
        case Kind.STRING:
            return _escaped(cast("str", value))
        case Kind.INTEGER:
            return str(int(cast("int", value)))
        case Kind.DECIMAL:
            return format(cast("Decimal", value), "f")
        case Kind.DOUBLE:
            return repr(float(cast("float", value)))
        case Kind.BOOLEAN:
            return "true" if value else "false"
        case Kind.DATE | Kind.TIME | Kind.DATETIME:
            return cast("date | time", value).isoformat()
        case _:
            assert_never(kind)


def _escaped(text: str) -> str:
    if NOT_XML.search(text):
        raise ValueError("a text holds a character that XML cannot")
    return escape(text, {"\r": "&#xD;"})  # a parser would read a bare carriage return as a newline


def fitted(value: object) -> object:
    """`value` as it would be read back from XML, also within lists; raises `PydanticCustomError` if XML cannot hold it.

    A time with an offset keeps the offset and loses the name of its zone, which XML does not have.
    """
    match value:
        case Enum() | bool():
            return value
        case str() if NOT_XML.search(value):
            raise PydanticCustomError("not_xml", "has a character that XML cannot hold, such as a control character")
        case int() if abs(value) >= _TOO_LARGE:
            raise PydanticCustomError("too_many_digits", "an integer has at most 1,000 digits")
        case Decimal():
            _check_decimal(value)
            return value
        case datetime() | time():
            return _fixed_offset(value)
        case list():
            return [fitted(item) for item in cast("list[object]", value)]
        case tuple():
            return tuple(fitted(item) for item in cast("tuple[object, ...]", value))
        case _:
            return value


def _check_decimal(value: Decimal) -> None:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -MAX_DIGITS or value.adjusted() >= MAX_DIGITS:
        raise PydanticCustomError("too_many_digits", "a decimal has at most 1,000 places on each side of its point")


def _fixed_offset(value: datetime | time) -> datetime | time:
    offset = value.utcoffset()
    if offset is None:
        return value.replace(tzinfo=None, fold=0)
    if abs(offset) > _MAX_OFFSET or offset % timedelta(minutes=1):
        raise PydanticCustomError("bad_offset", "an offset is whole minutes, at most 14 hours")
    return value.replace(tzinfo=timezone(offset), fold=0)
