"""The workflow and activity payloads of a turn: ids, numbers and codes, never content (protocol §2, ARCHITECTURE.md).

Fields may be added with defaults; none may be renamed or removed while histories that hold them can still be replayed.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId, StepId, ToolCallId
from turnstile.schema.states import HeadStatus, MessageType, TurnStatus


class TurnRef(Tolerant):
    """The gate of one lease (`turn_epoch` + `agent_turn_id`) and the boxes of its turn."""

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

    def placeholders(self, step_id: StepId, parent_step_id: str) -> dict[str, str]:
        """The values of the id placeholders in prompts and arguments (protocol §7.3)."""
        names = ("project_id", "channel_id", "agent_id", "agent_turn_id", "turn_epoch", "trace_id", "context_box_id")
        ids = {name: str(getattr(self, name)) for name in names}
        return ids | {"step_id": step_id, "parent_step_id": parent_step_id}


class Ring(Tolerant):
    """A pointer to an inbox row, as the `doorbell` signal carries it (ARCHITECTURE.md)."""

    inbox_id: InboxId
    message_type: MessageType
    correlation_id: str


class TurnInput(TurnRef):
    """Input of the `AgentTurn` workflow, with all settings it depends on, so that a replay sees the same values."""

    heartbeat_timeout_seconds: float = 10.0
    """How long `run_step` may go without a heartbeat before the engine retries it."""
    rings: tuple[Ring, ...] = ()
    """Doorbells that the previous run of the workflow had not settled (continue-as-new)."""

    def ref(self) -> TurnRef:
        """The input of activities: the turn without the workflow's settings."""
        return TurnRef.model_validate(self.model_dump())


class RunStepInput(Tolerant):
    """Input of `run_step`. `step` counts from 1; 0 stands for the next step by the ledger."""

    turn: TurnRef
    step: int
    reports: tuple[InboxId, ...] = ()
    """Inbox rows to apply before the model is asked."""


class ApplyInput(Tolerant):
    """Input of `apply_reports`."""

    turn: TurnRef
    reports: tuple[InboxId, ...]


class ReportsApplied(Tolerant):
    """Result of `apply_reports`: the calls that still wait, and the deadline; `stale` if the gate was closed."""

    waiting: tuple[ToolCallId, ...]
    deadline: datetime | None
    stale: bool = False


class Outcome(Tolerant):
    """How a turn ended, as the ledger's outcome row has it."""

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
    output_box_id: BoxId | None = Field(default=None, exclude_if=lambda box: box is None)
    """Of a step that compacted the memory: the box in which the turn goes on."""


class StepSuspends(Tolerant):
    """The step is committed and its calls are published; the turn is suspended until reports or the deadline."""

    next: Literal["suspend"] = "suspend"
    step: int
    waiting: tuple[ToolCallId, ...]
    tools: tuple[str, ...] = ()
    """The names of the tools that the turn waits for; for display only."""
    deadline: datetime | None
    """Null after the timeouts were injected, which are due at once."""


class StepEnds(Tolerant):
    """The turn is over and its deliverable is written."""

    next: Literal["end"] = "end"
    step: int
    outcome: Outcome


class StepStale(Tolerant):
    """The gate is closed: the turn was ended or taken elsewhere; `head_status` is the head's status now."""

    next: Literal["stale"] = "stale"
    step: int
    head_status: HeadStatus | None = None


class TurnStopped(Tolerant):
    """Result of `stop_turn`: the outcome, or None if the turn was over before."""

    step: int
    outcome: Outcome | None


StepResult = Annotated[StepContinues | StepSuspends | StepEnds | StepStale, Field(discriminator="next")]


class TurnWorkflowResult(Tolerant):
    """Result of the `AgentTurn` workflow. `outcome` is null if the turn was ended elsewhere: the ledger has it.

    Status and code come first, since the Web UI shows the beginning of the result beside a badge *Completed*.
    """

    status: str = ""
    """The outcome's status, or `fenced`."""
    error_code: str | None = None
    agent_turn_id: AgentTurnId
    turn_epoch: int
    steps: int
    outcome: Outcome | None
