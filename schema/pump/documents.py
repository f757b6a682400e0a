"""Reads XML from outside: elements and text within limits, and nothing else (protocol §9.3).

Guarantees: no entity is expanded, and nothing is fetched or opened. A document that is refused raises `BadPayload` with
a stable code and a message without content. `repaired` makes a short, closed list of repairs that do not change the
meaning. Costs one pass; reading stops at most `_CHUNK` bytes after a limit is exceeded.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from lxml.etree import XMLPullParser, XMLSyntaxError
from lxml.etree import _Element as Element
from pydantic_core import from_json

from turnstile.schema.errors import TurnstileError

_CHUNK = 16_384
_BOM = b"\xef\xbb\xbf"
_WHITESPACE = b" \t\r\n"
_XSI = "{http://www.w3.org/2001/XMLSchema-instance}"
_IGNORED = frozenset({f"{_XSI}schemaLocation", f"{_XSI}noNamespaceSchemaLocation"})
"""Hints where to find a schema. They are ignored, since the schema comes from the model."""

_DECLARATION = re.compile(
    rb"""<\?xml\s+version\s*=\s*(?:"1\.0"|'1\.0')"""
    rb"""(?:\s+encoding\s*=\s*(?:"(?P<double>[A-Za-z0-9._-]+)"|'(?P<single>[A-Za-z0-9._-]+)'))?"""
    rb"""(?:\s+standalone\s*=\s*(?:"yes"|"no"|'yes'|'no'))?\s*\?>"""
)
_DOCTYPE = re.compile(rb"(?:\s+|<\?.*?\?>|<!--.*?-->)*+<!DOCTYPE", re.DOTALL)
"""A document type declaration before the root element, after white space, instructions and comments only."""
_FENCED = re.compile(rb"```(?:[xX][mM][lL])?[ \t]*\r?\n(?P<inside>.*)\n[ \t]*```", re.DOTALL)
_FENCE = re.compile(rb"^ {0,3}(?:```|~~~)", re.MULTILINE)


class PayloadCode(StrEnum):
    """Why a payload was refused. The sender does not get the code, only `huh`."""

    TOO_LARGE = "payload_too_large"
    TOO_DEEP = "payload_too_deep"
    TOO_MANY_ELEMENTS = "payload_too_many_elements"
    DOCTYPE = "payload_doctype"
    ENCODING = "payload_encoding"
    ATTRIBUTES = "payload_attributes"
    MALFORMED = "payload_malformed"
    ROOT = "payload_root"
    SCHEMA = "payload_schema"
    INVALID = "payload_invalid"


class BadPayload(TurnstileError):
    """A payload cannot be read or written; `code` names the rule it breaks. The message holds none of its content."""

    def __init__(self, code: PayloadCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """The limits of a document: bytes, depth of elements, number of elements.

    The parser's own limits apply as well: 256 nested elements, 10 MB of text in one piece.
    """

    size: int = 1_048_576
    depth: int = 64
    elements: int = 20_000


LIMITS = DocumentLimits()


@dataclass(frozen=True, slots=True)
class Root:
    """A parsed document: its root's tag, `{namespace}name` or just the name, and the element."""

    tag: str
    element: Element


def read_root(data: bytes, limits: DocumentLimits = LIMITS) -> Root:
    """Parse a document; raises `BadPayload` unless it is UTF-8 XML 1.0 of elements and text within `limits`.

    Comments and processing instructions are dropped. A document type declaration and any attribute are refused.
    """
    _check_bytes(data, limits)
    parser = XMLPullParser(
        events=("start", "end"),
        encoding="utf-8",
        attribute_defaults=False,
        dtd_validation=False,
        load_dtd=False,
        no_network=True,
        resolve_entities=False,
        huge_tree=False,
        recover=False,
        remove_comments=True,
        remove_pis=True,
        collect_ids=False,
    )
    meter = _Meter(limits)
    problem: str | None = None
    root: Element | None = None
    try:
        for begin in range(0, len(data), _CHUNK):
            parser.feed(data[begin : begin + _CHUNK])
            meter.read(parser)
        root = parser.close()
    except XMLSyntaxError as error:  # not chained: its message may quote the document
        problem = "line {}, column {}".format(*error.position)
    if root is None:
        meter.read(parser)  # raises if a limit was exceeded before the error
        raise BadPayload(PayloadCode.MALFORMED, f"not well-formed XML at {problem}")
    if root.getroottree().docinfo.internalDTD:
        raise _doctype()
    return Root(root.tag, root)


def read_json(data: bytes, limits: DocumentLimits = LIMITS) -> object:
    """Parse a JSON document within `limits`, counted like XML with the same values; raises `BadPayload`."""
    check_size(data, limits)
    try:
        value: object = from_json(data)
    except ValueError:  # not chained: its message may quote the document
        raise BadPayload(PayloadCode.INVALID, "no JSON") from None
    elements, pending = 0, [(value, 1)]
    while pending:
        part, depth = pending.pop()
        if isinstance(part, list):  # only its items are elements
            pending += [(item, depth) for item in cast("list[object]", part)]
            continue
        elements += part is not None
        if elements > limits.elements:
            raise BadPayload(PayloadCode.TOO_MANY_ELEMENTS, f"more than {limits.elements} elements")
        if depth > limits.depth:
            raise BadPayload(PayloadCode.TOO_DEEP, f"nested deeper than {limits.depth} elements")
        if isinstance(part, dict):
            pending += [(inner, depth + 1) for inner in cast("dict[str, object]", part).values()]
    return value


class _Meter:
    """Counts elements while they are parsed; raises `BadPayload` at the first that breaks a rule."""

    def __init__(self, limits: DocumentLimits) -> None:
        self._limits = limits
        self._depth = 0
        self._elements = 0

    def read(self, parser: XMLPullParser) -> None:
        """Count the elements parsed since the last call."""
        for event, value in parser.read_events():
            if event == "end":
                self._depth -= 1
                continue
            self._depth += 1
            self._elements += 1
            if self._depth > self._limits.depth:
                raise BadPayload(PayloadCode.TOO_DEEP, f"nested deeper than {self._limits.depth} elements")
            if self._elements > self._limits.elements:
                raise BadPayload(PayloadCode.TOO_MANY_ELEMENTS, f"more than {self._limits.elements} elements")
            element = cast("Element", value)  # start and end events always have elements
            if len(element.attrib) and any(name not in _IGNORED for name in element.attrib):
                raise BadPayload(PayloadCode.ATTRIBUTES, "an element has an attribute: payloads have none")


def _check_bytes(data: bytes, limits: DocumentLimits) -> None:
    check_size(data, limits)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadPayload(PayloadCode.ENCODING, f"not UTF-8 at byte {error.start}") from None
    data = data.removeprefix(_BOM)
    if data[:5] == b"<?xml" and data[5:6].isspace():
        declaration = _DECLARATION.match(data)
        if declaration is None:
            raise BadPayload(PayloadCode.MALFORMED, "the XML declaration is not one of XML 1.0")
        encoding = declaration["double"] or declaration["single"] or b"utf-8"
        if encoding.lower() != b"utf-8":
            raise BadPayload(PayloadCode.ENCODING, "the declared encoding is not UTF-8")
    if _DOCTYPE.match(data):
        raise _doctype()


def check_size(data: bytes, limits: DocumentLimits) -> None:
    """Raises `BadPayload` if `data` is longer than `limits` allow."""
    if len(data) > limits.size:
        raise BadPayload(PayloadCode.TOO_LARGE, f"{len(data)} bytes, more than {limits.size}")


def _doctype() -> BadPayload:
    return BadPayload(PayloadCode.DOCTYPE, "it has a document type declaration: payloads have none")


def repaired(data: bytes) -> bytes:
    """`data` without meaningless text around the document. The list is closed (docs/pump.md).

    A UTF-8 byte order mark; white space before and after, so also before an XML declaration; one Markdown fence
    (three backticks, `xml` or nothing after them, each on its own line) around everything, with no other inside.
    """
    bare = data.removeprefix(_BOM).strip(_WHITESPACE)
    fenced = _FENCED.fullmatch(bare)
    if fenced is None or _FENCE.search(fenced["inside"]):
        return bare
    return fenced["inside"].strip(_WHITESPACE)
