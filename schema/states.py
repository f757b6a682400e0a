"""The protocol's enumerations. A comment on a state lists the states that may follow it."""

from enum import StrEnum


class HeadStatus(StrEnum):
    """`state.agent_state_head.status` (protocol §3)."""

    IDLE = "idle"  # -> dispatched
    DISPATCHED = "dispatched"  # -> running | idle
    RUNNING = "running"  # -> suspended | idle
    SUSPENDED = "suspended"  # -> running | idle


class InboxStatus(StrEnum):
    """`state.agent_inbox.status` (protocol §4)."""

    QUEUED = "queued"  # -> pending | skipped
    PENDING = "pending"  # -> processing
    PROCESSING = "processing"  # -> consumed | deferred | skipped | error
    DEFERRED = "deferred"  # -> processing
    CONSUMED = "consumed"  # final
    SKIPPED = "skipped"  # final
    ERROR = "error"  # final


class DeferReason(StrEnum):
    """`state.agent_inbox.defer_reason`: why a row is tried again (protocol §4). The first two are of reports only."""

    TURN_RUNNING = "turn_running"
    """The turn runs while its call still waits."""
    CARD_NOT_VISIBLE = "card_not_visible"
    """The report's card is not there yet."""
    ENGINE_UNREACHABLE = "engine_unreachable"
    """Temporal did not take the start or the signal."""
    WORKFLOW_ENDED = "workflow_ended"
    """The turn's workflow is closed, and the turn is live: the rule *engine* starts it again."""
    CLAIM_LOST = "claim_lost"
    """Whoever claimed the row did nothing for long (rule *claims*)."""
    NOT_BEGUN = "not_begun"
    """The turn was claimed, and no worker has begun it (rule *dispatched, retry*)."""
    NOT_RESUMED = "not_resumed"
    """The report was claimed, and its turn still sleeps (rule *resume*)."""


class MessageType(StrEnum):
    """`state.agent_inbox.message_type`."""

    TURN = "turn"
    UI_ACTION = "ui_action"
    TOOL_RESULT = "tool_result"
    TIMEOUT = "timeout"
    STOP = "stop"
    STEER = "steer"
    DECISION = "decision"


class MultitaskStrategy(StrEnum):
    """What an enqueue does with its requester's turns in hand or queued in the same conversation (§6, enqueue)."""

    ENQUEUE = "enqueue"
    """The new turn waits behind them."""
    REJECT = "reject"
    """The new turn is refused while there is one."""
    INTERRUPT = "interrupt"
    """They are asked to stop, and the new turn is the conversation's next."""
    ROLLBACK = "rollback"
    """As `interrupt`, and later turns of the conversation read nothing of them."""
    STEER = "steer"
    """The instruction goes to the newest of them, as a steer; without one it is a turn."""


class TurnStatus(StrEnum):
    """How a turn ended: the `status` of its outcome and of its `task` event (protocol §5)."""

    SUCCESS = "success"
    FAILED = "failed"
    CANCELED = "canceled"
    TIMEOUT = "timeout"
    PARTIAL = "partial"


class StepStatus(StrEnum):
    """`state.agent_steps.status`."""

    RUNNING = "running"
    TOOL_DISPATCHED = "tool_dispatched"  # only of a UI worker (protocol §10.12)
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class WaitStatus(StrEnum):
    """`state.turn_waiting_tools.wait_status` (protocol §4)."""

    WAITING = "waiting"  # -> received | applied | expired | dropped
    RECEIVED = "received"  # -> applied | expired | dropped
    APPLIED = "applied"  # final: a result was applied
    EXPIRED = "expired"  # final: a timeout was applied
    DROPPED = "dropped"  # final: stop, fence, or no call card


class SteerStatus(StrEnum):
    """`state.steers.status` (protocol §6, steer)."""

    WAITING = "waiting"  # -> taken | skipped
    TAKEN = "taken"  # a step asks the model with it; -> applied | skipped
    APPLIED = "applied"  # final: that step is committed
    SKIPPED = "skipped"  # final: the turn ended first


class SteerPriority(StrEnum):
    """When a steer is taken."""

    ASAP = "asap"
    WHEN_IDLE = "when_idle"


class AfterExecution(StrEnum):
    """Whether a tool's result ends its turn (protocol §7.5)."""

    SUSPEND = "suspend"
    TERMINATE = "terminate"


class StepPhase(StrEnum):
    """`phase` of `evt.agent.*.step`."""

    STARTED = "started"
    PLANNING = "planning"
    EXECUTING = "executing"
    TOOL_PROGRESS = "tool_progress"
    """A tool says how far it is with a call of the step."""
    COMPLETED = "completed"
    FAILED = "failed"


class Activity(StrEnum):
    """What a busy agent is doing: `metadata.activity` of its `state` and `step` events (protocol §3)."""

    THINKING = "thinking"
    EXECUTING_TOOL = "executing_tool"
    AWAITING_TOOL_RESULT = "awaiting_tool_result"


class ChunkType(StrEnum):
    """`chunk_type` of `str.agent.*.chunk`."""

    START = "start"
    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    END = "end"


class ReplyStatus(StrEnum):
    """`status` of every L0 primitive's reply (protocol §6)."""

    ACCEPTED = "accepted"
    STEERED = "steered"  # of enqueue only: an earlier turn hears the instruction
    BUSY = "busy"
    REJECTED = "rejected"
    ERROR = "error"


class ActionStatus(StrEnum):
    """`status` of `evt.sys.ui.action_ack` (protocol §7.10)."""

    ACCEPTED = "accepted"  # -> done | rejected
    BUSY = "busy"  # final: nothing was written
    REJECTED = "rejected"  # final: there is no turn, or it did not succeed
    DONE = "done"  # final: the turn succeeded


class AgentStatus(StrEnum):
    """`resource.project_agents.status`. Operators set `paused`, `retired` and, by resuming, `active` (protocol §6)."""

    ACTIVE = "active"  # -> paused | retired | inactive
    PAUSED = "paused"  # takes no lease; -> active | retired | inactive
    RETIRED = "retired"  # takes no enqueue; -> active | paused | inactive
    DORMANT = "dormant"  # an instance that nobody uses; -> active | paused | retired | inactive
    INACTIVE = "inactive"  # its project is being removed: final
