"""Profiles: the configuration of an agent, written in YAML and pinned by every turn (protocol §7.1)."""

import json
import operator
import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.ids import CardId
from turnstile.schema.parameters import object_schema, within_bounds
from turnstile.schema.people.approvals import InterruptRule
from turnstile.schema.tools import BUILT_IN, FUNCTION_NAME

DEFAULT_WORKER_TARGET = "worker_generic"
DEFAULT_MAX_STEPS = 16
DEFAULT_KEPT_TURNS = 4

_PROMPT_LIMIT = 524_288
InText = Literal["tagged", "opened", "never"]
"""Where a model's text has its reasoning, if its provider has no field for it."""
_TARGET = r"^[A-Za-z0-9_-]{1,128}$"


class LlmConfig(Strict):
    """The model and its parameters. For a null parameter the provider's default applies."""

    model: str = Field(min_length=1, max_length=256)
    """`provider/model`, such as `openai/gpt-4o` or `scripted/echo`."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """The sampling temperature."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """The probability mass of nucleus sampling."""
    max_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """The most tokens of one answer."""
    timeout_seconds: float | None = Field(default=None, gt=0, le=3600)
    """The timeout of one attempt; null stands for the worker's `[model]` default."""
    stop: list[str] | None = Field(default=None, max_length=16)
    """Texts that end an answer."""
    seed: int | None = None
    """The sampling seed, for providers that have one."""
    reasoning_effort: str | None = Field(default=None, max_length=32)
    """The reasoning effort in the provider's terms, such as `low`."""
    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Further parameters of the provider, passed on unchanged."""
    fallbacks: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list[str], max_length=8, exclude_if=operator.not_
    )
    """Models that are asked in turn where the one before is overloaded, limited, failing or too small."""
    reasoning_in_text: InText = Field(default="tagged", exclude_if=lambda value: value == "tagged")
    """`tagged`: a text that begins with `<think>` is reasoning up to `</think>`; `opened`: the text begins within it,
    since the server's chat template has written `<think>`; `never`: all of the text is the answer."""


class Memory(Strict):
    """What turns of an agent know of earlier ones (protocol §7.3)."""

    keep: Literal["none", "conversation"] = "none"
    """`conversation`: turns that name neither a box nor a conversation go on in one that is kept for their channel."""
    max_context_tokens: int | None = Field(default=None, ge=1, le=100_000_000)
    """The most tokens of a request to the model; null: until the model refuses a request as too long."""
    when_full: Literal["drop", "summarize"] = "drop"
    """What becomes of the earliest turns then: they are left out, or a model sums them up first."""
    keep_last_turns: int = Field(default=DEFAULT_KEPT_TURNS, ge=0, le=1000)
    """The most turns that are kept then as they are; fewer where they would take too much."""
    summary_model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model` that sums up; null: the profile's own."""

    @model_validator(mode="after")
    def _has_use(self) -> Self:
        if self.summary_model is not None and self.when_full != "summarize":
            raise ValueError("summary_model is asked only with when_full: summarize")
        return self


class Profile(Strict):
    """A profile as `turnstile profile put` reads it and a `sys.profile` card holds it."""

    name: str = Field(min_length=1, max_length=128)
    """The profile's name, unique in the project, case-insensitively."""
    worker_target: str = Field(default=DEFAULT_WORKER_TARGET, pattern=_TARGET)
    """The target of the workers that run its agents."""
    tags: list[str] = Field(default_factory=list)
    """Tags for people."""
    system_prompt_template: str = Field(default="", max_length=_PROMPT_LIMIT)
    """The system prompt; `{agent_id}`, `{project_id}` and the like are filled in."""
    allowed_tools: list[str] = Field(default_factory=list)
    """Tools of the project that the model is offered."""
    must_end_with: list[str] = Field(default_factory=list)
    """Tools of which one must end the turn; if empty, text may end it."""
    max_steps: int = Field(default=DEFAULT_MAX_STEPS, ge=1, le=1000)
    """The most steps of one turn."""
    llm_config: LlmConfig
    """The model and its parameters."""
    memory: Memory | None = Field(default=None, exclude_if=operator.not_)
    """What its turns know of earlier ones; by default nothing."""
    instances: bool = Field(default=False, exclude_if=operator.not_)
    """Whether an enqueue may name the profile alone: then an agent is made, for each conversation or each request."""
    models: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list[str], max_length=256, exclude_if=operator.not_
    )
    """Models that a request may name beside the profile's own: names, or beginnings that end in `*`."""
    free: bool = Field(default=False, exclude_if=operator.not_)
    """Whether a request may name it for any agent, and any model with it."""
    delegation_policy: DelegationPolicy | None = Field(default=None, exclude_if=operator.not_)
    """Whom its agents may delegate to; by default nobody."""
    budget: BudgetLimits | None = Field(default=None, exclude_if=lambda value: value is None)
    """What one of its turns, with all below it, may use, if its request says no less; by default no limit."""
    interrupt_on: dict[Annotated[str, Field(pattern=FUNCTION_NAME)], InterruptRule] = Field(
        default_factory=dict[str, InterruptRule], max_length=1024, exclude_if=operator.not_
    )
    """Calls that wait for a person's approval, by tool: `true`, or an object that says when and how."""

    @field_validator("interrupt_on", mode="before")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if info.context != STORED:
            within_bounds([value])
        return value

    @field_validator("interrupt_on")
    @classmethod
    def _goes_out(cls, value: dict[str, InterruptRule]) -> dict[str, InterruptRule]:
        if built_in := BUILT_IN & value.keys():
            raise ValueError(f"{min(built_in)} is built in: its calls go to no tool, and wait for nobody")
        return value


def memory_problem(profile: Profile, tools: Iterable[str]) -> str | None:
    """Why the profile's memory holds no turn, whatever is asked; `tools` are the texts of the tools that it offers.

    A token never spans two words, so that words are the least that a model may count.
    """
    if profile.memory is None or (limit := profile.memory.max_context_tokens) is None:
        return None
    if profile.memory.keep_last_turns > limit:
        return f"{profile.memory.keep_last_turns} turns (keep_last_turns) never fit into {limit} tokens"
    prompt = len(profile.system_prompt_template.split())
    offered = sum(len(text.split()) for text in tools)
    if prompt + offered < limit:
        return None
    return f"of {limit} tokens (max_context_tokens) the prompt alone takes {prompt} or more, tools {offered} or more"


STORED = {"stored": True}
"""The validation context of stored rows: it skips checks that were made when the row was written."""


class Choice(Strict):
    """A tool that is built into one turn: calling it ends the turn, its arguments are the deliverable (§7.4)."""

    name: str = Field(pattern=FUNCTION_NAME)
    """The name by which the model calls it."""
    description: str = Field(min_length=1, max_length=16_384)
    """When to choose it: the model reads this."""
    parameters: JsonObject = Field(default_factory=lambda: JsonObject(type="object", properties={}))
    """A JSON Schema of type object: its arguments."""

    @field_validator("name")
    @classmethod
    def _not_built_in(cls, value: str) -> str:
        if value in BUILT_IN:
            raise ValueError(f"{value} is built in: choose another name")
        return value

    @field_validator("parameters")
    @classmethod
    def _is_schema(cls, value: JsonObject, info: ValidationInfo) -> JsonObject:
        # the check takes half a millisecond or more, so a step that reads the row passes STORED
        return value if info.context == STORED else object_schema(value)


class RuntimeConfig(Strict):
    """The settings that one enqueue may override or add."""

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
    """Text appended unchanged to the system prompt of the turn: its braces are not placeholders."""
    # left out of rows and digests if empty, so that a turn without them has the same digest as before
    choices: list[Choice] = Field(default_factory=list[Choice], max_length=256, exclude_if=operator.not_)
    """Tools of this turn only; a call of one ends the turn."""
    remember: bool = Field(default=False, exclude_if=operator.not_)
    """Whether to put the instruction into the output box, too, so that later turns with that box read it (§7.3)."""

    @field_validator("choices", mode="before")
    @classmethod
    def _bounded(cls, value: object, info: ValidationInfo) -> object:
        if info.context != STORED:
            within_bounds([value])
        return value

    @field_validator("choices")
    @classmethod
    def _names_differ(cls, value: list[Choice]) -> list[Choice]:
        if len({choice.name for choice in value}) < len(value):
            raise ValueError("each choice needs a name of its own")
        return value

    def texts(self) -> list[str]:
        """The texts that count towards the size of the request (protocol §6)."""
        schemas = (json.dumps(choice.parameters, ensure_ascii=False) for choice in self.choices)
        return [self.instructions or "", *(choice.name + choice.description for choice in self.choices), *schemas]

    def split(self) -> tuple[JsonObject, JsonObject]:
        """The settings for the inbox row, and the text for a card (protocol §4.4); either may be empty."""
        whole: JsonObject = self.model_dump(mode="json", exclude_none=True)
        text = {name: whole.pop(name) for name in _TEXT if name in whole}
        return whole, text


_TEXT = ("instructions", "choices")


class StoredConfig(RuntimeConfig):
    """The settings as a turn's inbox row has them: `instructions` and `choices` are on a card (protocol §4.4)."""

    card_id: CardId | None = Field(default=None, exclude_if=lambda value: value is None)
    """The `task.runtime_config` card in the turn's context box; null if the turn has neither."""

    def merged(self, text: JsonValue) -> RuntimeConfig:
        """The settings of the enqueue, with the text of the card; raises `ValidationError` if that is no such text."""
        settings = self.model_dump(mode="json", exclude_unset=True, exclude={"card_id"})
        overrides = text if isinstance(text, dict) and text.keys() <= set(_TEXT) else {"text": text}
        return RuntimeConfig.model_validate({**settings, **overrides}, context=STORED)


_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
PROMPT_PLACEHOLDERS = frozenset(
    {
        *("project_id", "channel_id", "agent_id", "agent_turn_id", "turn_epoch", "step_id", "parent_step_id"),
        *("trace_id", "context_box_id"),
    }
)
"""The placeholders of a system prompt (protocol §7.3); a call's arguments have `tool_call_id`, too."""


def placeholders(template: str) -> set[str]:
    """The names in braces in the template, known or not."""
    return set(_PLACEHOLDER.findall(template))


def render(template: str, values: dict[str, str]) -> str:
    """Replace the placeholders named in `values` (protocol §7.3); other braces are kept."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template)
