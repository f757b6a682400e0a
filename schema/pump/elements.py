"""Writes a payload's values as elements, and reads them, by its shape.

The output is Canonical XML: no declaration, no comment, no white space between elements, and equal bytes for equal
values. The input may have white space between elements. Reading stops at the first element that does not fit; the
validator of libxml2 would continue, and takes seconds for 20,000 such elements.
"""

from collections.abc import Iterator
from typing import cast

from turnstile.schema.pump import lexical
from turnstile.schema.pump.documents import BadPayload, Element, PayloadCode
from turnstile.schema.pump.shapes import Leaf, Occurs, Part, Shape

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


def _values(part: Part, value: object) -> Iterator[object]:
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


def _body(shape: Shape, part: Part, element: Element, prefix: str) -> object:
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
