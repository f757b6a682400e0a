"""What callers send to the bridge, what they hear, and the payloads of inbox rows (protocol §4, §6)."""

import hashlib
from typing import Literal

from pydantic import Field, field_validator

from schema.base import JsonObject, Strict, Text, Tolerant
from schema.cards import ResultField
from schema.ids import AgentId, AgentTurnId, BoxId, CardId, InboxId, box_id, token
from schema.profiles import RuntimeConfig
from schema.states import AfterExecution, InboxStatus, ReplyStatus, TurnStatus

TEXT_LIMIT_BYTES = 524_288
"""Text in one request (protocol §6): 512 KiB of UTF-8."""


class EnqueueRequest(Strict):
    """Arguments of `enqueue` (protocol §6). One of instruction, context box and the agent's memory is needed."""

    agent_id: AgentId
    instruction: Text | None = Field(default=None, min_length=1)
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
    """Arguments of `describe`: exactly one of a turn or a card of the caller's project."""

    agent_turn_id: AgentTurnId | None = None
    card_id: CardId | None = None


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
