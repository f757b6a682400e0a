"""Payloads travel as XML and JSON and come back as they were; what has no XML form is refused where it is defined."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from pydantic import Field, ValidationError, create_model

from turnstile.schema.pump.documents import BadPayload, DocumentLimits, PayloadCode
from turnstile.schema.pump.payloads import Payload


class Line(Payload):
    """One line."""

    text: str
    number: int | None = None


class Note(Payload, tag="note"):
    """A note."""

    title: str = Field(description="what it is about")
    lines: list[Line] = Field(default_factory=list[Line])
    first: Line | None = None
    tags: tuple[str, ...] = ()
    weight: float = 1.5
    price: Decimal = Decimal("1.10")
    done: bool = False
    day: date | None = None
    hour: time | None = None
    at: datetime | None = None
    colour: Literal["red", "blue"] = "red"


def code_of(payload: type[Payload], document: bytes) -> str | None:
    """Why a document is refused; None if it is not."""
    try:
        payload.from_xml(document)
    except BadPayload as error:
        return error.code
    return None


@pytest.mark.parametrize("text", ["\0", "\x1b[0m", "\x7f\x08", "\ud800", "\ufffe", "\uffff", "ok\x0b"])
def test_characters_that_xml_cannot_hold_are_an_error_of_the_constructor(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Note(title="x", tags=("fine", text))
    assert caught.value.errors()[0]["loc"] == ("tags",)
    with pytest.raises(BadPayload) as refused:
        Line.from_value({"text": text})
    assert refused.value.code == PayloadCode.INVALID
    assert text not in str(refused.value)


def test_what_was_not_validated_is_not_written() -> None:
    changed = Line(text="x").model_copy(update={"text": "\0"})
    with pytest.raises(BadPayload):
        changed.to_xml()


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b"<note><title>x</title></note>", None),
        (b"<note>\n  <title>x</title>\n  <tags>y</tags>\n</note>", None),
        (b"<note><title>x</title><done> 1 </done></note>", None),
        (b"<note><title>x<!-- c --> y<?p i?></title></note>", None),
        (b"<note><title><![CDATA[<x>]]></title></note>", None),
        (b"<Note><title>x</title></Note>", "payload_root"),
        (b"<note xmlns='urn:x'><title>x</title></note>", "payload_root"),
        (b"<note/>", "payload_schema"),
        (b"<note>text<title>x</title></note>", "payload_schema"),
        (b"<note><title>x</title>text</note>", "payload_schema"),
        (b"<note><title>x</title><title>y</title></note>", "payload_schema"),
        (b"<note><tags>y</tags><title>x</title></note>", "payload_schema"),
        (b"<note><title>x</title><other/></note>", "payload_schema"),
        (b"<note><title><b>x</b></title></note>", "payload_schema"),
        (b"<note><title>x</title><done>yes</done></note>", "payload_schema"),
        (b"<note><title>x</title><done></done></note>", "payload_schema"),
        (b"<note><title>x</title><day>2020-02-30</day></note>", "payload_schema"),
        (b"<note><title>x</title><colour>green</colour></note>", "payload_schema"),
        (b"<note><title>x</title><colour> red </colour></note>", "payload_schema"),
        (b"<note><title>x</title><weight>1e999</weight></note>", "payload_invalid"),
        (b"<note lang='en'><title>x</title></note>", "payload_attributes"),
        (b"<note><title>x</title>", "payload_malformed"),
    ],
)
def test_documents(document: bytes, code: str | None) -> None:
    assert code_of(Note, document) == code


def test_absence_means_none_the_default_or_an_empty_list() -> None:
    class Absent(Payload):
        needed: int | None
        optional: str | None = None
        default: int = 7
        items: list[str]

    read_back = Absent.from_xml(b"<absent></absent>")
    assert read_back == Absent(needed=None, default=7, items=[])
    assert read_back.to_xml() == b"<absent><default>7</default></absent>"
    empty = Absent(needed=None, optional="", items=[""])
    assert empty.to_xml() == b"<absent><optional></optional><default>7</default><items></items></absent>"
    assert Absent.from_xml(empty.to_xml()) == empty


def test_a_moment_keeps_its_offset_and_forgets_its_zone() -> None:
    at = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)  # this hour is there twice
    note = Note(title="x", at=at)
    assert note.at is not None
    assert note.at.utcoffset() == timedelta(hours=1)
    assert note.at.tzinfo == timezone(timedelta(hours=1))
    assert Note.from_xml(note.to_xml()) == note
    for offset in (timedelta(hours=15), timedelta(seconds=1)):
        with pytest.raises(ValidationError, match="offset"):
            Note(title="x", at=datetime(2026, 1, 1, tzinfo=timezone(offset)))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_floats_are_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Note(title="x", weight=value)


def test_numbers_have_bounded_digits() -> None:
    assert Line.from_xml(Line(text="", number=10**999 - 1).to_xml()).number == 10**999 - 1
    for number in (10**1_000, -(10**5_000)):
        with pytest.raises(ValidationError, match="digits"):
            Line(text="", number=number)
    for price in ("1E+1000", "1E-1001", "1E+999999999", "-0E-999999", "NaN", "Infinity"):
        with pytest.raises(ValidationError):
            Note(title="x", price=Decimal(price))


def test_numbers_may_have_all_the_digits_that_are_promised() -> None:
    largest = 10**1_000 - 1
    for number in (largest, -largest):
        line = Line(text="", number=number)
        assert Line.from_xml(line.to_xml()) == Line.from_json(line.to_json()) == line
        assert Line.from_json(f'{{"text": "", "number": {number}}}'.encode()) == line
    for price in ("9" * 1_000, "0." + "9" * 1_000, f"{'9' * 1_000}.{'9' * 1_000}"):
        note = Note(title="x", price=Decimal(price))
        assert Note.from_xml(note.to_xml()) == Note.from_json(note.to_json()) == note


class Parcel(Payload, tag="parcel"):
    """Fields that may be absent although they have no default."""

    weight: float | None
    labels: list[str]
    lines: list[Line]
    inside: list["Parcels"]


class Parcels(Payload):
    """Another one in it."""

    labels: list[str]


def test_an_equal_document_is_taken_as_xml_and_as_json() -> None:
    """What is absent means the same in both."""
    empty = Parcel(weight=None, labels=[], lines=[], inside=[])
    assert Parcel.from_xml(b"<parcel/>") == Parcel.from_json(b"{}") == Parcel.from_value({}) == empty
    nested = Parcel.from_xml(b"<parcel><inside></inside></parcel>")
    assert Parcel.from_json(b'{"inside": [{}]}') == nested
    for refused in (b'{"labels": null}', b'{"inside": [{"more": 1}]}', b'{"more": 1}', b"[]", b"1", b"{"):
        with pytest.raises(BadPayload) as error:
            Parcel.from_json(refused)
        assert error.value.code == PayloadCode.INVALID


@pytest.mark.parametrize("number", [9, 10])
def test_json_has_as_many_elements_as_its_xml(number: int) -> None:
    """The limit holds for both."""
    parcel = Parcel(weight=1.5, labels=["x"] * (number - 5), lines=[Line(text="", number=1)], inside=[])
    limits = DocumentLimits(elements=9)  # the root, a weight, a line of two
    documents = (parcel.to_xml(), Parcel.from_xml), (parcel.to_json(), Parcel.from_json)
    for document, reader in documents:
        if number == 9:
            assert reader(document, limits) == parcel
        else:
            with pytest.raises(BadPayload) as error:
                reader(document, limits)
            assert error.value.code == PayloadCode.TOO_MANY_ELEMENTS
    deep = b'{"text": ' + b'{"a": ' * 70 + b"1" + b"}" * 71
    with pytest.raises(BadPayload) as error:
        Line.from_json(deep)
    assert error.value.code == PayloadCode.TOO_DEEP


def test_the_xsd_of_a_class() -> None:
    schema = Note.xsd().decode()
    assert '<xs:element name="note" type="Note"/>' in schema
    assert '<xs:element name="lines" type="Line" minOccurs="0" maxOccurs="unbounded"/>' in schema
    assert "<xs:documentation>what it is about</xs:documentation>" in schema
    assert '<xs:enumeration value="red"/>' in schema


def test_a_subclass_in_the_place_of_its_base_is_refused() -> None:
    class LongLine(Line):
        more: str = ""

    with pytest.raises(ValidationError):
        Note(title="x", lines=[LongLine(text="x", more="lost")])


def test_what_is_too_large_to_be_read_is_not_written() -> None:
    with pytest.raises(BadPayload) as caught:
        Line(text="x" * 2_000_000).to_xml()
    assert caught.value.code == PayloadCode.TOO_LARGE
    with pytest.raises(BadPayload) as caught:
        Note(title="x", tags=("",) * 20).to_xml(DocumentLimits(elements=20))
    assert caught.value.code == PayloadCode.TOO_MANY_ELEMENTS


def test_json_is_as_strict() -> None:
    note = Note(title="x", at=datetime(2026, 1, 1, tzinfo=UTC), lines=[Line(text="\r")])
    assert Note.from_json(note.to_json()) == note
    for data in (b"", b"[]", b'"x"', b"{}", b'{"title":"x","secret-key":1}', b'{"title":"\\u0000"}', b"\xff"):
        with pytest.raises(BadPayload) as caught:
            Note.from_json(data)
        assert caught.value.code == PayloadCode.INVALID
        assert "secret" not in str(caught.value)
    for data in (b"[" * 100_000, b'{"title":' * 100_000, b'{"title":"x","weight":' + b"9" * 1_000_000 + b"}"):
        with pytest.raises(BadPayload):
            Note.from_json(data)
    with pytest.raises(BadPayload) as caught:
        Note.from_json(b" " * 2_000_000)
    assert caught.value.code == PayloadCode.TOO_LARGE


def test_plain_text_fits_a_class_with_one_required_text() -> None:
    assert Line.text_field() == "text"
    assert Note.text_field() == "title"
    assert Line.from_text(" hello\n") == Line(text=" hello\n")
    for payload in (
        create_model("Other", __base__=Payload),
        create_model("Other", __base__=Payload, one=(str, ...), two=(str, ...)),
        create_model("Other", __base__=Payload, one=(str, ...), two=(int, ...)),
        create_model("Other", __base__=Payload, one=(int, ...)),
        create_model("Other", __base__=Payload, one=(Literal["a"], ...)),
        create_model("Other", __base__=Payload, one=(str | None, ...)),
        create_model("Other", __base__=Payload, one=(list[str], ...)),
        create_model("Other", __base__=Payload, one=(str, "")),
    ):
        assert payload.text_field() is None
        with pytest.raises(BadPayload, match="no payload of plain text"):
            payload.from_text("x")
    with pytest.raises(BadPayload):
        Line.from_text("\0")
