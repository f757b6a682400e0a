"""A2A's operations on tasks, but for streams and push notifications (protocol §17.3)."""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import UTC
from typing import Final

from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, SendMessageRequest, TaskState
from a2a.utils.errors import InvalidParamsError, TaskNotCancelableError

from turnstile.gateway.a2a.a2a_request import A2aRequest
from turnstile.gateway.a2a.delivery import deliver
from turnstile.gateway.a2a.objects import SentMessage, Task, TaskPage
from turnstile.gateway.a2a.push_configs import add_receiver, checked_receiver
from turnstile.gateway.a2a.tasks import moment_of, state_of, task_of
from turnstile.gateway.events.stream import attend
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.access.tasks import TaskRow, count_tasks, page_tasks, read_tasks
from turnstile.schema.access import Right
from turnstile.schema.api import TurnStop
from turnstile.schema.ids import ConversationId

_STOP_SECONDS: Final = 10.0
"""How long a cancel waits for the end of its turn."""
_PAGE: Final = 50
_LARGEST_PAGE: Final = 100
_SCANS: Final = 10
"""The most pages of turns that are read for one page of tasks in a state."""
_COUNTED: Final = 10_000
"""Tasks are counted up to so many."""


async def send(a2a: A2aRequest, request: SendMessageRequest) -> SentMessage:
    """Deliver a message; answers its task once that is over or asks a person, or at once if that is wanted."""
    configuration = request.configuration
    receiver = await checked_receiver(a2a, configuration)
    with contextlib.ExitStack() as stack:
        if not configuration.return_immediately:
            stack.enter_context(a2a.kernel.access.streaming(a2a.call.principal))  # refused before there is a turn
        row = await deliver(a2a, request)
        if receiver is not None:
            await add_receiver(a2a, row, receiver)
        if not configuration.return_immediately:
            row = await _settled(a2a, row)
    length = configuration.history_length if configuration.HasField("history_length") else None
    return SentMessage(task=await a2a.shown(row, length))


async def _settled(a2a: A2aRequest, row: TaskRow) -> TaskRow:
    """The task once it is over or asks; as it is if its client goes away or the gateway stops, since it goes on."""
    waiting = asyncio.create_task(a2a.settled(row))
    receive, closing = a2a.call.request.receive, a2a.kernel.streaming.closing
    ending = await attend(waiting, receive, closing, holds=a2a.still)
    return waiting.result() if ending == "done" else await a2a.row(row.agent_turn_id)


async def get(a2a: A2aRequest, request: GetTaskRequest) -> Task:
    """A task."""
    row = await a2a.row(request.id)
    return await a2a.shown(row, _history_length(request))


async def cancel(a2a: A2aRequest, request: CancelTaskRequest) -> Task:
    """Stop a task, and wait a moment for its end."""
    a2a.needs(Right.ASK)
    row = await a2a.row(request.id)
    if row.ended_at is not None:
        raise TaskNotCancelableError("the task is over")
    kernel, call = a2a.kernel, a2a.call
    view = await a2a.view(row)
    await kernel.turns.stop_turn(call.principal, view, TurnStop(reason="canceled"), call.headers)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_SECONDS):
            await kernel.feeds.until_over(view)
    await a2a.still()
    return await a2a.shown(await a2a.row(row.agent_turn_id))


async def list_tasks(a2a: A2aRequest, request: ListTasksRequest) -> TaskPage:
    """A page of tasks, the last begun first; a page may be short, and the last one has no `nextPageToken`."""
    size = request.page_size if request.HasField("page_size") else _PAGE
    if not 1 <= size <= _LARGEST_PAGE:
        raise InvalidParamsError(f"pageSize: 1 to {_LARGEST_PAGE}")
    state = a2a.params.get("status")
    names = list(TaskState.keys())
    if request.status not in TaskState.values() or (isinstance(state, str) and state not in names):
        raise InvalidParamsError(f"status: one of {', '.join(names[1:])}")
    length = _history_length(request)
    context = ConversationId(request.context_id) if request.context_id else None
    rows, after = await _scanned(a2a, request, context, size, with_history=length != 0)
    total = await a2a.kernel.pool.run(lambda conn: count_tasks(conn, a2a.scope, conversation=context, most=_COUNTED))
    return TaskPage(
        tasks=[_listed(row, length, with_artifacts=request.include_artifacts) for row in rows],
        next_page_token="" if after is None else cursor_of(after),
        page_size=size,
        total_size=total,
    )


async def _scanned(
    a2a: A2aRequest, request: ListTasksRequest, context: ConversationId | None, size: int, *, with_history: bool
) -> tuple[list[TaskRow], PageCursor | None]:
    """The tasks of a page, and the place behind which the next begins; None if there is none.

    Where not all fit, `_SCANS` pages are looked through without what the tasks hold, which is read of those that fit.
    """
    fits, begin = _filter(request), place_of(request.page_token or None)
    with_artifacts = request.include_artifacts or with_history
    most = size if fits is None else size * _SCANS

    rows = await a2a.kernel.pool.run(
        lambda conn: page_tasks(
            conn,
            a2a.scope,
            conversation=context,
            before=begin,
            with_artifacts=with_artifacts and fits is None,
            with_history=with_history and fits is None,
            row_limit=most + 1,
        )
    )
    matches = [row for row in rows[:most] if fits is None or fits(row)][:size]
    last = matches[-1] if len(matches) == size else rows[:most][-1] if rows else None
    place = None if last is None or last is rows[-1] else PageCursor(last.created_at, last.agent_turn_id)
    if fits is not None and with_artifacts and matches:
        project, turns = a2a.scope.project_id, [row.agent_turn_id for row in matches]
        matches = await a2a.kernel.pool.run(lambda conn: read_tasks(conn, project, turns, with_history=with_history))
    return matches, place


def _filter(request: ListTasksRequest) -> Callable[[TaskRow], bool] | None:
    """Whether a task is one of those that are wanted; None if all are."""
    since = request.status_timestamp_after.ToDatetime(UTC) if request.HasField("status_timestamp_after") else None
    state = TaskState.Name(request.status) if request.status else None
    if state is None and since is None:
        return None
    return lambda row: state in (None, state_of(row)) and (since is None or moment_of(row) > since)


def _listed(row: TaskRow, length: int | None, *, with_artifacts: bool) -> Task:
    task = task_of(row, history_length=length)
    if with_artifacts:
        return task
    return Task(
        id=task.id, context_id=task.context_id, status=task.status, history=task.history, metadata=task.metadata
    )


def _history_length(request: GetTaskRequest | ListTasksRequest) -> int | None:
    if not request.HasField("history_length"):
        return None
    if request.history_length < 0:
        raise InvalidParamsError("historyLength: it cannot be negative")
    return request.history_length
