"""Rows of `resource.tools` and their `options` (protocol §4, §7.3).

Anyone may have written a row, so it is kept raw; `options_of` parses its options where they are used.
"""

import re
from enum import StrEnum
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from turnstile.schema.base import JsonObject, Strict, Tolerant
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import CardId, ChannelId, ProjectId, ToolCallId, token
from turnstile.schema.parameters import object_schema
from turnstile.schema.people.approvals import InterruptRule
from turnstile.schema.states import AfterExecution
from turnstile.schema.validation import describe_faults
from turnstile.schema.wire import subjects

SUBMIT_RESULT = "submit_result"
"""The built-in tool that ends a turn; no row may have its name."""
READ_RESULT = "read_result"
"""The built-in tool that reads a long result; no row may have its name."""
READ_FILE = "read_file"
"""The built-in tool that reads a text file in parts; a row of this name takes its place."""
INLINE_RESULT_CHARS = 16_384
"""The longest result that a model sees whole, unless `[worker].inline_result_chars` says otherwise."""
BUILT_IN = frozenset({SUBMIT_RESULT, READ_RESULT})
"""Tools whose calls the kernel answers itself, in the step that made them."""
ASK_HUMAN = "ask_human"
"""The tool that asks a person; the kernel offers it where a project has no row of this name."""


class PmoTool(StrEnum):
    """Tools of v1r4's orchestrator, by which agents ask others; each is served at `cmd.sys.pmo.internal.{tool}`.

    `wake_me` is ours: by it an agent asks itself, later (protocol §20).
    """

    DELEGATE_ASYNC = "delegate_async"
    LAUNCH_PRINCIPAL = "launch_principal"
    ASK_EXPERT = "ask_expert"
    FORK_JOIN = "fork_join"
    PROVISION_AGENT = "provision_agent"
    WAKE_ME = "wake_me"


PMO_TOOLS = frozenset(str(tool) for tool in PmoTool)
"""Their names, which no other tool has."""

FUNCTION_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
"""The function names that every provider accepts."""
TOOL_NAME = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
"""The names of tools: a dot is an underscore for the model."""
_TARGET = re.compile(
    rf"cg\.{subjects.VERSION}\.(?:\{{project_id\}}|[A-Za-z0-9_-]+)\.(?:\{{channel_id\}}|[A-Za-z0-9_-]+)"
    r"\.cmd\.tool(\.[A-Za-z0-9_-]+){2,}\Z"
)


_PMO_TARGET = re.compile(
    rf"cg\.{subjects.VERSION}\.(?:\{{project_id\}}|[A-Za-z0-9_-]+)\.(?:\{{channel_id\}}|[A-Za-z0-9_-]+)"
    r"\.cmd\.sys\.pmo\.internal\.([a-z_]+)\Z"
)


def _object_if_null(value: object) -> object:
    return {} if value is None else value


NullableObject = Annotated[JsonObject, BeforeValidator(_object_if_null)]


class ToolRow(Tolerant):
    """A row of `resource.tools`. `parameters` should be a JSON schema of type object."""

    tool_name: str
    """The tool."""
    description: str | None = None
    """What it does; the model reads this."""
    parameters: NullableObject = Field(default_factory=JsonObject)
    """The JSON schema of its arguments."""
    target_subject: str | None = None
    """The subject of its commands."""
    after_execution: AfterExecution = AfterExecution.SUSPEND
    """What its result does to the turn."""
    options: NullableObject = Field(default_factory=JsonObject)
    """Its options, as they were put."""


class ToolArgOptions(Tolerant):
    """`options.args`: default and fixed arguments."""

    defaults: NullableObject = Field(default_factory=JsonObject)
    """Values of arguments that the model left out."""
    fixed: NullableObject = Field(default_factory=JsonObject)
    """Values that replace the model's; these arguments are hidden from the model."""


class ToolOptions(Tolerant):
    """`options` of a tool. Arguments in `args.fixed` or `envs` are hidden from the model."""

    args: ToolArgOptions = ToolArgOptions()
    """Default and fixed arguments."""
    envs: dict[str, str] = Field(default_factory=dict)
    """Env variables by argument. Only the name of the variable is stored or sent."""
    ui_allowed: bool = False
    """Whether people may call it from a user interface."""
    suspend_timeout_seconds: float | None = Field(default=None, gt=0, le=30 * 86_400)
    """How long a turn waits for this tool, if longer than `[tools].suspend_timeout_seconds`."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=30 * 86_400)
    """How long the tool may take; the turn waits at least as long."""
    repeat: Literal["safe", "unsafe"] = "safe"
    """Whether a call may be sent again when the tool dies in the middle of it. `unsafe`: a person is asked instead."""
    repeat_ask: bool = True
    """With `repeat: unsafe`: false if nobody may be asked; then such a call fails as `outcome_unknown`."""
    interrupt_on: InterruptRule | None = Field(default=None, exclude_if=lambda value: value is None)
    """Which of its calls wait for a person's approval: `true`, or an object that says when and how."""

    @property
    def hidden(self) -> frozenset[str]:
        """Arguments that are hidden from the model."""
        return frozenset((*self.args.fixed, *self.envs))


class DefinedArgs(ToolArgOptions):
    """`options.args` in a tool definition."""

    model_config = Strict.model_config


class DefinedOptions(ToolOptions):
    """`options` in a tool definition. Arguments in `args.fixed` or `envs` are hidden from the model.

    An object under any other name is for the tool service. Other values under unknown names are refused.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    args: ToolArgOptions = DefinedArgs()

    @model_validator(mode="after")
    def _others_are_objects(self) -> Self:
        if slips := sorted(name for name, value in (self.model_extra or {}).items() if not isinstance(value, dict)):
            raise ValueError(f"unknown: {', '.join(slips)}; a tool service's own options are objects")
        return self


class ToolDefinition(Strict):
    """A tool as `turnstile tool put` reads it (protocol §7.3), checked before it becomes a row."""

    tool_name: str = Field(pattern=TOOL_NAME)
    """The name by which the model calls it, with `_` for a dot; a file may call it `name`, as in v1r4."""
    description: str | None = Field(default=None, max_length=16_384)
    """What it does; the model reads this."""
    parameters: Annotated[JsonObject, AfterValidator(object_schema)] = Field(
        default_factory=lambda: JsonObject(type="object", properties={})
    )
    """A JSON Schema of type object: its arguments."""
    target_subject: str = Field(max_length=512)
    """The subject of its commands: `cg.v1r4.{project_id}.{channel_id}.cmd.tool.TARGET.SUFFIX`."""
    after_execution: AfterExecution = AfterExecution.SUSPEND
    """Whether its result ends the turn, unless the report says otherwise."""
    options: DefinedOptions = DefinedOptions()
    """Options of its calls."""

    @model_validator(mode="before")
    @classmethod
    def _of_v1r4(cls, value: object) -> object:
        if not isinstance(value, dict) or "tool_name" in value or "name" not in value:
            return cast("object", value)
        fields = cast("JsonObject", value)
        return {"tool_name" if key == "name" else key: field for key, field in fields.items()}

    @field_validator("tool_name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value in BUILT_IN:
            raise ValueError(f"{value} is built in: choose another name")
        return value

    @field_validator("target_subject")
    @classmethod
    def _tool_subject(cls, value: str) -> str:
        if not _TARGET.match(value) and not _PMO_TARGET.match(value):
            form = subjects.tool_target("NAME", "SUFFIX")
            raise ValueError(f"must be {form}: a cmd.tool subject of 8 tokens or more")
        return value

    @model_validator(mode="after")
    def _orchestrator_subject(self) -> Self:
        match = _PMO_TARGET.match(self.target_subject)
        if (match[1] if match else None) != (self.tool_name if self.tool_name in PMO_TOOLS else None):
            form = f"cmd.sys.pmo.internal.{{{','.join(sorted(PMO_TOOLS))}}}"
            raise ValueError(f"{form} have these names, and nothing else has: choose another name or target_subject")
        return self

    @model_validator(mode="after")
    def _defaults_name_parameters(self) -> Self:
        """Fixed arguments need not be in `parameters`, since the model does not see them."""
        properties = self.parameters.get("properties", {})
        known = set(properties) if isinstance(properties, dict) else set[str]()
        named = set(self.options.args.defaults)
        if unknown := sorted(named - known):
            raise ValueError(f"options.args.defaults name arguments that parameters do not have: {', '.join(unknown)}")
        return self


class ToolCommandPayload(Strict):
    """Payload of `cmd.tool.*`: these three fields, no arguments; the headers identify the call (protocol §5)."""

    tool_call_card_id: CardId
    """The `tool.call` card, which holds the arguments; `describe` reads it."""
    tool_name: str
    """The tool."""
    after_execution: AfterExecution
    """Whether the result ends the turn, unless the report says otherwise."""


class ToolCallHolder(Tolerant):
    """The replica of a tool that runs a call, as it replies to another replica."""

    instance: str
    """The name of the replica."""
    stream_seq: int
    """The sequence in the command stream of the message for which it runs the call."""


class ToolCommand(Tolerant):
    """A command to a tool as a step records it, from which it can be published any number of times."""

    tool_call_id: ToolCallId
    tool_name: str
    tool_call_card_id: CardId
    after_execution: AfterExecution
    subject: str

    def payload(self) -> bytes:
        """The payload of the message on `subject`."""
        payload = ToolCommandPayload(
            tool_call_card_id=self.tool_call_card_id, tool_name=self.tool_name, after_execution=self.after_execution
        )
        return payload.model_dump_json().encode()


def expand_subject(target_subject: str, project: ProjectId, channel: ChannelId) -> str:
    """Fill `{project_id}` and `{channel_id}` into a target subject; raises `BadRequest` if the result is invalid.

    A fixed project in the row must be the caller's: a command never leaves its project.
    """
    subject = target_subject.replace("{project_id}", token(project, "project_id")).replace(
        "{channel_id}", token(channel, "channel_id")
    )
    parsed = subjects.parse(subject)
    match parsed.rest:
        case ("tool", _, _, *_):
            known = True
        case ("sys", "pmo", "internal", name):
            known = name in PMO_TOOLS
        case _:
            known = False
    if parsed.project_id != project or parsed.category != "cmd" or not known:
        raise BadRequest(f"target_subject {target_subject[:120]!r} is no cmd.tool subject of this project")
    return subject


def without_wiring(row: ToolRow) -> ToolRow:
    """The row without the arguments that no model sees (`Detail.WIRING`): fixed ones, and the names of `envs`."""
    wiring = row.options.get("args")
    args = wiring if isinstance(wiring, dict) else {}
    kept: JsonObject = {name: value for name, value in args.items() if name != "fixed"}
    options: JsonObject = {name: value for name, value in row.options.items() if name not in ("args", "envs")}
    return row.model_copy(update={"options": options | ({"args": kept} if kept else {})})


def options_of(row: ToolRow) -> ToolOptions:
    """Parse the row's options; raises `BadRequest`, which names the tool and the faulty option."""
    try:
        return ToolOptions.model_validate(row.options)
    except ValidationError as error:
        faults = describe_faults(error, ToolOptions, most=1)
        raise BadRequest(f"tool {row.tool_name}: options.{faults}") from None
