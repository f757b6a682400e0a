"""What callers send to the bridge, what they hear, and the payloads of inbox rows (protocol §4, §6)."""

import hashlib
import json
from typing import Literal, Self

from pydantic import AliasChoices, Field, JsonValue, field_validator, model_validator

from schema.base import JsonObject, Strict, Tolerant
from schema.cards import ResultField, ToolError
from schema.errors import Refused
from schema.ids import AgentId, AgentTurnId, BoxId, CardId, InboxId, ToolCallId, box_id, token
from schema.profiles import RuntimeConfig
from schema.states import AfterExecution, InboxStatus, ReplyStatus, TurnStatus
from schema.threads import MessageId, ThreadId

TEXT_LIMIT_BYTES = 524_288
"""Text in one request (protocol §6): 512 KiB of UTF-8."""


class EnqueueRequest(Strict):
    """Arguments of `enqueue` (protocol §6). One of instruction, context box and the agent's memory is needed."""

    agent_id: AgentId
    instruction: str | None = Field(default=None, min_length=1)
    context_box_id: BoxId | None = None
    profile_name: str | None = Field(default=None, min_length=1, max_length=128)
    output_box_id: BoxId | None = None
    result_fields: list[ResultField] | None = Field(default=None, min_length=1, max_length=256)
    runtime_config: RuntimeConfig = RuntimeConfig()
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    message_type: Literal["turn"] = "turn"
    metadata: JsonObject = Field(default_factory=dict)

    @field_validator("agent_id")
    @classmethod
    def _agent_token(cls, value: AgentId) -> AgentId:
        return AgentId(token(value, "agent_id"))

    @field_validator("context_box_id", "output_box_id")
    @classmethod
    def _box_uuid(cls, value: BoxId | None) -> BoxId | None:
        return value and box_id(value, "box id")

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
    error_code: str | None = None
    error: str | None = None


class EnqueueReply(Reply):
    """Answer to `enqueue`. `turn_epoch` is 0 while the turn is queued."""

    agent_turn_id: AgentTurnId | None = None
    turn_epoch: int | None = None
    inbox_id: InboxId | None = None
    inbox_status: InboxStatus | None = None
    context_box_id: BoxId | None = None
    output_box_id: BoxId | None = None
    trace_id: str | None = None
    duplicate: bool = False


class DescribeRequest(Strict):
    """Arguments of `describe`: exactly one of a turn, a card or a call of the caller's project."""

    agent_turn_id: AgentTurnId | None = None
    card_id: CardId | None = None
    tool_call_id: ToolCallId | None = None


class TurnPayload(Tolerant):
    """`payload` of an inbox row of type `turn`."""

    profile_box_id: BoxId
    context_box_id: BoxId
    output_box_id: BoxId
    runtime_config: RuntimeConfig = RuntimeConfig()


class ReportPayload(Tolerant):
    """`payload` of an inbox row of type `tool_result` or `timeout`."""

    status: TurnStatus
    after_execution: AfterExecution | None = None
    tool_result_card_id: CardId


class StopPayload(Tolerant):
    """`payload` of an inbox row of type `stop`."""

    reason: str = ""
    """The stop's, in words for people."""


RESULT_LIMIT_BYTES = 524_288
"""An inline result of a report: 512 KiB of JSON; what is larger goes into a card, whose id is reported."""


class ReportRequest(Strict):
    """Arguments of `report` (protocol §6): a pointer to a `tool.result` card, or an inline result or error."""

    tool_call_id: ToolCallId = Field(validation_alias=AliasChoices("tool_call_id", "correlation_id"), max_length=128)
    status: TurnStatus
    after_execution: AfterExecution | None = None
    tool_result_card_id: CardId | None = Field(default=None, min_length=1, max_length=256)
    result: JsonValue = None
    error: ToolError | None = None

    @model_validator(mode="after")
    def _pointer_or_inline(self) -> Self:
        if self.tool_result_card_id is not None and (self.result is not None or self.error is not None):
            raise ValueError("either tool_result_card_id or an inline result or error, not both")
        return self


class ReportReply(Reply):
    """Answer to `report`."""

    tool_call_id: ToolCallId | None = None
    inbox_id: InboxId | None = None
    duplicate: bool = False


class StopRequest(Strict):
    """Arguments of `stop`."""

    agent_turn_id: AgentTurnId = Field(min_length=1, max_length=128)
    reason: str = Field(default="", max_length=1024)


class StopReply(Reply):
    """Answer to `stop`. `already_final`: the turn was over before."""

    agent_turn_id: AgentTurnId | None = None
    inbox_id: InboxId | None = None
    already_final: bool = False
    duplicate: bool = False


class SendRequest(Strict):
    """Arguments of `send` (protocol §9): XML as text, or the fields of the listener's payload as an object."""

    to: str = Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")
    """A name as listeners have them: it shows where threads are shown, so it is no place for content."""
    payload: str | JsonObject
    thread_id: ThreadId | None = Field(default=None, min_length=1, max_length=128)
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
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
    message_id: MessageId | None = None
    duplicate: bool = False


class ThreadDescribeRequest(Strict):
    """Arguments of `thread.describe`."""

    thread_id: ThreadId = Field(min_length=1, max_length=128)
