"""Functions that OpenAI's clients run themselves, in a request for a completion or a response (protocol §19). Pure.

A function is offered to the model as it is written; `strict` is not needed, since the kernel checks every call against
the function's schema before the client gets it.
"""

from collections.abc import Mapping
from typing import Final, cast

from pydantic import JsonValue, ValidationError

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.fields import UnsupportedSchema, unsupported
from turnstile.schema.base import JsonObject
from turnstile.schema.profiles import MOST_CLIENT_TOOLS, ClientTool
from turnstile.schema.validation import faults_in

_FREE: Final = ("none", "auto")


def client_tools_in(tools: JsonValue, choice: JsonValue, *, nested: bool) -> JsonObject:
    """The settings of a turn for the functions of a request; none if it has no functions, or lets none be called.

    `nested`: whether each function is under `function`, as in a chat completion. Raises `BadField`, `Unsupported`, or
    `UnsupportedSchema` with the keyword that cannot be enforced; each names the field.
    """
    if tools is None or tools == []:
        if choice not in (None, *_FREE):
            raise unsupported("tool_choice", choice, _FREE)
        return {}
    if not isinstance(tools, list):
        raise unsupported("tools", tools, hint="send a list of functions")
    if len(tools) > MOST_CLIENT_TOOLS:
        raise BadField(f"tools: at most {MOST_CLIENT_TOOLS} functions", "tools")
    functions = [_function(tool, f"tools.{place}", nested=nested) for place, tool in enumerate(tools)]
    names = [function.name for function in functions]
    if len(set(names)) < len(names):
        raise BadField("tools: each function needs a name of its own", "tools")
    wanted = _wanted(choice, names)
    if choice == "none":
        return {}
    settings: JsonObject = {
        "client_tools": [function.model_dump(mode="json") for function in functions],
        "client_gone": "cancel",
    }
    return settings if wanted is None else {**settings, "tool_choice": wanted}


def check_target(target: AddressedTarget, settings: JsonObject) -> None:
    """Raises `Unsupported` (tools) for an agent: a turn that waits for its client would block the agent's others."""
    if "client_tools" in settings and not target.is_profile:
        hint = "an agent's own turns would wait for the client: name profile:NAME, whose instances run the turns"
        raise unsupported("tools", hint=hint)


def _function(tool: JsonValue, param: str, *, nested: bool) -> ClientTool:
    if not isinstance(tool, dict):
        raise BadField(f"{param}: must be a function", param)
    if tool.get("type") != "function":
        raise unsupported(f"{param}.type", tool.get("type"), ("function",))
    fields, where = tool, param
    if nested:
        where = f"{param}.function"
        if not isinstance(fields := tool.get("function"), dict):
            raise BadField(f"{where}: must be an object", where)
    return read_function(fields, where)


def read_function(fields: Mapping[str, JsonValue], where: str) -> ClientTool:
    """The function of a client that these fields describe; raises `BadField` or `UnsupportedSchema`, which name it."""
    named = {name: fields[name] for name in ("name", "description", "parameters") if fields.get(name) is not None}
    try:
        return ClientTool.model_validate(named)
    except ValidationError as error:
        [fault] = faults_in(error, ClientTool, most=1)
        field = fault.path[0]
        kind = UnsupportedSchema if field == "parameters" else BadField
        raise kind(f"{where}.{field}: {fault.sentence}", f"{where}.{field}") from None


def _wanted(choice: JsonValue, names: list[str]) -> str | None:
    """What the model must call first; raises `BadField`, or `Unsupported` for other kinds of choices."""
    match choice:
        case None | "none" | "auto":
            return None
        case "required":
            return "required"
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            if name not in names:
                raise BadField("tool_choice: it names none of the tools", "tool_choice")
            return name
        case dict():
            kind = cast("Mapping[str, JsonValue]", choice).get("type")
            raise unsupported("tool_choice.type", kind, ("function",))
        case _:
            raise BadField("tool_choice: none, auto, required or a function", "tool_choice")
