"""A request for a response: what of OpenAI's is read, and what it is to a turn. Pure."""

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.openai.fields import NOTES, OpenAiRequest, notes_of, unsupported
from turnstile.gateway.openai.messages import Said, Speaker, text_in
from turnstile.schema.base import JsonObject, Strict

_CONVERSATION = re.compile(r"[A-Za-z0-9_-]{1,128}")
_SPEAKERS: Mapping[str, Speaker] = {
    "user": "user",
    "assistant": "assistant",
    "system": "instructions",
    "developer": "instructions",
}
_MESSAGE_FIELDS = frozenset({"type", "role", "content", "id", "status", "phase"})


class MutuallyExclusive(BadField):
    """Two fields exclude each other."""

    code: str = "mutually_exclusive_parameters"


class ResponseCreate(OpenAiRequest):
    """A response to make."""

    harmless: ClassVar[Mapping[str, tuple[JsonValue, ...]]] = {
        "include": ([],),
        "parallel_tool_calls": (True,),
        "reasoning": ({},),
        "service_tier": ("auto", "default"),
        "store": (True,),
        "stream_options": ({}, {"include_obfuscation": False}),
        "text": ({}, {"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": "medium"}),
        "tool_choice": ("auto", "none"),
        "tools": ([],),
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
    previous_response_id: str | None = None
    prompt_cache_key: str | None = Field(default=None, max_length=512)
    safety_identifier: str | None = Field(default=None, max_length=512)
    stream: bool = False
    temperature: float | None = Field(default=None, ge=0, le=2)
    user: str | None = Field(default=None, max_length=512)

    @field_validator("background", "stream", mode="before")
    @classmethod
    def _boolean(cls, value: object) -> object:
        if not isinstance(value, bool):
            raise ValueError("true or false is needed")  # noqa: TRY004 -- pydantic takes this one
        return value

    @model_validator(mode="after")
    def _one_past(self) -> "ResponseCreate":
        if self.conversation is not None and self.previous_response_id is not None:
            message = "conversation and previous_response_id exclude each other: give one of them"
            raise MutuallyExclusive(message, "previous_response_id")
        return self

    def conversation_id(self) -> str | None:
        """The conversation that it goes on in; raises `BadField` for what is none."""
        given = self.conversation
        if isinstance(given, dict) and set(given) == {"id"}:
            given = given["id"]
        if given is None:
            return None
        if not isinstance(given, str) or not _CONVERSATION.fullmatch(given):
            raise BadField("conversation: an id of 1 to 128 letters, digits, _ and - is needed", "conversation")
        return given

    def said(self) -> list[Said]:
        """The texts in it, in their order; raises `BadField` and `Unsupported`, which name the item."""
        texts = [] if self.instructions is None else [Said("instructions", self.instructions)]
        if isinstance(self.input, str):
            texts.append(Said("user", self.input))
        elif isinstance(self.input, list):
            texts += [_said_in(item, f"input.{place}") for place, item in enumerate(self.input)]
        elif self.input is not None:
            raise BadField("input: a text, or a list of messages, is needed", "input")
        if not any(each.text for each in texts if each.speaker != "instructions"):
            raise BadField("input: it says nothing", "input")
        return texts

    def runtime_config(self, instructions: str | None) -> JsonObject:
        """What its turn overrides."""
        given: JsonObject = {
            "instructions": instructions,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
        }
        return {name: value for name, value in given.items() if value is not None}

    def notes(self) -> JsonObject:
        """The turn's metadata: what is given back and read by no model; raises `BadField` beyond OpenAI's limits."""
        noted = notes_of(
            self.metadata,
            model=self.model,
            previous_response_id=self.previous_response_id,
            prompt_cache_key=self.prompt_cache_key,
            safety_identifier=self.safety_identifier,
            user=self.user,
        )
        if self.background and isinstance(own := noted[NOTES], dict):
            own["background"] = True
        return noted


class ResponseRetrieve(Strict):
    """How to read a response."""

    stream: Literal["true", "false"] = "false"
    starting_after: str | None = Field(default=None, pattern=r"^\d{1,16}$")
    include_obfuscation: Literal["false"] = "false"


def _said_in(item: JsonValue, param: str) -> Said:
    if not isinstance(item, dict):
        raise BadField(f"{param}: a message is needed", param)
    if item.get("type", "message") != "message":
        raise unsupported(f"{param}.type", known=True)
    for name, value in item.items():
        if name not in _MESSAGE_FIELDS and value is not None:
            raise unsupported(f"{param}.{name}")
    role = item.get("role")
    speaker = _SPEAKERS.get(role) if isinstance(role, str) else None
    if speaker is None:
        raise BadField(f"{param}.role: user, assistant, system or developer is needed", f"{param}.role")
    kinds = ("output_text", "input_text") if speaker == "assistant" else ("input_text",)
    return Said(speaker, text_in(item.get("content"), f"{param}.content", kinds))
