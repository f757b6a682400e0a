"""Fills and checks the arguments of a tool call before it is sent (protocol §7.3, §7.4). Pure.

`options.args.defaults` fill missing arguments, `fixed` and `envs` replace arguments; the card holds only the name of an
env variable. A call that breaks its schema is not sent: the model gets a sentence that says what is wrong.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from turnstile.rules.text import bad_arguments, parse_arguments
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest
from turnstile.schema.parameters import Mismatch, SchemaTooCostly, checks
from turnstile.schema.profiles import render
from turnstile.schema.tools import PMO_TOOLS, ToolOptions, ToolRow, options_of

ENV_KEY = "$env"
"""`{"$env": NAME}` on a card stands for the value of an env variable of the tool service."""


_QUOTES_NAMES = frozenset({"required", "additionalProperties"})
"""Keywords whose faults quote the names of a caller's arguments, and no values."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a turn waits for a call, at least."""

    tool_seconds: float = 120.0
    accept_seconds: float = 120.0
    """For a call that asks other agents: until a bridge has accepted it; then the deadline of the agents counts."""

    def for_tool(self, tool: str, options: ToolOptions) -> float:
        """What a call of the tool has: by its kind, or longer if the tool's options say so."""
        kind = self.accept_seconds if tool in PMO_TOOLS else self.tool_seconds
        return max(kind, options.suspend_timeout_seconds or 0.0, options.timeout_seconds or 0.0)


@dataclass(frozen=True, slots=True)
class ReadyCall:
    """A call that may be sent: its arguments for the card, and how long the turn waits for it at least."""

    arguments: JsonObject
    wait_seconds: float


def ready(
    row: ToolRow,
    arguments_text: str,
    values: dict[str, str],
    patience: Patience,
    *,
    quotes: bool = True,
) -> ReadyCall | str:
    """The call, or a sentence that says what is wrong with it; `quotes`: whether the sentence may quote arguments."""
    arguments = parse_arguments(arguments_text)
    if arguments is None:
        return bad_arguments(row.tool_name, arguments_text)
    try:
        options = options_of(row)
    except BadRequest as error:
        return f"The tool {row.tool_name} cannot be called: {error}"
    filled = _fill(arguments, options, values)
    schema = _schema(row, options)
    sent = {name: value for name, value in filled.items() if name not in options.envs}
    checked = {name: sent[name] for name in sent if name not in options.args.fixed or _names(schema, name)}
    if (problem := schema_violation(row.tool_name, schema, checked, quotes=quotes, added=options.hidden)) is not None:
        return problem
    from_env: JsonObject = {name: {ENV_KEY: variable} for name, variable in options.envs.items()}
    return ReadyCall(filled | from_env, patience.for_tool(row.tool_name, options))


def _fill(arguments: JsonObject, options: ToolOptions, values: dict[str, str]) -> JsonObject:
    """Add defaults for missing arguments (an explicit null is not missing) and replace forced ones."""
    visible = {name: value for name, value in arguments.items() if name not in options.hidden}
    defaults = {name: _rendered(value, values) for name, value in options.args.defaults.items()}
    fixed = {name: _rendered(value, values) for name, value in options.args.fixed.items()}
    return defaults | visible | fixed


def _rendered(value: JsonValue, values: dict[str, str]) -> JsonValue:
    match value:
        case str():
            return render(value, values)
        case list():
            return [_rendered(item, values) for item in value]
        case dict():
            return {name: _rendered(item, values) for name, item in value.items()}
        case _:
            return value


def _schema(row: ToolRow, options: ToolOptions) -> JsonObject:
    """The row's schema without its env arguments, which the tool service fills."""
    schema = dict(row.parameters) or {"type": "object"}
    required = schema.get("required")
    if isinstance(required, list):
        schema["required"] = [name for name in required if name not in options.envs]
    return schema


def _names(schema: JsonObject, name: str) -> bool:
    """Whether the schema has this argument; forced arguments that it does not have are not checked."""
    properties, required = schema.get("properties"), schema.get("required")
    return (isinstance(properties, dict) and name in properties) or (isinstance(required, list) and name in required)


def schema_violation(
    name: str,
    schema: JsonObject,
    arguments: JsonObject,
    *,
    quotes: bool = True,
    added: frozenset[str] = frozenset(),
) -> str | None:
    """A sentence that says how the arguments break the schema; None if they fit. `quotes`: it may quote them.

    It never quotes those that the tool's options `added`: a model reads it, and whoever sees the turn.
    """
    try:
        fault = checks(schema).fault(arguments)
    except SchemaTooCostly:
        return f"The arguments of {name} take too long to check against its parameters: send fewer or shorter ones."
    except ValueError as error:
        return f"The tool {name} cannot be called: the schema of its parameters {error}."
    if fault is None:
        return None
    if fault.path and fault.path[0] in added:
        return f"The tool {name} cannot be called: an argument that its options add does not fit its parameters."
    of_whole = not fault.path and fault.keyword not in _QUOTES_NAMES
    return _worded(name, fault, quotes=quotes and not (of_whole and added & arguments.keys()))


def _worded(name: str, fault: Mismatch, *, quotes: bool) -> str:
    where = "/".join(str(part) for part in (fault.path if quotes else fault.schema_path))
    at = f" at {where}" if where else ""
    return f"The arguments of {name} do not fit its parameters{at}{f': {fault.message}' if quotes else ''}"
