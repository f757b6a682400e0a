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
    agent_id: AgentId
    channel_id: ChannelId
    inbox_id: InboxId
    correlation_id: str | None
    inbox_status: str
    status: str
    created_at: datetime
    turn_epoch: int | None
    context_box_id: BoxId | None
    output_box_id: BoxId | None
    trace_id: str | None
    last_error: str | None
    resume_deadline: datetime | None
    waiting_tool_count: int | None
    started_at: datetime | None
    ended_at: datetime | None
    announced_at: datetime | None
    deliverable_card_id: CardId | None
    tool_result_card_id: CardId | None
    error_code: str | None
    error: str | None
    stats: Json[JsonObject] | None
    steps: int


class CallView(Tolerant):
    """A call as its tool needs it. `content` is the `tool.call` card's."""

    tool_call_id: ToolCallId
    tool_name: str
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    step_id: StepId
    wait_status: str
    tool_result_card_id: CardId | None
    tool_call_card_id: CardId | None
    content: Json[JsonObject] | None
    resume_deadline: datetime | None


class DescribeReply(Reply):
    """What `describe` found: a turn, a card or a call."""

    turn: TurnView | None = None
    card: Card | None = None
    call: CallView | None = None


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
    messages: tuple[MessageLine, ...] = ()
    replies: tuple[ReplyLine, ...] = ()
