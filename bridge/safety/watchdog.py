"""The safety net (protocol §8): finds what a crash, a lost doorbell or an absent server left behind, and mends it.

Every tick runs the rules one after another. If a rule fails, the error is logged and the rule runs again at the next
tick; the others go on. A rule that calls Temporal is a duty: one bridge at a time runs it, concurrently with the other
rules. Repairs are counted by rule, here and in the ledger, and logged with one sentence each, a few per tick.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from turnstile.bridge.safety.repairs import agent_of, sentences
from turnstile.bridge.safety.rules import LedgerRules, Rule
from turnstile.ledger.operations.recovery import record_repairs, take_duty
from turnstile.ledger.pool import Pool
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The ids that a rule found and how many it mended, or the error with which it failed."""

    rule: str
    found: Sequence[str] = ()
    mended: int = 0
    failed: str | None = None


class Watchdog:
    """Runs the rules at every tick. Holds counters, the time of its last try to take each duty, and the last errors."""

    def __init__(self, pool: Pool, rules: LedgerRules) -> None:
        self._pool = pool
        self._rules = rules.all()
        self._meter = rules.telemetry.meter
        self._times = rules.times
        self._errors: dict[str, str] = {}
        self._served = rules.served
        self._duty_tried_at: dict[str, float] = {}
        self.repairs: Counter[str] = Counter()
        """Repairs of this process by rule."""

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set. Duties run in a task of their own, so a slow Temporal delays no other rule."""
        duties = [rule for rule in self._rules if rule.every]
        others = [rule for rule in self._rules if not rule.every]
        async with asyncio.TaskGroup() as group:
            for rules in (others, duties):
                group.create_task(self._run(rules, stop))

    async def _run(self, rules: Sequence[Rule[Any]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._tick(rules, stop)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._times.poll_interval)

    async def tick(self) -> None:
        """Run each rule that is due once."""
        await self._tick(self._rules)

    async def _tick(self, rules: Sequence[Rule[Any]], stop: asyncio.Event | None = None) -> None:
        """Run the rules that are due. No rule begins once `stop` is set: each may wait for an absent server."""
        for rule in rules:
            if stop is not None and stop.is_set():
                return
            await self._attempt(rule.name, self._run_if_due(rule))

    async def once(self, *, dry_run: bool) -> list[RuleReport]:
        """Run each rule once, also duties that are not due; a dry run only finds."""
        run = self._find_only if dry_run else self._find_and_mend
        return [await self._attempt(rule.name, run(rule)) for rule in self._rules]

    async def _attempt(self, name: str, running: Coroutine[Any, Any, RuleReport]) -> RuleReport:
        try:
            report = await running
        except TurnstileError as error:
            self._log_new(name, str(error))
            return RuleReport(name, failed=str(error))
        except Exception as error:  # a rule that fails must not end the others
            log.exception("safety net: rule %s failed", name)
            return RuleReport(name, failed=type(error).__name__)
        self._errors.pop(name, None)
        return report

    def _log_new(self, name: str, error: str) -> None:
        """Log a rule's error unless it is the same as at the last tick."""
        if self._errors.get(name) != error:
            self._errors[name] = error
            log.warning("safety net: rule %s failed and is tried again at each tick: %s", name, error)

    async def _run_if_due(self, rule: Rule[Any]) -> RuleReport:
        return await self._find_and_mend(rule) if await self._is_due(rule) else RuleReport(rule.name)

    async def _is_due(self, rule: Rule[Any]) -> bool:
        """Whether to run the rule now; takes the duty if no bridge of the same targets did within `rule.every`."""
        if not rule.every:
            return True
        now = time.monotonic()
        if now - self._duty_tried_at.get(rule.name, -rule.every) < rule.every:
            return False
        self._duty_tried_at[rule.name] = now
        duty = f"{rule.name}: {','.join(sorted(self._served.now()))}"
        return await self._pool.run(lambda conn: take_duty(conn, duty, every_seconds=rule.every))

    async def _find_and_mend(self, rule: Rule[Any]) -> RuleReport:
        found = await rule.find(self._pool.run)
        mended = await rule.mend(found) if found else 0
        if mended:
            self.repairs[rule.name] += mended
            self._meter.count(Metric.REPAIRS, mended, rule=rule.name)
            for line in sentences(rule.name, found, mended, self._times):
                log.info("safety net: %s", line)
            await self._pool.run(lambda conn: record_repairs(conn, {rule.name: mended}))
        return RuleReport(rule.name, [_ids(each) for each in found], mended)

    async def _find_only(self, rule: Rule[Any]) -> RuleReport:
        found = await rule.find(self._pool.rehearse)
        return RuleReport(rule.name, [_ids(each) for each in found])


def _ids(found: Any) -> str:
    """The id of a found thing: of the call, else of the turn, the batch, the question, the inbox row or the agent."""
    names = ("tool_call_id", "agent_turn_id", "batch_id", "interrupt_id", "inbox_id")
    return next((f"{name}={getattr(found, name)}" for name in names if hasattr(found, name)), agent_of(found))
