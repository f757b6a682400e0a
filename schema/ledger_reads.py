"""What operators read of a project's ledger by one verb, `ledger.read` (protocol §6): its requests, rows and reply.

A request names one kind of row. All channels of the subject's project are read; a list has at most `limit` rows and
no page but that of a box, whose cards may be many.
"""

from datetime import datetime
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AwareDatetime, BeforeValidator, Field, model_validator

from turnstile.schema.api import Conversation, UsageLine
from turnstile.schema.base import (
    AgentToken,
    BoxUuid,
    ConversationToken,
    IdOf,
    JsonObject,
    Reply,
    Strict,
    Tolerant,
    read_column,
)
from turnstile.schema.budgets.budget_requests import BudgetListRequest, BudgetRequest
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.cards import Card
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ConversationId, InboxId, StepId, ToolCallId
from turnstile.schema.people.interrupt_requests import InterruptListRequest, InterruptRequest, InterruptView
from turnstile.schema.pump.threads import ThreadId
from turnstile.schema.states import InboxStatus
from turnstile.schema.wire.box_requests import AgentBoxes
from turnstile.schema.wire.descriptions import ThreadLine, TreeTurn, TurnView


class CallStep(Tolerant):
    """What a program has done once under the call that it runs (protocol §21)."""

    key: str
    """The program's name for it."""
    created_at: datetime
    """When it was recorded."""
    bytes: int
    """Of its value, as JSON."""
    model: str | None = None
    """The model that was asked for it; null if none was named."""
    tokens: int | None = None
    """What the model read and wrote."""
    cost: float | None = None
    """In US dollars."""


class CallRecord(Tolerant):
    """What a program has recorded under the call that it runs (protocol §21)."""

    count: int
    """Steps."""
    tokens: int | None = None
    """What models read and wrote for them; null if none was named."""
    cost: float | None = None
    """In US dollars."""
    steps: list[CallStep]
    """The first hundred, in order."""


class SentCall(Tolerant):
    """A call that a turn has sent, and its status."""

    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool."""
    step_id: StepId
    """The step that made it."""
    wait_status: str
    """`waiting` until it is reported or its turn is over."""
    created_at: datetime
    """When it was sent."""
    received_at: datetime | None
    """When its report came."""
    applied_at: datetime | None
    """When the turn read the report."""
    recorded: Annotated[CallRecord | None, BeforeValidator(read_column)] = None
    """What its program recorded under it; null: nothing."""


class StepView(Tolerant):
    """A committed step."""

    step_id: StepId
    """The step."""
    status: str
    """How it ended."""
    started_at: datetime
    """When it began."""
    ended_at: datetime | None
    """When it ended."""
    tool_call_ids: Annotated[list[ToolCallId] | None, BeforeValidator(read_column)]
    """The calls that it made."""
    error: str | None
    """What went wrong."""
    metadata: Annotated[JsonObject, BeforeValidator(read_column)]
    """Its model, usage, times and more."""


class TurnLine(Tolerant):
    """A turn in a list."""

    agent_turn_id: AgentTurnId
    """The turn."""
    agent_id: AgentId
    """Its agent."""
    created_at: datetime
    """When it was enqueued."""
    correlation_id: str | None
    """The caller's own name for it."""
    turn_epoch: int | None
    """The fencing number of its lease."""
    status: str
    """The outcome's status once there is one, else the head's."""
    started_at: datetime | None
    """When its first step began."""
    ended_at: datetime | None
    """When it ended."""
    error_code: str | None
    """A stable code of what went wrong."""
    truncated: str | None
    """Why the model's last answer is truncated, if it is."""
    calls_timed_out: int
    """The number of its calls that nobody answered in time."""
    asked: str | None
    """The beginning of the instruction; for a UI action the tool."""


class ConversationName(NamedTuple):
    """What names a conversation in its project."""

    agent_id: AgentId
    conversation_id: ConversationId
    channel_id: ChannelId


class ConversationLine(Conversation):
    """A conversation in a list; the one that a profile's memory keeps has an empty id."""

    @property
    def name(self) -> ConversationName:
        """Which one it is; its box changes."""
        return ConversationName(self.agent_id, self.conversation_id, self.channel_id)


class SaidTurn(Tolerant):
    """A turn of a conversation: what was asked, and the content of its deliverable."""

    agent_turn_id: AgentTurnId
    """The turn."""
    created_at: datetime
    """When it was enqueued."""
    status: str
    """The outcome's status once there is one, else the head's."""
    ended_at: datetime | None
    """When it ended."""
    error_code: str | None
    """A stable code of what went wrong."""
    asked: str | None
    """The instruction."""
    deliverable: Annotated[JsonObject | None, BeforeValidator(read_column)]
    """The content of its deliverable."""


class InboxLine(Tolerant):
    """An inbox row; `next_retry_at` is null while the row is queued."""

    inbox_id: InboxId
    """The row."""
    agent_id: AgentId
    """Its agent."""
    message_type: str
    """What it asks for."""
    status: str
    """Where it stands."""
    correlation_id: str | None
    """The caller's own name for it."""
    agent_turn_id: AgentTurnId | None
    """Its turn."""
    turn_epoch: int | None
    """The fencing number of the turn's lease."""
    retry_count: int
    """How often it was tried again."""
    next_retry_at: datetime | None
    """When it is tried again."""
    defer_reason: str | None
    """Why it was put off."""
    last_error: str | None
    """Why it failed."""
    created_at: datetime
    """When it was written."""
    archived_at: datetime | None
    """When it was done with."""


class TurnRead(Strict):
    """Which turn to read, and how much of it."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn, or the beginning of its id if no other turn's id begins so."""
    record: bool = False
    """Whether to read its steps, calls and budgets, too."""
    tree: bool = False
    """Whether to read the tree of turns that it is in, too."""
    after: IdOf[AgentTurnId] | None = Field(default=None, min_length=1, max_length=128)
    """Only turns of the tree after this one: `next` of the reply before."""


class TurnsRead(Strict):
    """Which turns to list, the newest first."""

    agent_id: AgentToken | None = None
    """Only those of this agent."""
    limit: int = Field(default=20, ge=1, le=10_000)
    """At most this many."""


class InboxRead(TurnsRead):
    """Which inbox rows to list, the newest first."""

    status: InboxStatus | None = None
    """Only those in this status."""


class BoxRead(Strict):
    """Which box to read."""

    box_id: BoxUuid
    """The box."""
    after: int = Field(default=0, ge=0)
    """Only cards after this position: `next` of the reply before."""


class MemoryRead(Strict):
    """Whose memory to read: the boxes that the agent's pointers in the subject's channel name."""

    agent_id: AgentToken
    """The agent."""


class ConversationsRead(TurnsRead):
    """Which conversations to list, the last used first."""

    channel_id: str | None = Field(default=None, min_length=1, max_length=128)
    """Only those of this channel."""
    conversation_id: ConversationToken | Literal[""] | None = None
    """Only those of this id; empty for those that profiles' memories keep."""


class SaidRead(Strict):
    """The conversation whose last turns to read."""

    agent_id: AgentToken
    """Its agent."""
    channel_id: str = Field(min_length=1, max_length=128)
    """Its channel."""
    conversation_id: ConversationToken | Literal[""]
    """Its id; empty for the one that a profile's memory keeps."""
    limit: int = Field(default=50, ge=1, le=10_000)
    """At most this many turns."""


class ThreadsRead(Strict):
    """Which root threads to list, the newest first."""

    thread_id: IdOf[ThreadId] | None = Field(default=None, min_length=1, max_length=128)
    """Only this one."""
    status: Literal["open", "ended"] | None = None
    """Only those with this status."""
    limit: int = Field(default=20, ge=1, le=10_000)
    """At most this many."""


class UsageRead(Strict):
    """Whose use of models to sum up; by default that of the whole project."""

    by: Literal["agent", "model", "day"] = "model"
    """What a line is for; days are UTC."""
    since: AwareDatetime | None = None
    """Only attempts since then."""
    tree: IdOf[AgentTurnId] | None = Field(default=None, min_length=1, max_length=128)
    """Only the tree that this turn is in; the turn as in `turn`."""
    budget_id: str | None = Field(default=None, min_length=1, max_length=256)
    """Only the turns that are charged to this budget; the budget as in `budget`."""

    @model_validator(mode="after")
    def _one_filter(self) -> Self:
        if self.tree is not None and self.budget_id is not None:
            raise ValueError("either tree or budget_id")
        return self


class ProfileRead(Strict):
    """Which profile to read."""

    name: str = Field(min_length=1, max_length=128)
    """The profile."""


class ReadRequest(Strict):
    """Arguments of `ledger.read`: one of these, which says what to read."""

    turn: TurnRead | None = None
    """A turn."""
    turns: TurnsRead | None = None
    """Turns."""
    inbox: InboxRead | None = None
    """Inbox rows."""
    box: BoxRead | None = None
    """Cards of a box."""
    memory: MemoryRead | None = None
    """An agent's memory."""
    conversations: ConversationsRead | None = None
    """Conversations."""
    said: SaidRead | None = None
    """What was said in a conversation."""
    threads: ThreadsRead | None = None
    """Root threads."""
    usage: UsageRead | None = None
    """Sums of what models used."""
    profile: ProfileRead | None = None
    """A profile."""
    budgets: BudgetListRequest | None = None
    """Budgets, as `budget.list` does, of all channels."""
    budget: BudgetRequest | None = None
    """A budget of any channel; a turn's by the beginning of its id, too."""
    interrupts: InterruptListRequest | None = None
    """What people are asked, as `interrupt.list` does, of all channels and with the calls."""
    interrupt: InterruptRequest | None = None
    """A question of any channel."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len([kind for kind in self.model_fields_set if getattr(self, kind) is not None]) != 1:
            raise ValueError("names exactly one kind of row to read")
        return self


class ReadReply(Reply):
    """Reply to `ledger.read`: the field of the same name as in the request, and what belongs to it."""

    turn: TurnView | None = None
    """The turn."""
    steps: tuple[StepView, ...] = ()
    """The turn's committed steps, in order, if its record was requested."""
    calls: tuple[SentCall, ...] = ()
    """The calls that it sent, in order, if its record was requested."""
    outside: tuple[Card, ...] = ()
    """Its deliverable and what was said to it while it ran, which may be in neither of its boxes."""
    tree: tuple[TreeTurn, ...] = ()
    """The next turns of the tree that it is in, parents before children, if that was requested."""
    turns: tuple[TurnLine, ...] = ()
    """The turns."""
    inbox: tuple[InboxLine, ...] = ()
    """The inbox rows."""
    cards: tuple[Card, ...] = ()
    """The next cards of the box."""
    memory: AgentBoxes | None = None
    """The agent's boxes."""
    conversations: tuple[ConversationLine, ...] = ()
    """The conversations."""
    said: tuple[SaidTurn, ...] = ()
    """The conversation's last turns, oldest first."""
    threads: tuple[ThreadLine, ...] = ()
    """The root threads."""
    usage: tuple[UsageLine, ...] = ()
    """A line for each agent, model or day, and one for all, last."""
    about: str | None = None
    """The turn or the budget whose usage it is, in full."""
    profile: JsonObject | None = None
    """The profile as it was stored."""
    budgets: tuple[BudgetView, ...] = ()
    """The budgets; of a turn's record those that the turn is charged to, the nearest first."""
    limits: tuple[ProjectLimits, ...] = ()
    """What the project may spend in a day or month, with `budgets`."""
    budget: BudgetView | None = None
    """The budget."""
    interrupts: tuple[InterruptView, ...] = ()
    """The questions, the newest first."""
    interrupt: InterruptView | None = None
    """The question."""
    next: int | str | None = None
    """`after` of the next request for the same tree, box, budgets or interrupts; null if there are no more."""
