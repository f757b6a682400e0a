"""What `/openai/v1/chat/completions` takes. Pure."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Self, cast

from pydantic import Field, JsonValue, model_validator

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.fields import OpenAiRequest, OutputFormat, is_empty, notes_of, output_format, unsupported
from turnstile.gateway.openai.messages import Speaker, SpokenText, text_in
from turnstile.schema.base import JsonObject
from turnstile.schema.wire.box_requests import CARD_LIMIT

_SPEAKERS: Final[Mapping[str, Speaker]] = {
    "system": "instructions",
    "developer": "instructions",
    "user": "user",
    "assistant": "assistant",
}
_UNSUPPORTED_ROLES: Final = frozenset({"tool", "function"})
_KINDS: Final = frozenset({"text"})
_PASSED: Final = frozenset(
    {
        *("role", "content", "id", "name", "cache_control", "annotations", "refusal", "provider_specific_fields"),
        *("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks"),
    }
)
"""Fields of a message of which a turn reads the content alone."""


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
        "presence_penalty": (0, 0.0),
        "service_tier": ("auto", "default"),
        "stop": ([],),
        "store": (False,),
        "tool_choice": ("none", "auto"),
        "tools": ([],),
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
    metadata: dict[str, str] | None = None
    """Notes, which are recorded."""
    user: str | None = Field(default=None, max_length=512)
    """Recorded."""
    safety_identifier: str | None = Field(default=None, max_length=512)
    """Recorded."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        most, later = self.max_tokens, self.max_completion_tokens
        if most is not None and later is not None and most != later:
            raise BadField("max_tokens and max_completion_tokens are the same limit: send only one", "max_tokens")
        if self.stream_options is not None and not self.stream:
            raise BadField("stream_options: allowed only with stream", "stream_options")
        output_format(self.response_format, "response_format")  # refused before anything is looked up
        return self

    @property
    def output_format(self) -> OutputFormat | None:
        """What the answer shall be; raises as `output_format` does."""
        return output_format(self.response_format, "response_format")

    def runtime_config(self, instructions: str | None) -> JsonObject:
        """The settings that the turn overrides or adds."""
        most, later, form = self.max_tokens, self.max_completion_tokens, self.output_format
        settings: JsonObject = {
            "output_schema": None if form is None else form.output_schema,
            "temperature": self.temperature,
            "max_tokens": most if later is None else later,
            "instructions": instructions,
        }
        return {name: value for name, value in settings.items() if value is not None}

    def notes(self) -> JsonObject:
        """The turn's metadata."""
        return notes_of(self.metadata, user=self.user, safety_identifier=self.safety_identifier)


def message_texts(messages: Sequence[JsonValue]) -> list[SpokenText]:
    """What the messages say; raises `BadField`, or `Unsupported` for what no turn can read, such as images."""
    texts = [_text(message, f"messages.{place}") for place, message in enumerate(messages)]
    if not any(t.speaker == "user" and t.text for t in texts):
        raise BadField("messages: a user message with text is required", "messages")
    return texts


def _text(message: JsonValue, param: str) -> SpokenText:
    role = message.get("role") if isinstance(message, dict) else None
    if isinstance(role, str) and role in _UNSUPPORTED_ROLES:
        hint = "agents call their tools themselves, so omit tool results"
        raise unsupported(f"{param}.role", role, hint=hint)
    if not isinstance(role, str) or role not in _SPEAKERS:
        raise BadField(f"{param}.role: one of {', '.join(_SPEAKERS)}", f"{param}.role")
    fields = cast("JsonObject", message)
    for name, value in fields.items():
        # a client sends back what it got, which has fields that mean nothing here
        if name not in _PASSED and not is_empty(value):
            raise unsupported(f"{param}.{name}", value)
    content = fields.get("content")
    if content is None and role == "assistant":
        return SpokenText("assistant", "")
    return SpokenText(_SPEAKERS[role], text_in(content, f"{param}.content", _KINDS))
