"""Retention: removes what ended long ago, and unused cards (protocol §2.10; docs/operations.md).

It walks along the keys of these kinds of rows, in this order: threads, instances of profiles, turns, conversations,
boxes with their cards, inbox rows without a turn, rejections, events, firings, files. A batch is one short transaction
that reads a bounded number of rows, locks only those it removes, and skips rows that others have locked. Live turns,
and boxes that a turn could still read, are never removed: an enqueue locks the boxes and the conversation that it
names, so either it comes first and they stay, or it finds none. A killed run leaves no partial turn or box; the next
run continues. A dry run counts in the same walks and writes nothing.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Literal, cast

from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Connection, Row, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import ProjectId, first_id

_NIL: Final = "00000000-0000-0000-0000-000000000000"
_SKEW: Final = timedelta(hours=1)
"""How far the time in an id may be ahead of the ledger's clock."""

Report = Callable[["Pruned"], None]


class RetentionBusy(TurnstileError):
    """Another run of retention, or the removal of a project, is under way on this database."""

    code: str = "retention_busy"


class Pruned(Tolerant):
    """The numbers of rows removed so far, or to remove in a dry run, and the time that the batches took."""

    threads: int = 0
    instances: int = 0
    asleep: int = 0
    """Instances of profiles that were put to sleep."""
    turns: int = 0
    conversations: int = 0
    boxes: int = 0
    cards: int = 0
    inbox_rows: int = 0
    rejections: int = 0
    events: int = 0
    """Events for webhooks that go with no turn: those of budgets of a day or month."""
    firings: int = 0
    """Firings of schedules that made no turn."""
    files: int = 0
    """Files that no card names; the safety net removes their bytes."""
    batches: int = 0
    longest_ms: float = 0.0
    """The longest transaction."""


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What to remove (rows that ended before a moment, of one project or all), and the size and pause of batches."""

    before: datetime
    project_id: ProjectId | None = None
    batch_rows: int = 500
    pause_seconds: float = 0.0
    asleep_before: datetime | None = None
    """Instances of profiles without a turn since then are put to sleep; by default those without one since `before`."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The range of one batch: a number of rows after an id, up to another id."""

    limits: RetentionLimits
    after: str
    until: str | None
    dry_run: bool

    def arguments(self, *names: str) -> dict[str, Any]:
        values = {
            "after": self.after,
            "until": self.until,
            "row_limit": self.limits.batch_rows,
            "before": self.limits.before,
            "asleep_before": self.limits.asleep_before or self.limits.before,
            "project_id": self.limits.project_id,
            "planned": self.dry_run,
        }
        return {name: values[name] for name in names}


@dataclass(frozen=True, slots=True)
class _Done:
    """The last id that a batch read, None at the end, and the numbers of removed rows by kind."""

    last: str | None
    removed: dict[str, int] = field(default_factory=dict[str, int])


_Walk = Callable[[Connection, _Batch], Awaitable[_Done]]


@asynccontextmanager
async def sole(pool: Pool) -> AsyncGenerator[None]:
    """Hold the lock on removals during the block; raises `RetentionBusy` if another process has it.

    Uses one connection of the pool.
    """
    async with pool.connection() as conn:
        if not (await query("take_retention").one(conn))["taken"]:
            raise RetentionBusy("another prune or project remove is running on this database")
        try:
            yield
        finally:
            await query("leave_retention").one(conn)


async def ledger_time(conn: Connection) -> datetime:
    """The ledger's time: ages of what ended count from it, whatever this machine's clock says."""
    return (await query("ledger_time").one(conn))["now"]


async def prune(
    pool: Pool, limits: RetentionLimits, *, dry_run: bool = False, report: Report = lambda _: None
) -> Pruned:
    """Remove what the limits allow; calls `report` after each batch. The pool needs two connections.

    Raises `RetentionBusy`, or `ServerUnavailable` if the server stays down; rows removed by then stay removed.
    """
    total = Pruned()
    async with sole(pool):
        for walk, start, ranged in _WALKS:
            for first, until in _ranges(limits.before, start) if ranged else [(start, None)]:
                after: str | None = first
                while after is not None:
                    step, spent = await _timed(pool, walk, _Batch(limits, after, until, dry_run))
                    total = _added(total, step.removed, spent)
                    report(total)
                    after = step.last
                    await asyncio.sleep(limits.pause_seconds)
    return total


def _ranges(before: datetime, start: str) -> list[tuple[str, str | None]]:
    """The ranges of old ids: those before the moment, and ids that hold no time, as other writers make them."""
    young = max(before, datetime.now(before.tzinfo)) + _SKEW
    return [(start, first_id(before)), (first_id(young), None)]


async def _timed(pool: Pool, walk: _Walk, batch: _Batch) -> tuple[_Done, float]:
    """Run a batch in its own transaction, marked as retention; returns its result and duration in ms."""
    spent = 0.0

    async def whole(conn: Connection) -> _Done:
        nonlocal spent
        began = time.monotonic()
        async with cast("Session", conn).transaction():
            await query("begin_retention").one(conn)
            step = await walk(conn, batch)
        spent = (time.monotonic() - began) * 1000
        return step

    return await pool.run(whole), spent


def _added(total: Pruned, removed: dict[str, int], spent: float) -> Pruned:
    sums = {name: getattr(total, name) + count for name, count in removed.items()}
    longest = max(total.longest_ms, round(spent, 1))
    return total.model_copy(update=sums | {"batches": total.batches + 1, "longest_ms": longest})


async def _ids(conn: Connection, name: str, **arguments: Any) -> list[str]:
    """The ids that a query returns."""
    return [row["id"] for row in await query(name).many(conn, **arguments)]


async def _cards(conn: Connection, name: str, ids: Sequence[str]) -> list[str]:
    return [row["card_id"] for row in await query(name).many(conn, ids=ids)]


async def _page(conn: Connection, name: str, batch: _Batch) -> Row:
    """The ids of the next page that may be removed, and the last id that was read."""
    return await query(name).one(conn, **batch.arguments(*query(name).parameters))


async def _instances(conn: Connection, batch: _Batch) -> _Done:
    times = batch.arguments("before", "asleep_before")
    page = await query("list_unused_instances").one(
        conn, **times, **batch.arguments("after", "row_limit", "project_id")
    )
    if not page["found"]:
        return _Done(page["last"])
    ids = page["found"] if batch.dry_run else await _ids(conn, "lock_instances", ids=page["found"])
    judged = await query("judge_instances").many(conn, ids=ids, **times)
    gone = {row["only_turn_id"]: row["id"] for row in judged if not row["sleeps"]}
    asleep = [row["id"] for row in judged if row["sleeps"]]
    if batch.dry_run:  # their turns are counted with the others
        return _Done(page["last"], {"instances": len(gone), "asleep": len(asleep)})
    cards = await _cards(conn, "list_turn_cards", list(gone))
    turns = await _ids(conn, "remove_turns", ids=list(gone))
    if left := set(gone) - set(turns):
        cards = list(set(cards) - set(await _cards(conn, "list_turn_cards", list(left))))
    cards = await _ids(conn, "remove_cards", ids=cards)
    await query("remove_instances").many(conn, ids=[gone[turn] for turn in turns])
    await query("sleep_instances").many(conn, ids=asleep)
    removed = {"instances": len(turns), "asleep": len(asleep), "turns": len(turns), "cards": len(cards)}
    return _Done(page["last"], removed)


async def _with_cards(conn: Connection, batch: _Batch, kind: Literal["thread", "turn"]) -> _Done:
    """Remove threads or turns, and their cards that are in no box."""
    page = await _page(conn, f"list_prunable_{kind}s", batch)
    gone, cards = page["found"], await _cards(conn, f"list_{kind}_cards", page["found"])
    if gone and not batch.dry_run:
        limits = {} if kind == "turn" else {"before": batch.limits.before}
        if left := set(gone) - set(gone := await _ids(conn, f"remove_{kind}s", ids=gone, **limits)):
            cards = list(set(cards) - set(await _cards(conn, f"list_{kind}_cards", list(left))))
        cards = await _ids(conn, "remove_cards", ids=cards)
    return _Done(page["last"], {f"{kind}s": len(gone), "cards": len(cards)})


async def _rows(conn: Connection, batch: _Batch, listed: str, removed: str, kind: str) -> _Done:
    """Remove rows that nothing else depends on."""
    page = await _page(conn, listed, batch)
    gone = page["found"]
    if gone and not batch.dry_run:
        gone = await _ids(conn, removed, ids=gone)
    return _Done(page["last"], {kind: len(gone)})


async def _conversations(conn: Connection, batch: _Batch) -> _Done:
    names = ("after", "until", "row_limit", "before", "project_id")
    page = await query("list_prunable_conversations").one(conn, **batch.arguments(*names))
    gone = page["found"]
    if gone and not batch.dry_run:
        gone = await _ids(conn, "remove_conversations", ids=gone, before=batch.limits.before)
    return _Done(page["last"], {"conversations": len(gone)})


async def _boxes(conn: Connection, batch: _Batch) -> _Done:
    page = await _page(conn, "list_prunable_boxes", batch)
    ids, before = page["found"], batch.limits.before
    if not ids:
        return _Done(page["last"])
    if batch.dry_run:
        count = await query("count_box_cards").one(conn, ids=ids, last=page["last"], before=before)
        return _Done(page["last"], {"boxes": len(ids), "cards": count["found"]})
    locked = await _ids(conn, "lock_boxes", ids=ids)
    unused = await _ids(conn, "confirm_boxes", ids=locked, before=before)
    removed = await query("remove_boxes").one(conn, ids=unused)
    return _Done(page["last"], {"boxes": removed["boxes"], "cards": removed["cards"]})


async def _files(conn: Connection, batch: _Batch) -> _Done:
    page = await _page(conn, "list_old_files", batch)
    gone = page["found"]
    if gone and not batch.dry_run:
        gone = await _ids(conn, "remove_files", ids=await _ids(conn, "lock_files", ids=gone))
    return _Done(page["last"], {"files": len(gone)})


_WALKS: Final[tuple[tuple[_Walk, str, bool], ...]] = (
    (partial(_with_cards, kind="thread"), "", True),
    (_instances, "", False),
    (partial(_with_cards, kind="turn"), "", True),
    (_conversations, _NIL, True),
    (_boxes, _NIL, True),
    (partial(_rows, listed="list_loose_rows", removed="remove_loose_rows", kind="inbox_rows"), "", True),
    (partial(_rows, listed="list_old_rejections", removed="remove_rejections", kind="rejections"), "0", False),
    (partial(_rows, listed="list_old_events", removed="remove_events", kind="events"), "", False),
    (partial(_rows, listed="list_old_firings", removed="remove_firings", kind="firings"), "", False),
    (_files, "/", False),
)
"""Each walk, the id before all others, and whether its ids hold a time. Later walks remove what earlier ones freed."""
