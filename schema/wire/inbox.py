"""Requests to the bridge and its replies, and the payloads of inbox rows (protocol §4, §6)."""

import hashlib
import json
from datetime import datetime
from typing import Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from turnstile.schema.base import (
    AgentToken,
    BoxUuid,
    ConversationToken,
    EndUser,
    IdOf,
    JsonObject,
    Reply,
    Strict,
    Tolerant,
)
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import StoredTurnBudget
from turnstile.schema.cards import MOST_PARTS, ResultField, ToolError
from turnstile.schema.errors import Refused
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
    ProjectId,
    ToolCallId,
    instance_id,
)
from turnstile.schema.people.approvals import Decision
from turnstile.schema.profiles import RuntimeConfig, StoredConfig
from turnstile.schema.pump.threads import MessageId, ThreadId
from turnstile.schema.states import (
    AfterExecution,
    InboxStatus,
    MultitaskStrategy,
    SteerPriority,
    TurnStatus,
)
from turnstile.schema.wire.file_requests import FileId

TEXT_LIMIT_BYTES = 524_288
"""Text in one request (protocol §6): 512 KiB of UTF-8."""
IN_PARTS = "split it into files (`split -C 500k FILE part-`) and put them into one box (`turnstile box put part-*`)"
"""What to do with a text that is longer."""

REQUEST_ID_LIMIT = 256
"""Characters of a durable command's `request_id`."""


class EnqueueRequest(Strict):
    """Arguments of `enqueue` (protocol §6). An instruction, a context box or the agent's memory box is required."""

    agent_id: AgentToken | None = None
    """The agent of the project that shall run the turn; left out, an instance of the profile does."""
    instruction: str | None = Field(default=None, min_length=1)
    """The instruction as text; it becomes a card after those of the context box."""
    files: list[FileId] = Field(default_factory=list[ArtifactId], max_length=MOST_PARTS)
    """Files of the channel, by their ids: they belong to the instruction."""
    context_box_id: BoxUuid | None = None
    """A box (uuid) whose cards the turn reads."""
    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    """A profile of the project for this turn, instead of the agent's own. Without `agent_id` it must have instances."""
    conversation_id: ConversationToken | None = None
    """A conversation with the agent in this channel: its turns follow each other and remember what was said."""
    output_box_id: BoxUuid | None = None
    """The box (uuid) to which the turn appends its cards; by default the conversation's, else a new one."""
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    """Fields that the deliverable must have."""
    runtime_config: RuntimeConfig = RuntimeConfig()
    """Settings that this turn overrides or adds."""
    budget: BudgetLimits | None = None
    """What the turn and all below it may use, instead of what the profile says."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat with the same content returns the same turn."""
    multitask_strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    """What becomes of the turns that the caller has in hand or queued in the same conversation."""
    message_type: Literal["turn"] = "turn"
    """The type of the request: a turn."""
    metadata: JsonObject = Field(default_factory=dict)
    """The caller's own notes; stored, and never shown to a model."""
    end_user: EndUser | None = None
    """The person for whom the caller asks, by the caller's own name. All turns below are of the same one."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.agent_id is None and self.profile_name is None:
            raise ValueError("one of agent_id and profile_name is needed")
        if self.conversation_id is not None and self.output_box_id is not None:
            raise ValueError("either conversation_id or output_box_id: a conversation has its own output box")
        if self.result_fields is not None and self.runtime_config.output_schema is not None:
            raise ValueError("either result_fields or runtime_config.output_schema: each says what the answer is")
        if self.files and self.multitask_strategy is MultitaskStrategy.STEER:
            raise ValueError("files go with a turn of its own: choose another strategy than steer")
        return self

    def agent(self, project: ProjectId, channel: ChannelId, request_name: str) -> AgentId:
        """The agent that runs the turn: the one named, else the profile's instance for the conversation or the request.

        The request goes by its correlation id, else by `request_name`.
        """
        if self.agent_id is not None:
            return self.agent_id
        kind, name = "request", self.correlation_id or request_name
        if self.conversation_id is not None:
            kind, name = "conversation", self.conversation_id
        return instance_id(project, channel, self.profile_name or "", kind, name)

    def digest(self) -> str:
        """A fingerprint of the caller's fields; the same correlation with a different one is a conflict."""
        text = self.model_dump_json(exclude={"correlation_id"}, exclude_defaults=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def text_bytes(self) -> int:
        """The bytes of UTF-8 text in the request, limited by `TEXT_LIMIT_BYTES`."""
        texts = [self.instruction or "", *(f.name + f.description for f in self.result_fields or [])]
        texts += self.runtime_config.texts()
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class EnqueueReply(Reply):
    """Reply to `enqueue`. `turn_epoch` is 0 while the turn is queued."""

    agent_id: AgentId | None = None
    """The agent that runs the turn: of a request that named a profile only, the profile's instance."""
    conversation_id: ConversationId | None = None
    """The conversation that the turn is in; empty for the one that a profile's memory keeps."""
    agent_turn_id: AgentTurnId | None = None
    """The turn that the request made: its `task` event has this id. Null if an earlier turn is steered."""
    turn_epoch: int | None = None
    """The fencing number of the turn's lease."""
    inbox_id: InboxId | None = None
    """The row of the agent's inbox."""
    inbox_status: InboxStatus | None = None
    """As the row says: `queued` while the agent is busy, `pending` once the agent is leased to the turn, `processing`
    if the turn is started at once."""
    context_box_id: BoxId | None = None
    """The box that the turn reads."""
    output_box_id: BoxId | None = None
    """The box that the turn's cards go to."""
    trace_id: str | None = None
    """The trace that the turn belongs to: 32 hex digits."""
    duplicate: bool = False
    """Whether the same request was made before: then these are its ids, and nothing was written."""
    stopped: tuple[AgentTurnId, ...] = ()
    """With the strategies `interrupt` and `rollback`: the turns that make way for this one."""
    steered_turn_id: AgentTurnId | None = None
    """With the status `steered`: the earlier turn that hears the instruction. `inbox_id` is then that of the steer's
    own row, which is the steer's id."""
    correlation_id: str | None = None
    """The caller's own name for the request, by default the turn's id."""
    created_at: datetime | None = None
    """When the turn was enqueued."""
    queued_because: str | None = None
    """Why it is queued: `agent_paused`, `agent_busy` or `output_box_busy`; null if it is not."""
    budget: StoredTurnBudget = None
    """Where it is charged, and until when it may run; null if nothing limits it."""


class RerunReply(EnqueueReply):
    """Reply to `rerun`: as to the enqueue of the new turn, whose boxes are copies."""

    rerun_of: AgentTurnId | None = None
    """The turn that it runs again."""
    from_step: int | None = None
    """The step of that turn from which on it does."""


class DescribeRequest(Strict):
    """Arguments of `describe`: exactly one id of a turn, a card or a call of the caller's project."""

    agent_turn_id: IdOf[AgentTurnId] | None = None
    """A turn."""
    card_id: IdOf[CardId] | None = None
    """A card."""
    tool_call_id: IdOf[ToolCallId] | None = None
    """A call."""
    tree: bool = False
    """With a turn: whether to answer its whole tree, too."""
    begins: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_.-]{1,200}$")
    """With a call: the run that would begin it now, by a name of its own. Of all that ask, one may."""

    @model_validator(mode="after")
    def _begins_a_call(self) -> Self:
        if self.begins is not None and self.tool_call_id is None:
            raise ValueError("begins goes with tool_call_id")
        return self


class Multitask(Tolerant):
    """What a turn did with other turns of its requester in its conversation (protocol §6, enqueue)."""

    strategy: MultitaskStrategy
    """`interrupt` or `rollback`."""
    stopped: tuple[AgentTurnId, ...] = ()
    """The turns that were asked to stop."""
    ahead_of: AgentTurnId | None = None
    """The queued turn of somebody else whose place it took, if there was one."""


class RerunOf(Tolerant):
    """Which turn another one runs again (protocol §6, rerun)."""

    of: AgentTurnId
    """The turn that is run again."""
    from_step: int
    """From which of its steps on."""
    line: tuple[AgentTurnId, ...] = ()
    """That turn, the one that it had run again, and so on: what they wrote into the output box is read as its own."""


class TurnPayload(Tolerant):
    """`payload` of an inbox row of type `turn`."""

    profile_box_id: BoxId
    """The box that holds the profile's card."""
    context_box_id: BoxId
    """The box that the turn reads."""
    output_box_id: BoxId
    """The box that the turn's cards go to."""
    runtime_config: StoredConfig = StoredConfig()
    """The settings of the enqueue, without their text, which is on a card."""
    conversation_id: ConversationId | None = None
    """The conversation that the turn is in, if it is in one."""
    multitask: Multitask | None = None
    """What the turn did with others of its conversation, if its strategy was `interrupt` or `rollback`."""
    rerun: RerunOf | None = Field(default=None, exclude_if=lambda value: value is None)
    """The turn that it runs again, if it does."""


class ReportPayload(Tolerant):
    """`payload` of an inbox row of type `tool_result` or `timeout`."""

    status: TurnStatus
    """How the call ended."""
    after_execution: AfterExecution | None = None
    """What the result does to the turn; null: what the tool's row says."""
    tool_result_card_id: CardId
    """The `tool.result` card."""


class StopPayload(Tolerant):
    """`payload` of an inbox row of type `stop`."""

    reason: str = ""
    """The reason of the stop, for people."""


class SteerPayload(Tolerant):
    """Payload of a `steer` row, whose id is the steer's: consumed with the step that asks with it, else skipped."""

    steer_card_id: CardId
    """The card with the text."""
    priority: SteerPriority
    """When it is taken."""


class DecisionPayload(Tolerant):
    """Payload of a `decision` row: consumed by the statement that records the decision."""

    interrupt_id: InterruptId
    """The question that was decided."""
    tool_call_id: ToolCallId
    """The call that it was about."""
    decision: Decision
    """What was decided; its comment and answer are the interrupt's."""


RESULT_LIMIT_BYTES = 524_288
"""Limit of an inline result: 512 KiB of JSON. A larger result must be stored as a card, whose id is reported."""


def _by_either_name(schema: JsonObject) -> None:
    """Allow either name of the call's id; pydantic's own schema has only the first."""
    properties, required = schema["properties"], schema["required"]
    if isinstance(properties, dict) and isinstance(required, list):
        properties["correlation_id"] = {"type": "string", "maxLength": 128, "description": "The same, by another name."}
        schema["required"] = [name for name in required if name != "tool_call_id"]
        schema["oneOf"] = [{"required": [name]} for name in ("tool_call_id", "correlation_id")]


class ReportRequest(Strict):
    """Arguments of `report` (protocol §6): a pointer to a `tool.result` card, or an inline result or error."""

    model_config = ConfigDict(json_schema_extra=_by_either_name)

    tool_call_id: IdOf[ToolCallId] = Field(
        validation_alias=AliasChoices("tool_call_id", "correlation_id"), max_length=128
    )
    """The call; the field may also be named `correlation_id`."""
    status: TurnStatus
    """How the call ended."""
    after_execution: AfterExecution | None = None
    """What the result does to the turn; null: what the tool's row says."""
    tool_result_card_id: IdOf[CardId] | None = Field(default=None, min_length=1, max_length=256)
    """A `tool.result` card that the tool has stored itself."""
    result: JsonValue = None
    """The inline result: at most 512 KiB of JSON."""
    error: ToolError | None = None
    """The inline error of a failed call."""
    files: list[FileId] = Field(default_factory=list[ArtifactId], max_length=MOST_PARTS)
    """Files of the turn's channel that belong to the inline result."""

    @model_validator(mode="after")
    def _pointer_or_inline(self) -> Self:
        inline = self.result is not None or self.error is not None or self.files
        if self.tool_result_card_id is not None and inline:
            raise ValueError("either tool_result_card_id or an inline result, error or files, not both")
        return self


class ReportReply(Reply):
    """Reply to `report`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    inbox_id: InboxId | None = None
    """The row of the agent's inbox."""
    duplicate: bool = False
    """Whether the call was reported before: then this report changed nothing."""


class StopRequest(Strict):
    """Arguments of `stop`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn to end, in any state."""
    reason: str = Field(default="", max_length=1024)
    """The reason, for people."""
    cascade: Literal["waited", "all"] = "waited"
    """Which turns below it end too: those that are waited for, to any depth, or all."""


class StopReply(Reply):
    """Reply to `stop`."""

    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    inbox_id: InboxId | None = None
    """The inbox row that asks the running turn to stop."""
    already_final: bool = False
    """Whether the turn was over before."""
    duplicate: bool = False
    """Whether a stop of the turn was requested before."""
    marked: int = 0
    """The turns that this stop has marked: no step of theirs begins after this reply. A turn that is `already_final` is
    none of them, though its last step was on its way when it was marked."""
    on_their_way: int = 0
    """How many of them had a step running, or calls out: what these had sent may still arrive."""


class SendRequest(Strict):
    """Arguments of `send` (protocol §9): XML as text, or the fields of the listener's payload as an object."""

    to: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """The name of a listener. It is shown in lists of threads, so it must not hold content."""
    payload: str | JsonObject
    """XML as text, or the fields of the listener's payload."""
    thread_id: IdOf[ThreadId] | None = Field(default=None, min_length=1, max_length=128)
    """The thread that the message joins; by default a new one."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the message; a repeat with the same content is sent once."""
    reply_to: str | None = Field(default=None, max_length=256)
    """A reply inbox to which a copy of the answer is published."""

    def text(self) -> str:
        """The payload as text, as it is stored for the listener."""
        return self.payload if isinstance(self.payload, str) else json.dumps(self.payload, ensure_ascii=False)

    def check_size(self) -> None:
        """Raises `Refused` (text_too_large)."""
        if len(self.text().encode("utf-8", "surrogatepass")) > TEXT_LIMIT_BYTES:
            raise Refused("text_too_large", f"a payload is limited to {TEXT_LIMIT_BYTES} bytes")


class SendReply(Reply):
    """Reply to `send`: the message is stored; its answer follows on `evt.sys.pump.reply`."""

    thread_id: ThreadId | None = None
    """The thread."""
    message_id: MessageId | None = None
    """The message: its answer has this id."""
    duplicate: bool = False
    """Whether the same message was sent before: then these are its ids."""


class ListenerListRequest(Strict):
    """Arguments of `listener.list`."""

    listener: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """Only this listener, with its XSDs."""
    xsd: bool = False
    """Whether to include all XSDs."""


class ThreadDescribeRequest(Strict):
    """Arguments of `thread.describe`."""

    thread_id: IdOf[ThreadId] = Field(min_length=1, max_length=128)
    """The thread."""
    payloads: bool = False
    """Whether to include the payloads of its messages."""
    limit: int = Field(default=1000, ge=1, le=100_000)
    """At most this many messages and answers."""
