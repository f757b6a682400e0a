"""Writes ended turns of several projects into an empty ledger by SQL, as the kernel leaves them.

A million turns take some 4 GB and 4 minutes. Needs a superuser, since triggers do not run.
"""

from pathlib import Path

from lab.bench.yardsticks.postgres import connected
from turnstile.ledger.queries import parse

DAYS = 90
_LOAD = "SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off; SET LOCAL work_mem = '128MB'"


async def fill(database_url: str, turns: int, *, days: int = DAYS) -> None:
    """Write that many ended turns of the last `days` into a migrated, empty database, as its superuser."""
    queries = parse(Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))
    values = {"turns": turns, "days": days}
    async with connected(database_url) as conn:
        async with conn.transaction():
            await conn.execute(_LOAD)
            for query in queries.values():
                await query.many(conn, **{name: values[name] for name in query.parameters})
        await conn.execute("VACUUM ANALYZE")
