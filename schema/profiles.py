"""Profiles: what an agent is, as written in YAML and pinned by every turn (protocol §7.1)."""

import json
import operator
import re

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from schema.base import JsonObject, Strict
from schema.parameters import object_schema
from schema.tools import FUNCTION_NAME, SUBMIT_RESULT

DEFAULT_WORKER_TARGET = "worker_generic"
DEFAULT_MAX_STEPS = 16

_PROMPT_LIMIT = 524_288
_TARGET = r"^[A-Za-z0-9_-]{1,128}$"


class LlmConfig(Strict):
    """How the model is asked. `timeout_seconds` bounds one attempt; null takes the worker's `[model]` default."""

    model: str = Field(min_length=1, max_length=256)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    stop: list[str] | None = Field(default=None, max_length=16)
    seed: int | None = None
    reasoning_effort: str | None = Field(default=None, max_length=32)
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Further parameters of one provider, passed on as they are."""


class Profile(Strict):
    """A profile as `turnstile profile put` reads it and a `sys.profile` card holds it."""

    name: str = Field(min_length=1, max_length=128)
    worker_target: str = Field(default=DEFAULT_WORKER_TARGET, pattern=_TARGET)
    tags: list[str] = Field(default_factory=list)
    system_prompt_template: str = Field(default="", max_length=_PROMPT_LIMIT)
    allowed_tools: list[str] = Field(default_factory=list)
    must_end_with: list[str] = Field(default_factory=list)
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    llm_config: LlmConfig


STORED = {"stored": True}
"""The context in which a row is validated: what was checked when it was written is not checked again."""


class Choice(Strict):
    """A tool that is built into one turn: calling it ends the turn, its arguments are the deliverable (§7.4).

    Checking its `parameters` takes half a millisecond or more, so a step that reads the row passes `STORED`.
    """

    name: str = Field(pattern=FUNCTION_NAME)
    description: str = Field(min_length=1, max_length=16_384)
    parameters: JsonObject = Field(default_factory=lambda: JsonObject(type="object", properties={}))

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, value: str) -> str:
        if value == SUBMIT_RESULT:
            raise ValueError(f"{SUBMIT_RESULT} is built in: choose another name")
        return value

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: JsonObject, info: ValidationInfo) -> JsonObject:
        return value if info.context == STORED else object_schema(value)


class RuntimeConfig(Strict):
    """What one enqueue may override or add, and nothing else."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    instructions: str | None = Field(default=None, min_length=1, max_length=_PROMPT_LIMIT)
    """Follows the system prompt of the turn, as it is: its braces are not placeholders."""
    choices: list[Choice] = Field(default_factory=list[Choice], max_length=256, exclude_if=operator.not_)
    """Left out of rows and digests where there are none, so that nothing of a turn without them differs."""
    remember: bool = Field(default=False, exclude_if=operator.not_)
    """The instruction goes into the output box too, so that later turns on it know what was asked (§7.3)."""

    @field_validator("choices")
    @classmethod
    def _names_differ(cls, value: list[Choice]) -> list[Choice]:
        if len({choice.name for choice in value}) < len(value):
            raise ValueError("each choice needs a name of its own")
        return value

    def texts(self) -> list[str]:
        """What counts as text of the request (protocol §6)."""
        schemas = (json.dumps(each.parameters, ensure_ascii=False) for each in self.choices)
        return [self.instructions or "", *(each.name + each.description for each in self.choices), *schemas]


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def render(template: str, values: dict[str, str]) -> str:
    """`template` with the placeholders named in `values` filled in (protocol §7.3); other braces stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
