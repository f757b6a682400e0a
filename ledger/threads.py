"""Conversations of the message pump (protocol §9): send, begin, settle, and where a thread stands.

Guarantees: every change of a chain runs behind the lock of its thread; a message is settled once, whoever handles it,
and what comes late changes nothing; each message makes at most one other, so that a thread cannot multiply; every
message from outside gets exactly one answer row. `send_message` and `settle_message` run in a transaction of their
caller (`Pool.transact`). Never publishes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pydantic import Json

from ledger.cards import card_columns
from ledger.pool import Again
from ledger.queries import Connection, query
from schema import headers
from schema.base import JsonObject, Tolerant
from schema.cards import CardType, Role, TextContent, make_card
from schema.errors import Limited, Refused
from schema.headers import ContextHeaders
from schema.ids import AgentId, AgentTurnId, BoxId, CardId, ProjectId, uuid7
from schema.limits import rate_limited
from schema.states import TurnStatus
from schema.threads import (
    EndReason,
    MessageId,
    MessageKind,
    MessageStatus,
    OpenMessage,
    ReplyKind,
    SegmentId,
    ThreadAdvanced,
    ThreadId,
    ThreadRef,
    new_segment_id,
)

SYSTEM = "system"
"""`from` of what the pump itself says to a sender."""
SHOWN = 50
"""Open messages that a look tells of: with their ids and codes they fit into one payload of Temporal's."""
_GONE = ThreadAdvanced(version=2**62)


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """How much one thread may come to (protocol §9)."""

    max_messages: int = 10_000
    max_hops: int = 200
    """Messages that may descend from one message from outside."""
    max_depth: int = 20
    max_open: int = 100
    """Messages in flight at once."""
    max_open_threads: int = 0
    """Threads of one project that have messages in flight; 0 is no limit."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message from outside, with the ids it was given, so that a repeated try is the same try."""

    thread: ThreadRef
    """A new one, unless `joins`."""
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
    """The project is over its rate until then: only a repeat is answered."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message from outside went; `duplicate` for a repeat of an earlier one."""

    thread: ThreadRef
    message_id: MessageId
    duplicate: bool = False


class BegunMessage(Tolerant):
    """A message in hand: `was` says what it was before; `attempt` counts how often its handler was begun."""

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
    """Of the message from outside that it descends from."""
    agent_turn_id: AgentTurnId | None
    deadline: datetime | None
    is_overdue: bool
    outcome: TurnStatus | None
    error_code: str | None
    deliverable: Json[JsonObject] | None


@dataclass(frozen=True, slots=True)
class Forward:
    """A message to a listener, in a new segment below; `turn` is the agent's that sends it."""

    listener: str
    payload: str
    turn: AgentTurnId | None = None


@dataclass(frozen=True, slots=True)
class Iterate:
    """A message to its own segment: a self-call, or what the pump says to it (`system`)."""

    payload: str
    system: bool = False


@dataclass(frozen=True, slots=True)
class Respond:
    """A message to the caller; the segment and all below it end. `system`: it is the pump's in its stead.

    `expired`: the agent's turn for the message is still out, and ends too.
    """

    payload: str
    system: bool = False
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Nothing:
    """No message: the chain ends here."""


Effect = Forward | Iterate | Respond | Nothing


@dataclass(frozen=True, slots=True)
class Settled:
    """What settling came to: where the thread stands, and what this call did, if anything."""

    thread: ThreadAdvanced
    effect: str | None = None
    """As the message's row has it: forward, self, respond, nothing, timeout, limit; None if it was settled before."""
    canceled: int = 0
    """Messages below that ended with it."""


class _Thread(ThreadRef):
    requester: str
    message_count: int
    status: str


class _Earlier(ThreadRef):
    message_id: MessageId
    request_digest: str | None


class _Ended(Tolerant):
    message_id: MessageId
    request_id: MessageId
    hop: int
    segment_id: SegmentId


class _Look(Tolerant):
    version: int
    open: Json[tuple[OpenMessage, ...]]
    open_count: int
    chains: Json[tuple[str, ...]]


async def send_message(conn: Connection, send: Send, limits: ThreadLimits) -> Sent:
    """Put a message from outside on its way.

    Raises `Refused` (correlation_conflict, unknown_thread) and `Limited` (rate_limited, busy, threads_full).
    """
    if (earlier := await _repeated(conn, send)) is not None:
        return earlier
    if send.wait_seconds > 0:
        raise rate_limited(send.wait_seconds)
    thread = await _join(conn, send, limits) if send.joins else await _add_thread(conn, send, limits)
    thread_id = thread.thread_id
    row = await query("top_segment").opt(conn, thread_id=thread_id, listener=send.to)
    segment = row["segment_id"] if row is not None else await _add_segment(conn, thread_id, None, send.to, None)
    card = await _add_payload(conn, send.thread.project_id, send.message_id, send.payload, send.requester)
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


async def begin_message(conn: Connection, thread: ThreadRef, message: MessageId, run: str) -> BegunMessage | None:
    """An open message with what its handling needs; None if it is settled, or not of this thread. One round trip.

    `run` names who begins it, so that a repeated try is the same attempt. Raises `Again`.
    """
    row = await query("begin_message").opt(
        conn, project_id=thread.project_id, thread_id=thread.thread_id, message_id=message, begun_by=run
    )
    if row is not None and row["was"] is None:
        raise Again
    return None if row is None else BegunMessage.model_validate(dict(row))


async def own_box(conn: Connection, project: ProjectId, segment: SegmentId, new_box: BoxId) -> BoxId:
    """The memory of an agent in a segment that is there: `new_box`, unless it has one."""
    row = await query("own_box").one(conn, project_id=project, segment_id=segment, new_box_id=new_box)
    return row["output_box_id"]


async def await_turn(
    conn: Connection,
    thread: ThreadRef,
    message: MessageId,
    turn: AgentTurnId,
    output_box: BoxId,
    *,
    deadline_seconds: float,
) -> bool:
    """Note that an agent's turn is out for the message; False if the message was settled meanwhile."""
    row = await query("await_turn").opt(
        conn,
        project_id=thread.project_id,
        thread_id=thread.thread_id,
        message_id=message,
        agent_turn_id=turn,
        output_box_id=output_box,
        deadline_seconds=deadline_seconds,
    )
    return row is not None


async def settle_message(
    conn: Connection, thread: ThreadRef, begun: BegunMessage, effect: Effect, limits: ThreadLimits
) -> Settled:
    """What the handling of a message came to; nothing if the message was settled before."""
    locked = await _lock(conn, thread)
    if locked is None:
        return Settled(await look_at_thread(conn, thread))
    full = begun.hop >= limits.max_hops or locked.message_count >= limits.max_messages
    limited = full and isinstance(effect, Forward | Iterate)
    name = _name(effect, limited=limited)
    ended = await _end(conn, thread, begun, name)
    if ended is None:
        return Settled(await look_at_thread(conn, thread))
    reason, canceled = EndReason.LIMIT if limited else EndReason.ENDED, 0
    match effect:
        case Respond():
            reason = EndReason.UNDELIVERED if effect.system else EndReason.RESPONDED
            canceled = await _respond(conn, thread, begun, ended, effect, reason)
        case Forward(listener, payload, turn) if not limited:
            caller = turn or begun.caller_turn_id
            segment = await _add_segment(conn, thread.thread_id, ended.segment_id, listener, caller)
            await _add_message(conn, thread, ended, segment, begun.listener, MessageKind.REQUEST, payload)
        case Iterate(payload, system) if not limited:
            sender, kind = (SYSTEM, MessageKind.SYSTEM) if system else (begun.listener, MessageKind.SELF)
            await _add_message(conn, thread, ended, ended.segment_id, sender, kind, payload)
        case Forward() | Iterate() | Nothing():
            await _close_requests(conn, thread.thread_id, [ended.request_id], reason)
    await query("close_thread").many(conn, thread_id=thread.thread_id, reason=reason)
    return Settled(await look_at_thread(conn, thread), name, canceled)


_NAMES: dict[type[Effect], str] = {Forward: "forward", Iterate: "self", Respond: "respond", Nothing: "nothing"}
_EXPIRED = "timeout"


def _name(effect: Effect, *, limited: bool) -> str:
    """An effect as the message's row has it."""
    if limited:
        return "limit"
    return _EXPIRED if isinstance(effect, Respond) and effect.expired else _NAMES[type(effect)]


async def _end(conn: Connection, thread: ThreadRef, begun: BegunMessage, effect: str) -> _Ended | None:
    """The message is settled; canceled, and so its agent's turn, where that is late. None if it was settled before."""
    expired = effect == _EXPIRED
    row = await query("end_message").opt(
        conn,
        thread_id=thread.thread_id,
        message_id=begun.message_id,
        effect=effect,
        status=MessageStatus.CANCELED if expired else MessageStatus.HANDLED,
        ended_by=begun.message_id if expired else None,
    )
    return None if row is None else _Ended.model_validate(dict(row))


async def _respond(
    conn: Connection, thread: ThreadRef, begun: BegunMessage, ended: _Ended, effect: Respond, reason: EndReason
) -> int:
    """The segment ends with all below it; what it answers goes to the segment above, or to the requester.

    Returns how many messages were canceled by that.
    """
    canceled = await query("prune_segment").many(
        conn,
        thread_id=thread.thread_id,
        segment_id=ended.segment_id,
        fresh_segment_id=new_segment_id(),
        ended_by=ended.message_id,
    )
    if begun.parent_id is not None:
        kind = MessageKind.SYSTEM if effect.system else MessageKind.RESPONSE
        await _add_message(conn, thread, ended, begun.parent_id, begun.listener, kind, effect.payload)
    else:
        card_id = MessageId(f"{ended.message_id}-reply")
        card = await _add_payload(conn, thread.project_id, card_id, effect.payload, begun.listener)
        await query("add_reply").many(
            conn,
            request_id=ended.request_id,
            thread_id=thread.thread_id,
            kind=ReplyKind.REPLY,
            reason=reason,
            payload_card_id=card,
            from_id=begun.listener,
        )
    await _close_requests(conn, thread.thread_id, [row["request_id"] for row in canceled], EndReason.PRUNED)
    return len(canceled)


async def look_at_thread(conn: Connection, thread: ThreadRef) -> ThreadAdvanced:
    """Where the thread stands now; one that is not there has nothing open, and never will."""
    row = await query("look_at_thread").opt(
        conn, project_id=thread.project_id, thread_id=thread.thread_id, row_limit=SHOWN
    )
    return _GONE if row is None else ThreadAdvanced(**dict(_Look.model_validate(dict(row))))


async def _repeated(conn: Connection, send: Send) -> Sent | None:
    row = await query("find_message").opt(conn, correlation_id=send.correlation_id, project_id=send.thread.project_id)
    if row is None:
        return None
    earlier = _Earlier.model_validate(dict(row))
    if earlier.request_digest != send.request_digest:
        raise Refused("correlation_conflict", "this correlation_id was used before, with other content")
    duplicate = earlier.message_id != send.message_id
    return Sent(ThreadRef.model_validate(earlier.model_dump()), earlier.message_id, duplicate=duplicate)


async def _lock(conn: Connection, thread: ThreadRef) -> _Thread | None:
    row = await query("lock_thread").opt(conn, thread_id=thread.thread_id, project_id=thread.project_id)
    return None if row is None else _Thread.model_validate(dict(row))


async def _join(conn: Connection, send: Send, limits: ThreadLimits) -> ThreadRef:
    """The requester's own thread, locked; raises `Refused` (unknown_thread) and `Limited` (busy, threads_full)."""
    thread = await _lock(conn, send.thread)
    if thread is None or thread.requester != send.requester or thread.channel_id != send.thread.channel_id:
        raise Refused("unknown_thread", "there is no such thread of yours")
    found = (await query("count_open_messages").one(conn, thread_id=thread.thread_id))["found"]
    if found >= limits.max_open or thread.message_count >= limits.max_messages:
        raise Limited("busy", f"the thread has {found} messages in flight, {thread.message_count} in all")
    if thread.status != "open":
        await _make_room(conn, send.thread.project_id, limits)
    return ThreadRef.model_validate(thread.model_dump())


async def _make_room(conn: Connection, project: ProjectId, limits: ThreadLimits) -> None:
    """Raises `Limited` (threads_full); as many as are sent at once may pass it."""
    if not limits.max_open_threads:
        return
    counted = await query("count_project_threads").one(conn, project_id=project, row_limit=limits.max_open_threads)
    if counted["found"] >= limits.max_open_threads:
        raise Limited("threads_full", "the project has too many open threads: again when some have been answered")


async def _add_thread(conn: Connection, send: Send, limits: ThreadLimits) -> ThreadRef:
    await _make_room(conn, send.thread.project_id, limits)
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


async def _add_segment(
    conn: Connection, thread: ThreadId, parent: SegmentId | None, listener: str, turn: AgentTurnId | None
) -> SegmentId:
    segment = new_segment_id()
    await query("add_segment").many(
        conn, segment_id=segment, thread_id=thread, parent_id=parent, listener=listener, caller_turn_id=turn
    )
    return segment


async def _add_message(
    conn: Connection,
    thread: ThreadRef,
    cause: _Ended,
    segment: SegmentId,
    sender: str,
    kind: MessageKind,
    payload: str,
) -> None:
    message = MessageId(uuid7())
    card = await _add_payload(conn, thread.project_id, message, payload, sender)
    await query("add_message").many(
        conn,
        message_id=message,
        thread_id=thread.thread_id,
        request_id=cause.request_id,
        cause_id=cause.message_id,
        hop=cause.hop + 1,
        segment_id=segment,
        from_id=sender,
        kind=kind,
        payload_card_id=card,
        correlation_id=None,
        request_digest=None,
        reply_to=None,
        context_headers=None,
    )


async def _add_payload(conn: Connection, project: ProjectId, message: MessageId, payload: str, author: str) -> CardId:
    made = make_card(
        CardId(f"{message}-payload"), CardType.MESSAGE, Role.USER, TextContent(text=payload), author=author
    )
    columns = card_columns([made])
    await query("add_card").many(
        conn,
        card_id=made.card_id,
        project_id=project,
        content=columns["card_contents"][0],
        metadata=columns["card_metadatas"][0],
    )
    return made.card_id


async def _close_requests(conn: Connection, thread: ThreadId, requests: Sequence[str], reason: EndReason) -> None:
    if requests:
        await query("close_requests").many(conn, thread_id=thread, request_ids=list(requests), reason=reason)
