"""Hostile XML ends as one error with a code, soon and small; what surrounds a document harmlessly is taken off."""

import socket
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cpu import cheap
from tests.support.memory import resident_bytes
from turnstile.schema.pump.documents import BadPayload, DocumentLimits, PayloadCode, read_root, repaired
from turnstile.schema.pump.payloads import Payload

_XSI = "xmlns:xsi='http://www.w3.org/2001/XMLSchema-instance'"


class Box(Payload, tag="a"):
    b: tuple[int, ...] = ()
    c: str = ""


def refused(document: bytes, limits: DocumentLimits | None = None) -> str:
    """The code of the refusal; the message must hold nothing of the document."""
    with pytest.raises(BadPayload) as caught:
        Box.from_root(read_root(document, limits or DocumentLimits()))
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 200
    return caught.value.code


def laughs() -> bytes:
    """A billion laughs: ten levels of ten."""
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    return f'<!DOCTYPE a [<!ENTITY l0 "secret">{entities}]><a><c>&l9;</c></a>'.encode()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "billion laughs": (laughs(), "payload_doctype"),
    "quadratic blowup": (
        b'<!DOCTYPE a [<!ENTITY x "' + b"y" * 50_000 + b'">]><a><c>' + b"&x;" * 50_000 + b"</c></a>",
        "payload_doctype",
    ),
    "external entity": (b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a><c>&x;</c></a>', "payload_doctype"),
    "external DTD": (b'<!DOCTYPE a SYSTEM "http://127.0.0.1:9/secret.dtd"><a/>', "payload_doctype"),
    "parameter entity": (b'<!DOCTYPE a [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]><a/>', "payload_doctype"),
    "DTD after a declaration": (b"<?xml version='1.0'?>\n<!-- x --><?p?>\n<!DOCTYPE a><a/>", "payload_doctype"),
    "unknown entity": (b"<a><c>&secret;</c></a>", "payload_malformed"),
    "XInclude": (
        b"<a xmlns:xi='http://www.w3.org/2001/XInclude'><xi:include href='file:///etc/passwd'/></a>",
        "payload_attributes",
    ),
    "nested tags": (b"<a>" * 100_000, "payload_too_deep"),
    "nested and closed": (b"<a>" * 100_000 + b"</a>" * 100_000, "payload_too_deep"),
    "65 deep": (b"<a>" * 65 + b"</a>" * 65, "payload_too_deep"),
    "elements": (b"<a>" + b"<b/>" * 200_000 + b"</a>", "payload_too_many_elements"),
    "bad values": (b"<a>" + b"<b>x</b>" * 19_000 + b"</a>", "payload_schema"),
    "values that only a date has": (b"<a>" + b"<b>2020-02-30</b>" * 19_000 + b"</a>", "payload_schema"),
    "unknown elements": (b"<a>" + b"<z>x</z>" * 19_000 + b"</a>", "payload_schema"),
    "huge attribute": (b"<a x='" + b"y" * 1_000_000 + b"'/>", "payload_attributes"),
    "many attributes": (b"<a " + b" ".join(b"a%d=''" % n for n in range(90_000)) + b"/>", "payload_attributes"),
    "many namespaces": (
        b"<a " + b" ".join(b"xmlns:a%d='b'" % n for n in range(60_000)) + b"><z/></a>",
        "payload_schema",
    ),
    "a namespace an element": (
        b"<a>" + b"".join(b"<a%d:b xmlns:a%d='b%d'/>" % (n, n, n) for n in range(18_000)) + b"</a>",
        "payload_schema",
    ),
    "giant text": (b"<a><c>" + b"y" * 2_000_000 + b"</c></a>", "payload_too_large"),
    "giant number": (b"<a><b>" + b"9" * 1_000_000 + b"</b></a>", "payload_schema"),
    "giant name": (b"<" + b"a" * 1_000_000 + b"/>", "payload_malformed"),
    "open comments": (b"<!--" * 200_000, "payload_malformed"),
    "open instructions": (b"<?a " * 200_000, "payload_malformed"),
    "a declaration and blanks": (b"<?xml version='1.0'" + b" " * 1_000_000 + b"x", "payload_malformed"),
    "xsi:nil": (f"<a {_XSI}><b xsi:nil='true'/></a>".encode(), "payload_attributes"),
    "xsi:type": (f"<a {_XSI}><b xsi:type='xs:int'>1</b></a>".encode(), "payload_attributes"),
    "invalid UTF-8": (b"<a><c>\xff\xfe secret</c></a>", "payload_encoding"),
    "an encoded surrogate": (b"<a><c>\xed\xa0\x80</c></a>", "payload_encoding"),
    "UTF-16 with BOM": ("<a><c>secret</c></a>".encode("utf-16"), "payload_encoding"),
    "UTF-16 without BOM": ("<a><c>secret</c></a>".encode("utf-16-le"), "payload_malformed"),
    "UTF-32": ("<a/>".encode("utf-32"), "payload_encoding"),
    "declared UTF-16": (b"<?xml version='1.0' encoding='UTF-16'?><a/>", "payload_encoding"),
    "declared Latin-1": ("<?xml version='1.0' encoding='ISO-8859-1'?><a><c>é</c></a>".encode(), "payload_encoding"),
    "Latin-1": ("<?xml version='1.0' encoding='ISO-8859-1'?><a><c>é</c></a>".encode("latin-1"), "payload_encoding"),
    "XML 1.1": (b"<?xml version='1.1'?><a/>", "payload_malformed"),
    "a late declaration": (b" <?xml version='1.0'?><a/>", "payload_malformed"),
    "NUL": (b"<a><c>\x00</c></a>", "payload_malformed"),
    "NUL as a reference": (b"<a><c>&#0;</c></a>", "payload_malformed"),
    "a control character": (b"<a><c>\x1b</c></a>", "payload_malformed"),
    "U+FFFF": ("<a><c>\uffff</c></a>".encode(), "payload_malformed"),
    "an unbound prefix": (b"<s:a/>", "payload_malformed"),
    "nothing": (b"", "payload_malformed"),
    "blanks": (b" \n", "payload_malformed"),
    "two documents": (b"<a/><a/>", "payload_malformed"),
    "text after": (b"<a/>secret", "payload_malformed"),
    "JSON": (b'{"secret": 1}', "payload_malformed"),
    "HTML": (b"<a><c>secret<br></c></a>", "payload_malformed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_documents_are_refused_soon(name: str) -> None:
    document, code = HOSTILE[name]
    assert cheap(1.0, lambda: refused(document)) == code


@pytest.mark.long
def test_hostile_documents_leave_no_memory_behind() -> None:
    documents = [document for document, _ in HOSTILE.values()]
    for document in documents * 2:
        refused(document)
    before = resident_bytes()
    for document in documents * 3:
        refused(document)
    assert resident_bytes() - before < 32_000_000


def test_limits_are_parameters() -> None:
    nested = b"<a><c>x</c></a>"
    assert Box.from_xml(nested, DocumentLimits(size=15, depth=2, elements=2)) == Box(c="x")
    assert refused(nested, DocumentLimits(size=14)) == PayloadCode.TOO_LARGE
    assert refused(nested, DocumentLimits(depth=1)) == PayloadCode.TOO_DEEP
    assert refused(nested, DocumentLimits(elements=1)) == PayloadCode.TOO_MANY_ELEMENTS


def test_what_is_large_but_allowed_is_read() -> None:
    for box in (Box(b=(1,) * 19_000), Box(c="<&>\r" * 50_000)):
        document = cheap(0.5, box.to_xml)
        assert cheap(0.5, partial(Box.from_xml, document)) == box


def test_hints_at_a_schema_are_not_followed(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xsd"
    broken.write_text("<not a schema")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/x.xsd"
        for hint in (broken.as_uri(), str(broken), address):
            document = (
                f"<a {_XSI} xsi:noNamespaceSchemaLocation='{hint}' xsi:schemaLocation='urn:x {hint}'><b>1</b></a>"
            )
            assert Box.from_xml(document.encode()) == Box(b=(1,))
        with pytest.raises(BlockingIOError):
            server.accept()


def test_comments_and_instructions_are_ignored() -> None:
    prolog, epilog = b"<?xml version='1.0' encoding='utf-8'?><!-- c --><?p i?>", b"<!-- c -->"
    document = b"<a><!-- <b>1</b> --><c>x<!-- y -->z<?p?></c></a>"
    assert Box.from_xml(prolog + document + epilog) == Box(c="xz")


@pytest.mark.parametrize(
    "document",
    [
        b"\xef\xbb\xbf<a/>",
        b"\n\t <a/>\r\n",
        b"\xef\xbb\xbf\n<?xml version='1.0'?><a/>",
        b"\n<?xml version=\"1.0\" encoding='UTF-8' standalone='yes' ?>\n<a/>",
        b"```xml\n<a/>\n```",
        b"```\n<a/>\n```",
        b"```XML \r\n<a/>\r\n```\r\n",
        b"\n```xml\n\n  <?xml version='1.0'?><a/>\n\n```\n",
    ],
)
def test_repairs(document: bytes) -> None:
    assert Box.from_xml(repaired(document)) == Box()


@pytest.mark.parametrize(
    "document",
    [
        b"Here it is:\n```xml\n<a/>\n```",
        b"```xml\n<a/>\n```\nDone.",
        b"```xml\n<a/>\n```\n\n```xml\n<a/>\n```",
        b"```xml\n<a><c>\n```\nx\n```\n</c></a>\n```",
        b"```json\n<a/>\n```",
        b"```xml <a/> ```",
        b"~~~xml\n<a/>\n~~~",
        b"````xml\n<a/>\n````",
        b"```\n```xml\n<a/>\n```\n```",
        b"&lt;a/&gt;",
        b"<a><b>1</a>",
        b"<a><b>1",
        b"<a/",
        b"a/>",
        b"<a><c>x & y</c></a>",
        b"<a><b>1</b></a>.",
        b"\xc2\xa0<a/>",
        b"<A/>",
    ],
)
def test_nothing_else_is_repaired(document: bytes) -> None:
    assert refused(repaired(document)) in {PayloadCode.MALFORMED, PayloadCode.ROOT}


@given(st.text(alphabet="<a/>` \n\ufeffxml", max_size=40))
def test_a_repair_only_takes_off_what_surrounds(text: str) -> None:
    assert repaired(text.encode()) in text.encode()


def test_what_needs_no_repair_means_the_same_after_it() -> None:
    box = Box(c="```xml\n<a/>\n``` \ufeff ")
    assert Box.from_xml(repaired(box.to_xml())) == box
