"""Whatever the class and its values: they come back equal, and the XSD and the model agree."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from lxml import etree

from tests.schema.pump.strategies import ODD_TEXTS, XML_TEXT, Drawn, bent_documents, drawn_payloads
from turnstile.schema.pump.documents import BadPayload, read_root
from turnstile.schema.pump.lexical import Kind, read
from turnstile.schema.pump.payloads import Payload


class Line(Payload):
    text: str


def xsd_admits(payload: type[Payload], document: bytes) -> bool:
    """What libxml2 says of a document, with a schema compiled from the published bytes."""
    return etree.XMLSchema(etree.fromstring(payload.xsd())).validate(read_root(document).element)


@settings(max_examples=100)
@given(drawn_payloads())
def test_any_payload_comes_back_equal(payload: Payload) -> None:
    document = payload.to_xml()
    assert xsd_admits(type(payload), document)
    assert document == etree.tostring(etree.fromstring(document), method="c14n")
    back = type(payload).from_xml(document)
    assert back == payload
    assert repr(back.to_xml()) == repr(document)
    assert type(payload).from_json(payload.to_json()) == payload
    assert type(payload).from_json(payload.to_json()).to_json() == payload.to_json()


@settings(max_examples=100)
@given(XML_TEXT)
@example("\r")
@example(" \r\n\t leading and trailing \n")
@example("]]>")
@example("<a>&amp;</a>")
def test_text_survives_exactly(text: str) -> None:
    assert Line.from_xml(Line(text=text).to_xml()).text == text
    assert Line.from_json(Line(text=text).to_json()).text == text


@settings(max_examples=400)
@given(st.sampled_from(list(Kind)), ODD_TEXTS)
def test_whatever_is_read_the_xsd_admits(kind: Kind, text: str) -> None:
    """Reading ends at the first misfit, the XSD's validator does not: what it refuses, reading has to refuse before."""
    schema = (
        f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="a" type="xs:{kind}"/></xs:schema>'
    )
    element = etree.Element("a")
    element.text = text
    try:
        read(kind, text)
    except ValueError:
        return
    assert etree.XMLSchema(etree.fromstring(schema)).validate(element)


@settings(max_examples=120)
@given(bent_documents())
def test_both_the_xsd_and_the_model_must_admit_a_document(bent: tuple[Drawn, bytes]) -> None:
    drawn, document = bent
    try:
        payload = drawn.payload.from_xml(document)
    except BadPayload:
        return
    assert xsd_admits(drawn.payload, document)
    assert drawn.payload.from_xml(payload.to_xml()) == payload
