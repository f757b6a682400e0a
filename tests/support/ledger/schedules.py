"""Schedules that tests put in the ledger, and bridges that fire them (protocol §20)."""

from typing import Any

from tests.support.ledger.agents import ALICE, CHANNEL, PROJECT, rows
from tests.support.ledger.talks import Events
from turnstile.bridge.verbs.scheduling import Schedules
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.schedules import put_schedule
from turnstile.schema.access import Caller
from turnstile.schema.wire.limits import UNLIMITED, Admission
from turnstile.schema.wire.schedule_requests import SchedulePutRequest

ADA = Caller("ada")
HOURLY: dict[str, Any] = {"agent_id": ALICE, "instruction": "report", "every_seconds": 3600}


def schedule_of(name: str = "tick", **fields: Any) -> SchedulePutRequest:
    """A schedule that asks Alice every hour; `fields` are others."""
    given = {**HOURLY, **fields}
    return SchedulePutRequest.model_validate(
        {"schedule_id": name, **{field: value for field, value in given.items() if value is not None}}
    )


async def put_on(conn: Connection, name: str = "tick", caller: Caller = ADA, **fields: Any) -> bool:
    """Put it."""
    return await put_schedule(conn, PROJECT, CHANNEL, schedule_of(name, **fields), caller)


async def put(pool: Pool, *names: str, caller: Caller = ADA, **fields: Any) -> None:
    """Put some."""
    for name in names:
        await pool.run(lambda conn, name=name: put_on(conn, name, caller, **fields))


async def make_due(pool: Pool, seconds: float = 1.0, name: str | None = None) -> None:
    """Let the next time of the schedules be so many seconds ago: what they count from moves, too."""
    await rows(
        pool,
        "UPDATE resource.schedules SET anchor_at = now() - make_interval(secs => 3600 + $1),"
        " next_at = now() - make_interval(secs => $1) WHERE $2::text IS NULL OR schedule_id = $2",
        seconds,
        name,
    )


def bridge_of(pool: Pool, admission: Admission = UNLIMITED) -> Schedules:
    """A bridge that fires, and whose doorbells nobody hears."""
    return Schedules(pool, Events(), depth_limit=20, admission=admission)


async def firings(pool: Pool, name: str = "tick") -> list[tuple[str | None, str | None]]:
    """The turn and the code of each firing of a schedule, in order."""
    found = await rows(
        pool,
        "SELECT agent_turn_id, code FROM state.schedule_firings WHERE schedule_id = $1 ORDER BY nominal_at",
        name,
    )
    return [(row["agent_turn_id"], row["code"]) for row in found]


async def codes(pool: Pool, name: str = "tick") -> list[str | None]:
    """The code of each firing of a schedule; None of one that made a turn."""
    return [code for _, code in await firings(pool, name)]
