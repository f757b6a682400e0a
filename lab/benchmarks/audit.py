"""Measures an audit: a ledger of many ended turns, checked by all rules, and again for the turns of the last day.

`python -m lab.benchmarks.audit [--turns 1000000]`: writes them by SQL into an embedded PostgreSQL (some 4 GB and 4
minutes for a million) and prints the seconds of each rule, of all, and of `--since 24h`. `fill` is for tests too.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol, cast

import asyncpg

from turnstile.embedded import EmbeddedServers
from turnstile.ledger.migrate import migrate
from turnstile.ledger.operations.audit import Audit, Bounds, Scope, audit
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import parse

DAYS = 90
NOWHERE = "127.0.0.1:1"
_LOAD = "SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off; SET LOCAL work_mem = '128MB'"


class _Raw(Session, Protocol):
    async def close(self) -> None: ...


async def fill(database_url: str, turns: int, *, days: int = DAYS) -> None:
    """Write that many ended turns of the last `days` into a migrated, empty database, as its superuser."""
    queries = parse(Path(__file__).with_name("ended_turns.sql").read_text(encoding="utf-8"))
    values = {"turns": turns, "days": days}
    connect = cast("Callable[[str], Awaitable[_Raw]]", asyncpg.connect)  # pyright: ignore[reportUnknownMemberType] -- asyncpg is untyped
    conn = await connect(database_url)  # without the time limit that a pool's statements have
    try:
        async with conn.transaction():
            await conn.execute(_LOAD)
            for each in queries.values():
                await each.many(conn, **{name: values[name] for name in each.parameters})
        await conn.execute("VACUUM ANALYZE")
    finally:
        await conn.close()


def show(done: Audit) -> None:
    """Print the rules, the slowest first."""
    for rule in sorted(done.rules, key=lambda each: -each.seconds):
        print(f"{rule.seconds:8.2f} s  {rule.violations:3d}  {rule.rule}")  # noqa: T201 -- what this program is for


async def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100_000)
    turns = parser.parse_args().turns
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / ".turnstile"
        async with EmbeddedServers(data, nats_url=f"nats://{NOWHERE}", temporal_address=NOWHERE) as servers:
            pool = Pool(servers.endpoints.database_url, size=2, name="benchmark")
            await migrate(pool)
            began = time.monotonic()
            await fill(servers.endpoints.database_url, turns)
            filled = time.monotonic()
            whole = await audit(pool, Scope(), Bounds(), row_limit=100)
            ended = time.monotonic()
            show(whole)
            await audit(pool, Scope(since=datetime.now(UTC) - timedelta(days=1)), Bounds(), row_limit=100)
            last = time.monotonic()
            print(  # noqa: T201
                f"{turns} turns ({filled - began:.0f} s to write): {len(whole.rules)} rules in {ended - filled:.1f} s, "
                f"{len(whole.violations)} violations; the last day of {DAYS} in {last - ended:.1f} s"
            )
            await pool.close()


if __name__ == "__main__":
    asyncio.run(main())
