"""Tools as an MCP server lists them, checked before a model reads them, and the digest that pins each (protocol §17.1).

Two definitions have one digest only if a model and the kernel would read them alike: name, description, schemas and
the hints that decide something. What cannot be accepted is left out, with the reason. Pure.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from mcp_types import Tool
from pydantic import JsonValue, ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.parameters import checked_schema, object_schema
from turnstile.schema.people.digests import NotCanonical, canonical
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.validation import describe_faults
from turnstile.schema.visible import hidden_places, visible
from turnstile.schema.wire import subjects
from turnstile.sdk.mcp.mcp_server import SUFFIX, McpServer, row_name, server_target, tool_key

LONGEST_DESCRIPTION = 8192
_LONGEST_NAME = 512


def seen(text: str) -> str:
    """The text without characters that nobody sees."""
    return visible(text, lambda _: "")


class Unacceptable(BadRequest):
    """Why a tool of a server is left out."""

    code: str = "mcp_tool_refused"


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A tool of a server as it is defined now."""

    name: str
    """Its name here: `tool_key` of the server's."""
    called: str
    """Its name at the server."""
    description: str
    parameters: JsonObject
    output_schema: JsonObject | None
    hints: JsonObject
    """`read_only`, `destructive`, `idempotent` and `open_world`, as far as the server says them."""
    digest: str

    @property
    def repeatable(self) -> bool:
        """Whether the server says that a second run does no harm."""
        return self.hints.get("read_only") is True or self.hints.get("idempotent") is True

    def definition(self, server: str, entry: McpServer) -> ToolDefinition:
        """The row by which agents call it."""
        unsafe = entry.repeat == "unsafe" or (entry.repeat == "hints" and not self.repeatable)
        row: JsonObject = {
            "tool_name": row_name(server, self.name),
            "description": self.description,
            "parameters": self.parameters,
            "target_subject": subjects.tool_target(server_target(server), SUFFIX),
            "options": {
                "timeout_seconds": entry.timeout_seconds,
                "mcp": {"server": server, "tool": self.name, "digest": self.digest},
                **({"repeat": "unsafe"} if unsafe else {}),
            },
        }
        return ToolDefinition.model_validate(row)


def read_tool(server: str, entry: McpServer, tool: Tool) -> RemoteTool:
    """The tool, checked; raises `Unacceptable`, which says what is wrong and quotes nothing that is not seen."""
    if len(tool.name) > _LONGEST_NAME or any(hidden_places(tool.name, exact=True)):
        raise Unacceptable(f"its name has a character that nobody sees, or more than {_LONGEST_NAME}")
    if tool.execution is not None and tool.execution.task_support == "required":
        raise Unacceptable("it can only be run as a task (2025-11-25), which is not spoken here")
    description = (tool.description or tool.title or "").strip() or f"The tool {tool.name} of {server}."
    if len(description) > LONGEST_DESCRIPTION:
        raise Unacceptable(f"its description has more than {LONGEST_DESCRIPTION} characters")
    parameters: JsonObject = dict(tool.input_schema)
    parameters.setdefault("properties", {})
    _check("its input schema", parameters)
    if tool.output_schema is not None:
        _check("its output schema", tool.output_schema)
    annotations = tool.annotations
    hints: JsonObject = (
        {}
        if annotations is None
        else {
            name: value
            for name, value in (
                ("read_only", annotations.read_only_hint),
                ("destructive", annotations.destructive_hint),
                ("idempotent", annotations.idempotent_hint),
                ("open_world", annotations.open_world_hint),
            )
            if value is not None
        }
    )
    pinned: JsonObject = {
        "name": tool.name,
        "description": description,
        "input_schema": parameters,
        "output_schema": tool.output_schema,
        "hints": hints,
    }
    unseen = next((text[place] for text in _texts(pinned) for place in hidden_places(text)), None)
    if unseen is not None:
        raise Unacceptable(f"its definition has a character that nobody sees, U+{ord(unseen):04X}")
    try:
        name, digest = tool_key(server, tool.name), hashlib.sha256(_pinned(pinned)).hexdigest()
        schema = object_schema(parameters)
        remote = RemoteTool(name, tool.name, description, schema, tool.output_schema, hints, digest)
        remote.definition(server, entry)
    except ValidationError as error:
        raise Unacceptable(describe_faults(error, ToolDefinition, most=1)[:300]) from None
    except (BadRequest, ValueError) as error:
        raise Unacceptable(str(error)[:300]) from None
    return remote


def _pinned(definition: JsonObject) -> bytes:
    """The form whose digest is the pin: RFC 8785, or another where that has no number as large (bounds of int64)."""
    try:
        return canonical(definition)
    except NotCanonical:
        return b"exact:" + json.dumps(definition, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _texts(value: JsonValue) -> Iterator[str]:
    """All texts in a value, names included."""
    match value:
        case str():
            yield value
        case list():
            yield from chain.from_iterable(map(_texts, value))
        case dict():
            yield from value
            yield from chain.from_iterable(map(_texts, value.values()))
        case _:
            pass


def _check(what: str, schema: JsonObject) -> None:
    try:
        checked_schema(schema)
    except ValueError as error:
        raise Unacceptable(f"{what} {str(error)[:200]}") from None
