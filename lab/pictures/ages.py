"""When the everyday turns of the demo project were: spread over two weeks of opening hours, then written so."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import parse
from turnstile.schema.ids import AgentTurnId, ProjectId

DAYS = 14
_FROM, _UNTIL = 8, 19
_SUNDAY = 6
_BY_TRIGGERS = "SET LOCAL session_replication_role = replica"


def moments(count: int, now: datetime) -> list[datetime]:
    """So many moments of the last two weeks, the oldest first: in opening hours, not on Sundays, nor just now."""
    drawn, found = Random(count), list[datetime]()  # noqa: S311 -- pictures, the same each time
    latest = now - timedelta(hours=1)
    while len(found) < count:
        day = (now - timedelta(days=drawn.triangular(0, DAYS, 1))).replace(hour=0, minute=0, second=0, microsecond=0)
        at = day + timedelta(hours=drawn.triangular(_FROM, _UNTIL))
        if at < latest and at.weekday() != _SUNDAY:
            found.append(at)
    return sorted(found)


async def age(pool: Pool, project: ProjectId, turns: Sequence[AgentTurnId]) -> None:
    """Move these ended turns of the project into the past, the first the farthest; needs the database's owner."""
    now = datetime.now(UTC)
    ages = [(now - at).total_seconds() for at in moments(len(turns), now)]
    queries = parse(Path(__file__).with_name("ages.sql").read_text(encoding="utf-8"))
    async with pool.connection() as conn, conn.transaction():
        await conn.fetch(_BY_TRIGGERS)
        for each in queries.values():
            await each.many(conn, project_id=project, turns=list(turns), ages=ages)
