"""Interrupts: questions to people that turns wait for, and people's decisions (protocol §13). Pure.

A worker makes a `Hold` for each call that must not go out yet; the commit that suspends the turn opens an interrupt of
it. What a model or a tool wrote (`message`, arguments) is quoted data to those who read it, and is in no event.
"""

import json
import operator
from datetime import datetime
from enum import StrEnum
from typing import Literal, Self

from pydantic import Field, JsonValue, model_validator

from turnstile.schema.base import IdOf, JsonObject, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, InterruptId, StepId, ToolCallId
from turnstile.schema.people.approvals import EXPIRES_AFTER_SECONDS, Decision

_PLAIN = r"^[!-~]+$"


class InterruptReason(StrEnum):
    """Why a call waits for a person."""

    TOOL_CALL = "tool_call"
    """A policy wants the call approved."""
    INPUT_REQUIRED = "input_required"
    """The call is a question, and its answer its result; or its tool asks, and gets the answer."""
    CONFIRMATION = "confirmation"
    """Nobody knows whether the call was run, and it must not be run twice."""
    CLIENT_TOOL = "client_tool"
    """The call is of a tool of the client's own: no person is asked, and who asked for the turn answers it (§19)."""


class InterruptStatus(StrEnum):
    """What became of a question. All but `open` are final."""

    OPEN = "open"
    RESOLVED = "resolved"
    """A person decided."""
    EXPIRED = "expired"
    """Nobody decided in time."""
    WITHDRAWN = "withdrawn"
    """The turn ended first."""


class ToolPin(Tolerant):
    """What a person is asked about beside the arguments; a call whose tool differs when they decide is not sent."""

    target_subject: str | None
    """Of the tool's row, with its placeholders."""
    parameters: JsonObject
    """The JSON schema of the tool's row."""


class Hold(Tolerant):
    """Why a call may not go out yet, and who may let it; becomes an interrupt with the commit of its step."""

    reason: InterruptReason
    message: str
    """The question, for people: what a model wrote in it is quoted."""
    action_digest: str | None = None
    """Of call, tool, target and all arguments: a decision names it. None if there is nothing to send."""
    allowed_decisions: tuple[Decision, ...]
    response_schema: JsonObject | None = None
    """The JSON schema that a response must match, if any."""
    expires_after_seconds: float = Field(default=EXPIRES_AFTER_SECONDS, gt=0)
    on_expiry: Literal["reject", "timeout", "cancel"] = "reject"
    """What becomes of the call then: `cancel` ends its turn (§19)."""
    requester_may_decide: bool = False
    """Whether the principal that asked for the turn may decide."""
    only_requester: bool = Field(default=False, exclude_if=operator.not_)
    """Whether nobody else may, but for an operator who rejects."""
    tool_pin: ToolPin | None = None
    """None for calls without a row of `resource.tools`."""


class Interrupt(Tolerant):
    """A question to a person and what became of it, as people see it; the arguments are on the call's card."""

    interrupt_id: InterruptId
    """The question."""
    channel_id: ChannelId
    """The channel of the turn."""
    agent_id: AgentId
    """The agent."""
    agent_turn_id: AgentTurnId
    """The turn that waits."""
    step_id: StepId
    """The step that made the call."""
    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool that is called."""
    tool_call_card_id: CardId
    """The call's card, which has the arguments; after an edit the second one."""
    reason: InterruptReason
    """Why a person is asked."""
    message: str
    """The question; what a model wrote in it is data."""
    action_digest: str | None
    """What a decision must name; null if there is nothing to send."""
    allowed_decisions: tuple[Decision, ...]
    """What may be decided."""
    response_schema: JsonObject | None
    """The JSON schema that a response must match, if any."""
    requester_may_decide: bool
    """Whether the principal that asked for the turn may decide."""
    requester: str | None
    """The principal that asked for the turn, if it said who it is."""
    status: InterruptStatus
    """What became of it."""
    created_at: datetime
    """When it was opened."""
    expires_at: datetime
    """When the call is rejected if nobody decides."""
    decision: Decision | None = None
    """What was decided."""
    decided_by: str | None = None
    """Who decided; `system` if nobody did in time."""
    decided_at: datetime | None = None
    """When it was closed."""
    comment: str | None = None
    """What the person said about it."""
    asked_by_tool: bool = False
    """Whether the call's tool asks while it runs: the call goes on, and its tool reads the answer."""


class DecideRequest(Strict):
    """Arguments of `decide`."""

    interrupt_id: IdOf[InterruptId] = Field(max_length=160, pattern=_PLAIN)
    """The question."""
    decision: Decision
    """One of its `allowed_decisions`."""
    action_digest: str | None = Field(default=None, max_length=128, pattern=_PLAIN)
    """Its digest, as the person saw it; null only if it has none."""
    arguments: JsonObject | None = None
    """With `edit`: all arguments of the call, instead of the model's."""
    message: str = Field(default="", max_length=4096)
    """The reason of a rejection, which the model reads; else a comment, which it does not."""
    response: JsonValue = None
    """With `respond`: the result of the call."""

    @model_validator(mode="after")
    def _of_its_decision(self) -> Self:
        if (self.arguments is not None) != (self.decision is Decision.EDIT):
            raise ValueError("arguments go with the decision edit, and edit needs them")
        if ("response" in self.model_fields_set) != (self.decision is Decision.RESPOND):
            raise ValueError("response goes with the decision respond, and respond needs it")
        return self

    def text_bytes(self) -> int:
        """The bytes of its arguments or response as JSON, limited by `TEXT_LIMIT_BYTES`."""
        brought = json.dumps(self.arguments if self.response is None else self.response, ensure_ascii=False)
        return len(brought.encode("utf-8", "surrogatepass"))


class DecideReply(Reply):
    """Reply to `decide`."""

    interrupt_id: InterruptId | None = None
    """The question."""
    decision: Decision | None = None
    """What was decided; also of a refusal `already_decided`."""
    agent_turn_id: AgentTurnId | None = None
    """The turn that waited."""
    tool_call_id: ToolCallId | None = None
    """The call."""
    tool_changed: bool = False
    """Whether the call failed as `tool_changed` instead of being sent: its tool is not the one that was asked about."""
    duplicate: bool = False
    """Whether the same principal had decided the same before: then nothing was written."""


class InterruptEvent(Tolerant):
    """Payload of `evt.agent.{agent_id}.interrupt`: a question was opened. Never holds arguments or the question."""

    interrupt_id: InterruptId
    """The question."""
    agent_id: AgentId
    """The agent."""
    agent_turn_id: AgentTurnId
    """The turn that waits."""
    step_id: StepId
    """The step that made the call."""
    tool_call_id: ToolCallId
    """The call."""
    tool_name: str
    """The tool that is called."""
    reason: InterruptReason
    """Why a person is asked."""
    action_digest: str | None
    """What a decision must name."""
    expires_at: datetime
    """When the call is rejected if nobody decides."""
