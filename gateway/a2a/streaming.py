"""A task's stream: the task as it is, then what happens, until it is over or asks a person (protocol §17.3).

Any gateway goes on with any task: a client that comes back gets the task, then the text of its present step from
its begin, then what follows. A client that goes away stops nothing.

The artifact is what the turn has said last: the text of its step as it streams, then what it delivers. Text that is
void is replaced by an update that does not append, so a client that folds updates as A2A says has what `GetTask`
answers. Of the text that was sent, only a hash is kept.
"""

import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from a2a.types import SendMessageRequest, SubscribeToTaskRequest
from a2a.utils.errors import A2AError, UnsupportedOperationError

from turnstile.gateway.a2a.a2a_request import A2aRequest
from turnstile.gateway.a2a.delivery import deliver
from turnstile.gateway.a2a.faults import error_object
from turnstile.gateway.a2a.objects import (
    OVER,
    Artifact,
    ArtifactUpdate,
    StatusUpdate,
    StreamEvent,
    Task,
    TaskState,
    TaskStatus,
    text_part,
)
from turnstile.gateway.a2a.push_configs import add_receiver, checked_receiver
from turnstile.gateway.a2a.refusals import error_text
from turnstile.gateway.a2a.tasks import ARTIFACT, answer_artifact, artifact_of, as_seen, status_of
from turnstile.gateway.events.frames import HEARTBEAT, ResetEvent
from turnstile.gateway.events.reading import reader_of
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.gateway.events.stream import EventStream
from turnstile.ledger.access.tasks import TaskRow
from turnstile.runtime.telemetry import Metric
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, TextContent, read_content
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.states import ChunkType

_FAREWELL: Final = b": the gateway stops; subscribe to the task again\n\n"
_ENDS: Final = OVER | {TaskState.INPUT_REQUIRED}


async def send_stream(a2a: A2aRequest, request: SendMessageRequest) -> EventStream:
    """Deliver a message, and stream its task."""
    configuration = request.configuration
    receiver = await checked_receiver(a2a, configuration)
    with contextlib.ExitStack() as stack:
        stack.enter_context(a2a.kernel.access.streaming(a2a.call.principal))  # refused before there is a turn
        row = await deliver(a2a, request)
        if receiver is not None:
            await add_receiver(a2a, row, receiver)
        length = configuration.history_length if configuration.HasField("history_length") else None
        task = await a2a.shown(row, length)
        return _stream(a2a, row, task, stack.pop_all(), goes_on=task.status.state not in _ENDS)


async def subscribe(a2a: A2aRequest, request: SubscribeToTaskRequest) -> EventStream:
    """Stream a task that is there; raises `UnsupportedOperationError` if it is over."""
    row = await a2a.row(request.id)
    if row.ended_at is not None:
        raise UnsupportedOperationError("the task is over: fetch it with GetTask")
    counted = a2a.kernel.access.streaming(a2a.call.principal)
    return _stream(a2a, row, await a2a.shown(row), counted, goes_on=True)


def _stream(
    a2a: A2aRequest, row: TaskRow, task: Task, counted: AbstractContextManager[object], *, goes_on: bool
) -> EventStream:
    streaming = a2a.kernel.streaming
    streaming.meter.count(Metric.HTTP_STREAMS, resumed="no")
    return EventStream(_frames(a2a, row, task, goes_on=goes_on), streaming, counted, farewell=_FAREWELL)


async def _frames(a2a: A2aRequest, row: TaskRow, task: Task, *, goes_on: bool) -> AsyncGenerator[bytes]:
    """The stream's bytes; an error, of a token that was revoked for one, is the last event."""
    yield _frame(a2a, StreamEvent(task=task))
    if not goes_on:
        return
    try:
        async with contextlib.aclosing(_events(a2a, row, task)) as events:
            async for event in events:
                yield HEARTBEAT if event is None else _frame(a2a, event)
    except (A2AError, TurnstileError) as error:
        yield f"event: error\ndata: {error_text(a2a.request_id, error_object(error))}\n\n".encode()


async def _events(a2a: A2aRequest, row: TaskRow, task: Task) -> AsyncGenerator[StreamEvent | None]:
    """The updates of a task to its end; raises `ServerUnavailable` if it cannot be followed."""
    kernel, answer, status_sent = a2a.kernel, AnswerStream(task.id, task.context_id), task.status
    reader = reader_of(kernel.access, a2a.call.secret, kernel.heartbeat_seconds)
    async with (
        kernel.feeds.following(await a2a.view(row)) as feed,
        contextlib.aclosing(reader.changes(feed, looks=True)) as changes,
    ):
        joining = True
        async for change in changes:
            if change is None:
                yield None
                continue
            events = latest(change.events) if joining else change.events
            joining = joining and not events
            for event in events:
                for update in answer.take(event):
                    yield StreamEvent(artifact_update=update)
            if change.outcome is not None:
                row = await a2a.row(row.agent_turn_id)
                for update in answer.end(artifact_of(row.delivered, partial=row.partial)):
                    yield StreamEvent(artifact_update=update)
                yield StreamEvent(status_update=_update(task, status_of(row)))
                return
            if change.looked:
                status = status_of(as_seen(row, change.seen), *await a2a.about(change.seen.questions))
                if (status.state, status.message) == (status_sent.state, status_sent.message):
                    continue  # who subscribes to a task that asks waits for what comes next
                status_sent = status
                yield StreamEvent(status_update=_update(task, status))
                if status.state in _ENDS:
                    return
    raise ServerUnavailable("the task cannot be followed: subscribe to it again")


def _update(task: Task, status: TaskStatus) -> StatusUpdate:
    return StatusUpdate(task_id=task.id, context_id=task.context_id, status=status)


def _frame(a2a: A2aRequest, event: StreamEvent) -> bytes:
    text = f'{{"jsonrpc":"2.0","id":{json.dumps(a2a.request_id)},"result":{event.json_text()}}}'
    return f"data: {text}\n\n".encode("utf-8", "replace")


_SAID = frozenset({CardType.THOUGHT, CardType.DELIVERABLE})


class AnswerStream:
    """What one client gets of a task's artifact."""

    def __init__(self, task_id: str, context_id: str) -> None:
        self._ids = {"task_id": task_id, "context_id": context_id}
        self._place: tuple[int, int] | None = None
        """The step and the attempt whose text is being sent."""
        self._hash = hashlib.sha256()
        self._sent = False

    def take(self, event: Event) -> Iterator[ArtifactUpdate]:
        """The updates for one of the turn's events; none for its outcome."""
        match event.data:
            case ChunkPiece(kind=ChunkType.CONTENT, text=text) if text:
                yield self._piece((event.position.step, event.position.a), text)
            case CardAnswer() as card:
                text = _text_of(card)
                if text and not self._has(text):
                    yield self._piece((event.position.step, -1), text)
            case ResetEvent():
                self._place = None
            case _:
                pass

    def end(self, delivered: Artifact | None) -> Iterator[ArtifactUpdate]:
        """The last update: the whole artifact, for clients that keep the last one alone."""
        if delivered is None:
            if self._sent:
                void: JsonObject = {"void": True}
                empty = Artifact(artifact_id=ARTIFACT, name=ARTIFACT, parts=[text_part("")], metadata=void)
                yield ArtifactUpdate(**self._ids, artifact=empty, append=False, last_chunk=True)
            return
        yield ArtifactUpdate(**self._ids, artifact=delivered, append=False, last_chunk=True)

    def _piece(self, place: tuple[int, int], text: str) -> ArtifactUpdate:
        appends = self._sent and place == self._place
        if not appends:
            self._hash = hashlib.sha256()
        self._hash.update(text.encode("utf-8", "surrogatepass"))
        self._place, self._sent = place, True
        return ArtifactUpdate(
            **self._ids, artifact=answer_artifact([text_part(text)]), append=appends, last_chunk=False
        )

    def _has(self, text: str) -> bool:
        """Whether exactly this text was sent."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return self._sent and self._place is not None and digest == self._hash.digest()


def latest(events: Sequence[Event]) -> list[Event]:
    """Of the events that a client which joins has not had, those that still count: of the last step, or the outcome."""
    if events and isinstance(events[-1].data, Turn):
        return [events[-1]]
    last = max((event.position.step for event in events), default=0)
    return [event for event in events if event.position.step == last]


def _text_of(card: CardAnswer) -> str | None:
    if card.type not in _SAID or not isinstance(card.content, dict):
        return None
    content = read_content(card.content)
    return content.text if isinstance(content, TextContent) else None
