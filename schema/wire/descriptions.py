"""What `describe` and, for operators, `thread.describe` answer: the ledger's rows as callers see them (protocol §6)."""

from datetime import datetime
from typing import Annotated, Self

from pydantic import BeforeValidator, Field

from turnstile.schema.base import JsonObject, Reply, Tolerant, read_column
from turnstile.schema.budgets.plans import StoredTurnBudget
from turnstile.schema.budgets.views import BudgetColumn
from turnstile.schema.cards import Card
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    ConversationId,
    InboxId,
    ProjectId,
    StepId,
    ToolCallId,
)
from turnstile.schema.people.steers import Steer
from turnstile.schema.pump.declared import ListenerView
from turnstile.schema.pump.threads import (
    EndReason,
    MessageId,
    MessageKind,
    MessageStatus,
    ReplyKind,
    SegmentId,
    ThreadId,
)
from turnstile.schema.states import HeadStatus, InboxStatus
from turnstile.schema.wire.inbox import EnqueueReply

_Json = Annotated[JsonObject, BeforeValidator(read_column)]
_Steers = Annotated[tuple[Steer, ...] | None, BeforeValidator(read_column)]


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
    """The inbox row of its request."""
    correlation_id: str | None
    """The caller's own name for it."""
    inbox_status: str
    """The status of the inbox row of its request."""
    status: str
    """The outcome's status once there is one, else the head's."""
    queued_because: str | None = None
    """Why it is still queued: `agent_paused`, `agent_busy` or `output_box_busy`; null if it is not, or is next."""
    unserved_target: str | None = None
    """The worker target of its agent while no worker serves it, if the turn has not begun; not in the answer to the
    request that made the turn."""
    created_at: datetime
    """When it was enqueued."""
    turn_epoch: int | None
    """The fencing number of its lease; null or 0 while it is queued."""
    context_box_id: BoxId | None
    """The box that it reads."""
    output_box_id: BoxId | None
    """The box that its cards go to."""
    conversation_id: ConversationId | None = None
    """The conversation that it is in; empty for the one that a profile's memory keeps, null for none."""
    end_user: str | None = None
    """The person for whom it was asked."""
    trace_id: str | None
    """The trace that it belongs to."""
    last_error: str | None
    """Why the inbox row of its request failed."""
    resume_deadline: datetime | None
    """The earliest deadline of the calls that it waits for."""
    waiting_tool_count: int | None
    """The number of calls that it waits for."""
    started_at: datetime | None
    """When its first step began."""
    ended_at: datetime | None
    """When it ended."""
    announced_at: datetime | None
    """When its `task` event was known to be in the stream."""
    deliverable_card_id: CardId | None
    """Its deliverable; null while it is not over."""
    tool_result_card_id: CardId | None
    """The result of the tool that ended it, if one did."""
    error_code: str | None
    """A stable code of what went wrong."""
    error: str | None
    """What went wrong, for people."""
    stats: _Json | None
    """Figures, as in its `task` event."""
    steps: int
    """The number of committed steps."""
    steers: _Steers = None
    """What was said to it while it ran, in order, and where that stands; null for nothing."""
    rerun_of: AgentTurnId | None = None
    """The turn that it runs again; null if it does not."""
    from_step: int | None = None
    """The step of that turn from which on it does."""
    reruns: tuple[AgentTurnId, ...] = ()
    """The turns that run it again, oldest first; at most 100."""
    budget: StoredTurnBudget = None
    """Where it is charged, and until when it may run; null if nothing limits it."""

    @classmethod
    def new(cls, reply: EnqueueReply, project: ProjectId, channel: ChannelId) -> Self:
        """The turn that an enqueue has just made. It looks for no worker: `unserved_target` is null."""
        queued = reply.inbox_status is InboxStatus.QUEUED
        status = "queued" if queued else HeadStatus.DISPATCHED.value
        known: JsonObject = {"project_id": project, "channel_id": channel, "status": status, "steps": 0}
        known["waiting_tool_count"] = None if queued else 0
        unknown = dict.fromkeys(name for name, field in cls.model_fields.items() if field.is_required())
        return cls.model_validate(unknown | reply.model_dump() | known)


class CallView(Tolerant):
    """A call, as its tool needs it."""

    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool."""
    agent_id: AgentId
    """The agent whose turn made it."""
    agent_turn_id: AgentTurnId
    """The turn."""
    turn_epoch: int
    """The fencing number of the turn's lease."""
    step_id: StepId
    """The step that made it."""
    wait_status: str
    """`waiting` until it is reported or its turn is over."""
    tool_result_card_id: CardId | None
    """Its result, once there is one."""
    tool_call_card_id: CardId | None
    """Its `tool.call` card."""
    content: _Json | None
    """The card's content: `arguments`, and the subject that it was sent on."""
    resume_deadline: datetime | None
    """The deadline until which the turn waits for it."""
    repeat: str = "safe"
    """`unsafe`: whoever runs it says so first (`begins`), and it is not run again."""
    may_run: bool | None = None
    """With `begins`: whether that run may begin; null if it was not asked."""


class TreeTurn(Tolerant):
    """A turn in its tree. `tokens`, `cost` and `steps` are its own."""

    agent_turn_id: AgentTurnId
    """The turn."""
    parent_turn_id: AgentTurnId | None
    """The turn that asked for it; null for the root."""
    depth: int
    """How far below the root it is."""
    agent_id: AgentId
    """Its agent."""
    waited: bool
    """Whether its parent waits for it."""
    stopping: bool
    """Whether it is being stopped, and not over."""
    stop_reason: str | None
    """Why it is or was stopped by what is above it."""
    status: str
    """Its outcome's status, else its head's, or `queued`."""
    error_code: str | None
    """Why it failed."""
    created_at: datetime
    """When it was enqueued."""
    started_at: datetime | None
    """When its first step began."""
    ended_at: datetime | None
    """When it ended."""
    batch_id: str | None
    """The batch that it is a task of."""
    task_index: int | None
    """Its place in that batch."""
    label: str | None
    """The name that the fork gave it."""
    tool_call_id: ToolCallId | None
    """The call whose batch it is a task of."""
    batch_status: str | None
    """The status of that batch."""
    tokens: int
    """Tokens of its model calls."""
    cost: float | None
    """In USD; null if no model of it has a price."""
    steps: int
    """Its committed steps."""
    budget: BudgetColumn = None
    """Its own grant, which has all that the turns below it spend; null if it has none."""


class DescribeReply(Reply):
    """Reply to `describe`: a turn, a card or a call."""

    turn: TurnView | None = None
    """The turn, if the request named one."""
    card: Card | None = None
    """The card, if the request named one."""
    call: CallView | None = None
    """The call, if the request named one."""
    tree: tuple[TreeTurn, ...] | None = None
    """The whole tree of the turn, parents before children, if the request asked for it."""


class ThreadLine(Tolerant):
    """A root thread in a list."""

    thread_id: ThreadId
    """The thread."""
    channel_id: ChannelId
    """Its channel."""
    requester: str
    """The sender of its first message."""
    status: str
    """`open`, or `ended`."""
    end_reason: EndReason | None
    """Why it ended."""
    message_count: int
    """The number of its messages."""
    open_count: int
    """The number of its open messages."""
    created_at: datetime
    """When it began."""
    updated_at: datetime
    """When it last changed."""
    ended_at: datetime | None
    """When it ended."""


class MessageLine(Tolerant):
    """A message of a thread, with the real chain of its receiver; for operators only."""

    message_id: MessageId
    """The message."""
    number: int
    """Its number in the thread."""
    request_id: MessageId
    """The message from outside that it descends from."""
    cause_id: MessageId | None
    """The message whose handling sent it."""
    segment_id: SegmentId
    """The receiver's segment of the chain, which the receiver sees as `thread_id`."""
    chain: str
    """The real chain, from the requester to the receiver: `a.b.c`."""
    from_id: str
    """The sender."""
    kind: MessageKind
    """The kind of the message."""
    status: MessageStatus
    """The status of the message."""
    effect: str | None
    """The effect of its handling."""
    attempt: int
    """How often its handler was begun."""
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
    """Why it was answered with this kind."""
    from_id: str | None
    """The listener that answered; null if none did."""
    payload_card_id: CardId | None
    """The card that holds the payload."""
    payload: str | None
    """XML."""
    created_at: datetime
    """When the answer was written."""
    announced_at: datetime | None
    """When its event was known to be in the stream."""


class ThreadDescribeReply(Reply):
    """Reply to `thread.describe`, with the real chains."""

    thread: ThreadLine | None = None
    """The thread."""
    messages: tuple[MessageLine, ...] = ()
    """Its first messages, in order."""
    payloads: dict[MessageId, str] = Field(default_factory=dict[MessageId, str])
    """The XML of these messages, if payloads were requested."""
    replies: tuple[ReplyLine, ...] = ()
    """Its answers, oldest first."""


class ListenerListReply(Reply):
    """Reply to `listener.list`."""

    listeners: tuple[ListenerView, ...] = ()
    """The listeners by name."""
