"""Profiles: what an agent is, as written in YAML and pinned by every turn (protocol §7.1)."""

import json
import operator
import re

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.parameters import object_schema
from turnstile.schema.tools import FUNCTION_NAME, SUBMIT_RESULT

DEFAULT_WORKER_TARGET = "worker_generic"
DEFAULT_MAX_STEPS = 16

_PROMPT_LIMIT = 524_288
_TARGET = r"^[A-Za-z0-9_-]{1,128}$"


class LlmConfig(Strict):
    """Which model is asked, and how. What is null is left to the provider."""

    model: str = Field(min_length=1, max_length=256)
    """`provider/model`, such as `openai/gpt-4o` or `scripted/echo`."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """How random."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """How random, by probability mass."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Tokens of one answer at most."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    """Bounds one attempt; null takes the worker's `[model]` default."""
    stop: list[str] | None = Field(default=None, max_length=16)
    """Texts that end an answer."""
    seed: int | None = None
    """For providers that can repeat an answer."""
    reasoning_effort: str | None = Field(default=None, max_length=32)
    """As the provider names it, such as `low`."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Further parameters of one provider, passed on as they are."""


class Profile(Strict):
    """A profile as `turnstile profile put` reads it and a `sys.profile` card holds it."""

    name: str = Field(min_length=1, max_length=128)
    """Unique in the project, whatever the case."""
    worker_target: str = Field(default=DEFAULT_WORKER_TARGET, pattern=_TARGET)
    """Which workers run its agents."""
    tags: list[str] = Field(default_factory=list)
    """For people."""
    system_prompt_template: str = Field(default="", max_length=_PROMPT_LIMIT)
    """The system prompt; `{agent_id}`, `{project_id}` and the like are filled in."""
    allowed_tools: list[str] = Field(default_factory=list)
    """Tools of the project that its turns are offered."""
    must_end_with: list[str] = Field(default_factory=list)
    """Tools of which one must end the turn; empty: text may."""
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    """Steps of one turn at most."""
    llm_config: LlmConfig
    """Which model is asked, and how."""


STORED = {"stored": True}
"""The context in which a row is validated: what was checked when it was written is not checked again."""


class Choice(Strict):
    """A tool that is built into one turn: calling it ends the turn, its arguments are the deliverable (§7.4)."""

    name: str = Field(pattern=FUNCTION_NAME)
    """What the model calls it."""
    description: str = Field(min_length=1, max_length=16_384)
    """When to choose it: the model reads this."""
    parameters: JsonObject = Field(default_factory=lambda: JsonObject(type="object", properties={}))
    """A JSON Schema of type object: its arguments."""

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, value: str) -> str:
        if value == SUBMIT_RESULT:
            raise ValueError(f"{SUBMIT_RESULT} is built in: choose another name")
        return value

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: JsonObject, info: ValidationInfo) -> JsonObject:
        # checking takes half a millisecond or more, so a step that reads the row passes STORED
        return value if info.context == STORED else object_schema(value)


class RuntimeConfig(Strict):
    """What one enqueue may override or add, and nothing else."""

    model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model`, instead of the profile's."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Instead of the profile's."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Instead of the profile's."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    """Instead of the profile's."""
    max_steps: int | None = Field(default=None, ge=1, le=1000)
    """Lowers the profile's."""
    instructions: str | None = Field(default=None, min_length=1, max_length=_PROMPT_LIMIT)
    """Follows the system prompt of the turn, as it is: its braces are not placeholders."""
    # left out of rows and digests where there are none, so that nothing of a turn without them differs
    choices: list[Choice] = Field(default_factory=list[Choice], max_length=256, exclude_if=operator.not_)
    """Tools of this turn alone: calling one ends it."""
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
PROMPT_PLACEHOLDERS = frozenset(
    {
        *("project_id", "channel_id", "agent_id", "agent_turn_id", "turn_epoch", "step_id", "parent_step_id"),
        *("trace_id", "context_box_id"),
    }
)
"""What is filled into a system prompt (protocol §7.3); a call's arguments also know `tool_call_id`."""


def placeholders(template: str) -> set[str]:
    """The names in braces in it, known or not."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, values: dict[str, str]) -> str:
    """`template` with the placeholders named in `values` filled in (protocol §7.3); other braces stay as they are."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
