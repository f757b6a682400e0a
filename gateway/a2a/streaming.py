"""A task's stream: the task as it is, then what happens, until it is over or asks a person (protocol §17.3).

Any gateway goes on with any task: a client that comes back is told the task, then the text of its present step from
its begin, then what follows. A client that goes away stops nothing.
"""

import contextlib
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager
from typing import Final

from a2a.types import SendMessageRequest, SubscribeToTaskRequest
from a2a.utils.errors import A2AError, UnsupportedOperationError

from turnstile.gateway.a2a.asked import Asked
from turnstile.gateway.a2a.delivery import deliver
from turnstile.gateway.a2a.faults import error_object
from turnstile.gateway.a2a.objects import OVER, StatusUpdate, StreamEvent, Task, TaskState
from turnstile.gateway.a2a.push_configs import add_receiver, checked_receiver
from turnstile.gateway.a2a.refusals import error_text
from turnstile.gateway.a2a.task_stream import AnswerStream, latest
from turnstile.gateway.a2a.tasks import artifact_of
from turnstile.gateway.events.feed import TurnFeed
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.reading import reader_of
from turnstile.gateway.events.stream import EventStream
from turnstile.gateway.v1.resources import Turn
from turnstile.ledger.access.tasks import TaskRow
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import TurnstileError

_FAREWELL: Final = b": the gateway stops; subscribe to the task again\n\n"
_ENDS: Final = OVER | {TaskState.INPUT_REQUIRED}


async def send_stream(asked: Asked, request: SendMessageRequest) -> EventStream:
    """Deliver a message, and stream its task."""
    wanted = request.configuration
    receiver = await checked_receiver(asked, wanted)
    with contextlib.ExitStack() as stack:
        stack.enter_context(asked.kernel.access.streaming(asked.call.principal))  # refused before there is a turn
        row = await deliver(asked, request)
        if receiver is not None:
            await add_receiver(asked, row, receiver)
        length = wanted.history_length if wanted.HasField("history_length") else None
        task = await asked.shown(row, length)
        return _stream(asked, row, task, stack.pop_all(), goes_on=task.status.state not in _ENDS)


async def subscribe(asked: Asked, request: SubscribeToTaskRequest) -> EventStream:
    """Stream a task that is there; raises `UnsupportedOperationError` if it is over."""
    row = await asked.row(request.id)
    if row.ended_at is not None:
        raise UnsupportedOperationError("the task is over: get it")
    counted = asked.kernel.access.streaming(asked.call.principal)
    return _stream(asked, row, await asked.shown(row), counted, goes_on=True)


def _stream(
    asked: Asked, row: TaskRow, task: Task, counted: AbstractContextManager[object], *, goes_on: bool
) -> EventStream:
    streaming = asked.kernel.streaming
    streaming.meter.count(Metric.HTTP_STREAMS, resumed="no")
    return EventStream(_frames(asked, row, task, goes_on=goes_on), streaming, counted, farewell=_FAREWELL)


async def _frames(asked: Asked, row: TaskRow, task: Task, *, goes_on: bool) -> AsyncGenerator[bytes]:
    """The stream's bytes; an error, of a token that was revoked for one, is the last event."""
    yield _frame(asked, StreamEvent(task=task))
    if not goes_on:
        return
    try:
        async with contextlib.aclosing(_events(asked, row, task)) as events:
            async for event in events:
                yield HEARTBEAT if event is None else _frame(asked, event)
    except (A2AError, TurnstileError) as error:
        yield f"event: error\ndata: {error_text(asked.request_id, error_object(error))}\n\n".encode()


async def _events(asked: Asked, row: TaskRow, task: Task) -> AsyncGenerator[StreamEvent | None]:
    kernel, answer, told = asked.kernel, AnswerStream(task.id, task.context_id), _Told(asked, task)
    reader = reader_of(kernel.access, asked.call.secret, kernel.heartbeat_seconds)
    async with (
        kernel.feeds.following(await asked.view(row)) as feed,
        contextlib.aclosing(reader.changes(feed)) as changes,
    ):
        joining = True
        async for came in changes:
            if came is None:
                yield None
            events = latest(came) if came and joining else came or []
            joining = joining and not events
            over = bool(events) and isinstance(events[-1].data, Turn)
            for event in events:
                for update in answer.take(event):
                    yield StreamEvent(artifact_update=update)
            if over:
                row = await asked.row(row.agent_turn_id)
                for update in answer.end(artifact_of(row.delivered, partial=row.partial)):
                    yield StreamEvent(artifact_update=update)
            if over or not events or told.may_have_changed(feed):
                status = await told.look(feed)
                if status is not None:
                    yield StreamEvent(status_update=status)
                    if status.status.state in _ENDS:
                        return


class _Told:
    """Where a client knows the task to stand."""

    def __init__(self, asked: Asked, task: Task) -> None:
        self._asked = asked
        self._task = task
        self._seen = ""

    def may_have_changed(self, feed: TurnFeed) -> bool:
        """Whether something happened since the last look that could change the task's state."""
        return self._seen != feed.view.status

    async def look(self, feed: TurnFeed) -> StatusUpdate | None:
        """The update for where the task stands now; None if its client knows it."""
        self._seen = feed.view.status
        found = await self._asked.shown(await self._asked.row(self._task.id))
        if found.status == self._task.status or self._is_same(found):
            return None
        self._task = found
        return StatusUpdate(task_id=found.id, context_id=found.context_id, status=found.status)

    def _is_same(self, found: Task) -> bool:
        """Whether only the moment differs."""
        return (found.status.state, found.status.message) == (self._task.status.state, self._task.status.message)


def _frame(asked: Asked, event: StreamEvent) -> bytes:
    text = f'{{"jsonrpc":"2.0","id":{json.dumps(asked.request_id)},"result":{event.json_text()}}}'
    return f"data: {text}\n\n".encode("utf-8", "replace")
