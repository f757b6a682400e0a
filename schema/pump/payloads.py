"""Payloads: the messages of the pump, as models that are sent as XML (protocol §9.3).

Guarantees: a payload writes Canonical XML that its XSD admits and that reads back as an equal payload. Input must pass
the XSD and then the model, else it raises `BadPayload`. A value that XML cannot hold is an error of the constructor; a
field type without an XML form is an error of the class. The XSD is compiled once, when the class is defined.

    class Greeting(Payload, tag="greeting"):
        name: str
        times: int = 1
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Self, Unpack, cast

from lxml import etree
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from turnstile.schema.base import Strict
from turnstile.schema.pump.documents import (
    LIMITS,
    BadPayload,
    Limits,
    PayloadCode,
    Root,
    check_size,
    read_json,
    read_root,
)
from turnstile.schema.pump.elements import completed, read, written
from turnstile.schema.pump.lexical import Kind, fitted
from turnstile.schema.pump.shapes import NAME, BadPayloadClass, Leaf, Occurs, Shape, nested_in, shape_of
from turnstile.schema.pump.xsd import xsd_of
from turnstile.schema.validation import faults_in

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

    def to_xml(self, limits: Limits = LIMITS) -> bytes:
        """Canonical XML; raises `BadPayload` if it exceeds `limits`, since it could not be read then."""
        form = form_of(type(self))
        document, elements = written(form.opening, form.name, form.shape, self)
        check_size(document, limits)
        if elements > limits.elements:
            raise BadPayload(PayloadCode.TOO_MANY_ELEMENTS, f"more than {limits.elements} elements")
        return document

    @classmethod
    def from_xml(cls, data: bytes, limits: Limits = LIMITS) -> Self:
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
    def from_json(cls, data: bytes, limits: Limits = LIMITS) -> Self:
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
