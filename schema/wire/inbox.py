"""What callers send to the bridge, what they hear, and the payloads of inbox rows (protocol §4, §6)."""

import hashlib
import json
from typing import Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, field_validator, model_validator

from turnstile.schema.base import JsonObject, Strict, Tolerant
from turnstile.schema.cards import ResultField, ToolError
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, InboxId, ToolCallId, box_id, token
from turnstile.schema.profiles import RuntimeConfig
from turnstile.schema.pump.threads import MessageId, ThreadId
from turnstile.schema.states import AfterExecution, InboxStatus, ReplyStatus, TurnStatus

TEXT_LIMIT_BYTES = 524_288
"""Text in one request (protocol §6): 512 KiB of UTF-8."""

REQUEST_ID_LIMIT = 256
"""Characters of a durable command's `request_id`."""


class EnqueueRequest(Strict):
    """Arguments of `enqueue` (protocol §6). One of instruction, context box and the agent's memory is needed."""

    agent_id: AgentId
    """Who is asked: an agent of the project."""
    instruction: str | None = Field(default=None, min_length=1)
    """What is asked, as text: it becomes a card after those of the context box."""
    context_box_id: BoxId | None = None
    """A box (uuid) whose cards the turn reads."""
    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    """A profile of the project for this turn, instead of the agent's own."""
    output_box_id: BoxId | None = None
    """A box (uuid) that the turn appends its cards to; a new one by default."""
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    """Fields that the deliverable must have."""
    runtime_config: RuntimeConfig = RuntimeConfig()
    """What this turn alone overrides or adds."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request: repeated with the same content it answers the same turn."""
    message_type: Literal["turn"] = "turn"
    """What is asked for: a turn."""
    metadata: JsonObject = Field(default_factory=dict)
    """The caller's own notes; kept, and never shown to a model."""

    @field_validator("agent_id")
    @classmethod
    def _agent_token(cls, value: AgentId) -> AgentId:
        return AgentId(token(value, "agent_id"))

    @field_validator("context_box_id", "output_box_id")
    @classmethod
    def _box_uuid(cls, value: BoxId | None) -> BoxId | None:
        return None if value is None else box_id(value, "box id")

    def digest(self) -> str:
        """A fingerprint of the caller's own fields: the same correlation with another one is a conflict."""
        text = self.model_dump_json(exclude={"correlation_id"}, exclude_defaults=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def text_bytes(self) -> int:
        """Bytes of UTF-8 text in the request, which `TEXT_LIMIT_BYTES` bounds."""
        texts = [self.instruction or "", *(f.name + f.description for f in self.result_fields or [])]
        texts += self.runtime_config.texts()
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


class Reply(Tolerant):
    """What every primitive answers at least (protocol §6)."""

    status: ReplyStatus
    """`accepted`: it is done. `busy`: try again. `rejected`: it cannot be. `error`: a server failed."""
    error_code: str | None = None
    """Why not, as a stable word; null if accepted."""
    error: str | None = None
    """Why not, for people."""


class EnqueueReply(Reply):
    """Answer to `enqueue`. `turn_epoch` is 0 while the turn is queued."""

    agent_turn_id: AgentTurnId | None = None
    """The turn: its `task` event has this id."""
    turn_epoch: int | None = None
    """The fencing number of the turn's lease."""
    inbox_id: InboxId | None = None
    """The row of the agent's inbox."""
    inbox_status: InboxStatus | None = None
    """`queued` while the agent is busy, `pending` once it is the turn's."""
    context_box_id: BoxId | None = None
    """The box that the turn reads."""
    output_box_id: BoxId | None = None
    """The box that the turn's cards go to."""
    trace_id: str | None = None
    """The trace that the turn belongs to: 32 hex digits."""
    duplicate: bool = False
    """The same request was made before: these are its ids, and nothing was written."""


class DescribeRequest(Strict):
    """Arguments of `describe`: exactly one of a turn, a card or a call of the caller's project."""

    agent_turn_id: AgentTurnId | None = None
    """A turn."""
    card_id: CardId | None = None
    """A card."""
    tool_call_id: ToolCallId | None = None
    """A call."""


class TurnPayload(Tolerant):
    """`payload` of an inbox row of type `turn`."""

    profile_box_id: BoxId
    """The profile, as the box that holds its card."""
    context_box_id: BoxId
    """The box that the turn reads."""
    output_box_id: BoxId
    """The box that the turn's cards go to."""
    runtime_config: RuntimeConfig = RuntimeConfig()
    """What the enqueue overrides."""


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
    """The stop's, in words for people."""


RESULT_LIMIT_BYTES = 524_288
"""An inline result of a report: 512 KiB of JSON; what is larger goes into a card, whose id is reported."""


def _by_either_name(schema: JsonObject) -> None:
    """The call's id may have either name; pydantic's own schema knows the first."""
    properties, required = schema["properties"], schema["required"]
    if isinstance(properties, dict) and isinstance(required, list):
        properties["correlation_id"] = {"type": "string", "maxLength": 128, "description": "The same, by another name."}
        schema["required"] = [name for name in required if name != "tool_call_id"]
        schema["oneOf"] = [{"required": [name]} for name in ("tool_call_id", "correlation_id")]


class ReportRequest(Strict):
    """Arguments of `report` (protocol §6): a pointer to a `tool.result` card, or an inline result or error."""

    model_config = ConfigDict(json_schema_extra=_by_either_name)

    tool_call_id: ToolCallId = Field(validation_alias=AliasChoices("tool_call_id", "correlation_id"), max_length=128)
    """The call, which may also be named by `correlation_id`."""
    status: TurnStatus
    """How the call ended."""
    after_execution: AfterExecution | None = None
    """What the result does to the turn; null: what the tool's row says."""
    tool_result_card_id: CardId | None = Field(default=None, min_length=1, max_length=256)
    """A `tool.result` card that the tool has written itself."""
    result: JsonValue = None
    """The result, inline: at most 512 KiB of JSON."""
    error: ToolError | None = None
    """Why it failed, inline."""

    @model_validator(mode="after")
    def _pointer_or_inline(self) -> Self:
        if self.tool_result_card_id is not None and (self.result is not None or self.error is not None):
            raise ValueError("either tool_result_card_id or an inline result or error, not both")
        return self


class ReportReply(Reply):
    """Answer to `report`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    inbox_id: InboxId | None = None
    """The row of the agent's inbox."""
    duplicate: bool = False
    """The call was reported before: this report changed nothing."""


class StopRequest(Strict):
    """Arguments of `stop`."""

    agent_turn_id: AgentTurnId = Field(min_length=1, max_length=128)
    """The turn to end, whatever state it is in."""
    reason: str = Field(default="", max_length=1024)
    """Why, for people."""


class StopReply(Reply):
    """Answer to `stop`."""

    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    inbox_id: InboxId | None = None
    """The row that asks the running turn to stop."""
    already_final: bool = False
    """The turn was over before."""
    duplicate: bool = False
    """The turn is being stopped already."""


class SendRequest(Strict):
    """Arguments of `send` (protocol §9): XML as text, or the fields of the listener's payload as an object."""

    to: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """A name as listeners have them: it shows where threads are shown, so it is no place for content."""
    payload: str | JsonObject
    """XML as text, or the fields of the listener's payload."""
    thread_id: ThreadId | None = Field(default=None, min_length=1, max_length=128)
    """The conversation that it joins; a new one by default."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the message: repeated with the same content it is sent once."""
    reply_to: str | None = Field(default=None, max_length=256)
    """A reply inbox that is sent a copy of the answer."""

    def text(self) -> str:
        """The payload as it travels to its listener."""
        return self.payload if isinstance(self.payload, str) else json.dumps(self.payload, ensure_ascii=False)

    def check_size(self) -> None:
        """Raises `Refused` (text_too_large)."""
        if len(self.text().encode("utf-8", "surrogatepass")) > TEXT_LIMIT_BYTES:
            raise Refused("text_too_large", f"a payload is limited to {TEXT_LIMIT_BYTES} bytes")


class SendReply(Reply):
    """Answer to `send`: the message is on its way; what it comes to follows on `evt.sys.pump.reply`."""

    thread_id: ThreadId | None = None
    """The conversation."""
    message_id: MessageId | None = None
    """The message: its answer has this id."""
    duplicate: bool = False
    """The same message was sent before: these are its ids."""


class ThreadDescribeRequest(Strict):
    """Arguments of `thread.describe`."""

    thread_id: ThreadId = Field(min_length=1, max_length=128)
    """The conversation."""
