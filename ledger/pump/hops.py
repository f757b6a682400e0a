"""A hop of a thread: begins a message, and settles it with the effect of its handling (protocol §9).

Guarantees: every change of a chain holds the lock of its thread. A message is settled once; later attempts change
nothing. Each message causes at most one other, so a thread cannot multiply. Every message from outside gets exactly one
answer row. `settle_message` runs in the caller's transaction (`Pool.transact`). Never publishes.
"""

from collections.abc import Sequence

from turnstile.ledger.pump.threads import ThreadLimits, add_payload, add_segment, lock_thread, look_at_thread
from turnstile.ledger.queries import Again, Connection, query
from turnstile.rules.hop import BegunMessage, Effect, Forward, Iterate, NoMessage, Respond, Settled
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import AgentTurnId, BoxId, ProjectId, uuid7
from turnstile.schema.pump.threads import (
    LISTENER_SILENT_SECONDS,
    EndReason,
    MessageId,
    MessageKind,
    MessageStatus,
    ReplyKind,
    SegmentId,
    Serves,
    ThreadId,
    ThreadRef,
    new_segment_id,
)

SYSTEM = "system"
"""The `from` of the pump's own messages."""


class ServedElsewhere(TurnstileError):
    """Another worker, and not this one, has the message's listener or knows its payload."""

    code: str = "served_elsewhere"

    def __init__(self, listener: str) -> None:
        super().__init__(f"another worker has what {listener} needs")
        self.listener = listener


class _Ended(Tolerant):
    message_id: MessageId
    request_id: MessageId
    hop: int
    segment_id: SegmentId


async def begin_message(
    conn: Connection, thread: ThreadRef, message: MessageId, run: str, serves: Serves | None = None
) -> BegunMessage | None:
    """Begin an open message; None if it is settled or not of this thread. One round trip.

    `run` identifies the activity run, so that a repeat counts as the same attempt. `serves` are the worker's listeners
    and payloads; None stands for all. Raises `ServedElsewhere`, which leaves the message unchanged, and `Again`.
    """
    row = await query("begin_message").opt(
        conn,
        project_id=thread.project_id,
        thread_id=thread.thread_id,
        message_id=message,
        begun_by=run,
        listeners=None if serves is None else list(serves.listeners),
        payloads=None if serves is None else list(serves.payloads),
        silent_seconds=LISTENER_SILENT_SECONDS,
    )
    if row is not None and row["elsewhere"] is not None:
        raise ServedElsewhere(row["elsewhere"])
    if row is not None and row["was"] is None:
        raise Again
    return None if row is None else BegunMessage.model_validate(dict(row))


async def own_box(conn: Connection, project: ProjectId, segment: SegmentId, new_box: BoxId) -> BoxId:
    """The output box of an agent in an existing segment; it becomes `new_box` if there is none."""
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
    """Record that the message waits for an agent's turn; returns False if the message was settled meanwhile."""
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


async def find_request(conn: Connection, begun: BegunMessage) -> str:
    """The payload of the request in the message's segment from which the message follows."""
    row = await query("find_request").one(conn, message_id=begun.message_id, segment_id=begun.segment_id)
    return row["payload"]


async def settle_message(
    conn: Connection, thread: ThreadRef, begun: BegunMessage, effect: Effect, limits: ThreadLimits
) -> Settled:
    """Settle a message with the effect of its handling; changes nothing if it was settled before."""
    locked = await lock_thread(conn, thread)
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
            segment = await add_segment(conn, thread.thread_id, ended.segment_id, listener, caller)
            await _add_message(conn, thread, ended, segment, begun.listener, MessageKind.REQUEST, payload)
        case Iterate(payload, system) if not limited:
            sender, kind = (SYSTEM, MessageKind.SYSTEM) if system else (begun.listener, MessageKind.SELF)
            await _add_message(conn, thread, ended, ended.segment_id, sender, kind, payload)
        case Forward() | Iterate() | NoMessage():
            await _close_requests(conn, thread.thread_id, [ended.request_id], reason)
    await query("close_thread").many(conn, thread_id=thread.thread_id, reason=reason)
    return Settled(await look_at_thread(conn, thread), name, canceled)


_NAMES: dict[type[Effect], str] = {Forward: "forward", Iterate: "self", Respond: "respond", NoMessage: "nothing"}
_EXPIRED = "timeout"


def _name(effect: Effect, *, limited: bool) -> str:
    """The name of an effect in the message's row."""
    if limited:
        return "limit"
    return _EXPIRED if isinstance(effect, Respond) and effect.expired else _NAMES[type(effect)]


async def _end(conn: Connection, thread: ThreadRef, begun: BegunMessage, effect: str) -> _Ended | None:
    """End the message: handled, or canceled if its agent's turn is late. None if it was settled before."""
    expired = effect == _EXPIRED
    return await query("end_message").opt_as(
        conn,
        _Ended,
        thread_id=thread.thread_id,
        message_id=begun.message_id,
        effect=effect,
        status=MessageStatus.CANCELED if expired else MessageStatus.HANDLED,
        ended_by=begun.message_id if expired else None,
    )


async def _respond(
    conn: Connection, thread: ThreadRef, begun: BegunMessage, ended: _Ended, effect: Respond, reason: EndReason
) -> int:
    """End the segment and all below it, and send the answer to the segment above or to the requester.

    Returns how many messages that canceled.
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
        card = await add_payload(conn, thread.project_id, card_id, effect.payload, begun.listener)
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


async def _add_message(
    conn: Connection, thread: ThreadRef, cause: _Ended, segment: SegmentId, sender: str, kind: MessageKind, payload: str
) -> None:
    message = MessageId(uuid7())
    card = await add_payload(conn, thread.project_id, message, payload, sender)
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


async def _close_requests(conn: Connection, thread: ThreadId, requests: Sequence[str], reason: EndReason) -> None:
    if requests:
        await query("close_requests").many(conn, thread_id=thread, request_ids=list(requests), reason=reason)
