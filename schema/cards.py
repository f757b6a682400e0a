"""Cards: immutable facts, and their content as a union by `__type__` (protocol §4).

Anyone may have written a card, so its content is kept raw and parsed where it is used: `content_of` raises
`CardUnreadable`, and its caller decides whether that matters.
"""

import operator
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from turnstile.schema.access import Detail
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.lacks import BudgetLack
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ArtifactId, CardId, ChannelId, StepId, ToolCallId
from turnstile.schema.states import AfterExecution, TurnStatus

CONTROL_KEY = "__cg_control"
"""The key of a tool's result by which it says what comes after it."""
DATA_KEY = "__cg_data"
"""The key of a tool's result for what is kept with it and is for no model, such as the data of images."""


def visible_result(result: JsonValue) -> JsonValue:
    """A tool's result as models and callers read it: without what is for the kernel, or only kept."""
    if not isinstance(result, dict):
        return result
    return {name: value for name, value in result.items() if name not in (CONTROL_KEY, DATA_KEY)}


class CardType(StrEnum):
    """`metadata.type` of a card."""

    INSTRUCTION = "task.instruction"
    RESULT_FIELDS = "task.result_fields"
    RUNTIME_CONFIG = "task.runtime_config"
    STEER = "task.steer"
    THOUGHT = "agent.thought"
    TOOL_CALL = "tool.call"
    TOOL_RESULT = "tool.result"
    DELIVERABLE = "task.deliverable"
    PROFILE = "sys.profile"
    TOOLS = "sys.tools"
    RENDERED_PROMPT = "sys.rendered_prompt"
    MUST_END_WITH_REQUIRED = "sys.must_end_with_required"
    PARENT_POINTER = "meta.parent_pointer"
    MEMORY_CUT = "memory.cut"
    MEMORY_SUMMARY = "memory.summary"
    TURN_SUMMARY = "memory.turn_summary"
    MESSAGE = "pump.message"
    """The payload of a message of the pump (protocol §9). Such cards are in no box."""


PROMPT_CARDS = frozenset({CardType.PROFILE, CardType.TOOLS, CardType.RENDERED_PROMPT, CardType.RUNTIME_CONFIG})
"""Cards with an agent's instructions (`Detail.PROMPTS`)."""


class Role(StrEnum):
    """`metadata.role`: the role a card has for the model."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class CardUnreadable(TurnstileError):
    """The content of a card does not fit its type."""

    code: str = "card_unreadable"


def _tagged(schema: JsonObject) -> None:
    """Make the tag required in the JSON Schema; in Python it has a default."""
    required = schema.get("required")
    schema["required"] = ["__type__", *(required if isinstance(required, list) else [])]


class _Content(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        serialize_by_alias=True,
        json_schema_extra=_tagged,
        defer_build=True,
    )


class Reasoning(Tolerant):
    """What a provider wants back of a model's reasoning: texts, signatures, encrypted parts, in the provider's form."""

    provider: str
    """Who gave it, and takes it back: nobody else gets it."""
    message: JsonObject = Field(default_factory=JsonObject)
    """The fields of the assistant message."""
    calls: list[str | None] = Field(default_factory=list[str | None], exclude_if=operator.not_)
    """The signature of each call, where calls are signed."""


class FilePart(Tolerant):
    """A file that a card names, as it was when the card was made (protocol §22)."""

    artifact_id: ArtifactId
    """The file."""
    filename: str = "file"
    """Its name."""
    mime: str = "application/octet-stream"
    """Its media type, as who sent it said."""
    size: int = 0
    """Its bytes."""

    @property
    def line(self) -> str:
        """What a reader of text reads instead of the file."""
        return f"[file: {self.filename} ({self.mime}, {self.size} bytes), artifact_id {self.artifact_id}]"


MOST_PARTS = 32
"""Files that one card may name."""
_PART_LIST: TypeAdapter[tuple[FilePart, ...]] = TypeAdapter(tuple[FilePart, ...])


def _parts_or_none(value: object) -> object:
    """The files of a card; none where another writer has put something else there."""
    try:
        return _PART_LIST.validate_python(value)[:MOST_PARTS]
    except ValidationError:
        return ()


Parts = Annotated[tuple[FilePart, ...], BeforeValidator(_parts_or_none), Field(exclude_if=operator.not_)]
"""The files of a card; a text is complete without them, since it has a line for each."""


def with_lines(text: str, parts: Sequence[FilePart]) -> str:
    """The text with a line for each file."""
    return "\n".join((*((text,) if text else ()), *(part.line for part in parts)))


class TextContent(_Content):
    """Plain text."""

    type_: Literal["TextContent"] = Field(default="TextContent", alias="__type__")
    text: str
    """The text."""
    parts: Parts = ()
    """Its files."""
    reasoning: Reasoning | None = Field(default=None, exclude_if=lambda value: value is None)
    """On a thought: the reasoning that came before it."""


class JsonContent(_Content):
    """Any JSON value, under `data`."""

    type_: Literal["JsonContent"] = Field(default="JsonContent", alias="__type__")
    data: JsonValue
    """The value."""
    parts: Parts = ()
    """Files that belong to it."""


class ToolCallContent(_Content):
    """A call as it was sent to a tool."""

    type_: Literal["ToolCallContent"] = Field(default="ToolCallContent", alias="__type__")
    tool_name: str
    """The tool."""
    arguments: JsonObject
    """Its arguments; of an env variable only the name: `{"$env": NAME}`."""
    status: Literal["called"] = "called"
    """Always `called`: the result is on another card."""
    target_subject: str | None = None
    """The subject of its command."""


class ToolError(Tolerant):
    """Why a tool's result is a failure; `message` is for the model."""

    code: str
    """A stable code."""
    message: str
    """A message for the model that says what to do differently."""


class ToolResultContent(_Content):
    """The result of a call, made by its tool or by the kernel."""

    type_: Literal["ToolResultContent"] = Field(default="ToolResultContent", alias="__type__")
    status: TurnStatus
    """How the call ended."""
    after_execution: AfterExecution | None = None
    """Whether it ends the turn; cards from before release 0014 may lack it."""
    result: JsonValue = None
    """The tool's result."""
    error: ToolError | None = None
    """Why it failed."""
    parts: Parts = ()
    """Its files."""


class ResultField(Tolerant):
    """A field the requester wants in the deliverable."""

    name: str = Field(min_length=1, max_length=128)
    """The field."""
    description: str = ""
    """What it shall contain; the model reads this."""


class FieldsSchemaContent(_Content):
    """The fields that a deliverable must have (protocol §7.4)."""

    type_: Literal["FieldsSchemaContent"] = Field(default="FieldsSchemaContent", alias="__type__")
    fields: list[ResultField]
    """The fields; each must be in the deliverable once."""


class ToolContent(_Content):
    """The tool specs offered to a turn's model, OpenAI-style."""

    type_: Literal["ToolContent"] = Field(default="ToolContent", alias="__type__")
    tools: list[JsonObject]
    """One spec each."""


CardContent = Annotated[
    TextContent | JsonContent | ToolCallContent | ToolResultContent | FieldsSchemaContent | ToolContent,
    Field(discriminator="type_"),
]
_CONTENT: TypeAdapter[CardContent] = TypeAdapter(CardContent, config=ConfigDict(defer_build=True))


class ThoughtCall(Tolerant):
    """A tool call as `agent.thought` cards record it, in `tool_calls`."""

    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool."""
    arguments: str
    """The arguments as the model wrote them: JSON text, unless the model made an error."""
    provider_call_id: str | None = None
    """The provider's id of the call, for audit only (protocol §10)."""


def _object_or_none(value: object) -> object:
    return cast("JsonObject", value) if isinstance(value, dict) else None


def names_or_none(value: object) -> tuple[str, ...] | None:
    """These names; None if they are none: another writer may have put anything there."""
    names = tuple(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else None
    return None if names is None else tuple(name for name in names if isinstance(name, str))


class CardMetadata(BaseModel):
    """Metadata of a card; other writers may add fields."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: str = ""
    """The type of the card, such as `task.deliverable`."""
    role: str = ""
    """The role of the card for the model: system, user, assistant or tool."""
    author_id: str | None = None
    """The writer: an agent's id, a service such as `tool.search`, or `system`."""
    step_id: StepId | None = None
    """The step that made it."""
    agent_turn_id: AgentTurnId | None = None
    """The turn that made it."""
    channel_id: ChannelId | None = None
    """The channel whose `box_make` made it."""
    trace_id: str | None = None
    """The trace that it belongs to."""
    parent_step_id: str | None = None
    """The step on whose behalf it was made."""
    function_name: str | None = None
    """The tool, on cards of results."""
    partial: bool | None = None
    """True for a deliverable that the model did not finish."""
    model: str | None = None
    """On a thought: the model that wrote it, where that is not the profile's own."""
    edited: Annotated[JsonObject | None, BeforeValidator(_object_or_none)] = None
    """On a call that a person edited: its arguments, without those that a model never sees."""
    added: Annotated[tuple[str, ...] | None, BeforeValidator(names_or_none)] = None
    """On a call: the names of the arguments that its tool's options added (`Detail.ADDED`)."""
    artifacts: Annotated[tuple[str, ...] | None, BeforeValidator(names_or_none)] = None
    """The files that its content names: the ledger keeps them while it keeps the card."""


class Card(Tolerant):
    """A card as it is stored. `content` is raw JSON; `content_of` parses it."""

    card_id: CardId
    """Its id, unique in the project."""
    content: JsonValue
    """A `CardContent`; cards of other writers may hold any JSON."""
    tool_calls: list[ThoughtCall] | None = None
    """The calls, on `agent.thought`."""
    tool_call_id: ToolCallId | None = None
    """The call, on `tool.call` and `tool.result`."""
    metadata: CardMetadata
    """The card's metadata."""

    @property
    def type(self) -> str:
        """The card's type: a `CardType`, or any text on a card of another writer."""
        return self.metadata.type


def content_of(card: Card) -> CardContent:
    """Parse the card's content; raises `CardUnreadable`, which names the card and does not quote it."""
    try:
        return _CONTENT.validate_python(card.content)
    except ValidationError:
        raise CardUnreadable(
            f"card {card.card_id} ({card.type or 'no type'}) has content that does not parse"
        ) from None


def readable_content(card: Card) -> CardContent | None:
    """The card's content, or None if it does not parse."""
    try:
        return content_of(card)
    except CardUnreadable:
        return None


def value_of(card: Card) -> JsonValue:
    """A card's content as JSON: a text, what it holds, or the content as it is if it cannot be read."""
    try:
        content = content_of(card)
    except CardUnreadable:
        return card.content
    match content:
        case TextContent(text=text):
            return text
        case JsonContent(data=data):
            return data
        case _:
            return content.model_dump(mode="json")


def own_arguments(arguments: JsonObject, added: Sequence[str] | None) -> JsonObject:
    """A call's arguments without those that its tool's options added; none where its card does not name these."""
    return {} if added is None else {name: value for name, value in arguments.items() if name not in added}


def without_added(card: Card) -> Card:
    """The card of a call without the arguments that its tool's options added; any other card as it is."""
    if card.type != CardType.TOOL_CALL:
        return card
    content = readable_content(card)
    if not isinstance(content, ToolCallContent):
        return card.model_copy(update={"content": {}})
    call = content.model_copy(update={"arguments": own_arguments(content.arguments, card.metadata.added)})
    return card.model_copy(update={"content": call.model_dump(mode="json")})


def without_reasoning(card: Card) -> Card:
    """The card of a thought without its reasoning, which is for its provider alone; any other card as it is."""
    if card.type != CardType.THOUGHT or not isinstance(card.content, dict) or "reasoning" not in card.content:
        return card
    content: JsonObject = {name: value for name, value in card.content.items() if name != "reasoning"}
    return card.model_copy(update={"content": content})


def seen_card(card: Card, sees: Callable[[Detail], bool]) -> Card | None:
    """The card for a reader who sees these details; None if there is nothing for them on it."""
    if card.type in PROMPT_CARDS and not sees(Detail.PROMPTS):
        return None
    card = without_reasoning(card)
    return card if sees(Detail.ADDED) else without_added(card)


def without_lines(content: TextContent) -> str:
    """The text without the lines of its files."""
    return content.text.removesuffix(with_lines("", content.parts)) if content.parts else content.text


def parts_of(card: Card) -> tuple[FilePart, ...]:
    """The files that the card names, which the ledger has looked at; none if it cannot be read."""
    if not card.metadata.artifacts:
        return ()
    content = readable_content(card)
    parts = content.parts if isinstance(content, TextContent | JsonContent | ToolResultContent) else ()
    return tuple(part for part in parts if part.artifact_id in card.metadata.artifacts)


def read_content(content: JsonValue) -> CardContent | None:
    """Parse the content of a card's row; None if it does not parse."""
    try:
        return _CONTENT.validate_python(content)
    except ValidationError:
        return None


def make_card(
    card_id: CardId,
    card_type: CardType,
    role: Role,
    content: CardContent,
    *,
    author: str,
    turn: AgentTurnId | None = None,
    step: StepId | None = None,
    trace: str | None = None,
    tool_call: ToolCallId | None = None,
    tool_calls: list[ThoughtCall] | None = None,
    function_name: str | None = None,
    partial: bool | None = None,
    model: str | None = None,
) -> Card:
    """A new card in the form in which it is stored."""
    metadata = CardMetadata(
        type=card_type,
        role=role,
        author_id=author,
        step_id=step,
        agent_turn_id=turn,
        trace_id=trace,
        function_name=function_name,
        partial=partial,
        model=model,
        artifacts=tuple(dict.fromkeys(part.artifact_id for part in getattr(content, "parts", ()))) or None,
    )
    return Card(
        card_id=card_id,
        content=content.model_dump(mode="json"),
        tool_calls=tool_calls,
        tool_call_id=tool_call,
        metadata=metadata,
    )


class FallbackDeliverable(Tolerant):
    """`JsonContent.data` of a deliverable that the kernel made instead of the model (protocol §4)."""

    reason: str
    """Why the model made no deliverable."""
    last_thought: str | None
    """The last text of the model."""
    tool_results: list[JsonObject]
    """Contents of the turn's `tool.result` cards."""
    terminal_status: TurnStatus
    """How the turn ended."""
    error_code: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """`TOO_LONG` or `TOO_SMALL`, of a turn that took more than its model or its memory: later turns do not read it."""
    budget: BudgetLack | None = Field(default=None, exclude_if=lambda value: value is None)
    """The limit that the turn's next request to a model was over, if it ended for want of budget."""


TOO_LONG = "context_window_exceeded"
"""`error_code` of a request that the model refused as too long."""
TOO_SMALL = "memory_too_small"
"""`error_code` of a turn that alone is over its `max_context_tokens`."""
OF_MEMORY = frozenset({CardType.MEMORY_CUT, CardType.MEMORY_SUMMARY})
"""The cards of a compaction, with which the box that it makes begins (protocol §7.3)."""


class MemoryCut(Tolerant):
    """`JsonContent.data` of a `memory.cut` card: what a compaction has kept of the box before (protocol §7.3)."""

    first_card_id: CardId
    """The first card that is kept, of the box before or of the step that compacted it."""
    summary_card_id: CardId | None = None
    """The `memory.summary` card in the same box that stands for what is not kept."""
    reason: Literal["full", "refused"] = "full"
    """Why: over `max_context_tokens`, or the model refused the request as too long."""
    within_turn: bool = Field(default=False, exclude_if=operator.not_)
    """Whether what is not kept are steps of the turn in hand."""


class SubmittedField(Tolerant):
    """One field of a deliverable made by `submit_result`."""

    name: str
    value: JsonValue


def agent_author(agent: AgentId) -> str:
    """`author_id` of an agent's cards: its id. (Cards from before release 0014 have `agent.` before it.)"""
    return agent


SYSTEM_AUTHOR = "system"
