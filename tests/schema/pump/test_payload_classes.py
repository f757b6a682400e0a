"""A class whose fields or names cannot be XML is refused where it is defined, with what to use instead."""

import warnings
from datetime import timedelta
from enum import Enum, Flag
from typing import Any, Literal, cast
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field, create_model, field_serializer

from turnstile.schema.pump.documents import LIMITS, DocumentLimits
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.shapes import BadPayloadClass


class Line(Payload):
    text: str


class Note(Payload):
    title: str


def test_the_root_tag_comes_from_the_class_name() -> None:
    class SearchRequest(Payload):
        pass

    class HTTPCall2(Payload):
        pass

    assert (SearchRequest.root_tag(), HTTPCall2.root_tag(), Note.root_tag()) == ("search-request", "http-call2", "note")
    assert SearchRequest().to_xml() == b"<search-request></search-request>"
    assert SearchRequest.from_xml(b"<search-request/>") == SearchRequest()


TAKEN = ["huh", "HUH", "Huh", "SystemError", "systemerror", "SYSTEMERROR", "system-error", "System_Error", "XMLx"]


@pytest.mark.parametrize("tag", [*TAKEN, "", "a b", "a:b", "1a", "é", "a" * 129, "a\n"])
def test_tags_that_a_payload_may_not_have(tag: str) -> None:
    with pytest.raises(BadPayloadClass, match="root tag"):
        create_model("Other", __base__=Payload, __cls_kwargs__={"tag": tag})


def test_reserved_names_of_classes() -> None:
    for name in ("Huh", "SystemError", "HUH"):
        with pytest.raises(BadPayloadClass, match="the pump's own"):
            create_model(name, __base__=Payload)


class Bits(Flag):
    A = 1


class Mixed(Enum):
    A = 1
    B = "b"


class Model(BaseModel):
    pass


@pytest.mark.parametrize(
    ("annotation", "default", "instead"),
    [
        (dict[str, int], ..., "a list of payloads with a key and a value"),
        (Any, ..., "str, int"),
        (object, ..., "str, int"),
        (int | str, ..., "one type, or an optional field for each"),
        (Line | Note, ..., "one type, or an optional field for each"),
        (Line | Note | None, None, "one type, or an optional field for each"),
        (set[int], ..., "a list"),
        (bytes, ..., "base64"),
        (timedelta, ..., "seconds"),
        (UUID, ..., "a str"),
        (tuple[int, str], ..., "a field for each place"),
        (list, ..., "list[X]"),
        (list[list[int]], ..., "a list of payloads"),
        (list[int | None], ..., "a list of payloads"),
        (list[int] | None, None, "may be empty"),
        (int | None, 5, "None as the default"),
        (list[int], [1], "empty default"),
        (Literal["a", 1], ..., "among strings"),
        (Literal[True], ..., "among strings"),
        (Literal["a", None], ..., "among strings"),  # noqa: PYI061 the spelling is the point
        (Literal["\0"], ..., "among strings"),
        (Literal[9223372036854775808], ..., "64 bits"),
        (Mixed, ..., "among strings"),
        (Bits, ..., "a list of an Enum"),
        (Model, ..., "a subclass of Payload"),
        (Payload, ..., "a subclass of Payload"),
        (Exception, ..., "str, int"),
        (complex, ..., "str, int"),
        (None, ..., "str, int"),
    ],
)
def test_fields_without_an_xml_form_are_refused_at_definition(annotation: Any, default: Any, instead: str) -> None:
    with pytest.raises(BadPayloadClass, match=r"Other\.field") as caught:
        create_model("Other", __base__=Payload, field=(annotation, default))
    assert instead in str(caught.value)


def test_how_a_payload_is_written_is_no_classes_own() -> None:
    """Nor is a namespace: so a handler could speak as the pump."""
    with pytest.raises(BadPayloadClass, match="Mine: to_xml is the same for all payloads: leave it out"):

        class Mine(Payload):  # pyright: ignore[reportUnusedClass]
            def to_xml(self, limits: DocumentLimits = LIMITS) -> bytes:
                return b"<huh/>"

    with pytest.raises(BadPayloadClass, match="Fake: only the pump's own messages have a namespace: leave it out"):

        class Fake(Payload, tag="SystemError", system_namespace=""):  # pyright: ignore[reportUnusedClass]
            pass


def test_payloads_do_not_hold_themselves() -> None:
    with pytest.raises(BadPayloadClass, match=r"Tree\.children: a payload that holds itself"):

        class Tree(Payload):
            children: "list[Tree]"

    assert "Tree" not in locals()


def test_a_name_that_is_defined_later() -> None:
    class Outer(Payload):
        inner: "Inner"

    with pytest.raises(BadPayloadClass, match="names what is not defined"):
        Outer.xsd()

    class Inner(Payload):
        text: str

    Outer.model_rebuild(_types_namespace={"Inner": Inner})
    outer = Outer(inner=Inner(text="x"))
    assert Outer.from_xml(outer.to_xml()) == outer


def test_payloads_that_hold_each_other() -> None:
    class One(Payload):
        two: "list[Two]"

    with pytest.raises(BadPayloadClass, match="holds itself"):

        class Two(Payload):
            one: list[One]


def test_classes_that_would_not_come_back_as_they_were() -> None:
    for config in (ConfigDict(frozen=False), ConfigDict(extra="allow"), ConfigDict(allow_inf_nan=True)):
        with pytest.raises(BadPayloadClass, match="same for all payloads"):
            create_model("Other", __base__=Payload, __cls_kwargs__=cast("dict[str, Any]", config))
    with pytest.raises(BadPayloadClass, match="different names"):
        create_model("Other", __base__=Payload, field=(str, Field(validation_alias="in", serialization_alias="out")))
    with pytest.raises(BadPayloadClass, match="two fields"):
        create_model("Other", __base__=Payload, one=(str, Field(alias="x")), two=(str, Field(alias="x")))
    with pytest.raises(BadPayloadClass, match="an element is called"):
        create_model("Other", __base__=Payload, one=(str, Field(alias="a b")))
    with pytest.raises(BadPayloadClass, match="no exclude"):
        create_model("Other", __base__=Payload, one=(str, Field(default="", exclude=True)))
    with pytest.raises(UserWarning, match="shadows"):
        create_model("Other", __base__=Payload, xsd=(str, ...))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pydantic's own, of the same mistake
        with pytest.raises(BadPayloadClass, match="a method of this name"):
            create_model("Other", __base__=Payload, xsd=(str, ...))


def test_what_is_written_is_what_is_read() -> None:
    class Mixin(BaseModel):
        field: str

        @field_serializer("field")
        def shout(self, value: str) -> str:
            return value.upper()

    class Computed(BaseModel):
        @computed_field
        def field(self) -> str:
            return ""

    with pytest.raises(BadPayloadClass, match="serializer"):
        create_model("Other", __base__=(Payload, Mixin))
    with pytest.raises(BadPayloadClass, match="computed"):
        create_model("Other", __base__=(Payload, Computed))


def test_two_classes_of_one_name_in_one_payload() -> None:
    inner = create_model("Line", __base__=Payload, other=(int, ...))
    outer = create_model("Outer", __base__=Payload, one=(Line, ...), two=(inner, ...))
    payload = outer.model_validate({"one": {"text": "x"}, "two": {"other": 1}})
    assert outer.from_xml(payload.to_xml()) == payload


def test_payloads_are_nested_no_deeper_than_can_be_read() -> None:
    model: type[Payload] = Line
    for _ in range(62):
        model = create_model("Deeper", __base__=Payload, inner=(model, ...))
    model.xsd()
    with pytest.raises(BadPayloadClass, match="nested deeper"):
        create_model("TooDeep", __base__=Payload, inner=(model, ...))
