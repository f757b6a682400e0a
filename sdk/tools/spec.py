"""Derives a tool's definition and its argument model from a Python function. Pure.

Type hints become the JSON schema, the docstring the descriptions. The decorator raises `ConfigError`, which names the
function and what to change, if the function cannot be a tool.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core.core_schema import CoreSchema

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, ConfigError
from turnstile.schema.ids import ProjectId, token
from turnstile.schema.states import AfterExecution
from turnstile.schema.tools import ToolDefinition
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire import subjects
from turnstile.sdk.tools.call import ToolCall

ToolFunction = Callable[..., object]
"""A function of keyword arguments, sync or async."""

OnOver = Callable[[ToolCall], Awaitable[None]]
"""Gets a call that waits no more."""

_PARAMETER = re.compile(r"(\s*)(?::param )?(\w+)(?: \([^)]*\))?:\s*(.*)")
_HEADINGS = {"args:", "arguments:", "parameters:"}


@dataclass(frozen=True, slots=True)
class ToolTerms:
    """The decorator's arguments."""

    target: str
    suffix: str
    name: str | None = None
    after_execution: AfterExecution = AfterExecution.SUSPEND
    timeout_seconds: float = 60.0
    concurrency: int = 16
    envs: Mapping[str, str] = field(default_factory=dict[str, str])
    repeat: Literal["safe", "unsafe"] = "safe"
    on_over: OnOver | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function as a tool. `fields` maps a parameter to its field in `arguments`."""

    function: ToolFunction
    terms: ToolTerms
    definition: ToolDefinition
    arguments: type[BaseModel]
    fields: Mapping[str, str]
    call_parameter: str | None
    """The parameter that takes the `ToolCall`."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.definition.tool_name

    def filter(self, project: ProjectId | None) -> str:
        """The subject filter of this tool's commands, of one project or of all."""
        return subjects.tool_commands_filter(project, self.terms.target, self.terms.suffix)

    def consumer(self, project: ProjectId | None) -> str:
        """The name of the durable consumer that its replicas share; a service of one project has one of its own."""
        shared = f"turnstile_tool_{self.terms.target}_{self.terms.suffix}"
        return shared if project is None else f"{shared}@{project}"


class _AnyArguments(RootModel[JsonObject]):
    """Arguments of any tool: the kernel has checked them by the schema of its row."""


def any_spec(function: Callable[[JsonObject, ToolCall], Awaitable[object]], terms: ToolTerms, about: str) -> ToolSpec:
    """A function of `arguments` and `call` that answers all calls of its subject, whichever tools they name.

    Raises `ConfigError` as `read_spec`.
    """
    name = terms.name or terms.target
    try:
        definition = ToolDefinition(
            tool_name=name, description=about, target_subject=subjects.tool_target(terms.target, terms.suffix)
        )
    except ValidationError as error:
        raise ConfigError(f"tool {name}: {describe_faults(error, ToolDefinition)}") from None
    except (BadRequest, ValueError) as error:
        raise ConfigError(f"tool {name}: {error}") from None
    return ToolSpec(function, terms, definition, _AnyArguments, {"arguments": "root"}, "call")


class _Untitled(GenerateJsonSchema):
    """Leaves out titles of fields: they repeat the field's name and cost the model tokens."""

    def field_title_should_be_set(self, schema: CoreSchema | Any) -> bool:  # pydantic's own type is a wide union
        return False


def read_spec(function: ToolFunction, terms: ToolTerms) -> ToolSpec:
    """The function as a tool; raises `ConfigError` if it cannot be one."""
    name = terms.name or getattr(function, "__name__", "")
    try:
        return _read(function, terms, name)
    except ValidationError as error:
        raise ConfigError(f"tool {name}: {describe_faults(error, ToolDefinition)}") from None
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        raise ConfigError(f"tool {name}: a type hint has no JSON schema: {str(error).splitlines()[0]}") from None
    except (BadRequest, NameError, TypeError, ValueError) as error:
        raise ConfigError(f"tool {name}: {error}") from None


def _read(function: ToolFunction, terms: ToolTerms, name: str) -> ToolSpec:
    token(terms.target, "target")
    token(terms.suffix, "suffix")
    if terms.timeout_seconds <= 0 or terms.concurrency < 1:
        raise ValueError("timeout_seconds is more than 0, concurrency at least 1")
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    takers = [p for p in parameters if hints.get(p) is ToolCall]
    visible = {p: parameter for p, parameter in parameters.items() if p not in takers}
    about, descriptions = _docstring(function, visible)
    if not about:
        raise ValueError("description: must have at least 1 character: write a docstring, which the model reads")
    # fields are renamed, so that a parameter may be called `schema`, `json` or `_x`
    fields = {p: f"argument_{position}" for position, p in enumerate(visible)}
    defined: dict[str, Any] = {  # what create_model takes is not typed
        fields[p]: _field(parameter, hints, descriptions.get(p)) for p, parameter in visible.items()
    }
    arguments: type[BaseModel] = create_model(name or "tool", __config__=ConfigDict(extra="forbid"), **defined)
    definition = ToolDefinition.model_validate(
        {
            "tool_name": name,
            "description": about,
            "parameters": _schema(arguments),
            "target_subject": subjects.tool_target(terms.target, terms.suffix),
            "after_execution": terms.after_execution,
            "options": {
                "timeout_seconds": terms.timeout_seconds,
                **({"envs": dict(terms.envs)} if terms.envs else {}),
                **({"repeat": terms.repeat} if terms.repeat == "unsafe" else {}),
            },
        }
    )
    return ToolSpec(function, terms, definition, arguments, fields, takers[0] if takers else None)


def _field(parameter: inspect.Parameter, hints: Mapping[str, object], description: str | None) -> tuple[object, object]:
    if parameter.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
        raise TypeError(f"parameter {parameter.name} cannot be given by name; a tool has no *args or **kwargs")
    if parameter.name not in hints:
        raise TypeError(f"parameter {parameter.name} has no type hint")
    hint = hints[parameter.name]
    if description:
        hint = Annotated[hint, Field(description=description)]  # pyright: ignore[reportInvalidTypeForm]  # made at run time
    default = ... if parameter.default is inspect.Parameter.empty else parameter.default
    return hint, Field(default, alias=parameter.name)


def _schema(arguments: type[BaseModel]) -> JsonObject:
    schema = arguments.model_json_schema(by_alias=True, schema_generator=_Untitled)
    schema.pop("title", None)
    schema.setdefault("properties", {})
    return schema


def _docstring(function: ToolFunction, parameters: Mapping[str, object]) -> tuple[str, dict[str, str]]:
    """The docstring's text on the tool, and on each parameter: `name: …`, continued by lines indented deeper."""
    about: list[str] = []
    descriptions: dict[str, list[str]] = {}
    current: tuple[str, int] | None = None
    for line in (inspect.getdoc(function) or "").splitlines():
        indent = len(line) - len(line.lstrip())
        match = _PARAMETER.fullmatch(line)
        if match is not None and match[2] in parameters:
            current = match[2], indent
            descriptions[match[2]] = [match[3]]
        elif current is not None and line.strip() and indent > current[1]:
            descriptions[current[0]].append(line.strip())
        else:
            current = None
            if line.strip().lower() not in _HEADINGS:
                about.append(line)
    return "\n".join(about).strip(), {name: " ".join(lines).strip() for name, lines in descriptions.items()}
