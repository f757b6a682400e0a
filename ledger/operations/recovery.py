"""Finds turns that the engine lost or that make no progress, and counts repairs (protocol §8).

The ledger's part of the rules *engine* and *reap*: it lists the turns to look up in the engine, and records restarts.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol, TypeVar

from turnstile.ledger.operations.sweep import rule_rows
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.lease import AgentKey, LiveTurn
from turnstile.ledger.turns.steps import gate
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentTurnId, ProjectId

T = TypeVar("T")
_PAGE = 1000
_NO_BOX = "00000000-0000-0000-0000-000000000000"


class RunTransition(Protocol):
    """Runs a transition: `Pool.run`, or `Pool.rehearse`."""

    async def __call__(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Run the transition; returns its result."""
        ...


class OverTurn(Tolerant):
    """A turn that has its outcome."""

    agent_turn_id: AgentTurnId
    over_seconds: float


class InHand(Tolerant):
    """How many turns are active, and how many of them have not changed for a while."""

    in_hand: int
    older: int


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


class SilentTurn(LiveTurn):
    """An active turn whose head has not changed at least since `silent_since`, by the clock of the ledger."""

    silent_since: datetime


class NewEra(Tolerant):
    """An era whose ends of turns in NATS were not compared with the ledger yet."""

    era: int
    begun_at: datetime


class PublishedEnd(NamedTuple):
    """The end of a turn, from its `task` event."""

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


async def follow_clock(conn: Connection) -> list[AgentKey]:
    """Bring times that lie ahead back to now if the ledger's clock was set back; returns the agents concerned."""
    return [(row["project_id"], row["agent_id"]) for row in await query("follow_clock").many(conn)]


async def list_in_hand(
    run: RunTransition, worker_targets: Sequence[str], *, older_seconds: float, but: Collection[AgentTurnId] = ()
) -> AsyncGenerator[LiveTurn]:
    """Yields every active turn whose head has not changed for that long, but for those given, page by page."""
    box = _NO_BOX
    values = {
        "worker_targets": list(worker_targets),
        "older_seconds": older_seconds,
        "except_turn_ids": list(but),
        "row_limit": _PAGE,
    }
    while True:
        page = await run(lambda conn, box=box: query("list_in_hand").all_as(conn, LiveTurn, after_box_id=box, **values))
        for turn in page:
            yield turn
        if len(page) < _PAGE:
            return
        box = page[-1].output_box_id


async def find_in_hand(conn: Connection, worker_targets: Sequence[str], turns: Sequence[AgentTurnId]) -> list[LiveTurn]:
    """Those of the turns that are active."""
    values = {"worker_targets": list(worker_targets), "agent_turn_ids": list(turns)}
    return await query("find_in_hand").all_as(conn, LiveTurn, **values)


async def list_not_in_hand(conn: Connection, turns: Sequence[AgentTurnId]) -> list[AgentTurnId]:
    """Those of the turns that are not active."""
    return [row["agent_turn_id"] for row in await query("list_not_in_hand").many(conn, agent_turn_ids=list(turns))]


async def count_in_hand(conn: Connection, worker_targets: Sequence[str], *, older_seconds: float) -> InHand:
    """How many turns are active, and how many of them have not changed for that long."""
    return await query("count_in_hand").one_as(
        conn, InHand, worker_targets=list(worker_targets), older_seconds=older_seconds
    )


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
list_silent = rule_rows("list_silent", SilentTurn)
"""Rule 'running, reap': turns whose head has not changed for that long, with a worker there all that time."""


async def list_carried(conn: Connection, worker_targets: Sequence[str], *, row_limit: int) -> list[LiveTurn]:
    """Rule 'era': turns that were carried over into a new era of the ledger and not started again yet."""
    return await query("list_carried").all_as(conn, LiveTurn, worker_targets=list(worker_targets), row_limit=row_limit)


async def find_era(conn: Connection) -> Era | None:
    """The ledger's era; None before the first session that writes."""
    return await query("find_era").opt_as(conn, Era)


async def find_uncompared(conn: Connection) -> NewEra | None:
    """The era, if what NATS published before it was not compared with the ledger yet."""
    return await query("find_uncompared").opt_as(conn, NewEra)


async def record_beyond(conn: Connection, ends: Sequence[PublishedEnd]) -> list[tuple[str, str]]:
    """Record which of these ends of an earlier era the ledger does not have; returns turn and reason of each.

    A repeat records nothing twice.
    """
    columns = {f"{name}s": [getattr(end, name) for end in ends] for name in PublishedEnd._fields if name != "status"}
    rows = await query("record_beyond").many(conn, **columns, statuses=[end.status for end in ends])
    return [(row["agent_turn_id"], row["error"]) for row in rows]


async def record_compared(conn: Connection, era: int) -> None:
    """Record that what NATS published before this era was compared."""
    await query("record_compared").many(conn, era=era)


async def list_over(conn: Connection, turns: Sequence[AgentTurnId], *, older_seconds: float) -> list[OverTurn]:
    """Those of the turns that ended at least that long ago."""
    return await query("list_over").all_as(conn, OverTurn, agent_turn_ids=list(turns), older_seconds=older_seconds)


async def list_unknown(conn: Connection, turns: Sequence[AgentTurnId]) -> list[AgentTurnId]:
    """Those of the turns that the ledger does not know."""
    return [row["agent_turn_id"] for row in await query("list_unknown").many(conn, agent_turn_ids=list(turns))]


async def name_ledger(conn: Connection) -> str:
    """The id of this ledger, in all of its eras (protocol §16)."""
    return (await query("name_ledger").one(conn))["ledger_id"]


async def record_repairs(conn: Connection, repairs: Mapping[str, int]) -> None:
    """Add repairs to the sums by rule."""
    await query("record_repairs").many(conn, rules=list(repairs), repaired=list(repairs.values()))


async def list_repairs(conn: Connection) -> list[Repairs]:
    """The sums of repairs by rule, over all bridges, since the database was created."""
    return await query("list_repairs").all_as(conn, Repairs)


async def list_own_repairs(conn: Connection, project: ProjectId) -> list[Repairs]:
    """As `list_repairs` where no other project has agents, else nothing: it is not this project's alone."""
    return await query("list_own_repairs").all_as(conn, Repairs, project_id=project)
