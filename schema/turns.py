"""A turn as Temporal sees it: ids, numbers and codes, never content (protocol §2, ARCHITECTURE.md).

These models are workflow and activity payloads. Fields may be added with defaults; none may be renamed or removed
while histories that hold them can still be replayed.
"""

import operator
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    ToolCallId,
)
from turnstile.schema.states import HeadStatus, MessageType, TurnStatus


class TurnRef(Tolerant):
    """The gate of one lease (`turn_epoch` + `agent_turn_id`) and the boxes it names."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    inbox_id: InboxId
    worker_target: str
    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    trace_id: str


class Ring(Tolerant):
    """A pointer to an inbox row: what the `doorbell` signal carries (ARCHITECTURE.md)."""

    inbox_id: InboxId
    message_type: MessageType
    correlation_id: str


class TurnInput(TurnRef):
    """Input of the `AgentTurn` workflow: what it depends on rides here, so that a replay sees the same."""

    heartbeat_timeout_seconds: float = 10.0
    """How long `run_step` may be silent before it is run again elsewhere."""
    quick_steps: bool = False
    """Whether steps may be tried in the workflow's own task (`run_quick_step`)."""
    rings: tuple[Ring, ...] = ()
    """Doorbells that a run before this one had not settled (continue-as-new)."""

    def ref(self) -> TurnRef:
        """The turn alone, as activities take it."""
        return TurnRef.model_validate(self.model_dump())


class RunStepInput(Tolerant):
    """Input of `run_step`. `step` counts from 1; 0 asks the ledger where the turn stands."""

    turn: TurnRef
    step: int
    reports: tuple[InboxId, ...] = ()
    """Inbox rows to apply before the model is asked."""
    attempts: tuple[JsonObject, ...] = Field(default=(), exclude_if=operator.not_)
    """What a quick step that gave up had asked for already: figures and codes."""


class ApplyInput(Tolerant):
    """Input of `apply_reports`."""

    turn: TurnRef
    reports: tuple[InboxId, ...]


class ReportsApplied(Tolerant):
    """Answer of `apply_reports`: the calls that still wait, and until when; `stale` where the gate was gone."""

    waiting: tuple[ToolCallId, ...]
    deadline: datetime | None
    stale: bool = False


class Outcome(Tolerant):
    """How a turn ended: the result of the workflow, and of the ledger's outcome row."""

    agent_turn_id: AgentTurnId
    status: TurnStatus
    deliverable_card_id: CardId
    output_box_id: BoxId
    error_code: str | None = None
    tool_result_card_id: CardId | None = None


class StepContinues(Tolerant):
    """The step is committed and another follows."""

    next: Literal["continue"] = "continue"
    step: int
    quick: bool = Field(default=False, exclude_if=operator.not_)
    """Whether the model answers so fast that the next step may be tried as a quick one."""


class StepSuspends(Tolerant):
    """The step is committed and its calls are out; the turn sleeps until reports or the deadline."""

    next: Literal["suspend"] = "suspend"
    step: int
    waiting: tuple[ToolCallId, ...]
    tools: tuple[str, ...] = ()
    """The names of the tools that are waited for, for people."""
    deadline: datetime | None
    """Null once the timeouts were injected: they are due now."""
    quick: bool = Field(default=False, exclude_if=operator.not_)
    """As in `StepContinues`."""


class StepEnds(Tolerant):
    """The turn is over and delivered."""

    next: Literal["end"] = "end"
    step: int
    outcome: Outcome


class StepStale(Tolerant):
    """The gate is gone: somebody else ended or took the turn; `head_status` is what stands there now."""

    next: Literal["stale"] = "stale"
    step: int
    head_status: HeadStatus | None = None


class StepOutlasts(Tolerant):
    """No answer yet: the model is not known to be fast, or was slower than that; `run_step` is to do this step."""

    next: Literal["outlasts"] = "outlasts"
    attempts: tuple[JsonObject, ...] = Field(default=(), exclude_if=operator.not_)
    """What was asked in vain."""


class TurnStopped(Tolerant):
    """Answer of `stop_turn`: the end it made, or none if the turn was over before."""

    step: int
    outcome: Outcome | None


StepResult = Annotated[StepContinues | StepSuspends | StepEnds | StepStale, Field(discriminator="next")]
QuickStepResult = Annotated[
    StepContinues | StepSuspends | StepEnds | StepStale | StepOutlasts, Field(discriminator="next")
]


class TurnResult(Tolerant):
    """Result of the `AgentTurn` workflow. `outcome` is null where the turn was fenced: the ledger has it.

    Status and code come first, since the Web UI shows the result's beginning beside a badge that says *Completed*.
    """

    status: str = ""
    """The outcome's, or `fenced`."""
    error_code: str | None = None
    agent_turn_id: AgentTurnId
    turn_epoch: int
    steps: int
    outcome: Outcome | None
