"""Threads of the message pump (protocol §9): takes messages from outside, and reads a thread's open messages.

Guarantees: a message that joins a thread is added under the thread's lock; a message sent twice is stored once.
`send_message` and the functions below it run in the caller's transaction (`Pool.transact`). Never publishes.
"""

from dataclasses import dataclass

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.cards import card_columns
from turnstile.schema.base import Tolerant
from turnstile.schema.cards import CardType, Role, TextContent, make_card
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentTurnId, CardId, ProjectId
from turnstile.schema.pump.threads import (
    MessageId,
    MessageKind,
    OpenMessage,
    SegmentId,
    ThreadAdvanced,
    ThreadId,
    ThreadRef,
    new_segment_id,
)
from turnstile.schema.wire import headers
from turnstile.schema.wire.limits import rate_limited

SHOWN = 50
"""The most open messages that `look_at_thread` returns, so that they fit into one Temporal payload."""
_GONE = ThreadAdvanced(version=2**62)


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """Limits of threads (protocol §9)."""

    max_messages: int = 10_000
    max_hops: int = 200
    """Messages that may descend from one message from outside."""
    max_depth: int = 20
    max_open: int = 100
    """Messages of one thread that may be open at once."""
    max_open_threads: int = 0
    """Threads of one project that may have open messages; 0 is no limit."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message from outside, with its new ids, so that a repeat of the transaction uses the same ids."""

    thread: ThreadRef
    """A new thread, unless `joins`."""
    joins: bool
    requester: str
    to: str
    payload: str
    context_headers: dict[str, str]
    message_id: MessageId
    correlation_id: str
    request_digest: str
    reply_to: str | None = None
    wait_seconds: float = 0.0
    """Above 0, the project exceeds its rate limit for so long: only a repeat is accepted."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The thread and message of a send; `duplicate` if it repeats an earlier one."""

    thread: ThreadRef
    message_id: MessageId
    duplicate: bool = False


class LockedThread(ThreadRef):
    """A thread that is locked until the transaction ends."""

    requester: str
    message_count: int
    status: str


class _EarlierMessage(ThreadRef):
    message_id: MessageId
    request_digest: str | None


class _Look(Tolerant):
    version: int
    open: Json[tuple[OpenMessage, ...]]
    open_count: int
    chains: Json[tuple[str, ...]]


async def send_message(conn: Connection, send: Send, limits: ThreadLimits) -> Sent:
    """Store a message from outside.

    Raises `Refused` (correlation_conflict, unknown_thread) and `Limited` (rate_limited, busy, threads_full).
    """
    if (earlier := await _repeated(conn, send)) is not None:
        return earlier
    if send.wait_seconds > 0:
        raise rate_limited(send.wait_seconds)
    thread = await _join(conn, send, limits) if send.joins else await _add_thread(conn, send, limits)
    thread_id = thread.thread_id
    row = await query("top_segment").opt(conn, thread_id=thread_id, listener=send.to)
    segment = row["segment_id"] if row is not None else await add_segment(conn, thread_id, None, send.to, None)
    card = await add_payload(conn, send.thread.project_id, send.message_id, send.payload, send.requester)
    await query("add_message").many(
        conn,
        message_id=send.message_id,
        thread_id=thread_id,
        request_id=send.message_id,
        cause_id=None,
        hop=0,
        segment_id=segment,
        from_id=send.requester,
        kind=MessageKind.REQUEST,
        payload_card_id=card,
        correlation_id=send.correlation_id,
        request_digest=send.request_digest,
        reply_to=send.reply_to,
        context_headers=headers.dumps(send.context_headers) if send.joins else None,
    )
    return Sent(thread, send.message_id)


async def look_at_thread(conn: Connection, thread: ThreadRef) -> ThreadAdvanced:
    """The thread's version and open messages; an unknown thread has none."""
    row = await query("look_at_thread").opt(
        conn, project_id=thread.project_id, thread_id=thread.thread_id, row_limit=SHOWN
    )
    return _GONE if row is None else ThreadAdvanced(**dict(_Look.model_validate(dict(row))))


async def _repeated(conn: Connection, send: Send) -> Sent | None:
    row = await query("find_message").opt(conn, correlation_id=send.correlation_id, project_id=send.thread.project_id)
    if row is None:
        return None
    earlier = _EarlierMessage.model_validate(dict(row))
    if earlier.request_digest != send.request_digest:
        raise Refused("correlation_conflict", "this correlation_id was used before, with other content")
    duplicate = earlier.message_id != send.message_id
    return Sent(ThreadRef.model_validate(earlier.model_dump()), earlier.message_id, duplicate=duplicate)


async def lock_thread(conn: Connection, thread: ThreadRef) -> LockedThread | None:
    """Lock the thread; returns None if the project has no such thread."""
    return await query("lock_thread").opt_as(
        conn, LockedThread, thread_id=thread.thread_id, project_id=thread.project_id
    )


async def _join(conn: Connection, send: Send, limits: ThreadLimits) -> ThreadRef:
    """Lock the requester's own thread; raises `Refused` (unknown_thread) and `Limited` (busy, threads_full)."""
    thread = await lock_thread(conn, send.thread)
    if thread is None or thread.requester != send.requester or thread.channel_id != send.thread.channel_id:
        raise Refused("unknown_thread", "there is no such thread of yours")
    open_count = (await query("count_open_messages").one(conn, thread_id=thread.thread_id))["found"]
    if open_count >= limits.max_open or thread.message_count >= limits.max_messages:
        raise Limited("busy", f"the thread has {open_count} messages in flight, {thread.message_count} in all")
    if thread.status != "open":
        await _check_open_threads(conn, send.thread.project_id, limits)
    return ThreadRef.model_validate(thread.model_dump())


async def _check_open_threads(conn: Connection, project: ProjectId, limits: ThreadLimits) -> None:
    """Raises `Limited` (threads_full). Not exact: messages sent at the same time may all pass it."""
    if not limits.max_open_threads:
        return
    counted = await query("count_project_threads").one(conn, project_id=project, row_limit=limits.max_open_threads)
    if counted["found"] >= limits.max_open_threads:
        raise Limited("threads_full", "the project has too many open threads: again when some have been answered")


async def _add_thread(conn: Connection, send: Send, limits: ThreadLimits) -> ThreadRef:
    await _check_open_threads(conn, send.thread.project_id, limits)
    await query("add_thread").many(
        conn,
        thread_id=send.thread.thread_id,
        project_id=send.thread.project_id,
        channel_id=send.thread.channel_id,
        worker_target=send.thread.worker_target,
        requester=send.requester,
        context_headers=headers.dumps(send.context_headers),
    )
    return send.thread


async def add_segment(
    conn: Connection, thread: ThreadId, parent: SegmentId | None, listener: str, turn: AgentTurnId | None
) -> SegmentId:
    """Add a segment for a listener, below `parent` or at the top; `turn` is the calling agent's."""
    segment = new_segment_id()
    await query("add_segment").many(
        conn, segment_id=segment, thread_id=thread, parent_id=parent, listener=listener, caller_turn_id=turn
    )
    return segment


async def add_payload(conn: Connection, project: ProjectId, message: MessageId, payload: str, author: str) -> CardId:
    """Store a message's payload as a card that is in no box."""
    card = make_card(
        CardId(f"{message}-payload"), CardType.MESSAGE, Role.USER, TextContent(text=payload), author=author
    )
    columns = card_columns([card])
    await query("add_card").many(
        conn,
        card_id=card.card_id,
        project_id=project,
        content=columns["card_contents"][0],
        metadata=columns["card_metadatas"][0],
    )
    return card.card_id
