"""One hop of a thread: the message that was begun, and the effect that settles it (protocol §9). No I/O."""

import json
import time
from dataclasses import dataclass
from datetime import datetime

from pydantic import Json

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, ProjectId
from turnstile.schema.pump.threads import (
    EndReason,
    MessageId,
    MessageKind,
    MessageStatus,
    ReplyKind,
    SegmentId,
    ThreadAdvanced,
    ThreadId,
)
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.headers import ContextHeaders


class BegunMessage(Tolerant):
    """A message that was begun: `was` is its former status; `attempt` counts how often its handler was begun."""

    was: MessageStatus
    message_id: MessageId
    thread_id: ThreadId
    request_id: MessageId
    hop: int
    attempt: int
    segment_id: SegmentId
    from_id: str
    kind: MessageKind
    payload: str
    listener: str
    parent_id: SegmentId | None
    parent_listener: str | None
    depth: int
    output_box_id: BoxId | None
    caller_turn_id: AgentTurnId | None
    caller_agent_id: AgentId | None
    requester: str
    created_at: datetime
    begun_at: datetime
    context_headers: ContextHeaders
    """The headers of the message from outside that it descends from."""
    agent_turn_id: AgentTurnId | None
    deadline: datetime | None
    is_overdue: bool
    outcome: TurnStatus | None
    error_code: str | None
    deliverable: Json[JsonObject] | None
    elsewhere: str | None = None
    """Always None: a message for another worker is not begun."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Send a message to a listener, in a new segment below; `turn` is the sending agent's."""

    listener: str
    payload: str
    turn: AgentTurnId | None = None


@dataclass(frozen=True, slots=True)
class Iterate:
    """Send a message to the same segment: a self-call, or a message of the pump (`system`)."""

    payload: str
    system: bool = False


@dataclass(frozen=True, slots=True)
class Respond:
    """Send a message to the caller; the segment and all below it end. `system`: the message is the pump's.

    `expired`: the agent's turn for the message still runs, and is stopped, too.
    """

    payload: str
    system: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class NoMessage:
    """Send no message: the chain ends here."""


Effect = Forward | Iterate | Respond | NoMessage


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of settling a message."""

    thread: ThreadAdvanced
    effect: str | None = None
    """The effect in the message's row (forward, self, respond, nothing, timeout, limit); None if settled before."""
    canceled: int = 0
    """The number of messages below it that were canceled."""


class ThreadReply(Tolerant):
    """An answer to publish, and its requester."""

    request_id: MessageId
    thread_id: ThreadId
    kind: ReplyKind
    reason: EndReason
    from_id: str | None
    payload_card_id: CardId | None
    payload: str | None
    reply_to: str | None
    correlation_id: str | None
    project_id: ProjectId
    channel_id: ChannelId
    context_headers: ContextHeaders
    requested_at: datetime
    created_at: datetime
    listener: str | None = None
    """Whom the request was sent to; a name from outside, which may be nobody's."""

    def event(self, sender: str) -> Message:
        """The event, under its fixed message id."""
        sent = {**self._headers(sender), headers.MSG_ID: f"reply-{self.request_id}"}
        return Message(subjects.pump_reply(self.project_id, self.channel_id), self._data(), sent, required=True)

    def copy_to_requester(self, sender: str) -> Message | None:
        """The copy for the reply inbox of a requester that waits, on core NATS; None if it named no inbox."""
        return None if self.reply_to is None else Message(self.reply_to, self._data(), self._headers(sender))

    def _data(self) -> bytes:
        payload: JsonObject = {
            "thread_id": self.thread_id,
            "message_id": self.request_id,
            "correlation_id": self.correlation_id,
            "kind": self.kind,
            "reason": self.reason,
            "from": self.from_id,
            "payload": self.payload,
            "payload_card_id": self.payload_card_id,
        }
        return json.dumps(payload).encode()

    def _headers(self, sender: str) -> dict[str, str]:
        return {
            **headers.carried(self.context_headers),
            headers.PROJECT_ID: self.project_id,
            headers.CHANNEL_ID: self.channel_id,
            headers.THREAD_ID: self.thread_id,
            headers.TIMESTAMP: str(time.time_ns() // 1_000_000),
            headers.VERSION: subjects.VERSION,
            headers.MSG_TYPE: "reply",
            headers.SENDER: sender,
        }
