"""What `/openai/v1/chat/completions` takes. Pure."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Final, Self, cast

from pydantic import Field, JsonValue, StrictBool, ValidationError, model_validator

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.client_tools import client_tools_in
from turnstile.gateway.openai.fields import (
    Effort,
    Note,
    OpenAiRequest,
    OutputFormat,
    Penalty,
    Stop,
    is_empty,
    notes_of,
    output_format,
    unsupported,
)
from turnstile.gateway.openai.messages import CALL_ID_LIMIT, CallOutput, MadeCalls, Said, Speaker, SpokenText, text_in
from turnstile.schema.base import JsonObject
from turnstile.schema.profiles import REQUEST_PARAMS
from turnstile.schema.wire.box_requests import CARD_LIMIT, PastCall

_SPEAKERS: Final[Mapping[str, Speaker]] = {
    "system": "instructions",
    "developer": "instructions",
    "user": "user",
    "assistant": "assistant",
}
_KINDS: Final = ("text",)
_PASSED: Final = frozenset(
    {
        *("role", "content", "id", "name", "cache_control", "annotations", "refusal", "provider_specific_fields"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks", "tool_calls", "tool_call_id"),
    }
)
"""Fields of a message of which a turn reads the content alone."""


_OBEYED: Final = {"temperature", "top_p", "stop", "seed", "reasoning_effort", *REQUEST_PARAMS}
"""Fields that are settings of a turn, by the same names."""
_RECORDED: Final = {"metadata", "user", "safety_identifier", "prompt_cache_key"}


class StreamOptions(OpenAiRequest):
    """How to stream."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {"include_obfuscation": (False,)}
    within: ClassVar[str] = "stream_options."

    include_usage: bool = False
    """Whether a last chunk has the usage."""


class ChatCreate(OpenAiRequest):
    """A chat completion to make."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {
        "frequency_penalty": (0, 0.0),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "logit_bias": ({},),
        "logprobs": (False,),
        "modalities": (["text"],),
        "n": (1,),
        "parallel_tool_calls": (True,),
        "presence_penalty": (0, 0.0),
        "service_tier": ("auto", "default"),
        "stop": ([],),
        "store": (False, True),
        "top_p": (1, 1.0),
        "verbosity": ("medium",),
    }

    model: str = Field(min_length=1)
    """An agent, or `profile:NAME`."""
    messages: list[JsonValue] = Field(min_length=1, max_length=CARD_LIMIT)
    """What was said; it is all that the turn knows."""
    stream: bool = False
    """Whether to send the text as it is written."""
    stream_options: StreamOptions | None = None
    """How to stream."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Instead of the profile's."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Of one answer of the model, instead of the profile's."""
    max_completion_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """The same by its later name."""
    response_format: JsonValue = None
    """What the answer shall be: any text, a JSON object, or a value of a JSON schema."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Instead of the profile's, as the seven after it."""
    stop: Stop | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    reasoning_effort: Effort | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    parallel_tool_calls: StrictBool | None = None
    verbosity: Effort | None = None
    tools: JsonValue = None
    """Functions that the client runs."""
    tool_choice: JsonValue = None
    """`none`, `auto`, `required` or a function: what the model calls first."""
    metadata: dict[str, str] | None = None
    """Notes, which are recorded, as the three after it."""
    user: Note | None = None
    """The turn's end user, too."""
    safety_identifier: Note | None = None
    """The same by its later name."""
    prompt_cache_key: Note | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        most, later = self.max_tokens, self.max_completion_tokens
        if most is not None and later is not None and most != later:
            raise BadField("max_tokens and max_completion_tokens are the same limit: send only one", "max_tokens")
        if self.stream_options is not None and not self.stream:
            raise BadField("stream_options: allowed only with stream", "stream_options")
        _ = self.output_format, self.own_tools  # refused before anything is looked up
        return self

    @cached_property
    def output_format(self) -> OutputFormat | None:
        """What the answer shall be; raises as `output_format` does."""
        return output_format(self.response_format, "response_format")

    @cached_property
    def own_tools(self) -> JsonObject:
        """The settings of the turn for the client's functions; raises as `client_tools_in` does."""
        return client_tools_in(self.tools, self.tool_choice, nested=True)

    def runtime_config(self, instructions: str | None) -> JsonObject:
        """The settings that the turn overrides or adds."""
        most, later, form = self.max_tokens, self.max_completion_tokens, self.output_format
        settings: JsonObject = {
            **self.model_dump(include=_OBEYED),
            "output_schema": None if form is None else form.output_schema,
            "max_tokens": most if later is None else later,
            "instructions": instructions,
            **self.own_tools,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def notes(self) -> JsonObject:
        """The turn's metadata."""
        return notes_of(**self.model_dump(include=_RECORDED))


def said_in(messages: Sequence[JsonValue]) -> list[Said]:
    """What the messages say; raises `BadField`, or `Unsupported` for what no turn can read, such as images."""
    said = [_said(message, f"messages.{place}") for place, message in enumerate(messages)]
    if not any(isinstance(s, SpokenText) and s.speaker == "user" and s.text for s in said):
        raise BadField("messages: a user message with text is required", "messages")
    return said


def _said(message: JsonValue, param: str) -> Said:
    role = message.get("role") if isinstance(message, dict) else None
    if role == "function":
        raise unsupported(f"{param}.role", role, hint="send results of calls as messages of the role tool")
    if role == "tool":
        return _output(cast("JsonObject", message), param)
    if not isinstance(role, str) or role not in _SPEAKERS:
        raise BadField(f"{param}.role: one of {', '.join(_SPEAKERS)}", f"{param}.role")
    fields = cast("JsonObject", message)
    for name, value in fields.items():
        # a client sends back what it got, which has fields that mean nothing here
        if name not in _PASSED and not is_empty(value):
            raise unsupported(f"{param}.{name}", value)
    content, refusal, calls = fields.get("content"), fields.get("refusal"), fields.get("tool_calls")
    kinds = (*_KINDS, "refusal") if role == "assistant" else _KINDS
    text = refusal if isinstance(refusal, str) else ""
    if content is not None or role != "assistant":
        text = text_in(content, f"{param}.content", kinds)
    if calls is None or calls == []:
        return SpokenText(_SPEAKERS[role], text)
    if role != "assistant" or not isinstance(calls, list):
        raise BadField(f"{param}.tool_calls: must be a list, of an assistant's message", f"{param}.tool_calls")
    return MadeCalls(text, tuple(_call(c, f"{param}.tool_calls.{place}") for place, c in enumerate(calls)))


def _call(call: JsonValue, param: str) -> PastCall:
    match call:
        case {"id": str(named), "function": {"name": str(name), "arguments": str(arguments)}}:
            try:
                return PastCall(tool_call_id=named, tool_name=name, arguments=arguments)
            except ValidationError:
                raise BadField(f"{param}: its id and name have 1 to 128 characters", param) from None
        case _:
            raise BadField(f"{param}: must be a call of a function, with id, name and arguments", param)


def _output(message: JsonObject, param: str) -> CallOutput:
    named = message.get("tool_call_id")
    if not isinstance(named, str) or not 0 < len(named) <= CALL_ID_LIMIT:
        raise BadField(f"{param}.tool_call_id: must be the id of a call", f"{param}.tool_call_id")
    content = message.get("content")
    return CallOutput(named, "" if content is None else text_in(content, f"{param}.content", _KINDS))
