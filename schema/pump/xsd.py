"""Derives the XML Schema (XSD 1.0) of a payload from its shape: elements, order, occurrence, types, and choices.

Other constraints of a model, such as a length or a pattern, are checked by the model only.
"""

import re
from xml.sax.saxutils import escape, quoteattr

from turnstile.schema.pump.lexical import NOT_XML
from turnstile.schema.pump.shapes import Leaf, Occurs, Part, Shape

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


def _element(part: Part, names: dict[Shape, str], prefix: str) -> list[str]:
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
