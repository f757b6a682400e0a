"""Generates the JSON Schema (2020-12) of every model in the catalog.

Schemas of messages that the kernel reads describe what it accepts, schemas of others what is sent. Docstrings of
models, fields and members of enumerations become descriptions.
"""

import ast
import functools
import inspect
import itertools
import re
import textwrap
from enum import Enum
from typing import Any, cast

from pydantic import AliasChoices, BaseModel, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from turnstile.schema.base import JsonObject
from turnstile.schema.interface.catalog import DOCUMENTS, ENTRIES

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Described(GenerateJsonSchema):
    """Leaves out titles, which repeat a field's name, and adds docstrings as descriptions."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # pydantic's own type is a wide union
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        model: type[BaseModel] = schema["cls"]
        properties = described.get("properties", {})
        texts = {name: text for base in reversed(model.__mro__) for name, text in docstrings(base).items()}
        for name, text in texts.items():
            info = model.model_fields.get(name)
            key = next((n for n in _names(name, info) if n in properties), None)
            if key is not None:
                properties[key].setdefault("description", text)
        return described

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        kind = cast("type[Enum]", schema["cls"])
        self._members[kind.__name__] = [f"`{kind[name].value}`: {text}" for name, text in docstrings(kind).items()]
        return super().enum_schema(schema)

    def generate(self, schema: core_schema.CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        self._members: dict[str, list[str]] = {}
        text = super().generate(schema, mode)
        for name, members in self._members.items():  # here, since pydantic sets an enumeration's description last
            described = text.get("$defs", {}).get(name)
            if described is not None and members:
                described["description"] = "\n\n".join((described["description"], *members))
        return text

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        described = super().tagged_union_schema(schema)
        described.pop("discriminator", None)  # an OpenAPI keyword; in AsyncAPI it has another meaning
        return described


def _names(name: str, info: FieldInfo | None) -> list[str]:
    """The names that a field may have in JSON."""
    if info is None:
        return []
    alias = info.validation_alias
    choices = [c for c in alias.choices if isinstance(c, str)] if isinstance(alias, AliasChoices) else [alias]
    return [n for n in (info.serialization_alias, info.alias, *choices, name) if isinstance(n, str)]


@functools.cache
def docstrings(kind: type) -> dict[str, str]:
    """The docstrings below the fields of a model, or the members of an enumeration, of this package, by name."""
    if not kind.__module__.startswith("turnstile.schema."):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except OSError:  # made at run time
        return {}
    texts: dict[str, str] = {}
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    for above, below in itertools.pairwise(body):
        match above, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
            case _:
                pass
    return texts


def json_schema(form: Any, mode: JsonSchemaMode) -> JsonObject:
    """The schema of a model, or of a union of models."""
    text = TypeAdapter(form).json_schema(by_alias=True, mode=mode, schema_generator=_Described)
    return {"$schema": DIALECT, **_reflowed(text)}


def _reflowed(value: Any) -> Any:
    """Join the lines of descriptions; paragraphs are kept."""
    match value:
        case dict():
            parts = cast("dict[str, Any]", value)
            return {name: _joined(at) if name == "description" else _reflowed(at) for name, at in parts.items()}
        case list():
            return [_reflowed(at) for at in cast("list[Any]", value)]
        case _:
            return value


def _joined(text: Any) -> Any:
    if not isinstance(text, str):  # a field of this name
        return _reflowed(text)
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


def schemas() -> dict[str, JsonObject]:
    """Every schema by its name; raises `ValueError` if two models have the same name."""
    by_name: dict[str, JsonObject] = {}

    def add(name: str, form: Any, mode: JsonSchemaMode) -> None:
        text = json_schema(form, mode)
        if by_name.setdefault(name, text) != text:
            raise ValueError(f"two schemas are named {name}: give one model another name")

    for entry in ENTRIES:
        read: JsonSchemaMode = "validation" if entry.is_read else "serialization"
        modes: list[tuple[type[BaseModel] | None, JsonSchemaMode]] = [
            (entry.payload, read),
            (entry.headers, "validation"),
            (entry.reply, "serialization"),
        ]
        for model, mode in modes:
            if model is not None:
                add(model.__name__, model, mode)
    for document in DOCUMENTS:
        add(document.name, document.form, "validation")
    return dict(sorted(by_name.items()))
