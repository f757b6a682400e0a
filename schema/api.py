"""The models of `/v1`: requests and answers, for the gateway, its OpenAPI document and its clients (protocol §14.1).

They are apart from those of the verbs, so that a change of a verb is no change of the API. Requests forbid unknown
fields; answers ignore them, so that a client of one version reads a gateway of the next.
"""

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from turnstile.schema.base import ConversationToken, EndUser, JsonObject, Strict, Tolerant
from turnstile.schema.budgets.budget_requests import BudgetChange, SpendingLimits
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.cards import (
    MOST_PARTS,
    Card,
    Parts,
    ResultField,
    ThoughtCall,
    without_added,
    without_reasoning,
)
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    ArtifactId,
    BoxId,
    CardId,
    ChannelId,
    ConversationId,
    InboxId,
    InterruptId,
    SteerId,
    ToolCallId,
)
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Interrupt
from turnstile.schema.profiles import RuntimeConfig
from turnstile.schema.states import MultitaskStrategy, SteerPriority, SteerStatus
from turnstile.schema.tools import ToolRow
from turnstile.schema.wire.descriptions import TreeTurn, TurnView
from turnstile.schema.wire.file_requests import FileId, FileView
from turnstile.schema.wire.roster_requests import AgentLine, ProfileLine
from turnstile.schema.wire.schedule_requests import ScheduleView
from turnstile.schema.wire.webhook_requests import WebhookView

TOKEN = r"^[A-Za-z0-9_-]{1,128}$"  # noqa: S105 -- a token of a subject
"""The pattern of one."""
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


class TurnCreate(Strict):
    """A turn to run. It needs an agent or a profile with instances, and an instruction, a box or the agent's memory."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["agent_id"]}, {"required": ["profile_name"]}]})

    agent_id: str | None = Field(default=None, pattern=TOKEN)
    """The agent that shall run it."""
    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    """A profile for this turn; without an agent an instance of it runs the turn."""
    instruction: str | None = Field(default=None, min_length=1)
    """What is asked."""
    files: list[FileId] = Field(default_factory=list[ArtifactId], max_length=MOST_PARTS)
    """Files of the channel, by their ids: they belong to what is asked."""
    conversation_id: ConversationToken | None = None
    """A conversation with the agent: its turns follow each other and remember what was said."""
    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """The channel; by default the token's, else the gateway's."""
    context_box_id: str | None = Field(default=None, pattern=_UUID)
    """A box whose cards the turn reads."""
    output_box_id: str | None = Field(default=None, pattern=_UUID)
    """The box that its cards go to; not together with a conversation."""
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    """Fields that its output must have."""
    runtime_config: RuntimeConfig | None = None
    """Settings that it overrides or adds."""
    budget: BudgetLimits | None = None
    """What it and all below it may use, instead of what the profile says."""
    metadata: JsonObject | None = None
    """The caller's own notes; no model sees them."""
    end_user: EndUser | None = None
    """The person for whom it is asked, by the caller's own name; also that of all turns below it."""
    multitask_strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    """What becomes of the turns that the token has in hand or queued in the same conversation."""


class Output(Tolerant):
    """What a turn delivered."""

    card_id: CardId
    """The card that has it."""
    text: str | None = None
    """Its text, if it is one."""
    data: JsonValue = None
    """Its JSON, if it is no text: `{fields: [{name, value}]}`, `{choice, arguments}`, or a tool's result."""
    files: Parts = ()
    """Its files, which `/v1/artifacts` has."""
    partial: bool = False
    """Whether it is what was there when the turn was ended."""


class Turn(TurnView):
    """A turn: its request, where it stands, and what came of it."""

    output: Output | None = None
    """What it delivered; null while it is not over."""
    steered: bool = False
    """Whether the request's instruction went to this turn as a steer (strategy `steer`), and made none."""
    steer_inbox_id: InboxId | None = None
    """If so, the inbox row of the steer, which is the steer's id; the `inbox_id` is the turn's."""
    stopped: tuple[AgentTurnId, ...] = ()
    """The turns that make way for the request's (strategies `interrupt` and `rollback`)."""
    duplicate: bool = False
    """Whether the same request was made before: then this is the turn of then."""


class TurnSummary(Tolerant):
    """A turn in a page."""

    agent_turn_id: AgentTurnId
    """The turn."""
    agent_id: AgentId
    """Its agent."""
    channel_id: ChannelId
    """Its channel."""
    conversation_id: ConversationId | None
    """Its conversation; empty for the one that a profile's memory keeps, null for none."""
    correlation_id: str | None
    """The caller's own name for it."""
    end_user: str | None = None
    """The person for whom it was asked."""
    status: str
    """Its outcome's status once there is one, else its head's, or `queued`."""
    created_at: datetime
    """When it was enqueued."""
    started_at: datetime | None
    """When its first step began."""
    ended_at: datetime | None
    """When it ended."""
    error_code: str | None
    """A stable code of what went wrong."""


class TurnPage(Tolerant):
    """Turns, the newest first."""

    turns: list[TurnSummary]
    """The turns."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class TurnStop(Strict):
    """Why to stop a turn, and what goes with it."""

    reason: str = Field(default="", max_length=900)
    """The reason, for people."""
    cascade: Literal["waited", "all"] = "waited"
    """`waited`: also the turns below it that are waited for; `all`: also those that nobody waits for."""


class TurnRerun(Strict):
    """From where a turn is run again, and with what else."""

    from_step: int | None = Field(default=None, ge=1, le=100_000)
    """The step, from 1; by default of a failed turn the step that failed, else the first."""
    model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model` for the new turn: the same as `runtime_config.model`."""
    runtime_config: RuntimeConfig | None = None
    """Settings that replace those that the turn was asked with; null stands for the profile's."""
    budget: BudgetLimits | None = None
    """What the new turn and all below it may use; by default what the profile says."""


class StopAnswer(Tolerant):
    """A stop that was accepted: the turn will end."""

    agent_turn_id: AgentTurnId
    """The turn."""
    already_final: bool
    """Whether it was over before."""
    marked: int | None = None
    """The number of turns that this stop has marked, the turn's own tree."""
    on_their_way: int | None = None
    """The number of them with a model request or calls that may still leave."""


class TurnSteer(Strict):
    """What to say to a turn while it runs."""

    text: str = Field(min_length=1)
    """What its model shall read next, as the user's words."""
    priority: SteerPriority = SteerPriority.ASAP
    """`asap`: with the turn's next step. `when_idle`: when the turn would end, which then takes another step."""


class SteerAnswer(Tolerant):
    """A steer that was accepted: the turn's next step reads it, unless the turn ends first."""

    agent_turn_id: AgentTurnId
    """The turn."""
    steer_id: SteerId
    """The steer; the turn's `steers` say what becomes of it."""
    steer_status: SteerStatus
    """Where it stands: of a new one `waiting`."""
    duplicate: bool
    """Whether the same request was made before: then this is its steer."""


class TurnTree(Tolerant):
    """The tree that a turn is in, parents before children."""

    turns: list[TreeTurn]
    """The turns."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class Conversation(Tolerant):
    """A conversation with an agent."""

    conversation_id: ConversationId
    """Its id; empty for the one that a profile's memory keeps."""
    agent_id: AgentId
    """The agent."""
    channel_id: ChannelId
    """The channel."""
    output_box_id: BoxId
    """The box that has what was said."""
    turn_count: int
    """The number of its turns."""
    last_turn_id: AgentTurnId | None
    """The last of them."""
    created_at: datetime
    """When it began."""
    updated_at: datetime
    """When it was last used."""


class ConversationPage(Tolerant):
    """Conversations, the last begun first."""

    conversations: list[Conversation]
    """The conversations."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class AgentPage(Tolerant):
    """Agents by id."""

    agents: list[AgentLine]
    """The agents."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class ProfilePage(Tolerant):
    """Profiles by name."""

    profiles: list[ProfileLine]
    """The profiles."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class FileRemoved(Tolerant):
    """A file that was removed."""

    artifact_id: str
    """The file."""


class FilePage(Tolerant):
    """Files, newest first."""

    artifacts: list[FileView]
    """The files."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class ToolPage(Tolerant):
    """Tools by name."""

    tools: list[ToolRow]
    """The tools."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class UsageLine(Tolerant):
    """Sums over attempts, failed ones included; `name` is None in the line for all. Days are in UTC."""

    name: str | None
    """The agent, model or day; null in the line for all."""
    turns: int
    """Turns with such an attempt."""
    steps: int
    """Steps with such an attempt."""
    attempts: int
    """Attempts at a model."""
    failed_attempts: int
    """Those that failed."""
    prompt_tokens: int
    """Tokens that models read."""
    completion_tokens: int
    """Tokens that models wrote."""
    total_tokens: int
    """Both."""
    response_cost: float | None
    """In US dollars, of the attempts with a known price; None if there are none."""
    estimated_attempts: int
    """Attempts whose tokens were counted here, because the provider sent no counts."""
    unknown_attempts: int
    """Attempts without any counts: failed, or lost with their worker."""


class Usage(Tolerant):
    """What models used, as sums."""

    lines: list[UsageLine]
    """One for each agent, model or day, by name, and one without a name for all, last."""
    next: str | None = None
    """`cursor` of the next page; null if there is none."""


class ChannelQuery(Strict):
    """Of which channel and agent."""

    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """Only of this channel."""
    agent_id: str | None = Field(default=None, pattern=TOKEN)
    """Only those of this agent."""


class PageQuery(Strict):
    """A page."""

    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    """`next` of the page before."""
    limit: int = Field(default=50, ge=1, le=500)
    """At most this many."""


class FilesQuery(PageQuery):
    """Which files."""

    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """Only of this channel."""


class FileQuery(Strict):
    """What a file is called, and who sees it."""

    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """Its channel; by default the token's, else the gateway's."""

    filename: str = Field(default="file", min_length=1, max_length=4096)
    """Its name: the last part of a path, without hidden characters."""


class TurnsQuery(PageQuery, ChannelQuery):
    """Which turns."""

    conversation_id: ConversationToken | None = None
    """Only of this conversation."""
    end_user: EndUser | None = None
    """Only of this end user."""


class ConversationsQuery(PageQuery, ChannelQuery):
    """Which conversations."""


class ConversationDeleteQuery(ChannelQuery):
    """Which conversation, where several have its id, and what was seen of it."""

    last_turn_id: str | None = Field(default=None, max_length=128)
    """The last turn that was seen: with a later one nothing is deleted."""


class EndUserQuery(Strict):
    """Which end user."""

    end_user: EndUser
    """As the requests of their turns named them."""


class TreeQuery(Strict):
    """A page of a tree."""

    cursor: str | None = Field(default=None, pattern=TOKEN)
    """`next` of the page before."""
    limit: int = Field(default=500, ge=1, le=1000)
    """At most this many."""


class UsageQuery(PageQuery):
    """How to sum, and since when."""

    limit: int = Field(default=500, ge=1, le=500)
    """At most this many lines, besides the one for all."""
    by: Literal["agent", "model", "day"] = "model"
    """What a line is of."""
    since: datetime | None = None
    """Only what ended since then."""


class EventsQuery(Strict):
    """How to stream."""

    on_disconnect: Literal["continue", "cancel"] = "continue"
    """`cancel`: the turn is stopped when this client goes away."""


class ConversationEventsQuery(ChannelQuery):
    """Which conversation, where several have the name, and from where."""

    turns: int = Field(default=20, ge=1, le=200)
    """Begin with the last so many turns."""


class InterruptsQuery(PageQuery, ChannelQuery):
    """Which questions to people."""

    status: Literal["open", "resolved", "expired", "withdrawn"] | None = None
    """Only those with this status."""
    agent_turn_id: str | None = Field(default=None, pattern=TOKEN)
    """Only of this turn."""
    reason: Literal["tool_call", "input_required", "confirmation", "client_tool"] | None = None
    """Only those for this reason; by default all that people answer, which calls of `client_tool` are not."""


class InterruptPage(Tolerant):
    """Questions to people, the newest first, without arguments."""

    interrupts: list[Interrupt]
    """The questions."""
    next: InterruptId | None = None
    """`cursor` of the next page; null if there is none."""


class InterruptDecision(Strict):
    """What a person decides. `arguments` go with `edit`, `response` with `respond`."""

    decision: Decision
    """One of the question's `allowed_decisions`."""
    action_digest: str | None = Field(default=None, max_length=128)
    """The question's digest, as the person saw it; null only if it has none."""
    arguments: JsonObject | None = None
    """With `edit`: all arguments of the call."""
    message: str = Field(default="", max_length=4096)
    """The reason of a rejection, which the model reads; else a comment, which it does not."""
    response: JsonValue = None
    """With `respond`: the result of the call."""


class Decided(Tolerant):
    """A decision that counts."""

    interrupt_id: InterruptId
    """The question."""
    decision: Decision
    """What was decided."""
    agent_turn_id: AgentTurnId
    """The turn that waited."""
    tool_call_id: ToolCallId
    """The call."""
    tool_changed: bool
    """Whether the call failed as `tool_changed` instead of being sent."""
    duplicate: bool
    """Whether the same token had decided the same before."""


class BudgetsQuery(PageQuery):
    """Which budgets."""

    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """Only of this channel's turns; without one also the project's own."""
    kind: Literal["turn", "day", "month"] | None = None
    """Only these: turns' own grants, or the project's by day or month."""
    status: Literal["open", "ended", "closed"] | None = None
    """Only those with this status."""


class BudgetPage(Tolerant):
    """Budgets, the newest first."""

    budgets: list[BudgetView]
    """The budgets."""
    limits: list[ProjectLimits]
    """What the project may spend in a day or month; empty for a token of one channel."""
    next: BudgetId | None = None
    """`cursor` of the next page; null if there is none."""


class BudgetRaise(BudgetChange):
    """How much more a budget shall have; with a minus, how much less."""


class BudgetLimitation(Strict):
    """What the project may spend in each day or month from now on."""

    limits: SpendingLimits | None
    """The limits, which take the place of those before; null: there are none any more."""


class CardAnswer(Tolerant):
    """A card of a turn."""

    card_id: CardId
    """Its id."""
    type: str
    """Its type, such as `agent.thought`, `tool.call`, `tool.result`, `task.steer` or `task.deliverable`."""
    content: JsonValue
    """Its content."""
    tool_calls: list[ThoughtCall] | None = None
    """The calls that a thought made."""
    tool_call_id: ToolCallId | None = None
    """The call that it is of."""

    @classmethod
    def of(cls, card: Card) -> "CardAnswer":
        """A card without what is the kernel's own, and without what a tool's options added to a call (`Detail.ADDED`).

        Readers of a turn share its events, so these are left out for all of them; a thought's reasoning, too.
        """
        card, metadata = without_reasoning(without_added(card)), card.metadata
        return cls(
            card_id=card.card_id,
            type=metadata.type,
            content=card.content,
            tool_calls=card.tool_calls,
            tool_call_id=card.tool_call_id,
        )


class Webhook(Tolerant):
    """A webhook that was set or removed."""

    webhook_id: str
    """Its name; of a turn: the turn's id."""
    secret: str | None = None
    """The secret, if one was made: it is shown this once."""


class WebhookPage(Tolerant):
    """The webhooks of a project and its profiles."""

    webhooks: list[WebhookView]
    """By their ids."""


class SchedulesQuery(Strict):
    """Of which channel."""

    channel_id: str | None = Field(default=None, pattern=TOKEN)
    """The channel of the schedule; by default the token's, else the gateway's default."""


class SchedulePageQuery(SchedulesQuery):
    """A page of schedules."""

    limit: int = Field(default=100, ge=1, le=500)
    """At most so many."""
    cursor: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")
    """The `next` of the page before."""


class SchedulePage(Tolerant):
    """Schedules of a channel."""

    schedules: list[ScheduleView]
    """By their ids."""
    next: str | None = None
    """The cursor of the next page; null if there is none."""


class ScheduleTriggered(Tolerant):
    """The turn of a schedule that was triggered."""

    schedule_id: str
    """The schedule."""
    agent_turn_id: AgentTurnId
    """The turn."""
    duplicate: bool = False
    """Whether the same request was made before."""
