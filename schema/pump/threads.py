"""Ids, states and models of the message pump's threads (protocol §9).

The models are workflow and activity payloads, so they hold no content. Fields may be added with defaults; none may be
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
"""The id of a root thread, which `send` takes and returns."""
SegmentId = NewType("SegmentId", str)
"""The id of a listener's segment in a chain. Its handler gets it as `thread_id`; the chain cannot be read from it."""
MessageId = NewType("MessageId", str)


LISTENER_SILENT_SECONDS = 300.0
"""Messages wait this long for a listener with which no worker has signed on; then it counts as unknown."""


@dataclass(frozen=True, slots=True)
class Serves:
    """The listeners of one worker for a target, and the root tags of the payloads it knows."""

    worker_target: str
    listeners: tuple[str, ...]
    payloads: tuple[str, ...]


class MessageStatus(StrEnum):
    """The status of a message."""

    PENDING = "pending"
    HANDLING = "handling"
    """A handler runs."""
    WAITING = "waiting"
    """It waits for an agent's turn."""
    HANDLED = "handled"
    CANCELED = "canceled"


class MessageKind(StrEnum):
    """The kind of a message."""

    REQUEST = "request"
    RESPONSE = "response"
    SELF = "self"
    SYSTEM = "system"


class ReplyKind(StrEnum):
    """The kind of an answer: with a payload, or a note that there will be none."""

    REPLY = "reply"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a request got its answer."""

    RESPONDED = "responded"
    UNDELIVERED = "undelivered"
    """The answer is a message of the pump (`huh`, `SystemError`)."""
    ENDED = "ended"
    """A handler returned nothing."""
    PRUNED = "pruned"
    """Another answer ended the segment that handled it."""
    LIMIT = "limit"
    """The thread or the request had too many messages."""


class ThreadRef(Tolerant):
    """A root thread and its worker target."""

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
    """A message that is not settled yet; `deadline` is that of its agent's turn."""

    message_id: MessageId
    status: MessageStatus
    listener: str
    deadline: datetime | None = None
    turn_is_over: bool = False
    """It waits for a turn that has ended."""

    @property
    def is_due(self) -> bool:
        """Whether it is to be advanced now: it does not wait for a running turn."""
        return self.status is not MessageStatus.WAITING or self.turn_is_over


class ThreadAdvanced(Tolerant):
    """The thread's open messages: the result of both activities. A higher version is newer."""

    version: int
    open: tuple[OpenMessage, ...] = ()
    """The open messages, due ones first, as many as a history may hold."""
    open_count: int = 0
    """The number of all open messages."""
    canceled: tuple[MessageId, ...] = ()
    """Messages that the advanced one canceled while their handlers ran."""
    chains: tuple[str, ...] = ()
    """Some of the live chains, for display in the workflow's details."""


class ThreadEnded(Tolerant):
    """Result of the workflow: no message is open."""

    thread_id: ThreadId
    version: int


def new_thread_id() -> ThreadId:
    """A new root thread id, which is random, so that nothing can be read from it."""
    return ThreadId(str(uuid.uuid4()))


def new_segment_id() -> SegmentId:
    """A new segment id, which is random, so that the chain cannot be read from it."""
    return SegmentId(str(uuid.uuid4()))


def thread_workflow_id(thread: ThreadId) -> str:
    """The Temporal workflow id of a root thread."""
    return f"thread-{thread}"
