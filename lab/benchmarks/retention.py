"""Measures retention: a ledger of many ended turns of 90 days, of which those older than 30 days are removed.

`python -m lab.benchmarks.retention [--turns 100000]`: writes them by SQL into an embedded PostgreSQL, counts what
would go, prunes it, audits what is left, and prints the seconds, the batches and the longest transaction.
"""

import argparse
import asyncio
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lab.benchmarks.audit import NOWHERE, fill
from turnstile.embedded import EmbeddedServers
from turnstile.ledger.migrate import migrate
from turnstile.ledger.operations.audit import Bounds, Scope, audit
from turnstile.ledger.operations.retention import Limits, prune
from turnstile.ledger.pool import Pool

KEPT = timedelta(days=30)


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
            await fill(servers.endpoints.database_url, turns)
            limits = Limits(datetime.now(UTC) - KEPT)
            for what, dry_run in (("would go", True), ("went", False), ("went the second time", False)):
                began = time.monotonic()
                done = await prune(pool, limits, dry_run=dry_run)
                counts = done.model_dump(exclude={"batches", "longest_ms"})
                print(  # noqa: T201 -- what this program is for
                    f"{what}: {counts} in {time.monotonic() - began:.1f} s, "
                    f"{done.batches} batches, the longest {done.longest_ms:.0f} ms"
                )
            left = await audit(pool, Scope(), Bounds(), row_limit=100)
            print(f"{len(left.rules)} rules, {len(left.violations)} violations")  # noqa: T201
            for each in left.violations[:5]:
                print(each)  # noqa: T201
            await pool.close()


if __name__ == "__main__":
    asyncio.run(main())
