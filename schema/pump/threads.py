"""Conversations of the message pump as Temporal and the ledger see them (protocol §9): ids, places and codes.

These models are workflow and activity payloads, so they hold no content. Fields may be added with defaults; none may be
renamed or removed while histories that hold them can still be replayed.
"""

import uuid
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NewType

from turnstile.schema.base import Tolerant
from turnstile.schema.ids import ChannelId, ProjectId

ThreadId = NewType("ThreadId", str)
"""A root thread: what `send` answers and takes."""
SegmentId = NewType("SegmentId", str)
"""A listener's place in a chain: what its handler sees as `thread_id`, and nothing can be read from."""
MessageId = NewType("MessageId", str)


LISTENER_SILENT_SECONDS = 300.0
"""A listener that no worker has signed on with for so long is not there: until then messages wait for it."""


@dataclass(frozen=True, slots=True)
class Serves:
    """What one worker has for the messages of a target: its listeners, and the root tags of the payloads it knows."""

    worker_target: str
    listeners: tuple[str, ...]
    payloads: tuple[str, ...]


class MessageStatus(StrEnum):
    """Where a message is."""

    PENDING = "pending"
    HANDLING = "handling"
    """A handler runs."""
    WAITING = "waiting"
    """An agent's turn is out."""
    HANDLED = "handled"
    CANCELED = "canceled"


class MessageKind(StrEnum):
    """How a message came to its segment."""

    REQUEST = "request"
    RESPONSE = "response"
    SELF = "self"
    SYSTEM = "system"


class ReplyKind(StrEnum):
    """How a requester is answered: with a payload, or with the word that there will be none."""

    REPLY = "reply"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a request was answered as it was."""

    RESPONDED = "responded"
    UNDELIVERED = "undelivered"
    """The answer is a message of the pump's own (`huh`, `SystemError`)."""
    ENDED = "ended"
    """A handler returned nothing."""
    PRUNED = "pruned"
    """Another answer ended the segment in which it was worked on."""
    LIMIT = "limit"
    """The thread or the request had too many messages."""


class ThreadRef(Tolerant):
    """A root thread and where it runs."""

    project_id: ProjectId
    channel_id: ChannelId
    thread_id: ThreadId
    worker_target: str


class ThreadInput(ThreadRef):
    """Input of the `MessageThread` workflow."""

    heartbeat_timeout_seconds: float = 10.0


class AdvanceInput(Tolerant):
    """Input of `advance_message`."""

    thread: ThreadRef
    message_id: MessageId


class OpenMessage(Tolerant):
    """A message that is not settled yet; `deadline` is that of an agent's turn."""

    message_id: MessageId
    status: MessageStatus
    listener: str
    deadline: datetime | None = None
    turn_is_over: bool = False
    """It waits for a turn that has ended."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be advanced, and does not wait for an agent."""
        return self.status is not MessageStatus.WAITING or self.turn_is_over


class ThreadAdvanced(Tolerant):
    """Where the thread stands: what both activities answer. A higher version is later."""

    version: int
    open: tuple[OpenMessage, ...] = ()
    """What is open, as much of it as a history may hold: what is due first."""
    open_count: int = 0
    """How many there are in all."""
    canceled: tuple[MessageId, ...] = ()
    """Messages that were ended by the one that was advanced, while handlers had them in hand."""
    chains: tuple[str, ...] = ()
    """Some of the live chains, for operators who look at the workflow."""


class ThreadEnded(Tolerant):
    """Result of the workflow: nothing is in flight."""

    thread_id: ThreadId
    version: int


def new_thread_id() -> ThreadId:
    """A fresh root thread id: random, so that it tells nothing."""
    return ThreadId(str(uuid.uuid4()))


def new_segment_id() -> SegmentId:
    """A fresh segment id: random, so that it tells nothing of the chain."""
    return SegmentId(str(uuid.uuid4()))


def thread_workflow_id(thread: ThreadId) -> str:
    """The Temporal workflow id of a root thread."""
    return f"thread-{thread}"
