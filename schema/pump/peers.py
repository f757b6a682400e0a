"""What an agent gets about its peers: a JSON Schema for a tool per peer, and instructions (protocol §9.1). Pure.

A handler reads the XML that its peers take, since it writes XML. A model reads the names of its tools: what it would
write as XML is text, which reaches no peer.

The result does not depend on the order of the peers.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import JsonValue
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, DecimalSchema

from turnstile.schema.base import JsonObject
from turnstile.schema.pump.payloads import Payload, form_of
from turnstile.schema.pump.shapes import ElementShape, Leaf, Occurs

RESPONSE_WARNING = (
    "Before you respond, complete ALL sub-tasks. To respond returns to your caller and ends everything below you: each "
    "peer that you called is terminated, its state and context are lost, and you cannot call it again in the same "
    "context. If you need a result from a peer, wait for it first."
)
"""The warning about responding that every agent gets (protocol §9.1)."""

_SAMPLES = {"string": "text", "dateTime": "date and time, as 2026-01-31T12:00:00Z", "date": "date, as 2026-01-31"}


class _Plain(GenerateJsonSchema):
    """Leaves out titles, and the patterns of decimals, which some providers refuse."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # pydantic's own type is a wide union
        return False

    def decimal_schema(self, schema: DecimalSchema) -> JsonSchemaValue:
        return {"anyOf": [{"type": "number"}, {"type": "string"}]}


def tool_parameters(payload_class: type[Payload]) -> JsonObject:
    """The JSON Schema of a tool whose arguments are the payload: closed objects, descriptions, no references."""
    schema = payload_class.model_json_schema(by_alias=True, schema_generator=_Plain)
    definitions = cast("dict[str, JsonObject]", schema.pop("$defs", {}))
    parameters = cast("JsonObject", _inlined(schema, definitions))
    parameters.setdefault("properties", {})
    return parameters


def _inlined(schema: JsonValue, definitions: Mapping[str, JsonObject]) -> JsonValue:
    """The schema with each reference replaced by its definition. It ends, since no payload contains itself."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    keywords = {key: value for key, value in schema.items() if key not in {"title", "$ref"}}
    if isinstance(reference := schema.get("$ref"), str):
        keywords = {**definitions[reference.rpartition("/")[2]], **keywords}
        keywords.pop("title", None)
    if "const" in keywords:
        keywords["enum"] = [keywords.pop("const")]  # every provider supports `enum`
    inlined: JsonObject = {}
    for key, value in keywords.items():
        if key == "properties" and isinstance(value, dict):
            inlined[key] = {name: _inlined(part, definitions) for name, part in value.items()}
        elif key in {"items", "anyOf"}:
            inlined[key] = _inlined(value, definitions)
        else:
            inlined[key] = value
    return inlined


def usage_instructions(peers: Mapping[str, tuple[str, type[Payload]]]) -> str:
    """Instructions on the peers that an agent may call, with description and payload by name, and the warning."""
    sections = [_section(name, *peers[name]) for name in sorted(peers)]
    if sections:
        sections.insert(0, "You can send a message to each of these peers. Each takes one payload, as XML:")
    return "\n\n".join([*sections, RESPONSE_WARNING])


def tool_instructions(peers: Mapping[str, str], *, send: str, respond: str, think: str) -> str:
    """Instructions for a model on its peers, with the description by name, on its tools, and the warning.

    A peer's tool is its name after `send`; `respond` and `think` are names of tools.
    """
    sections = [f"# {name}\n{' '.join(peers[name].split())}\nCall the tool {send}{name}." for name in sorted(peers)]
    if sections:
        sections.insert(
            0,
            "You can send a message to each of these peers by calling its tool. Its answer is what you are asked next:",
        )
    answering = (
        f"Answer whoever asked you by calling the tool {respond}. To think again before you do anything else, call the "
        f"tool {think}. Call one of these tools at a time, beside no other tool. Only calls are sent: do not write "
        "messages as XML in your text."
    )
    return "\n\n".join([*sections, answering, RESPONSE_WARNING])


def _section(name: str, description: str, payload_class: type[Payload]) -> str:
    form = form_of(payload_class)
    about = [" ".join(text.split()) for text in (description, form.shape.description or "")]
    lines = [f"# {name}", *filter(None, about), f"Its payload is <{form.name}>:", "", f"<{form.name}>"]
    lines += [line for part in form.shape.parts for line in _example(part, "  ")]
    return "\n".join([*lines, f"</{form.name}>"])


def _example(part: ElementShape, indent: str) -> list[str]:
    note = _note(part)
    if isinstance(part.body, Leaf):
        return [f"{indent}<{part.tag}>{_sample(part.body)}</{part.tag}>{note}"]
    inside = [line for p in part.body.parts for line in _example(p, f"{indent}  ")]
    return [f"{indent}<{part.tag}>{note}", *inside, f"{indent}</{part.tag}>"]


def _sample(leaf: Leaf) -> str:
    return " | ".join(leaf.choices) if leaf.choices else _SAMPLES.get(leaf.kind, leaf.kind.value)


def _note(part: ElementShape) -> str:
    """A comment on what the example element does not show."""
    occurs = {Occurs.ONCE: "", Occurs.MANY: "any number", Occurs.OPTIONAL: "optional", Occurs.DEFAULTED: "optional"}
    words = [occurs[part.occurs], " ".join((part.description or "").split())]
    text = "; ".join(word for word in words if word).replace("--", "- -")
    return f" <!-- {text} -->" if text else ""
