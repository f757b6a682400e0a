"""The shape of a payload: its model's fields as elements, derived once, when the class is defined.

The XSD, the writer, the reader and the usage text are all derived from the shape, so they agree. Defining a class that
can have no shape raises `BadPayloadClass`, which names the field and what to use instead.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum, Flag, StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, PlainSerializer, WrapSerializer
from pydantic.fields import FieldInfo

from turnstile.schema.errors import TurnstileError
from turnstile.schema.pump.lexical import KINDS, NOT_XML, Kind

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}\Z")
"""The valid names of elements: ASCII, no colon."""


class BadPayloadClass(TurnstileError):
    """A payload class has a field without an XML form, or an invalid name."""

    code: str = "bad_payload_class"


@dataclass(frozen=True, slots=True)
class Leaf:
    """An element of text. `choices`, if not empty, are the only texts it may have."""

    kind: Kind
    choices: tuple[str, ...] = ()


class Occurs(StrEnum):
    """How often a field's element occurs, and what its absence means."""

    ONCE = "once"
    DEFAULTED = "defaulted"
    """Absent means the field's default. Always written."""
    OPTIONAL = "optional"
    """Absent means None."""
    MANY = "many"
    """One element per item; absent means an empty list."""


@dataclass(frozen=True, slots=True)
class ElementShape:
    """A field as an element: `name` in Python, `tag` in XML and JSON."""

    name: str
    tag: str
    body: "Leaf | Shape"
    occurs: Occurs
    description: str | None


@dataclass(frozen=True, slots=True)
class Shape:
    """A model as elements: its parts, in the order in which they are written."""

    model: str
    parts: tuple[ElementShape, ...]
    description: str | None
    depth: int = field(init=False)
    """The depth of nested elements, itself included."""

    def __post_init__(self) -> None:
        inside = (part.body.depth if isinstance(part.body, Shape) else 1 for part in self.parts)
        object.__setattr__(self, "depth", 1 + max(inside, default=0))


class _Unfit(Exception):
    """Why an annotation has no shape, and what to use instead."""


_TYPES = "str, int, float, Decimal, bool, date, time, datetime, Literal, Enum, a Payload class, a list of one of these"
_INSTEAD: dict[object, tuple[str, str]] = {
    dict: ("a dict", "a list of payloads with a key and a value"),
    Any: ("any value", f"one of {_TYPES}"),
    object: ("any value", f"one of {_TYPES}"),
    set: ("a set", "a list"),
    frozenset: ("a frozenset", "a list"),
    bytes: ("bytes", "a str, in base64"),
    Flag: ("a Flag", "a list of an Enum"),
    timedelta: ("a timedelta", "a number of seconds"),
    UUID: ("a UUID", "a str"),
    tuple: ("a tuple of places", "a payload with a field for each place, or tuple[X, ...]"),
    list: ("a list of anything", "list[X]"),
}


def shape_of(model: type[BaseModel], base: type[BaseModel], nested: dict[type[BaseModel], Shape]) -> Shape:
    """Derive the shape of a subclass of `base`; raises `BadPayloadClass`. `nested` has the shapes of field classes."""
    _check_class(model)
    parts = tuple(_part(model, name, info, base, nested) for name, info in model.model_fields.items())
    tags = [part.tag for part in parts]
    for part in parts:
        if tags.count(part.tag) > 1:
            raise BadPayloadClass(f"{model.__name__}.{part.name}: two fields are called {part.tag}")
    return Shape(model.__name__, parts, _documentation(model, base))


def nested_in(annotation: object) -> list[type[BaseModel]]:
    """Every model in an annotation."""
    if isinstance(annotation, type) and not get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    inner = [_plain(annotation)] if _plain(annotation) is not annotation else list(get_args(annotation))
    return [model for a in inner for model in nested_in(a)]


def _documentation(model: type[BaseModel], base: type[BaseModel]) -> str | None:
    text = model.__doc__
    return " ".join(text.split()) if text and text != base.__doc__ else None


def _check_class(model: type[BaseModel]) -> None:
    decorators = model.__pydantic_decorators__
    if decorators.field_serializers or decorators.model_serializers:
        raise BadPayloadClass(f"{model.__name__}: a payload is written by its fields: use no serializer of your own")
    if model.model_computed_fields:
        raise BadPayloadClass(f"{model.__name__}: a computed field cannot be read back: use a property")


def _part(
    model: type[BaseModel], name: str, info: FieldInfo, base: type[BaseModel], nested: dict[type[BaseModel], Shape]
) -> ElementShape:
    where = f"{model.__name__}.{name}"
    if name in vars(base):
        raise BadPayloadClass(f"{where}: every payload has a method of this name: use another, and an alias")
    tag = _tag(where, name, info)
    if info.exclude or any(isinstance(m, PlainSerializer | WrapSerializer) for m in info.metadata):
        raise BadPayloadClass(f"{where}: a payload is written whole, by its fields: use no serializer and no exclude")
    try:
        body, occurs = _body(info.annotation, base, nested)
    except _Unfit as error:
        what, instead = error.args
        raise BadPayloadClass(f"{where}: {what} has no XML form: use {instead}") from None
    if occurs is Occurs.ONCE and not info.is_required():
        occurs = Occurs.DEFAULTED
    if occurs is Occurs.OPTIONAL and not info.is_required() and (info.default is not None or info.default_factory):
        raise BadPayloadClass(f"{where}: an absent element means None: use None as the default, or no | None")
    if occurs is Occurs.MANY and not info.is_required() and not _empty(info):
        raise BadPayloadClass(f"{where}: absent elements mean an empty list: use an empty default")
    return ElementShape(name, tag, body, occurs, info.description)


def _empty(info: FieldInfo) -> bool:
    factory = info.default_factory
    return (get_origin(factory) or factory) in {list, tuple} if factory else info.default in ([], ())


def _tag(where: str, name: str, info: FieldInfo) -> str:
    tag = info.serialization_alias or name
    if (info.validation_alias or name) != tag:
        raise BadPayloadClass(f"{where}: it is written and read under different names: use one alias")
    if not NAME.match(tag):
        raise BadPayloadClass(
            f"{where}: an element is called by 1 to 128 characters of A-Z a-z 0-9 _ . -, the first a letter or _:"
            " use an alias"
        )
    return tag


def _body(
    annotation: object, base: type[BaseModel], nested: dict[type[BaseModel], Shape]
) -> tuple[Leaf | Shape, Occurs]:
    annotation = _plain(annotation)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Union or origin is UnionType:
        return _optional(args, base, nested)
    if origin is list or (origin is tuple and len(args) == 2 and args[1] is ...):
        body, occurs = _body(args[0], base, nested)
        if occurs is not Occurs.ONCE:
            raise _Unfit("a list of lists or of optional values", "a list of payloads with a field for it")
        return body, Occurs.MANY
    if origin is Literal:
        return Leaf(*_choices(args)), Occurs.ONCE
    return _single(annotation if origin is None else origin, base, nested), Occurs.ONCE


def _optional(
    args: tuple[object, ...], base: type[BaseModel], nested: dict[type[BaseModel], Shape]
) -> tuple[Leaf | Shape, Occurs]:
    inner = [arg for arg in args if arg is not NoneType]
    if len(inner) > 1:
        raise _Unfit("a union", "one type, or an optional field for each")
    body, occurs = _body(inner[0], base, nested)
    if occurs is not Occurs.ONCE:
        raise _Unfit("an optional list", "a list, which may be empty")
    return body, Occurs.OPTIONAL


def _single(annotation: object, base: type[BaseModel], nested: dict[type[BaseModel], Shape]) -> Leaf | Shape:
    if annotation in KINDS:
        return Leaf(KINDS[annotation])
    if annotation in _INSTEAD:
        raise _Unfit(*_INSTEAD[annotation])
    if isinstance(annotation, type) and issubclass(annotation, Flag):
        raise _Unfit(*_INSTEAD[Flag])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Leaf(*_choices(tuple(cast("Any", member).value for member in annotation)))
    if isinstance(annotation, type) and issubclass(annotation, base) and annotation is not base:
        if annotation not in nested:
            raise _Unfit("a payload that holds itself", "a flat list whose items name each other")
        return nested[annotation]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        raise _Unfit("a model that is no payload", f"a subclass of {base.__name__}")
    raise _Unfit(str(getattr(cast("object", annotation), "__name__", "this type")), _TYPES)


def _choices(values: tuple[object, ...]) -> tuple[Kind, tuple[str, ...]]:
    kinds = {type(value) for value in values}
    if kinds == {str} and not any(NOT_XML.search(cast("str", value)) for value in values):
        return Kind.STRING, tuple(cast("tuple[str, ...]", values))
    if kinds == {int} and all(-(2**63) <= cast("int", value) < 2**63 for value in values):  # pydantic reads no larger
        return Kind.INTEGER, tuple(map(str, values))
    raise _Unfit("a choice of these values", "one among strings, or one among integers of 64 bits")


def _plain(annotation: object) -> object:
    """The annotation without `Annotated`, `NewType` and type aliases around it."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    named = getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)
    return annotation if named is None or isinstance(annotation, type) else _plain(named)
