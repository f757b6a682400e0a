"""The arguments of the delegating tools (protocol §12): v1r4's, and ours beside them.

A model or a user interface wrote them. `arguments_of` reads what v1r4 reads (a number in text, `"yes"` for a boolean),
and raises `DelegationRefused` (invalid_arguments) for everything else, with v1r4's words.
"""

import json
import math
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar

from pydantic import AwareDatetime, BeforeValidator, Field, ValidationError, field_validator, model_validator

from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.cards import ResultField
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import BoxId, box_id
from turnstile.schema.profiles import OutputSchema
from turnstile.schema.validation import faults_in

Strategy: TypeAlias = Literal["new", "reuse", "clone"]
"""`new` makes an agent of a profile, `reuse` asks an agent that is there, `clone` makes one like it."""
Join: TypeAlias = Literal["all", "any", "first_k", "quorum"]
"""When a batch is decided: when all tasks are over, at the first success, at `k` successes, at more than half."""
Losers: TypeAlias = Literal["stop", "finish"]
"""What becomes of tasks that are open when their batch is decided."""

MAX_DEADLINE_SECONDS = 30 * 86_400.0
_TEXT_LIMIT = 524_288
_LABEL_LIMIT = 256
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off", ""})


def _text(value: Any) -> Any:
    """The text of what a model may write for one: also a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _named(value: Any) -> Any:
    text = _text(value)
    return text.strip() if isinstance(text, str) else text


def _said(value: Any) -> Any:
    text = _text(value)
    if text is None or (isinstance(text, str) and not text.strip()):
        raise ValueError("is required")
    return text


def _choice(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _flag(value: Any) -> Any:
    match value:
        case None:
            return False
        case bool():
            return value
        case int() | float():
            return bool(value)
        case str() if (word := value.strip().lower()) in _TRUE | _FALSE:
            return word in _TRUE
        case _:
            raise ValueError("must be a boolean or boolean-like string")


def _seconds(value: Any) -> Any:
    if value is None:
        return None
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds > 0:
        raise ValueError("must be a positive number")
    return seconds


def _box(value: Any) -> Any:
    text = _named(value)
    if not isinstance(text, str):
        return text
    try:
        return box_id(text, "the box id") if text else None
    except BadRequest as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, BeforeValidator(_named), Field(min_length=1, max_length=128)]
Instruction = Annotated[str, BeforeValidator(_said), Field(min_length=1, max_length=_TEXT_LIMIT)]
Flag = Annotated[bool, BeforeValidator(_flag)]
Box = Annotated[BoxId | None, BeforeValidator(_box)]
Seconds = Annotated[float, Field(gt=0, le=MAX_DEADLINE_SECONDS, allow_inf_nan=False)]
Fields = Annotated[list[ResultField] | None, Field(min_length=1, max_length=256)]
Budget = BudgetLimits | None


class TaskArguments(Strict):
    """One piece of work for another agent."""

    target_strategy: Annotated[Strategy, BeforeValidator(_choice)]
    """Where the agent comes from."""
    target_ref: Name
    """For `new` the name of a profile, else the id of an agent."""
    instruction: Instruction
    """What it shall do."""
    context_box_id: Box = None
    """A box that the caller may see, whose cards the agent reads before the instruction."""
    result_fields: Fields = None
    """Ours: fields that its deliverable must have."""
    output_schema: OutputSchema | None = None
    """Ours: what the value of its deliverable must match (protocol §18); not together with `result_fields`."""
    budget: Budget = None
    """Ours: what its turn and all below it may use, out of what the caller's budget has left."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.output_schema is not None and self.result_fields is not None:
            raise ValueError("either output_schema or result_fields: each says what the answer is")
        return self

    def text_bytes(self) -> int:
        """The bytes of UTF-8 text, which are limited over a whole request (protocol §6)."""
        schema = "" if self.output_schema is None else json.dumps(self.output_schema, ensure_ascii=False)
        texts = (self.instruction, schema, *(field.name + field.description for field in self.result_fields or ()))
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class DelegateArguments(TaskArguments):
    """Arguments of `delegate_async`."""

    wait: Flag = False
    """Ours: whether the call's result is what the agent answers, instead of its ids at once."""


class LaunchArguments(Strict):
    """Arguments of `launch_principal`."""

    profile_name: Name
    """The profile of the new agent."""
    instruction: Instruction
    """What it shall do."""
    budget: Budget = None
    """Ours: as of a task."""

    def task(self) -> TaskArguments:
        """The same as a task."""
        return TaskArguments(
            target_strategy="new",
            target_ref=self.profile_name,
            instruction=self.instruction,
            budget=self.budget,
        )


class ExpertArguments(Strict):
    """Arguments of `ask_expert`."""

    expert_profile: Name
    """The profile of the new agent."""
    question: Instruction
    """What it is asked."""
    include_history: Flag = False
    """Whether it reads what the caller has done so far: the caller's output box."""
    wait: Annotated[bool, BeforeValidator(lambda value: True if value is None else _flag(value))] = True
    """Ours: whether the call's result is the answer; v1r4 never waits."""
    budget: Budget = None
    """Ours: as of a task."""

    def task(self, history: BoxId | None) -> TaskArguments:
        """The same as a task that reads `history`."""
        return TaskArguments(
            target_strategy="new",
            target_ref=self.expert_profile,
            instruction=self.question,
            context_box_id=history if self.include_history else None,
            budget=self.budget,
        )


class ForkTask(TaskArguments):
    """A task of `fork_join`."""

    label: str | None = Field(default=None, max_length=_LABEL_LIMIT)
    """Ours: a name that its result repeats."""


class ForkArguments(Strict):
    """Arguments of `fork_join`."""

    tasks: list[ForkTask] = Field(min_length=1)
    """The tasks, whose results come in this order."""
    fail_fast: Flag = False
    """Whether the first failure decides the batch as `failed`."""
    deadline_seconds: Annotated[Seconds | None, BeforeValidator(_seconds)] = None
    """When the batch is decided with what there is; by default `[delegation].fork_join_default_deadline_seconds`."""
    join: Annotated[Join | None, BeforeValidator(_choice)] = None
    """Ours: when the batch is decided. Left out, v1r4's outcomes hold."""
    k: Annotated[int | None, Field(ge=1)] = None
    """Ours, with `first_k` and `quorum`: how many tasks must succeed."""
    losers: Annotated[Losers, BeforeValidator(_choice)] = "stop"
    """Ours: what becomes of tasks that are open when the batch is decided."""

    @field_validator("k", mode="before")
    @classmethod
    def _whole_number(cls, value: Any) -> Any:
        return "a boolean" if isinstance(value, bool) else value  # which is no number

    @model_validator(mode="after")
    def _k_fits(self) -> Self:
        if self.k is not None and self.join not in {"first_k", "quorum"}:
            raise ValueError("k goes with join first_k or quorum")
        if self.join == "first_k" and self.k is None:
            raise ValueError("join first_k needs k")
        if self.k is not None and self.k > len(self.tasks):
            raise ValueError(f"k must be at most the number of tasks, {len(self.tasks)}")
        return self

    @property
    def needed(self) -> int:
        """How many tasks must succeed for the batch to be decided as `success`."""
        match self.join:
            case "any":
                return 1
            case "first_k" | "quorum":
                return self.k or len(self.tasks) // 2 + 1
            case "all" | None:
                return len(self.tasks)


class WakeArguments(Strict):
    """Arguments of `wake_me`: exactly one of `at` and `in_seconds`."""

    instruction: Instruction
    """What the agent shall do then."""
    at: AwareDatetime | None = None
    """When, with a time zone."""
    in_seconds: Annotated[Seconds | None, BeforeValidator(_seconds)] = None
    """After so many seconds."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.at is None) == (self.in_seconds is None):
            raise ValueError("exactly one of at and in_seconds is needed")
        return self


Arguments = TypeVar("Arguments", bound=Strict)


def arguments_of(tool: str, model: type[Arguments], values: JsonObject) -> Arguments:
    """The arguments of a call of `tool`; raises `DelegationRefused` (invalid_arguments), which quotes none of them."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        [fault] = faults_in(error, model, most=1)
        what = f"invalid args.{fault.place}" if fault.path else "invalid arguments"
        raise DelegationRefused("invalid_arguments", f"{tool}: {what}: {fault.sentence}") from None
