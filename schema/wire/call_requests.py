"""The verbs `call.step` and `call.history` of a program that runs a call (protocol §21). Pure."""

from typing import Final, Self

from pydantic import Field, JsonValue, model_validator

from turnstile.schema.base import IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId, CardId, ToolCallId

VALUE_BYTES: Final = 524_288
"""The largest value of a step, as JSON."""
MOST_STEPS: Final = 1_000
"""Steps of one call."""
CALL_BYTES: Final = 16 * 1024 * 1024
"""What all values of a call have, at most."""
STEP_KEY: Final = r"^[A-Za-z0-9_.:/-]{1,128}$"


class StepUse(Strict):
    """What a model used in a step."""

    model: str = Field(min_length=1, max_length=256)
    """Which."""
    tokens: int = Field(ge=0, le=10**12)
    """All that it read and wrote."""
    written: int = Field(default=0, ge=0, le=10**12)
    """Of these, what it wrote."""
    cost: float = Field(default=0.0, ge=0, le=1_000_000, allow_inf_nan=False)
    """In US dollars."""

    @model_validator(mode="after")
    def _wrote_some(self) -> Self:
        if self.written > self.tokens:
            raise ValueError("written: is a part of tokens")
        return self


class StepOutcome(Strict):
    """What a step has come to."""

    value: JsonValue
    """Its value: every run of the call gets the one that is recorded first."""
    usage: StepUse | None = None
    """What a model used for it, which is booked against the turn's budget."""


class CallStepRequest(Strict):
    """Arguments of `call.step`: a look whether a step was done, or what it has come to."""

    tool_call_id: IdOf[ToolCallId] = Field(min_length=1, max_length=128)
    """The call that the program runs."""
    key: str = Field(pattern=STEP_KEY)
    """The program's name for the step."""
    outcome: StepOutcome | None = None
    """What to record; null: nothing, the step may not have been done."""


class CallStepReply(Reply):
    """Reply to `call.step`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    recorded: bool = False
    """Whether the step has a value."""
    duplicate: bool = False
    """Whether it had one before this request."""
    value: JsonValue = None
    """The value that counts."""


class CallHistoryRequest(Strict):
    """Arguments of `call.history`: a page of what the turn of a call may read."""

    tool_call_id: IdOf[ToolCallId] = Field(min_length=1, max_length=128)
    """The call that the program runs."""
    after: str | None = Field(default=None, pattern=r"^[1-3]:[0-9]{1,9}$")
    """The `place` of the last card of the page before."""
    limit: int = Field(default=100, ge=1, le=100)
    """The most cards; fewer where they are large."""


class HistoryCard(Tolerant):
    """A card that the turn may read."""

    place: str
    """Where it stands: the next page is `after` it."""
    card_id: CardId
    """The card."""
    type: str
    """Such as `task.instruction` or `task.deliverable`."""
    role: str
    """user, assistant, tool or system."""
    agent_turn_id: AgentTurnId | None = None
    """The turn that made it."""
    value: JsonValue
    """A text, what JSON it holds, or its content as it is."""


class CallHistoryReply(Reply):
    """Reply to `call.history`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    cards: tuple[HistoryCard, ...] = ()
    """In the order in which a model would read them; none: there are no more."""
