"""Builds events and doorbells as messages to publish (protocol §5). Pure; a publisher publishes them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from pydantic import Field

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import (
    AgentId,
    AgentTurnId,
    BoxId,
    CardId,
    ChannelId,
    InboxId,
    ProjectId,
    SteerId,
    StepId,
    in_era,
)
from turnstile.schema.people.interrupts import InterruptEvent
from turnstile.schema.people.steers import SteerEvent
from turnstile.schema.pump.threads import EndReason, MessageId, ReplyKind, ThreadId
from turnstile.schema.states import ChunkType, HeadStatus, SteerStatus, StepPhase, TurnStatus
from turnstile.schema.tools import ToolCommand
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.ui_actions import ActionAck, ActionRef, final_ack


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish. If a `required` one is not acknowledged, the publisher raises; others are best effort."""

    subject: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doorbell(Message):
    """A `wakeup` message: the target, agent and row for which it rings."""

    worker_target: str
    project_id: ProjectId
    agent_id: AgentId
    inbox_id: InboxId | None
    claimed: bool = False
    """Whether the sender has claimed the row, so that its process needs no claim."""


class Wakeup(Tolerant):
    """Payload of a doorbell; it carries no meaning of its own."""

    agent_id: AgentId
    """The agent whose inbox is to be looked at."""
    inbox_id: InboxId | None = None
    """The row that is due, as a hint."""
    reason: str | None = None
    """Why it rings, for people."""
    metadata: JsonObject = Field(default_factory=dict)
    """Notes, for people."""


class StateEvent(Tolerant):
    """Payload of `evt.agent.{agent_id}.state`."""

    agent_id: AgentId
    """The agent."""
    agent_turn_id: AgentTurnId | None
    """The turn whose change this is; if the agent became idle, the one that ended."""
    status: HeadStatus
    """The head's status."""
    turn_epoch: int
    """The fencing number of the turn's lease: a lower one is older."""
    updated_at: datetime
    """When the head changed to this status."""
    output_box_id: BoxId | None
    """The box that the turn's cards go to."""
    metadata: JsonObject = Field(default_factory=dict)
    """`activity`, and of a suspended turn `current_tool` and `waiting_tool_count`; for people."""


class StepEvent(Tolerant):
    """Payload of `evt.agent.{agent_id}.step`."""

    agent_turn_id: AgentTurnId
    """The turn."""
    step_id: StepId
    """The step."""
    phase: StepPhase
    """The phase of the step."""
    metadata: JsonObject = Field(default_factory=dict)
    """Its duration and usage; for people."""
    new_card_ids: list[CardId] = Field(default_factory=list)
    """The cards of the step."""


class TaskEvent(Tolerant):
    """Payload of `evt.agent.{agent_id}.task`: exactly one per turn, without derived content (protocol §2.4)."""

    agent_turn_id: AgentTurnId
    """The turn: the key of this event."""
    status: TurnStatus
    """How it ended."""
    output_box_id: BoxId
    """The box that its cards are in."""
    deliverable_card_id: CardId
    """Its one `task.deliverable` card; `describe` reads it."""
    tool_result_card_id: CardId | None = None
    """The result of the tool that ended it, if one did."""
    error: str | None = None
    """What went wrong, for people."""
    error_code: str | None = None
    """A stable code of what went wrong."""
    stats: JsonObject = Field(default_factory=dict)
    """Statistics: steps, times in ms, tokens, model."""


class ReplyEvent(Tolerant):
    """Payload of `evt.sys.pump.reply`: exactly one for each message from outside (protocol §9)."""

    thread_id: ThreadId
    """The thread."""
    message_id: MessageId
    """The answered message, with its id from the reply to `send`: the key of this event."""
    correlation_id: str
    """The caller's own name for it."""
    kind: ReplyKind
    """Whether there is a payload."""
    reason: EndReason
    """Why it was answered with this kind."""
    sender: str | None = Field(default=None, alias="from")
    """The listener that answered; null if none did."""
    payload: str | None = None
    """XML."""
    payload_card_id: CardId | None = None
    """The card that holds the payload."""


class Chunk(Tolerant):
    """Payload of `str.agent.{agent_id}.chunk`. A higher `attempt` of a step replaces the chunks of lower ones."""

    agent_turn_id: AgentTurnId
    """The turn."""
    step_id: StepId
    """The step."""
    attempt: int
    """The attempt of the step, from 1."""
    index: int
    """The number of the chunk in its attempt; a gap means lost chunks."""
    chunk_type: ChunkType
    """The kind of the chunk."""
    content: str = ""
    """The text."""
    metadata: JsonObject = Field(default_factory=dict)
    """Further data, such as the call to which a piece of arguments belongs."""
    usage: JsonObject | None = None
    """Token counts with the provider's names; only in the `end` chunk."""
    response_cost: float | None = None
    """The cost of the answer in US dollars; only in the `end` chunk."""


class InboxProgress(Tolerant):
    """Payload of `evt.agent.{agent_id}.inbox_progress`."""

    inbox_id: InboxId
    """The row."""
    status: Literal["consumed", "deferred", "skipped", "error"]
    """The new status of the row."""
    reason: str | None = None
    """The reason, as a stable code."""


class TurnIds(Protocol):
    """What names an agent's turn: a lease, a claim, a `TurnRef`, a row of the safety net."""

    @property
    def project_id(self) -> ProjectId: ...
    @property
    def channel_id(self) -> ChannelId: ...
    @property
    def agent_id(self) -> AgentId: ...
    @property
    def agent_turn_id(self) -> AgentTurnId | None: ...
    @property
    def turn_epoch(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class TurnAddress:
    """The turn that messages are about: its identity headers, and project, channel and agent of their subjects."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId | None
    turn_epoch: int
    context: Mapping[str, str]
    """The turn's `context_headers`: trace, depth and lineage."""
    sender: str

    @classmethod
    def of(cls, row: TurnIds, context: Mapping[str, str], sender: str) -> "TurnAddress":
        """The address of whatever names a turn; a row without an epoch counts as epoch 0."""
        return cls(
            row.project_id, row.channel_id, row.agent_id, row.agent_turn_id, row.turn_epoch or 0, context, sender
        )

    def headers(self, msg_type: str, **more: str) -> dict[str, str]:
        """The headers of §5 that every `cmd` and `evt` message carries."""
        result = {
            **headers.carried(self.context),
            headers.PROJECT_ID: self.project_id,
            headers.CHANNEL_ID: self.channel_id,
            headers.AGENT_ID: self.agent_id,
            headers.TURN_EPOCH: str(self.turn_epoch),
            headers.TIMESTAMP: str(time.time_ns() // 1_000_000),
            headers.VERSION: subjects.VERSION,
            headers.MSG_TYPE: msg_type,
            headers.SENDER: self.sender,
            **more,
        }
        if self.agent_turn_id is not None:
            result[headers.TURN_ID] = self.agent_turn_id
        return result

    def _event(
        self,
        suffix: subjects.AgentEvent,
        payload: Tolerant,
        more: dict[str, str] | None = None,
        *,
        required: bool = False,
    ) -> Message:
        subject = subjects.agent_event(self.project_id, self.channel_id, self.agent_id, suffix)
        return Message(subject, payload.model_dump_json().encode(), self.headers(suffix, **(more or {})), required)

    def state(self, event: StateEvent) -> Message:
        """A `state` event."""
        return self._event("state", event)

    def step(self, event: StepEvent) -> Message:
        """A `step` event."""
        return self._event("step", event, {headers.STEP_ID: event.step_id})

    def task(self, event: TaskEvent) -> Message:
        """The turn's `task` event; a repeat has the same message id, and another outcome in a later era another."""
        message_id = in_era(f"task-{event.agent_turn_id}", self.turn_epoch)
        return self._event("task", event, {headers.MSG_ID: message_id}, required=True)

    def ended(self, event: TaskEvent, action: ActionRef | None) -> list[Message]:
        """The messages that announce a turn's end: its `task` event and, of a UI action, the final ack (§7.10)."""
        messages = [self.task(event)]
        if action is not None:
            fields = (event.status, event.tool_result_card_id, event.error_code, event.error)
            ack = final_ack(action, self.agent_id, *fields)
            messages.append(self.action_ack(ack, in_era(f"action-{event.agent_turn_id}", self.turn_epoch)))
        return messages

    def action_ack(self, ack: ActionAck, message_id: str) -> Message:
        """An ack of a UI action."""
        subject = subjects.action_ack(self.project_id, self.channel_id)
        sent = self.headers("action_ack", **{headers.MSG_ID: message_id})
        return Message(subject, ack.model_dump_json(exclude_none=True).encode(), sent, required=True)

    def inbox_progress(self, event: InboxProgress) -> Message:
        """An `inbox_progress` event."""
        return self._event("inbox_progress", event)

    def steer(self, event: SteerEvent) -> Message:
        """A `steer` event."""
        return self._event("steer", event)

    def interrupt(self, event: InterruptEvent) -> Message:
        """An `interrupt` event: a person is asked."""
        more: dict[str, str] = {headers.STEP_ID: event.step_id, headers.TOOL_CALL_ID: event.tool_call_id}
        return self._event("interrupt", event, more)

    def chunk(self, event: Chunk) -> Message:
        """A piece of streamed text, for core NATS."""
        subject = subjects.agent_chunk(self.project_id, self.channel_id, self.agent_id)
        return Message(subject, event.model_dump_json(exclude_none=True).encode())

    def tool_command(self, command: ToolCommand, step: StepId, repeat: int = 0) -> Message:
        """A call's command; each repeat has a new message id, since the stream drops duplicates (protocol §5)."""
        message_id = f"tool-{command.tool_call_id}" + (f"-{repeat}" if repeat else "")
        more = {headers.STEP_ID: step, headers.TOOL_CALL_ID: command.tool_call_id, headers.MSG_ID: message_id}
        if place := headers.derived_span(self.context.get(headers.TRACEPARENT, ""), command.tool_call_id):
            more[headers.TRACEPARENT] = place  # one call is one span, however often its command is sent
        return Message(command.subject, command.payload(), self.headers("tool_call", **more), required=True)

    def wakeup(self, worker_target: str, inbox_id: InboxId | None, reason: str, *, claimed: bool = False) -> Doorbell:
        """The doorbell of this agent's worker target."""
        payload = Wakeup(agent_id=self.agent_id, inbox_id=inbox_id, reason=reason)
        subject = subjects.wakeup(self.project_id, self.channel_id, worker_target)
        return Doorbell(
            subject,
            payload.model_dump_json(exclude_none=True).encode(),
            self.headers("wakeup"),
            worker_target=worker_target,
            project_id=self.project_id,
            agent_id=self.agent_id,
            inbox_id=inbox_id,
            claimed=claimed,
        )


def steer_events(
    address: TurnAddress, turn: AgentTurnId, steers: Iterable[str], status: SteerStatus, step: StepId | None = None
) -> list[Message]:
    """Where these steers of a turn stand now."""
    ids = (SteerId(steer) for steer in steers)
    return [address.steer(SteerEvent(agent_turn_id=turn, steer_id=i, status=status, step_id=step)) for i in ids]
