"""Reads threads for operators, for the safety net and to publish answers (protocol §8, §9). Decides nothing."""

import json
from collections.abc import Sequence

from turnstile.ledger.operations.sweep import WORKER_SILENT_SECONDS, rule_rows
from turnstile.ledger.queries import Connection, query
from turnstile.rules.hop import ThreadReply
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId
from turnstile.schema.pump.declared import DeclaredListener, ListenerView
from turnstile.schema.pump.threads import MessageId, ThreadId, ThreadRef
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.descriptions import MessageLine, ReplyLine, ThreadLine
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.inbox import StopRequest


class ThreadTurn(Tolerant):
    """A turn that works for a thread's message."""

    agent_turn_id: AgentTurnId
    project_id: ProjectId
    channel_id: ChannelId

    def stop(self, reason: str) -> Message:
        """The durable command that stops the turn."""
        request = StopRequest(agent_turn_id=self.agent_turn_id, reason=reason)
        payload = request.model_dump_json(exclude_defaults=True).encode()
        subject = subjects.bridge_command(self.project_id, self.channel_id, "stop")
        return Message(subject, payload, {headers.MSG_ID: f"stop-{self.agent_turn_id}"}, required=True)


class EndedMessage(Tolerant):
    """A message that was canceled by the handling of another."""

    message_id: MessageId
    agent_turn_id: AgentTurnId | None
    is_in_hand: bool
    """Whether a handler may still run for it."""


class TurnMessage(ThreadRef):
    """A message that waits for an agent's turn."""

    message_id: MessageId


class Unserved(Tolerant):
    """A listener for which messages wait and that no worker has."""

    worker_target: str
    listener: str
    waiting: int
    waited_seconds: float
    workers: int
    """Live workers of the target."""

    def sentence(self) -> str:
        """A sentence for operators."""
        lacks = f"none of {self.workers} workers of {self.worker_target!r} has it"
        why = lacks if self.workers else f"no worker serves {self.worker_target!r}"
        return f"listener {self.listener!r}: {self.waiting} messages wait, for up to {self.waited_seconds:.0f} s: {why}"


async def list_threads(conn: Connection, project: ProjectId, status: str | None, *, row_limit: int) -> list[ThreadLine]:
    """Root threads of a project, the newest first."""
    return await query("list_threads").all_as(conn, ThreadLine, project_id=project, status=status, row_limit=row_limit)


async def find_thread(conn: Connection, project: ProjectId, thread: ThreadId) -> ThreadLine | None:
    """One root thread; None if the project has none of this id."""
    return await query("find_thread").opt_as(conn, ThreadLine, project_id=project, thread_id=thread)


async def list_thread_messages(conn: Connection, thread: ThreadId, *, row_limit: int) -> list[MessageLine]:
    """The thread's messages in order."""
    return await query("list_thread_messages").all_as(conn, MessageLine, thread_id=thread, row_limit=row_limit)


async def list_thread_replies(conn: Connection, thread: ThreadId, *, row_limit: int) -> list[ReplyLine]:
    """The thread's answers, oldest first."""
    return await query("list_thread_replies").all_as(conn, ReplyLine, thread_id=thread, row_limit=row_limit)


async def list_thread_payloads(conn: Connection, thread: ThreadId, *, row_limit: int) -> dict[MessageId, str]:
    """The payloads of the thread's messages."""
    rows = await query("list_thread_payloads").many(conn, thread_id=thread, row_limit=row_limit)
    return {row["message_id"]: row["payload"] for row in rows}


async def list_replies(conn: Connection, thread: ThreadId, *, row_limit: int = 100) -> list[ThreadReply]:
    """The thread's answers that are not marked as announced."""
    return await query("list_replies").all_as(conn, ThreadReply, thread_id=thread, row_limit=row_limit)


list_late_replies = rule_rows("list_late_replies", ThreadReply)
"""Rule 'thread_reply': answers that should have been announced by now."""


async def mark_replied(conn: Connection, requests: Sequence[MessageId]) -> set[MessageId]:
    """Mark the answers to these requests as announced; returns the requests that were not marked before."""
    rows = await query("mark_replied").many(conn, request_ids=list(requests))
    return {row["request_id"] for row in rows}


async def messages_of_turns(conn: Connection, turns: Sequence[AgentTurnId]) -> list[TurnMessage]:
    """The messages that wait for these turns."""
    return await query("messages_of_turns").all_as(conn, TurnMessage, agent_turn_ids=list(turns))


async def list_ended_messages(conn: Connection, project: ProjectId, ended_by: MessageId) -> list[EndedMessage]:
    """The messages that the handling of a message canceled: their turns and handlers are to be stopped."""
    return await query("list_ended_messages").all_as(conn, EndedMessage, project_id=project, ended_by=ended_by)


async def list_canceled_turns(conn: Connection, worker_targets: Sequence[str], *, row_limit: int) -> list[ThreadTurn]:
    """Rule 'thread_turn': live turns whose message was canceled."""
    return await query("list_canceled_turns").all_as(
        conn, ThreadTurn, worker_targets=list(worker_targets), row_limit=row_limit
    )


list_stalled_threads = rule_rows("list_stalled_threads", ThreadRef)
"""Rule 'thread': threads with a message that should have been advanced by now."""


list_unserved = rule_rows("list_unserved", Unserved)
"""Listeners for which messages wait and that no live worker has; those with the longest wait first."""


async def declare_listeners(conn: Connection, worker_target: str, listeners: Sequence[DeclaredListener]) -> None:
    """Store the listeners of a worker that starts, for `list_listeners`."""
    rows = json.dumps([listener.model_dump(mode="json") for listener in listeners])
    await query("declare_listeners").many(conn, worker_target=worker_target, listeners=rows)


async def list_listeners(
    conn: Connection, worker_target: str, *, name: str | None = None, with_xsd: bool = False
) -> list[ListenerView]:
    """The listeners of a target by name, or the one of this name; XSDs only of that one, or `with_xsd`."""
    rows = await query("list_listeners").many(
        conn, worker_target=worker_target, name=name, with_xsd=with_xsd, silent_seconds=WORKER_SILENT_SECONDS
    )
    return [ListenerView.model_validate(dict(row)) for row in rows]


async def list_served(conn: Connection, worker_target: str) -> dict[str, int]:
    """The number of live workers that have each listener of a target."""
    rows = await query("list_served").many(conn, worker_target=worker_target, silent_seconds=WORKER_SILENT_SECONDS)
    return {row["listener"]: row["workers"] for row in rows if row["listener"] is not None}


async def list_open_threads(
    conn: Connection, worker_targets: Sequence[str], *, after: ThreadId | None, older_seconds: float, row_limit: int
) -> list[ThreadRef]:
    """Rule 'thread_engine': open threads after a given one, in the order of their ids."""
    return await query("list_open_threads").all_as(
        conn,
        ThreadRef,
        worker_targets=list(worker_targets),
        after_thread_id=after or "",
        older_seconds=older_seconds,
        row_limit=row_limit,
    )
