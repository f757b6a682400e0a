"""Finds turns that the engine lost or that make no progress, and counts repairs (protocol §8).

The ledger's part of the rules *engine* and *reap*: it lists the turns to look up in the engine, and records restarts.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from turnstile.ledger.operations.sweep import rule_rows
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.ledger.turns.steps import gate
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentTurnId

T = TypeVar("T")
_PAGE = 1000
_NO_BOX = "00000000-0000-0000-0000-000000000000"


class Run(Protocol):
    """Runs a transition: `Pool.run`, or `Pool.rehearse`."""

    async def __call__(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transition; returns its result."""
        ...


class EndedTurn(Tolerant):
    """A turn that has its outcome."""

    agent_turn_id: AgentTurnId
    over_seconds: float


class Era(Tolerant):
    """The era of the ledger (protocol §16)."""

    ledger_id: str
    """Of the ledger in all of its eras."""
    era: int
    """0 is the first."""
    epoch_floor: int
    """Epochs of this era are at least this."""
    carried_count: int
    """Turns that were in hand as it began."""
    begun_at: datetime


class NewEra(Tolerant):
    """An era at whose begin nobody has looked at what NATS told before."""

    era: int
    begun_at: datetime


class ToldEnd(NamedTuple):
    """The end of a turn, as its `task` event told it."""

    project_id: str
    agent_turn_id: str
    turn_epoch: int
    status: str
    deliverable_card_id: str


class Repairs(Tolerant):
    """How often a rule has repaired something."""

    rule: str
    repaired: int
    last_at: datetime


async def take_duty(conn: Connection, duty: str, *, every_seconds: float) -> bool:
    """Whether this bridge takes the duty now; some bridge does, at most once per `every_seconds`."""
    return await query("take_duty").opt(conn, duty=duty, every_seconds=every_seconds) is not None


async def list_in_hand(run: Run, worker_targets: Sequence[str], *, older_seconds: float) -> AsyncGenerator[LiveTurn]:
    """Yields every active turn whose head has not changed for that long, page by page."""
    box = _NO_BOX
    values = {"worker_targets": list(worker_targets), "older_seconds": older_seconds, "row_limit": _PAGE}
    while True:
        page = await run(lambda conn, box=box: query("list_in_hand").all_as(conn, LiveTurn, after_box_id=box, **values))
        for turn in page:
            yield turn
        if len(page) < _PAGE:
            return
        box = page[-1].output_box_id


async def confirm_in_hand(conn: Connection, turns: Sequence[LiveTurn]) -> list[LiveTurn]:
    """Those of the turns that are still active, at the same epoch."""
    rows = await query("confirm_in_hand").many(
        conn,
        project_ids=[turn.project_id for turn in turns],
        agent_ids=[turn.agent_id for turn in turns],
        agent_turn_ids=[turn.agent_turn_id for turn in turns],
        turn_epochs=[turn.turn_epoch for turn in turns],
    )
    held = {row["agent_turn_id"] for row in rows}
    return [turn for turn in turns if turn.agent_turn_id in held]


async def restart_turn(conn: Connection, turn: LiveTurn, *, counted: bool) -> int:
    """Record that the turn's workflow was started again; returns how often it was.

    Reports and stops that the lost workflow had received become due again. Raises `StaleTurn` if the turn is over, or
    another bridge has recorded the same loss.
    """
    row = await query("restart_turn").opt(conn, **gate(turn), restart_count=turn.restart_count, counted=int(counted))
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} is over, or another bridge restarted it")
    return row["restart_count"]


list_undispatched = rule_rows("list_undispatched", LiveTurn)
"""Rule 'dispatched, reap': turns leased that long ago and not begun, although a worker was there all that time."""
list_silent = rule_rows("list_silent", LiveTurn)
"""Rule 'running, reap': turns whose head has not changed for that long, with a worker there all that time."""


async def list_carried(conn: Connection, worker_targets: Sequence[str], *, row_limit: int) -> list[LiveTurn]:
    """Rule 'era': turns that were carried over into a new era of the ledger and not started again yet."""
    return await query("list_carried").all_as(conn, LiveTurn, worker_targets=list(worker_targets), row_limit=row_limit)


async def find_era(conn: Connection) -> Era | None:
    """The ledger's era; None before the first session that writes."""
    return await query("find_era").opt_as(conn, Era)


async def find_uncompared(conn: Connection) -> NewEra | None:
    """The era, if what NATS told before it was not compared with the ledger yet."""
    return await query("find_uncompared").opt_as(conn, NewEra)


async def tell_beyond(conn: Connection, ends: Sequence[ToldEnd]) -> list[tuple[str, str]]:
    """Record which of these ends, told in an era before, the ledger does not have; returns turn and reason of each.

    A repeat records nothing twice.
    """
    columns = {f"{name}s": [getattr(end, name) for end in ends] for name in ToldEnd._fields if name != "status"}
    rows = await query("tell_beyond").many(conn, **columns, statuses=[end.status for end in ends])
    return [(row["agent_turn_id"], row["error"]) for row in rows]


async def record_compared(conn: Connection, era: int) -> None:
    """Record that what NATS told before this era was compared."""
    await query("record_compared").many(conn, era=era)


async def list_over(conn: Connection, turns: Sequence[AgentTurnId], *, older_seconds: float) -> list[EndedTurn]:
    """Those of the turns that ended at least that long ago."""
    return await query("list_over").all_as(conn, EndedTurn, agent_turn_ids=list(turns), older_seconds=older_seconds)


async def record_repairs(conn: Connection, repairs: Mapping[str, int]) -> None:
    """Add repairs to the sums by rule."""
    await query("record_repairs").many(conn, rules=list(repairs), repaired=list(repairs.values()))


async def list_repairs(conn: Connection) -> list[Repairs]:
    """The sums of repairs by rule, over all bridges, since the database was created."""
    return await query("list_repairs").all_as(conn, Repairs)
