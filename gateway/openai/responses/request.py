"""A request for a response: what of OpenAI's is read, and what it is to a turn. Pure."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, JsonValue, StrictBool, ValidationError, field_validator, model_validator

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.client_tools import client_tools_in
from turnstile.gateway.openai.fields import (
    NOTES,
    Effort,
    Note,
    OpenAiRequest,
    OutputFormat,
    is_empty,
    notes_of,
    output_format,
    unsupported,
)
from turnstile.gateway.openai.messages import CALL_ID_LIMIT, CallOutput, MadeCalls, Said, Speaker, SpokenText, text_in
from turnstile.gateway.openai.responses.objects import Item, ItemList, UserMessage
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import conversation_named
from turnstile.schema.wire.box_requests import PastCall

_SPEAKERS: Mapping[str, Speaker] = {
    "user": "user",
    "assistant": "assistant",
    "system": "instructions",
    "developer": "instructions",
}
_MESSAGE_FIELDS = frozenset({"type", "role", "content", "id", "status", "phase", "name", "cache_control"})
_SHOWN_ONLY = frozenset({"reasoning", "mcp_list_tools"})
"""Items for clients, which mean nothing to an agent."""


class ItemRef(NamedTuple):
    """An item of an earlier response, by its id."""

    item: str
    param: str
    text: str | None = None
    """What it says, if it was sent whole: it counts where the item is not there, or says something else."""
    is_needed: bool = True
    """Whether the request is refused where the item is not there."""


Entry: TypeAlias = Said | ItemRef
"""What is in a request."""


class MutuallyExclusive(BadField):
    """Two fields exclude each other."""

    code: str = "mutually_exclusive_parameters"


class TextRequest(OpenAiRequest):
    """What the text of a response shall be."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {"verbosity": ("medium",)}
    within: ClassVar[str] = "text."

    format: JsonValue = None
    verbosity: Effort | None = None


class ReasoningRequest(OpenAiRequest):
    """How much a model thinks."""

    within: ClassVar[str] = "reasoning."

    effort: Effort | None = None


class ResponseCreate(OpenAiRequest):
    """A response to make."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {
        "include": ([], ["reasoning.encrypted_content"]),
        "parallel_tool_calls": (True,),
        "service_tier": ("auto", "default"),
        "stream_options": ({}, {"include_obfuscation": False}),
        "top_logprobs": (0,),
        "top_p": (1, 1.0),
        "truncation": ("disabled",),
    }

    model: str
    input: JsonValue = None
    instructions: str | None = None
    background: bool = False
    conversation: JsonValue = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    metadata: dict[str, str] | None = None
    parallel_tool_calls: StrictBool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: Note | None = None
    reasoning: ReasoningRequest | None = None
    safety_identifier: Note | None = None
    store: bool = True
    """Given back; the turn is kept as any other."""
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    text: TextRequest | None = None
    tool_choice: JsonValue = None
    tools: JsonValue = None
    """Functions that the client runs."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    user: Note | None = None

    @field_validator("background", "store", "stream", mode="before")
    @classmethod
    def _boolean(cls, value: object) -> object:
        if not isinstance(value, bool):
            raise ValueError("must be true or false")  # noqa: TRY004 -- pydantic takes this one
        return value

    @model_validator(mode="after")
    def _one_past(self) -> "ResponseCreate":
        if self.conversation is not None and self.previous_response_id is not None:
            message = "conversation and previous_response_id exclude each other: send only one"
            raise MutuallyExclusive(message, "previous_response_id")
        _ = self.output_format, self.own_tools  # refused before anything is looked up
        return self

    def conversation_id(self) -> str | None:
        """The conversation that it goes on in; raises `BadField` for what is none."""
        conversation = self.conversation
        if isinstance(conversation, dict) and set(conversation) == {"id"}:
            conversation = conversation["id"]
        if conversation is None:
            return None
        if not isinstance(conversation, str):
            raise BadField("conversation: must be an id, as a string or an object", "conversation")
        try:
            return conversation_named(conversation, "conversation")
        except BadRequest as error:
            raise BadField(str(error), "conversation") from None

    @cached_property
    def own_tools(self) -> JsonObject:
        """The settings of the turn for the client's functions; raises as `client_tools_in` does."""
        return client_tools_in(self.tools, self.tool_choice, nested=False)

    def entries(self) -> list[Entry]:
        """What is in it, in its order; raises `BadField` and `Unsupported`, which name the item."""
        texts: list[Entry] = [] if self.instructions is None else [SpokenText("instructions", self.instructions)]
        if isinstance(self.input, str):
            texts.append(SpokenText("user", self.input))
        elif isinstance(self.input, list):
            texts += item_texts(self.input, "input")
        elif self.input is not None:
            raise BadField("input: must be a string or a list of messages", "input")
        if not any(
            not isinstance(text, SpokenText) or (text.text and text.speaker != "instructions") for text in texts
        ):
            raise BadField("input: the message is empty", "input")
        return texts

    @cached_property
    def output_format(self) -> OutputFormat | None:
        """What the answer shall be; raises as `output_format` does."""
        return None if self.text is None else output_format(self.text.format, "text.format")

    def runtime_config(self, instructions: str | None) -> JsonObject:
        """What its turn overrides."""
        form = self.output_format
        fields: JsonObject = {
            "output_schema": None if form is None else form.output_schema,
            "instructions": instructions,
            **self.own_tools,
            "max_tokens": self.max_output_tokens,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "verbosity": None if self.text is None else self.text.verbosity,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def notes(self) -> JsonObject:
        """The turn's metadata, repeated in responses, read by no model; raises `BadField` beyond OpenAI's limits."""
        noted = notes_of(
            self.metadata,
            model=self.model,
            previous_response_id=self.previous_response_id,
            prompt_cache_key=self.prompt_cache_key,
            safety_identifier=self.safety_identifier,
            user=self.user,
            text_format=None if self.output_format is None else self.output_format.noted,
        )
        if isinstance(notes := noted[NOTES], dict):
            notes |= {**({"background": True} if self.background else {}), **({} if self.store else {"store": False})}
        return noted


class ItemsQuery(Strict):
    """A page of items."""

    after: str | None = Field(default=None, max_length=512)
    """The id of the item before the first one."""
    limit: int = Field(default=20, ge=1, le=100)
    order: Literal["asc", "desc"] = "desc"
    include: str | None = None
    """Nothing more can be included."""

    def page(self, items: Sequence[UserMessage | Item]) -> ItemList:
        """The page of these, which are in the order of what was said; raises `BadField` (after)."""
        ordered = list(items) if self.order == "asc" else list(items)[::-1]
        names = [item.id for item in ordered]
        if self.after is not None:
            if self.after not in names:
                raise BadField("after: no item has this id", "after")
            ordered = ordered[names.index(self.after) + 1 :]
        data = ordered[: self.limit]
        ends = (data[0].id, data[-1].id) if data else ("", "")
        return ItemList(data=data, first_id=ends[0], last_id=ends[1], has_more=len(ordered) > len(data))


class ResponseRetrieve(Strict):
    """How to read a response."""

    stream: Literal["true", "false"] = "false"
    starting_after: str | None = Field(default=None, pattern=r"^\d{1,16}$")
    include_obfuscation: Literal["false"] = "false"


def item_texts(items: Sequence[JsonValue], param: str) -> list[Entry]:
    """What input items say; raises `BadField` and `Unsupported`, which name the item."""
    entries = [_text_or_ref(item, f"{param}.{place}") for place, item in enumerate(items)]
    return [entry for entry in entries if entry is not None]


def _text_or_ref(item: JsonValue, param: str) -> Entry | None:
    if not isinstance(item, dict):
        raise BadField(f"{param}: must be a message", param)
    named = item.get("id")
    match item.get("type"):
        case "message" | None if "role" in item or not isinstance(named, str):
            return _message_in(item, param)
        case "item_reference" | None if isinstance(named, str):
            return ItemRef(named, f"{param}.id")
        case "item_reference":
            raise BadField(f"{param}.id: must be the id of an item", f"{param}.id")
        case "function_call":
            return _function_call(item, param)
        case "function_call_output":
            return _output(item, param)
        case "mcp_call":
            return ItemRef(named, f"{param}.id", is_needed=False) if isinstance(named, str) else None
        case str() as kind if kind in _SHOWN_ONLY:
            return None
        case kind:
            hint = "send messages, items of earlier responses or item_reference; agents run their tools themselves"
            raise unsupported(f"{param}.type", kind, hint=hint)


def _function_call(item: JsonObject, param: str) -> MadeCalls:
    match item:
        case {"call_id": str(named), "name": str(name), "arguments": str(arguments)}:
            try:
                call = PastCall(tool_call_id=named, tool_name=name, arguments=arguments)
            except ValidationError:
                raise BadField(f"{param}: its call_id and name have 1 to 128 characters", param) from None
            return MadeCalls("", (call,))
        case _:
            raise BadField(f"{param}: must have call_id, name and arguments", param)


def _output(item: JsonObject, param: str) -> CallOutput:
    named, output = item.get("call_id"), item.get("output")
    if not isinstance(named, str) or not 0 < len(named) <= CALL_ID_LIMIT:
        raise BadField(f"{param}.call_id: must be the id of a call", f"{param}.call_id")
    return CallOutput(named, text_in(output, f"{param}.output", ("input_text", "output_text")))


def _message_in(item: JsonObject, param: str) -> SpokenText | ItemRef:
    for name, value in item.items():
        if name not in _MESSAGE_FIELDS and not is_empty(value):
            raise unsupported(f"{param}.{name}", value)
    role, named = item.get("role"), item.get("id")
    speaker = _SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is None:
        raise BadField(f"{param}.role: must be user, assistant, system or developer", f"{param}.role")
    kinds = ("output_text", "input_text", "refusal") if speaker == "assistant" else ("input_text",)
    text = text_in(item.get("content"), f"{param}.content", kinds)
    if speaker == "assistant" and isinstance(named, str):
        return ItemRef(named, f"{param}.id", text, is_needed=False)
    return SpokenText(speaker, text)
