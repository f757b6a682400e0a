"""Payloads: the messages of the pump, as models that are sent as XML (protocol §9.3).

Guarantees: a payload writes Canonical XML that its XSD admits and that reads back as an equal payload. Input must pass
the XSD and then the model, else it raises `BadPayload`. A value that XML cannot hold is an error of the constructor; a
field type without an XML form is an error of the class. The XSD is compiled once, when the class is defined; it has
elements, order, occurrence, types and choices, and the model checks the rest. Canonical XML has no declaration, no
comment, no white space between elements, and equal bytes for equal values; the input may have white space there.
Reading stops at the first element that does not fit; the validator of libxml2 would continue, and takes seconds for
20,000 such elements.

    class Greeting(Payload, tag="greeting"):
        name: str
        times: int = 1
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self, Unpack, cast
from xml.sax.saxutils import escape, quoteattr

from lxml import etree
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from turnstile.schema.base import Strict
from turnstile.schema.pump import lexical
from turnstile.schema.pump.documents import (
    LIMITS,
    BadPayload,
    DocumentLimits,
    Element,
    PayloadCode,
    Root,
    check_size,
    read_json,
    read_root,
)
from turnstile.schema.pump.lexical import NOT_XML, Kind, fitted
from turnstile.schema.pump.shapes import NAME, BadPayloadClass, ElementShape, Leaf, Occurs, Shape, nested_in, shape_of
from turnstile.schema.validation import faults_in

_OCCURS = {
    Occurs.ONCE: "",
    Occurs.DEFAULTED: ' minOccurs="0"',
    Occurs.OPTIONAL: ' minOccurs="0"',
    Occurs.MANY: ' minOccurs="0" maxOccurs="unbounded"',
}


def xsd_of(tag: str, shape: Shape, namespace: str = "") -> bytes:
    """The schema of documents with the root `tag`, in a namespace or in none; equal bytes for equal shapes."""
    names = _type_names(shape)
    prefix = "this:" if namespace else ""
    target = f" xmlns:this={quoteattr(namespace)} targetNamespace={quoteattr(namespace)}" if namespace else ""
    lines = [
        f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"{target} elementFormDefault="qualified">',
        f"  <xs:element name={quoteattr(tag)} type={quoteattr(prefix + names[shape])}/>",
    ]
    for inner, name in names.items():
        lines += [f"  <xs:complexType name={quoteattr(name)}>", *_documentation(inner.description, "    ")]
        lines += ["    <xs:sequence>"]
        lines += [line for part in inner.parts for line in _element(part, names, prefix)]
        lines += ["    </xs:sequence>", "  </xs:complexType>"]
    return "\n".join([*lines, "</xs:schema>", ""]).encode()


def _type_names(root: Shape) -> dict[Shape, str]:
    """A unique name for the root shape and every shape in it; the root comes first."""
    names: dict[Shape, str] = {}
    pending = [root]
    while pending:
        shape = pending.pop(0)
        if shape in names:
            continue
        name = base = re.sub(r"[^A-Za-z0-9_]", "_", shape.model)
        number = 1
        while name in names.values():
            number += 1
            name = f"{base}-{number}"
        names[shape] = name
        pending += [part.body for part in shape.parts if isinstance(part.body, Shape)]
    return names


def _element(part: ElementShape, names: dict[Shape, str], prefix: str) -> list[str]:
    opening = f"      <xs:element name={quoteattr(part.tag)}"
    documentation = _documentation(part.description, "        ")
    choices: list[str] = []
    if isinstance(part.body, Shape):
        opening += f" type={quoteattr(prefix + names[part.body])}"
    elif not part.body.choices:
        opening += f' type="xs:{part.body.kind}"'
    else:
        choices = _choices(part.body)
    opening += _OCCURS[part.occurs]
    if not documentation and not choices:
        return [f"{opening}/>"]
    return [f"{opening}>", *documentation, *choices, "      </xs:element>"]


def _choices(leaf: Leaf) -> list[str]:
    values = [f"            <xs:enumeration value={quoteattr(choice)}/>" for choice in leaf.choices]
    return [
        "        <xs:simpleType>",
        f'          <xs:restriction base="xs:{leaf.kind}">',
        *values,
        "          </xs:restriction>",
        "        </xs:simpleType>",
    ]


def _documentation(text: str | None, indent: str) -> list[str]:
    if not text:
        return []
    inside = escape(NOT_XML.sub("", text))
    return [f"{indent}<xs:annotation><xs:documentation>{inside}</xs:documentation></xs:annotation>"]


_WHITESPACE = " \t\r\n"


def written(opening: str, tag: str, shape: Shape, value: object) -> tuple[bytes, int]:
    """The document of a payload, which begins with `opening`, and the number of its elements.

    Raises `BadPayload` for a string that XML cannot hold: copies and changed lists are not validated.
    """
    pieces = [opening]
    try:
        elements = 1 + _write(shape, value, pieces)
    except ValueError:
        raise BadPayload(PayloadCode.INVALID, f"{shape.model} has a value that XML cannot hold") from None
    pieces.append(f"</{tag}>")
    return "".join(pieces).encode(), elements


def _write(shape: Shape, value: object, pieces: list[str]) -> int:
    count = 0
    for part in shape.parts:
        for item in _values(part, cast("object", getattr(value, part.name))):
            pieces.append(f"<{part.tag}>")
            if isinstance(part.body, Leaf):
                pieces.append(lexical.write(part.body.kind, item))
            else:
                count += _write(part.body, item, pieces)
            pieces.append(f"</{part.tag}>")
            count += 1
    return count


def _values(part: ElementShape, value: object) -> Iterator[object]:
    match part.occurs:
        case Occurs.MANY:
            yield from cast("list[object]", value)
        case Occurs.OPTIONAL if value is None:
            return
        case _:
            yield value


def read(shape: Shape, element: Element, prefix: str = "") -> dict[str, object]:
    """The fields by tag, to be validated by the model; raises `BadPayload` at the first element that does not fit.

    `prefix` is the namespace of all elements, as `{namespace}`.
    """
    children = list(element)
    _no_text(shape, element, children)
    values: dict[str, object] = {}
    at = 0
    for part in shape.parts:
        parts: list[object] = []
        while (
            at < len(children) and children[at].tag == prefix + part.tag and (part.occurs is Occurs.MANY or not parts)
        ):
            parts.append(_body(shape, part, children[at], prefix))
            at += 1
        match part.occurs:
            case Occurs.MANY:
                values[part.tag] = parts
            case _ if parts:
                values[part.tag] = parts[0]
            case Occurs.OPTIONAL:
                values[part.tag] = None
            case Occurs.ONCE:
                raise _misfit(shape, f"{part.tag} is missing")
            case _:
                pass
    if at < len(children):
        raise _misfit(shape, "an element is unknown, repeated or out of order")
    return values


def completed(shape: Shape, value: object) -> object:
    """Add to a parsed JSON object what an absent element means in XML: an empty list, or None."""
    if not isinstance(value, dict):
        return value
    parts = dict(cast("dict[str, object]", value))
    for part in shape.parts:
        key = part.name if part.name in parts else part.tag
        if key in parts:
            if isinstance(part.body, Shape):
                parts[key] = _inside(part.body, parts[key])
        elif part.occurs is Occurs.MANY:
            parts[key] = []
        elif part.occurs is Occurs.OPTIONAL:
            parts[key] = None
    return parts


def _inside(shape: Shape, value: object) -> object:
    if isinstance(value, list):
        return [completed(shape, item) for item in cast("list[object]", value)]
    return completed(shape, value)


def _body(shape: Shape, part: ElementShape, element: Element, prefix: str) -> object:
    if isinstance(part.body, Shape):
        return read(part.body, element, prefix)
    if len(element):
        raise _misfit(shape, f"{part.tag} has elements in it")
    try:
        value = lexical.read(part.body.kind, element.text or "")
    except ValueError:
        raise _misfit(shape, f"{part.tag} is no xs:{part.body.kind}") from None
    if part.body.choices and str(value) not in part.body.choices:
        raise _misfit(shape, f"{part.tag} is none of its choices")
    return value


def _no_text(shape: Shape, element: Element, children: list[Element]) -> None:
    """Raises `BadPayload` for text beside elements. XSD allows white space there, unless a shape has no elements."""
    text = "".join([element.text or "", *(child.tail or "" for child in children)])
    if text and (text.strip(_WHITESPACE) or not shape.parts):
        raise _misfit(shape, "there is text beside elements")


def _misfit(shape: Shape, what: str) -> BadPayload:
    return BadPayload(PayloadCode.SCHEMA, f"{shape.model}: {what}")


RESERVED_TAGS = frozenset({"huh", "systemerror"})
"""Root tags of the pump's own messages, without regard to case, hyphens and underscores."""


def is_reserved(tag: str) -> bool:
    """Whether a root of this name, without its namespace, is the pump's own."""
    return re.sub("[-_.]", "", tag).lower() in RESERVED_TAGS


_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SYSTEM_MODULE = "turnstile.schema.pump.primitives"
_FIXED_METHODS = (
    *("root_tag", "xsd", "to_xml", "from_xml", "from_root", "to_json", "from_json", "from_value", "has_fields"),
    *("text_field", "from_text"),
)
_FIXED_CONFIG = (
    "allow_inf_nan",
    "extra",
    "frozen",
    "revalidate_instances",
    "serialize_by_alias",
    "use_enum_values",
    "validate_by_name",
)


@dataclass(frozen=True, slots=True)
class Form:
    """The data derived from a payload class once."""

    tag: str
    """The root tag as `read_root` returns it: `{namespace}name`, or just the name."""
    name: str
    opening: str
    prefix: str
    shape: Shape
    xsd: bytes
    schema: etree.XMLSchema


class Payload(Strict):
    """Base of all payloads. The root tag is given, or the class name in lower case with hyphens: `SearchRequest` is
    `search-request`.
    """

    model_config = ConfigDict(
        allow_inf_nan=False,
        arbitrary_types_allowed=True,  # so that `shape_of` raises, which says what to use instead
        defer_build=False,  # a class that has no XML form is refused where it is defined
        hide_input_in_errors=True,
        revalidate_instances="subclass-instances",  # a subclass's own fields would be lost in XML
        serialize_by_alias=True,
        validate_by_alias=True,
        validate_by_name=True,
        validate_default=True,
    )

    __names__: ClassVar[tuple[str, str | None]]
    """The root's name, and its namespace if it is one of the pump's own messages."""
    __form__: ClassVar[Form]

    def __init_subclass__(
        cls, *, tag: str | None = None, system_namespace: str | None = None, **kwargs: Unpack[ConfigDict]
    ) -> None:
        """`system_namespace` is for the pump's own messages only; other payloads are in no namespace."""
        super().__init_subclass__(**kwargs)
        name = _WORDS.sub("-", cls.__name__).lower() if tag is None else tag
        if not NAME.match(name) or name.lower().startswith("xml"):
            raise BadPayloadClass(
                f"{cls.__name__}: the root tag is 1 to 128 characters of A-Z a-z 0-9 _ . -, the first a letter or _,"
                ' and does not begin with xml: give it as tag="..."'
            )
        if system_namespace is not None and cls.__module__ != _SYSTEM_MODULE:
            raise BadPayloadClass(f"{cls.__name__}: only the pump's own messages have a namespace: leave it out")
        if system_namespace is None and is_reserved(name):
            raise BadPayloadClass(f'{cls.__name__}: the root tag {name} is the pump\'s own: give another as tag="..."')
        cls.__names__ = name, system_namespace

    @classmethod
    def __pydantic_on_complete__(cls) -> None:
        """Derive the form, once every field's type is known; raises `BadPayloadClass`."""
        if "__names__" not in vars(cls):
            return  # the base itself
        for key in _FIXED_METHODS:
            if any(key in vars(base) for base in cls.__mro__ if base is not Payload):
                raise BadPayloadClass(f"{cls.__name__}: {key} is the same for all payloads: leave it out")
        for key in _FIXED_CONFIG:
            if cls.model_config.get(key) != Payload.model_config.get(key):
                raise BadPayloadClass(f"{cls.__name__}: {key} is the same for all payloads: leave it out")
        shape = shape_of(cls, Payload, _nested(cls))
        if shape.depth > LIMITS.depth:
            raise BadPayloadClass(f"{cls.__name__}: its elements are nested deeper than {LIMITS.depth}")
        name, namespace = cls.__names__
        xsd = xsd_of(name, shape, namespace or "")
        cls.__form__ = Form(
            tag=f"{{{namespace}}}{name}" if namespace else name,
            name=name,
            opening=f"<{name}>" if namespace is None else f'<{name} xmlns="{namespace}">',
            prefix=f"{{{namespace}}}" if namespace else "",
            shape=shape,
            xsd=xsd,
            schema=etree.XMLSchema(etree.fromstring(xsd)),
        )

    @field_validator("*")
    @classmethod
    def _fits_xml(cls, value: object) -> object:
        return fitted(value)

    @classmethod
    def root_tag(cls) -> str:
        """The tag that selects this class, as `read_root` gives it."""
        return form_of(cls).tag

    @classmethod
    def xsd(cls) -> bytes:
        """The class's XML Schema."""
        return form_of(cls).xsd

    def to_xml(self, limits: DocumentLimits = LIMITS) -> bytes:
        """Canonical XML; raises `BadPayload` if it exceeds `limits`, since it could not be read then."""
        form = form_of(type(self))
        document, elements = written(form.opening, form.name, form.shape, self)
        check_size(document, limits)
        if elements > limits.elements:
            raise BadPayload(PayloadCode.TOO_MANY_ELEMENTS, f"more than {limits.elements} elements")
        return document

    @classmethod
    def from_xml(cls, data: bytes, limits: DocumentLimits = LIMITS) -> Self:
        """Parse a document; raises `BadPayload`."""
        return cls.from_root(read_root(data, limits))

    @classmethod
    def from_root(cls, root: Root) -> Self:
        """The payload of a parsed document; raises `BadPayload`."""
        form = form_of(cls)
        if root.tag != form.tag:
            raise BadPayload(PayloadCode.ROOT, f"the root is no {form.tag}")
        values = read(form.shape, root.element, form.prefix)
        if not form.schema.validate(root.element):
            raise BadPayload(PayloadCode.SCHEMA, f"{cls.__name__}: the XSD does not admit it")
        return cls.from_value(values)

    def to_json(self) -> bytes:
        """JSON with the names of elements as keys; dates, times and decimals are strings."""
        return self.model_dump_json().encode()

    @classmethod
    def from_json(cls, data: bytes, limits: DocumentLimits = LIMITS) -> Self:
        """Parse a JSON object; raises `BadPayload`. Of duplicate keys the last one counts."""
        return cls.from_value(read_json(data, limits))

    @classmethod
    def from_value(cls, value: object) -> Self:
        """The payload of a parsed JSON object, such as a tool's arguments; raises `BadPayload`.

        An absent key means what an absent element means in XML: an empty list, None, or the default.
        """
        try:
            return cls.model_validate(completed(form_of(cls).shape, value))
        except ValidationError as error:
            raise _invalid(cls, error) from None

    @classmethod
    def has_fields(cls, value: object) -> bool:
        """Whether all keys of a parsed JSON object are fields of this class."""
        return isinstance(value, dict) and cast("dict[str, object]", value).keys() <= _own_names(cls)

    @classmethod
    def text_field(cls) -> str | None:
        """The field that plain text goes into: the class's only required one, if it is a plain str."""
        needed = [part for part in form_of(cls).shape.parts if cls.model_fields[part.name].is_required()]
        if len(needed) != 1 or needed[0].occurs is not Occurs.ONCE or needed[0].body != Leaf(Kind.STRING):
            return None
        return needed[0].tag

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The payload whose text field is `text`; raises `BadPayload` if the class has none or refuses it."""
        tag = cls.text_field()
        if tag is None:
            raise BadPayload(PayloadCode.INVALID, f"{cls.__name__} is no payload of plain text")
        return cls.from_value({tag: text})


def form_of(cls: type[Payload]) -> Form:
    """The form of a class; raises `BadPayloadClass` if a name in its annotations is not defined yet."""
    if "__form__" not in vars(cls) and cls is not Payload:
        cls.model_rebuild(raise_errors=False)
    if "__form__" not in vars(cls):
        raise BadPayloadClass(f"{cls.__name__} has no form: an annotation names what is not defined")
    return cls.__form__


def _nested(cls: type[Payload]) -> dict[type[BaseModel], Shape]:
    """The shapes of the payload classes in a class's fields. A class that contains itself has none."""
    shapes: dict[type[BaseModel], Shape] = {}
    for info in cls.model_fields.values():
        for model in nested_in(info.annotation):
            if issubclass(model, Payload) and model is not Payload and model is not cls:
                if "__form__" not in vars(model):
                    model.model_rebuild(raise_errors=False)
                if "__form__" in vars(model):
                    shapes[model] = model.__form__.shape
    return shapes


def _invalid(cls: type[Payload], error: ValidationError) -> BadPayload:
    """The error of a value that the model refused: the first field at fault, if it is the model's, and why."""
    faults = faults_in(error, cls, most=error.error_count())
    names = [str(part) for part in faults[0].path[:1] if part in _own_names(cls)]
    sentence = "has a field that does not exist" if faults[0].path and not names else faults[0].sentence
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return BadPayload(PayloadCode.INVALID, f"{'.'.join((cls.__name__, *names))}: {sentence}{more}")


def _own_names(cls: type[Payload]) -> set[str]:
    parts = form_of(cls).shape.parts
    return {part.tag for part in parts} | {part.name for part in parts}
