"""Payload classes and their instances, drawn at random from everything that has an XML form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import count
from typing import Annotated, Any, Literal, NewType
from zoneinfo import ZoneInfo

from hypothesis import strategies as st
from lxml import etree
from pydantic import Field, create_model

from turnstile.schema.pump.payloads import Payload

Name = NewType("Name", str)


class Colour(StrEnum):
    RED = "red"
    SPACED = " two  words\r\n\t"
    EMPTY = ""
    SMILE = "😀<&\"'>"


class Level(IntEnum):
    LOW = -1
    HIGH = 2**63 - 1


class Plain(Enum):
    A = "a"
    B = "b"


XML_TEXT = st.text(
    st.one_of(
        st.sampled_from(list(" \t\r\n<>&\"';]😀\u0085\u2028\ufeff\ufffd\U0010ffff")),
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
    ),
    max_size=30,
)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
ZONES = st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo"), ZoneInfo("America/St_Johns")])
_BEGIN, _END = datetime(2, 1, 1), datetime(9998, 1, 1)  # noqa: DTZ001 the zones are drawn
_MODERN = datetime(1950, 1, 1)  # noqa: DTZ001 before, zones had offsets with seconds
MOMENTS = st.one_of(
    st.datetimes(_BEGIN, _END),
    st.datetimes(_BEGIN, _END, timezones=OFFSETS),
    st.datetimes(_MODERN, _END, timezones=ZONES),
)
INTEGERS = st.one_of(st.integers(), st.integers(-(10**999), 10**999))
DECIMALS = st.builds(
    Decimal,
    st.tuples(
        st.integers(0, 1),
        st.lists(st.integers(0, 9), max_size=30).map(tuple),
        st.one_of(st.integers(-30, 30), st.integers(-999, 900)),
    ),
)
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, XML_TEXT),
    (Name, XML_TEXT),
    (Annotated[str, Field(min_length=1)], XML_TEXT.filter(bool)),
    (int, INTEGERS),
    (Annotated[int, Field(ge=0)], st.integers(min_value=0)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (Decimal, DECIMALS),
    (bool, st.booleans()),
    (date, st.dates()),
    (time, st.times(timezones=st.one_of(st.none(), OFFSETS))),
    (datetime, MOMENTS),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Plain, st.sampled_from(Plain)),
    (Literal["x", " y"], st.sampled_from(["x", " y"])),
    (Literal[1, 2], st.sampled_from([1, 2])),
]


@dataclass(frozen=True)
class Drawn:
    """A payload class and the strategy of its instances."""

    payload: type[Payload]
    instances: st.SearchStrategy[Payload]


_numbers = count()
_NAMES = ["a", "b", "name", "items", "x_y", "Z", "title", "type", "_9"]


@st.composite
def _field(draw: st.DrawFn, inner: tuple[Any, st.SearchStrategy[Any]]) -> tuple[Any, st.SearchStrategy[Any], Any]:
    """Annotation, strategy, and pydantic's default (`...` for none)."""
    annotation, values = inner
    described = Field(description=draw(st.sampled_from(["what it is", "a -- b & <c>", "é"])))
    match draw(st.sampled_from(["required", "default", "optional", "needed optional", "list", "tuple"])):
        case "default":
            return Annotated[annotation, described], values, draw(values)
        case "optional":
            return annotation | None, st.none() | values, None
        case "needed optional":
            return annotation | None, st.none() | values, ...
        case "list":
            return list[annotation], st.lists(values, max_size=4), draw(st.sampled_from([..., []]))
        case "tuple":
            return tuple[annotation, ...], st.lists(values, max_size=4).map(tuple), ()
        case _:
            return annotation, values, ...


def _builder(payload: type[Payload]) -> Callable[[Mapping[str, Any]], Payload]:
    return lambda values: payload(**values)


@st.composite
def drawn_classes(draw: st.DrawFn, depth: int = 2) -> Drawn:
    """A new payload class, with payloads in it down to `depth`."""
    fields: dict[str, Any] = {}
    strategies: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.lists(st.sampled_from(_NAMES), max_size=4, unique=True)):
        if depth and draw(st.integers(0, 3)) == 0:
            nested = draw(drawn_classes(depth - 1))
            inner: tuple[Any, st.SearchStrategy[Any]] = (nested.payload, nested.instances)
        else:
            inner = draw(st.sampled_from(LEAVES))
        annotation, values, default = draw(_field(inner))
        key = f"f{name}"
        fields[key] = (Annotated[annotation, Field(alias=name)] if default is ... else annotation, default)
        strategies[key] = values
    payload = create_model(f"Drawn{next(_numbers) % 3}", __base__=Payload, __cls_kwargs__={"tag": "drawn"}, **fields)
    return Drawn(payload, st.fixed_dictionaries(strategies).map(_builder(payload)))


@st.composite
def drawn_payloads(draw: st.DrawFn) -> Payload:
    """An instance of a drawn class."""
    return draw(draw(drawn_classes()).instances)


_NUMBERS = ["1", "+1", "01", "-1", "1.", ".5", "-.5", "1e5", "1E+5", "1e999", "INF", "-INF", "NaN", "inf", "nan", "1_0"]
_WORDS = ["٣", "0x1", "true", "TRUE", "yes", "on", "red", "x", "two  words"]
_DATES = ["2020-02-29", "2020-02-30", "0000-01-01", "10000-01-01", "-0001-01-01", "2020-01-01Z", "20200101"]
_TIMES = ["24:00:00", "00:00", "23:59:60", "12:00:00.123456789", "12:00:00.1234567890", "12:00:00,5", "12:00:00z"]
_ZONED = ["12:00:00-14:00", "12:00:00+14:01", "12:00:00-00:00", "2020-01-01T00:00:00-13:59", "2020-01-01T24:00:00Z"]
_OTHERS = ["2020-W01-1", "1577836800", "2020-01-01T00:00:00", "2020-01-01t00:00:00"]
_SAMPLES = [*_NUMBERS, *_WORDS, *_DATES, *_TIMES, *_ZONED, *_OTHERS]
ODD_TEXTS = st.one_of(
    st.sampled_from(["", " ", "2020-01-01 00:00:00", "9" * 999, "9" * 3_000, "0." + "1" * 1_001, *_SAMPLES]),
    st.sampled_from(_SAMPLES).map(lambda text: f" {text}\n"),
    st.text("0123456789+-.:eETZ \n", max_size=30),
    st.datetimes().map(datetime.isoformat),
    st.floats().map(repr),
    XML_TEXT,
)
"""Texts that are values of some kind, nearly are, or are none."""


@st.composite
def bent_documents(draw: st.DrawFn) -> tuple[Drawn, bytes]:
    """A drawn class, and a document of it that was changed here and there."""
    drawn = draw(drawn_classes())
    root = etree.fromstring(draw(drawn.instances).to_xml())
    for _ in range(draw(st.integers(0, 2))):
        element = draw(st.sampled_from(list(root.iter())))
        parent = element.getparent()
        match draw(st.sampled_from(["text", "tail", "drop", "repeat", "move", "add", "rename"])):
            case "text":
                element.text = draw(ODD_TEXTS)
            case "tail" if parent is not None:
                element.tail = draw(st.sampled_from([" ", "\n\t", "x"]))
            case "drop" if parent is not None:
                parent.remove(element)
            case "repeat" if parent is not None:
                parent.insert(0, etree.fromstring(etree.tostring(element, with_tail=False)))
            case "move" if parent is not None:
                parent.append(element)
            case "add":
                etree.SubElement(element, draw(st.sampled_from(["a", "b", "other"])))
            case _:
                element.tag = "{urn:x}a"
    return drawn, etree.tostring(root, encoding="utf-8")
