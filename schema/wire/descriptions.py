"""What `describe` and, for operators, `thread.describe` answer: the ledger's rows as callers see them (protocol §6)."""

from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import from_json

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    StepId,
    ToolCallId,
)
from turnstile.schema.pump.threads import (
    EndReason,
    MessageId,
    MessageKind,
    MessageStatus,
    ReplyKind,
    SegmentId,
    ThreadId,
)
from turnstile.schema.wire.inbox import Reply


def _parsed(value: object) -> object:
    """A column of JSON is text; in a reply it is the object."""
    return from_json(value) if isinstance(value, str) else value


_Json = Annotated[JsonObject, BeforeValidator(_parsed)]


class TurnView(Tolerant):
    """A turn: its request, where it stands, and its outcome. `status` is the outcome's once there is one."""

    agent_turn_id: AgentTurnId
    """The turn."""
    project_id: ProjectId
    """Its project."""
    agent_id: AgentId
    """Its agent."""
    channel_id: ChannelId
    """Its channel."""
    inbox_id: InboxId
    """The row that asked for it."""
    correlation_id: str | None
    """The caller's own name for it."""
    inbox_status: str
    """What became of the row that asked for it."""
    status: str
    """How it ended, or where its agent stands with it."""
    created_at: datetime
    """When it was asked for."""
    turn_epoch: int | None
    """The fencing number of its lease; null or 0 while it is queued."""
    context_box_id: BoxId | None
    """The box that it reads."""
    output_box_id: BoxId | None
    """The box that its cards go to."""
    trace_id: str | None
    """The trace that it belongs to."""
    last_error: str | None
    """Why the row that asked for it was refused."""
    resume_deadline: datetime | None
    """Until when it waits for calls."""
    waiting_tool_count: int | None
    """For how many calls it waits."""
    started_at: datetime | None
    """When its agent took it."""
    ended_at: datetime | None
    """When it was over."""
    announced_at: datetime | None
    """When its `task` event was safe."""
    deliverable_card_id: CardId | None
    """What it came to; null while it is not over."""
    tool_result_card_id: CardId | None
    """The result of the tool that ended it, if one did."""
    error_code: str | None
    """What went wrong, as a stable word."""
    error: str | None
    """What went wrong, for people."""
    stats: _Json | None
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
    content: _Json | None
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
    """The conversation."""
    channel_id: ChannelId
    """Its channel."""
    requester: str
    """Who began it."""
    status: str
    """`open`, or `ended`."""
    end_reason: EndReason | None
    """Why it ended."""
    message_count: int
    """How many messages it has had."""
    open_count: int
    """How many are not settled yet."""
    created_at: datetime
    """When it began."""
    updated_at: datetime
    """When it last moved."""
    ended_at: datetime | None
    """When it ended."""


class MessageLine(Tolerant):
    """A message of a thread, with the real chain it was sent to: for operators only."""

    message_id: MessageId
    """The message."""
    number: int
    """Its place in the conversation."""
    request_id: MessageId
    """The message from outside that it works for."""
    cause_id: MessageId | None
    """The message whose handling sent it."""
    segment_id: SegmentId
    """The receiver's place in the chain, as the receiver sees it."""
    chain: str
    """The real chain, from the requester to the receiver: `a.b.c`."""
    from_id: str
    """The sender."""
    kind: MessageKind
    """How it came."""
    status: MessageStatus
    """Where it is."""
    effect: str | None
    """What its handling came to."""
    attempt: int
    """How often its handling was begun."""
    agent_turn_id: AgentTurnId | None
    """The turn that handles it, if an agent does."""
    payload_card_id: CardId
    """The card that holds its payload."""
    created_at: datetime
    """When it was sent."""
    begun_at: datetime | None
    """When its handling began."""
    ended_at: datetime | None
    """When it was settled."""


class ReplyLine(Tolerant):
    """The answer to a request of a thread."""

    request_id: MessageId
    """The message from outside that is answered."""
    kind: ReplyKind
    """Whether there is a payload."""
    reason: EndReason
    """Why it was answered like this."""
    from_id: str | None
    """The listener that answered; null if none did."""
    payload_card_id: CardId | None
    """The card that holds the payload."""
    payload: str | None
    """XML."""
    created_at: datetime
    """When it was given."""
    announced_at: datetime | None
    """When its event was safe."""


class ThreadDescribeReply(Reply):
    """What `thread.describe` found: the real chains."""

    thread: ThreadLine | None = None
    """The conversation."""
    messages: tuple[MessageLine, ...] = ()
    """Its first 1000 messages, in order."""
    replies: tuple[ReplyLine, ...] = ()
    """Its answers, in the order in which they were given."""
