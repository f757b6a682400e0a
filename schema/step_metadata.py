"""`agent_steps.metadata` (protocol §4): what a step's row remembers of it, discriminated on `next`.

Written once, with the step's commit; read where a commit is repeated or a step recalled. Rows of other versions parse:
fields may be added with defaults, none may be renamed. A row that does not parse reads as a step that another follows
and of which nothing is known.
"""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.budgets.uses import StepBudget
from turnstile.schema.ids import BoxId, CardId, ToolCallId
from turnstile.schema.states import Activity
from turnstile.schema.tools import ToolCommand

ATTEMPT_CANCELED: Final = "canceled"
"""`error_code` of an attempt at a model that was cut short, mostly since its turn was stopped: it did not fail."""


class StepTiming(Tolerant):
    """How long a step and its turn took until the commit, in ms."""

    queue_delay_ms: int | None = None
    """Of the turn, before it began."""
    step_ms: int | None = None
    first_token_ms: int | None = None
    """Of the last attempt; null if the model said nothing."""
    e2e_ms: int | None = None
    """Since the turn was enqueued."""
    suspended_ms: int | None = Field(default=None, exclude_if=lambda value: value is None)
    """How long the turn slept before this step."""


class Compaction(Tolerant):
    """What a step did that compacted the memory of its turn instead of asking for an answer (protocol §7.3)."""

    reason: Literal["full", "refused"]
    """Over `max_context_tokens`, or the model refused the request as too long."""
    when_full: Literal["drop", "summarize"]
    """What became of the turns that are read no more; `drop` also where a summary failed."""
    error_code: str | None = None
    """Why there is no new summary."""
    tokens_before: int
    """Of the request that was not made, or was refused."""
    tokens_after: int
    """Of the request that the next step will make."""
    counted: Literal["exact", "estimated"]
    """Whether the tokens were counted as the model counts them."""
    steps_cut: int = Field(default=0, exclude_if=lambda value: value == 0)
    """Steps of the turn itself that are read no more."""
    turns_cut: int
    turns_kept: int
    output_box_id: BoxId | None = None
    """The box that the step made: the cards that are kept, in which the turn and its conversation go on."""


class StepFigures(Tolerant):
    """What is remembered of every step, whatever follows it. Figures, ids and codes only, never content."""

    new_card_ids: tuple[CardId, ...] = ()
    """The cards that the step made."""
    output_position: int | None = None
    """The last position of the output box, which the row names, that the step read."""
    timing: StepTiming | None = None
    finish_reason: str | None = None
    """Why the model stopped."""
    truncated: str | None = None
    """Why the answer is cut off."""
    error_code: str | None = None
    """Why the step failed or was canceled."""
    llm_usage: JsonObject | None = None
    """Tokens of all attempts."""
    llm_response_cost: int | float | None = None
    """In US dollars, of all attempts."""
    attempts: tuple[JsonObject, ...] | None = None
    """The attempts at the model, one by one; none where no model is asked."""
    turn_config: JsonObject | None = None
    """What the first step pins (`TurnConfig`)."""
    compaction: Compaction | None = None
    """How the memory was compacted, if that is what the step did."""
    budget: StepBudget | None = None
    """What the attempts used, of a turn that has a budget."""

    @model_serializer(mode="wrap")
    def _without_nulls(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A key for what there is; only the cost of attempts is null where it is unknown."""
        row: dict[str, Any] = dump(self)
        priced = self.attempts is not None
        return {name: value for name, value in row.items() if value is not None or (priced and name == _COST)}

    @property
    def box_after(self) -> BoxId | None:
        """The box in which the turn goes on, if the step has made one."""
        return None if self.compaction is None else self.compaction.output_box_id

    @classmethod
    def of(cls, figures: "StepFigures", **more: object) -> Self:
        """The same figures, with what is remembered beside them."""
        return cls.model_validate(dict(figures) | more)


_COST = "llm_response_cost"


class ContinueMetadata(StepFigures):
    """Another step follows at once."""

    next: Literal["continue"] = "continue"


class SuspendMetadata(StepFigures):
    """The turn sleeps until the calls of these commands are answered."""

    next: Literal["suspend"] = "suspend"
    activity: Activity | None = None
    """What the step set the turn to do; null in rows of versions before this one."""
    commands: tuple[ToolCommand, ...] = ()
    """Of all its calls."""
    held: tuple[ToolCallId, ...] = Field(default=(), exclude_if=lambda value: not value)
    """Those that wait for a person: whoever repeats the step's messages sends none of these."""


class EndMetadata(StepFigures):
    """The turn ended with this step."""

    next: Literal["end"] = "end"


def _tolerant(value: object, parse: ValidatorFunctionWrapHandler) -> "StepMetadata":
    try:
        return parse(value)
    except ValidationError:
        return ContinueMetadata()


StepMetadata = Annotated[
    ContinueMetadata | SuspendMetadata | EndMetadata, Field(discriminator="next"), WrapValidator(_tolerant)
]
"""The row's `metadata`, as it is read."""
