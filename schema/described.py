"""What `describe` and, for operators, `thread.describe` answer: the ledger's rows as callers see them (protocol §6)."""

from datetime import datetime

from pydantic import Json

from schema.base import JsonObject, Tolerant
from schema.cards import Card
from schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId, StepId, ToolCallId
from schema.inbox import Reply
from schema.threads import EndReason, MessageId, MessageKind, MessageStatus, ReplyKind, SegmentId, ThreadId


class TurnView(Tolerant):
    """A turn: its request, where it stands, and its outcome. `status` is the outcome's once there is one."""

    agent_turn_id: AgentTurnId
    project_id: ProjectId
    """Its project."""
    agent_id: AgentId
    channel_id: ChannelId
    inbox_id: InboxId
    correlation_id: str | None
    inbox_status: str
    status: str
    """How it ended, or where its agent stands with it."""
    created_at: datetime
    turn_epoch: int | None
    context_box_id: BoxId | None
    output_box_id: BoxId | None
    trace_id: str | None
    last_error: str | None
    resume_deadline: datetime | None
    """Until when it waits for calls."""
    waiting_tool_count: int | None
    """For how many calls it waits."""
    started_at: datetime | None
    ended_at: datetime | None
    announced_at: datetime | None
    """When its `task` event was safe."""
    deliverable_card_id: CardId | None
    tool_result_card_id: CardId | None
    error_code: str | None
    error: str | None
    stats: Json[JsonObject] | None
    """Figures, as in its `task` event."""
    steps: int
    """How many steps are committed."""


class CallView(Tolerant):
    """A call as its tool needs it. `content` is the `tool.call` card's."""

    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool."""
    agent_id: AgentId
    """Whose turn it is of."""
    agent_turn_id: AgentTurnId
    """The turn."""
    turn_epoch: int
    """The fencing number of the turn's lease."""
    step_id: StepId
    """The step that made it."""
    wait_status: str
    """`waiting` until somebody has reported it, or its turn is over."""
    tool_result_card_id: CardId | None
    """Its result, once there is one."""
    tool_call_card_id: CardId | None
    """Its `tool.call` card."""
    content: Json[JsonObject] | None
    """The card's content: `arguments`, and the subject that it was sent on."""
    resume_deadline: datetime | None
    """Until when the turn waits for it."""


class DescribeReply(Reply):
    """What `describe` found: a turn, a card or a call."""

    turn: TurnView | None = None
    """The turn, if one was asked for."""
    card: Card | None = None
    """The card, if one was asked for."""
    call: CallView | None = None
    """The call, if one was asked for."""


class ThreadLine(Tolerant):
    """A root thread in a list."""

    thread_id: ThreadId
    channel_id: ChannelId
    requester: str
    status: str
    end_reason: EndReason | None
    message_count: int
    open_count: int
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None


class MessageLine(Tolerant):
    """A message of a thread, with the real chain it was sent to: for operators only."""

    message_id: MessageId
    number: int
    request_id: MessageId
    cause_id: MessageId | None
    segment_id: SegmentId
    chain: str
    from_id: str
    kind: MessageKind
    status: MessageStatus
    effect: str | None
    attempt: int
    agent_turn_id: AgentTurnId | None
    payload_card_id: CardId
    created_at: datetime
    begun_at: datetime | None
    ended_at: datetime | None


class ReplyLine(Tolerant):
    """The answer to a request of a thread."""

    request_id: MessageId
    kind: ReplyKind
    reason: EndReason
    from_id: str | None
    payload_card_id: CardId | None
    payload: str | None
    created_at: datetime
    announced_at: datetime | None


class ThreadDescribeReply(Reply):
    """What `thread.describe` found: the real chains."""

    thread: ThreadLine | None = None
    """The conversation."""
    messages: tuple[MessageLine, ...] = ()
    """Its first 1000 messages, in order."""
    replies: tuple[ReplyLine, ...] = ()
    """Its answers, in the order in which they were given."""
