"""The safety net (protocol §8): finds what a crash, a lost doorbell or an absent server left behind, and mends it.

Rule by rule, at every tick. A rule that fails is logged and tried at the next tick; the others go on. What costs calls
to the engine is a duty that one bridge at a time does, beside the others. What was mended is counted by rule, here and
in the ledger, and told in the log by a sentence for each turn, agent, call or thread, a few at each look.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

from turnstile.bridge.safety.repairs import sentences
from turnstile.bridge.safety.rules import LedgerRules, Rule
from turnstile.ledger.operations.recovery import record_repairs, take_duty
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuleReport:
    """What a rule found, by ids, and how many it mended; or why it could not look."""

    rule: str
    found: Sequence[str] = ()
    mended: int = 0
    failed: str | None = None


class Watchdog:
    """Runs the rules at every tick. Holds counters, when it last asked whose turn a rule is, and what hinders one."""

    def __init__(self, pool: Pool, rules: LedgerRules) -> None:
        self._pool = pool
        self._rules = rules.all()
        self._meter = rules.telemetry.meter
        self._times = rules.times
        self._hindered: dict[str, str] = {}
        self._served = rules.served
        self._asked: dict[str, float] = {}
        self.repairs: Counter[str] = Counter()
        """What was mended here, by rule."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Duties have a pace of their own: an engine that is slow or away keeps no other rule waiting."""
        duties = [rule for rule in self._rules if rule.every]
        others = [rule for rule in self._rules if not rule.every]
        async with asyncio.TaskGroup() as group:
            for rules in (others, duties):
                group.create_task(self._run(rules, stop))

    async def _run(self, rules: Sequence[Rule[Any]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._tick(rules)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._times.poll_interval)

    async def tick(self) -> None:
        """Each rule whose turn it is, once."""
        await self._tick(self._rules)

    async def _tick(self, rules: Sequence[Rule[Any]]) -> None:
        for rule in rules:
            await self._attempt(rule.name, self._look(rule))

    async def once(self, *, dry_run: bool) -> list[RuleReport]:
        """Each rule once, whoever looked last; a dry run finds and changes nothing."""
        look = self._rehearse if dry_run else self._sweep
        return [await self._attempt(rule.name, look(rule)) for rule in self._rules]

    async def _attempt(self, name: str, look: Coroutine[Any, Any, RuleReport]) -> RuleReport:
        try:
            swept = await look
        except TurnstileError as error:
            self._tell_once(name, str(error))
            return RuleReport(name, failed=str(error))
        except Exception as error:  # the net must not fall because one rule did
            log.exception("safety net: rule %s failed", name)
            return RuleReport(name, failed=type(error).__name__)
        self._hindered.pop(name, None)
        return swept

    def _tell_once(self, name: str, error: str) -> None:
        """A server that is away hinders a rule at every tick, and is told when that begins or its reason changes."""
        if self._hindered.get(name) != error:
            self._hindered[name] = error
            log.warning("safety net: rule %s cannot look, and tries on: %s", name, error)

    async def _look(self, rule: Rule[Any]) -> RuleReport:
        return await self._sweep(rule) if await self._is_due(rule) else RuleReport(rule.name)

    async def _is_due(self, rule: Rule[Any]) -> bool:
        """Whether to look now: at every tick, or when no bridge of the same targets has looked for so long."""
        if not rule.every:
            return True
        now = time.monotonic()
        if now - self._asked.get(rule.name, -rule.every) < rule.every:
            return False
        self._asked[rule.name] = now
        duty = f"{rule.name}: {','.join(sorted(self._served.now()))}"
        return await self._pool.run(lambda conn: take_duty(conn, duty, every_seconds=rule.every))

    async def _sweep(self, rule: Rule[Any]) -> RuleReport:
        found = await rule.find(self._pool.run)
        mended = await rule.mend(found) if found else 0
        if mended:
            self.repairs[rule.name] += mended
            self._meter.count(Metric.REPAIRS, mended, rule=rule.name)
            for line in sentences(rule.name, found, mended, self._times):
                log.info("safety net: %s", line)
            await self._pool.run(lambda conn: record_repairs(conn, {rule.name: mended}))
        return RuleReport(rule.name, [_ids(each) for each in found], mended)

    async def _rehearse(self, rule: Rule[Any]) -> RuleReport:
        found = await rule.find(self._pool.rehearse)
        return RuleReport(rule.name, [_ids(each) for each in found])


def _ids(found: Any) -> str:
    """A thing found, by its ids: the call, the turn, or the agent."""
    names = ("tool_call_id", "agent_turn_id")
    return next((f"{name}={getattr(found, name)}" for name in names if hasattr(found, name)), _agent(found))


def _agent(found: Any) -> str:
    return "/".join(cast("AgentKey", found)) if isinstance(found, tuple) else ""
