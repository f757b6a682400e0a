"""`audit` and `retention`: a ledger of many ended turns of 90 days is audited, and what is older than 30 days removed.

Each writes a ledger of its own, with `Plan.ended_turns`, and drops it at the end.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most
from lab.bench.ledgers.ended_turns import fill
from lab.bench.yardsticks.postgres import scratch_database
from turnstile.ledger.migrate import migrate
from turnstile.ledger.operations.audit import Audit, Bounds, Scope, audit
from turnstile.ledger.operations.retention import RetentionLimits, prune
from turnstile.ledger.pool import Pool
from turnstile.schema.base import JsonObject

_KEPT = timedelta(days=30)
_DAY = timedelta(days=1)
_ROW_LIMIT = 100
_SHOWN = 5


async def run_audit(environment: Environment, bars: Bars) -> Result:
    """Audit the ledger by all rules, and again for the turns of the last day; details have the seconds of each rule."""
    async with _filled(environment, "audit", bars) as (pool, seconds):
        began = time.monotonic()
        whole = await audit(pool, Scope(), Bounds(), row_limit=_ROW_LIMIT)
        ended = time.monotonic()
        await audit(pool, Scope(since=datetime.now(UTC) - _DAY), Bounds(), row_limit=_ROW_LIMIT)
        last = time.monotonic()
    slowest = sorted(whole.rules, key=lambda rule: -rule.seconds)
    figures = [
        Figure(name="turns", value=environment.plan.ended_turns),
        Figure(name="to write them", value=seconds, unit="s"),
        Figure(name="all rules", value=ended - began, unit="s"),
        Figure(name="all rules, the turns of the last day", value=last - ended, unit="s"),
        *(Figure(name=f"of it: {rule.rule}", value=rule.seconds, unit="s") for rule in slowest[:_SHOWN]),
        _violations(whole),
    ]
    details: JsonObject = {"rule_seconds": {rule.rule: round(rule.seconds, 3) for rule in slowest}}
    return Result(scenario="audit", figures=tuple(figures), details=details)


async def run_retention(environment: Environment, bars: Bars) -> Result:
    """Count what retention would remove, remove it, prune again, and audit what is left."""
    async with _filled(environment, "retention", bars) as (pool, seconds):
        limits = RetentionLimits(datetime.now(UTC) - _KEPT)
        figures, details = [Figure(name="to write the turns", value=seconds, unit="s")], JsonObject()
        for what, dry_run in (("dry run", True), ("prune", False), ("second prune", False)):
            began = time.monotonic()
            pruned = await prune(pool, limits, dry_run=dry_run)
            figures += [
                Figure(name=f"{what}: turns", value=pruned.turns),
                Figure(name=f"{what}: time", value=time.monotonic() - began, unit="s"),
                Figure(name=f"{what}: batches", value=pruned.batches),
                Figure(name=f"{what}: longest transaction", value=pruned.longest_ms, unit="ms"),
            ]
            details[what] = pruned.model_dump(exclude={"batches", "longest_ms"})
        rest = await audit(pool, Scope(), Bounds(), row_limit=_ROW_LIMIT)
    return Result(scenario="retention", figures=(*figures, _violations(rest)), details=details)


def _violations(result: Audit) -> Figure:
    return Figure(name="violations", value=len(result.violations), goal=at_most(0))


@asynccontextmanager
async def _filled(environment: Environment, name: str, bars: Bars) -> AsyncGenerator[tuple[Pool, float]]:
    """A new ledger of ended turns, and the seconds that writing them took."""
    bars.print_line(f"{name}: writing {environment.plan.ended_turns:,} ended turns")
    async with scratch_database(environment.endpoints.database_url) as url:
        pool = Pool(url, size=2, name="turnstile-bench")
        try:
            await migrate(pool)
            began = time.monotonic()
            await fill(url, environment.plan.ended_turns)
            yield pool, time.monotonic() - began
        finally:
            await pool.close()
