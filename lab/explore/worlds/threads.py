"""A thread of two hops: a handler asks another one, either may die at any time, and a second message joins (§9).

Handlers may not be run again, so an attempt after the first ends its message as timed out. The net alone is one that
wakes threads whose handlers die each time that they are begun.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from lab.explore.actors.cast import CHANNEL, MOMENT, PROJECT, gated, prepare
from lab.explore.net import TARGET
from lab.explore.states.folding import Rows
from lab.explore.world import Move, Net, View, World
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.hops import begin_message, settle_message
from turnstile.ledger.pump.thread_views import (
    list_late_replies,
    list_open_threads,
    list_stalled_threads,
    mark_replied,
)
from turnstile.ledger.pump.threads import Send, ThreadLimits, look_at_thread, send_message
from turnstile.rules.hop import BegunMessage, Effect, Forward, Respond
from turnstile.schema.pump.threads import MessageId, ThreadId, ThreadRef

_THREAD = ThreadRef(project_id=PROJECT, channel_id=CHANNEL, thread_id=ThreadId("thread-1"), worker_target=TARGET)
_LIMITS = ThreadLimits()
_ATTEMPTS = 2
_OPEN = ("pending", "handling", "waiting")


def worlds() -> Iterator[World]:
    """One world."""
    yield World(
        name="thread",
        says="a thread of two hops with handlers that die, and a second message that joins it",
        prepare=lambda pool: prepare(pool, []),
        moves=_moves,
        net=Net(rules=[_ANNOUNCE], reaps=[_WAKE], healthy=_healthy),
        at_end=_not_over,
        checks=_broken,
        names=_names,
    )


def _moves(view: View) -> list[Move]:
    moves = [Move("send first", lambda pool: _send(pool, "first", joins=False))]
    if view.find("threads", thread_id="thread-1") is not None:
        moves.append(Move("send second", lambda pool: _send(pool, "second", joins=True)))
    for row in view.table("thread_messages"):
        name, number, attempt = MessageId(row["message_id"]), row["number"], row["attempt"]
        moves += [
            Move(f"begin {number} run-{run}", lambda pool, n=name, r=run: _begin(pool, n, f"run-{r}"))
            for run in range(1, min(attempt + 1, _ATTEMPTS) + 1)
        ]
        if attempt:
            begun = _begun(view, row)
            for label, effect in _effects(begun):
                do = gated(lambda pool, b=begun, e=effect: _settle(pool, b, e))
                moves.append(Move(f"settle {number} {label}", do))
    if view.all("thread_replies", announced_at=None):
        moves.append(_ANNOUNCE)
    return moves


def _effects(begun: BegunMessage) -> Iterator[tuple[str, Effect]]:
    """What a handler that lives comes to, and what a later attempt says of one that died."""
    if begun.listener == "a" and begun.kind == "request":
        yield "forward", Forward("b", "<b/>")
    else:
        yield "respond", Respond("<done/>")
    if begun.attempt >= _ATTEMPTS:
        yield "timed-out", Respond("<huh/>", system=True)


async def _send(pool: Pool, name: str, *, joins: bool) -> str:
    message = MessageId(f"message-{name}")
    send = Send(
        thread=_THREAD,
        joins=joins,
        requester="user.anna",
        to="a",
        payload="<a/>",
        context_headers={},
        message_id=message,
        correlation_id=message,
        request_digest="digest",
    )
    return "duplicate" if (await pool.transact(lambda conn: send_message(conn, send, _LIMITS))).duplicate else "sent"


async def _begin(pool: Pool, message: MessageId, run: str) -> str:
    begun = await pool.run(lambda conn: begin_message(conn, _THREAD, message, run))
    return "settled before" if begun is None else f"begun {begun.was.value}"


async def _settle(pool: Pool, begun: BegunMessage, effect: Effect) -> str:
    settled = await pool.transact(lambda conn: settle_message(conn, _THREAD, begun, effect, _LIMITS))
    return settled.effect or "settled before"


def _begun(view: View, row: Mapping[str, Any]) -> BegunMessage:
    """What whoever began the message holds of it."""
    segment = view.find("thread_segments", segment_id=row["segment_id"]) or {}
    parent = view.find("thread_segments", segment_id=segment["parent_id"])
    return BegunMessage.model_validate(
        {**row, "was": "handling", "payload": "", "begun_at": MOMENT, "is_overdue": False, "outcome": None}
        | {name: segment[name] for name in ("listener", "parent_id", "output_box_id", "caller_turn_id")}
        | {"depth": len(segment["lineage"]), "parent_listener": parent and parent["listener"], "requester": "user.anna"}
        | {"error_code": None, "deliverable": None, "caller_agent_id": None, "context_headers": {}}
    )


async def _announce(pool: Pool) -> str:
    rows = await pool.run(lambda conn: list_late_replies(conn, [TARGET], older_seconds=1, row_limit=500))
    return f"marked {len(await pool.run(lambda conn: mark_replied(conn, [r.request_id for r in rows])))}"


_ANNOUNCE = Move("net thread_reply", _announce, repeats=False, single=False)


async def _wake_dying(pool: Pool) -> str:
    """The rules *thread* and *thread_engine* wake what is open; each handler dies, and the attempt after it says so."""
    stalled = await pool.run(lambda conn: list_stalled_threads(conn, [TARGET], older_seconds=1, row_limit=500))
    lost = await pool.run(lambda conn: list_open_threads(conn, [TARGET], after=None, older_seconds=1, row_limit=500))
    if not stalled and not lost:
        return "nothing"
    thread = await pool.run(lambda conn: look_at_thread(conn, _THREAD))
    for message in thread.open:
        for run in ("net-1", "net-2"):
            begun = await pool.run(lambda conn, m=message.message_id, r=run: begin_message(conn, _THREAD, m, r))
            if begun is not None and begun.attempt >= _ATTEMPTS:
                await _settle(pool, begun, Respond("<huh/>", system=True))
                break
    return f"woke {len(thread.open)}"


_WAKE = Move("net thread", _wake_dying, repeats=False, single=False)


def _healthy(view: View) -> Iterator[Move]:
    """A worker that lives begins what is open, and settles it."""
    for row in view.table("thread_messages"):
        if row["status"] in _OPEN:
            verb = "settle" if row["attempt"] else "begin"
            yield next(move for move in _moves(view) if move.name.startswith(f"{verb} {row['number']} "))


def _not_over(view: View) -> list[str]:
    left = [
        f"message {row['number']} is {row['status']}" for row in view.table("thread_messages") if row["status"] in _OPEN
    ]
    left += [f"{row['thread_id']} is open" for row in view.all("threads", status="open")]
    return left + [f"{row['request_id']} is not announced" for row in view.all("thread_replies", announced_at=None)]


def _broken(view: View) -> list[str]:
    """What must hold of a thread in every state (protocol §9)."""
    messages, segments = view.table("thread_messages"), view.table("thread_segments")
    live = [row for row in messages if row["status"] in _OPEN]
    pruned = {row["segment_id"] for row in segments if row["status"] == "pruned"}
    broken = [f"message {row['number']} is open in a pruned segment" for row in live if row["segment_id"] in pruned]
    broken += [
        f"a live segment of {row['listener']} is below a pruned one"
        for row in segments
        if row["status"] == "live" and row["parent_id"] in pruned
    ]
    for thread in view.table("threads"):
        if (thread["status"] == "open") != bool(live):
            broken.append(f"the thread is {thread['status']} with {len(live)} open messages")
        if sorted(row["number"] for row in messages) != list(range(1, thread["message_count"] + 1)):
            broken.append("its messages are not numbered without gaps")
    for request in (row for row in messages if row["hop"] == 0):
        flies = sum(row["request_id"] == request["message_id"] for row in live)
        answered = view.find("thread_replies", request_id=request["message_id"]) is not None
        if flies > 1 or answered == bool(flies):
            broken.append(
                f"request {request['number']} has {flies} open messages and {'an' if answered else 'no'} answer"
            )
    causes = [row["cause_id"] for row in messages if row["cause_id"] is not None]
    return broken + ["a message caused two"] * (len(causes) != len(set(causes)))


def _names(rows: Rows) -> Mapping[str, str]:
    """Messages by their number, segments by the first message that is in them."""
    messages = sorted(
        (json.loads(text) for (table, _), text in rows.items() if table == "thread_messages"), key=_number
    )
    names: dict[str, str] = {}
    for row in messages:
        if row["hop"]:
            names.setdefault(row["message_id"], f"message-{row['number']}")
        names.setdefault(row["segment_id"], f"segment-{row['number']}")
    return {old: new for old, new in names.items() if old != new}


def _number(row: Mapping[str, Any]) -> int:
    return row["number"]
