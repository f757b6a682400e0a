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
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from turnstile.bridge.safety.rules import LedgerRules, SafetyRule, WatchdogTimes
from turnstile.ledger.operations.recovery import record_repairs, take_duty
from turnstile.ledger.operations.sweep import DueAgent
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import TurnstileError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RuleReport:
    """The ids that a rule found and how many it mended, or the error with which it failed."""

    rule: str
    ids: Sequence[str] = ()
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

    async def _run(self, rules: Sequence[SafetyRule[Any]], stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._tick(rules, stop)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._times.poll_interval)

    async def tick(self) -> None:
        """Run each rule that is due once."""
        await self._tick(self._rules)

    async def _tick(self, rules: Sequence[SafetyRule[Any]], stop: asyncio.Event | None = None) -> None:
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

    async def _run_if_due(self, rule: SafetyRule[Any]) -> RuleReport:
        return await self._find_and_mend(rule) if await self._is_due(rule) else RuleReport(rule.name)

    async def _is_due(self, rule: SafetyRule[Any]) -> bool:
        """Whether to run the rule now; takes the duty if no bridge of the same targets did within `rule.every`."""
        if not rule.every:
            return True
        now = time.monotonic()
        if now - self._duty_tried_at.get(rule.name, -rule.every) < rule.every:
            return False
        self._duty_tried_at[rule.name] = now
        duty = f"{rule.name}: {','.join(sorted(self._served.now()))}"
        return await self._pool.run(lambda conn: take_duty(conn, duty, every_seconds=rule.every))

    async def _find_and_mend(self, rule: SafetyRule[Any]) -> RuleReport:
        rows = await rule.find(self._pool.run)
        mended = await rule.mend(rows) if rows else 0
        if mended:
            self.repairs[rule.name] += mended
            self._meter.count(Metric.REPAIRS, mended, rule=rule.name)
            for line in sentences(rule.name, rows, mended, self._times):
                log.info("safety net: %s", line)
            await self._pool.run(lambda conn: record_repairs(conn, {rule.name: mended}))
        return RuleReport(rule.name, [_ids(r) for r in rows], mended)

    async def _find_only(self, rule: SafetyRule[Any]) -> RuleReport:
        rows = await rule.find(self._pool.rehearse)
        return RuleReport(rule.name, [_ids(r) for r in rows])


def _ids(row: Any) -> str:
    """The id of a found thing: of the call, else of the turn, batch, question, inbox row, file or agent."""
    names = ("tool_call_id", "agent_turn_id", "batch_id", "interrupt_id", "inbox_id", "artifact_id")
    return next((f"{name}={getattr(row, name)}" for name in names if hasattr(row, name)), agent_of(row))


LINES = 5

SENTENCES: Mapping[str, str] = {
    "claims": "agent {agent}: a bridge took a request {times.inbox_processing_timeout:g} s ago and did not finish; "
    "given back to be taken again",
    "dispatched_retry": "agent {agent}: no worker began its turn for {times.dispatched_retry:g} s; rung again",
    "resume": "agent {agent}: its sleeping turn was not woken by a report for {times.dispatched_retry:g} s; rung again",
    "suspended": "turn {turn} of {agent} slept beyond its deadline; its calls are answered as timed out",
    "stop": "turn {turn} of {agent} did not stop in {times.stop_grace:g} s; ended without its worker",
    "command": "{tool} has not answered for {silent:g} s; sent again (call {call}, turn {turn} of {agent})",
    "outcome": "a tool died in the middle of a call that must not be repeated; a person is asked, or it failed "
    "(call {call}, turn {turn} of {agent})",
    "batch": "{tool} did not make all of its turns; sent again (call {call}, turn {turn} of {agent})",
    "batch_due": "{batch} was decided: its deadline had passed, or its turn was over",
    "interrupts": "agent {agent}: nobody decided about {interrupt} in time; its call is answered so",
    "marked_queued": "turn {turn} of {agent} waited in a queue although its tree was stopped; ended",
    "marked": "turn {turn} of {agent} did not end with its tree in {times.stop_grace:g} s; ended without its worker",
    "stranded": "agent {agent}: it was idle with a turn in its queue; the turn was leased",
    "doorbell": "agent {agent}: {due}; taken up",
    "orphans": "a row for agent {agent}, which no roster has, was marked error",
    "unannounced": "turn {turn} of {agent}: NATS did not acknowledge its end for {times.unannounced:g} s; "
    "published again",
    "era": "turn {turn} of {agent} was in hand as the ledger's era began; started again from the ledger",
    "beyond": "ends before the era that NATS has and the ledger does not are in its rejections",
    "clock": "agent {agent}: the database's clock was set back; what was to wait until it is there again is due now",
    "engine": "turn {turn} of {agent} had no open workflow; started again, or ended if that was done too often",
    "engine_over": "turn {turn} is over and its workflow was still open; closed",
    "engine_unknown": "turn {turn} is unknown to the ledger that started its workflow; the workflow is closed",
    "dispatched_reap": "turn {turn} of {agent} was begun by no worker in {times.dispatched_timeout:g} s; ended",
    "running_reap": "turn {turn} of {agent} gave no sign of life for {times.active_reap:g} s; started again, "
    "or ended if that was done too often",
    "thread": "thread {thread}: a message was not begun, or its turn is over or late; woken",
    "thread_turn": "turn {turn}: the message it worked for was ended; asked to stop",
    "thread_reply": "request {message}: NATS did not acknowledge its answer; published again",
    "thread_engine": "thread {thread} has a message in flight and had no workflow; started again",
    "file": "the bytes of {file} were removed: it was removed, or its upload was not finished in an hour",
    "service": "agent {agent}: its turn was begun by a process of this service that is gone; begun again",
}
"""Sentences by rule. Repairs of any other rule are logged by the rule's name."""


def sentences(rule: str, rows: Sequence[Any], mended: int, times: WatchdogTimes) -> Iterator[str]:
    """The log lines for what a rule mended at one tick.

    If it mended only some of what it found, it is not known which: then there is one line with all ids.
    """
    names = [_names(r, times) for r in rows]
    if mended < len(rows) or rule not in SENTENCES:
        ids = ", ".join(name["id"] for name in names[:LINES])
        yield f"rule {rule} mended {mended} of {len(rows)}: {ids}{', …' if len(names) > LINES else ''}"
        return
    for name in names[:LINES]:
        yield SENTENCES[rule].format_map(name)
    if len(names) > LINES:
        yield f"rule {rule} mended {len(names) - LINES} more in this way"


def _names(row: Any, times: WatchdogTimes) -> dict[str, Any]:
    """The values for the placeholders of `SENTENCES`."""
    agent = agent_of(row)
    call, turn, thread = (_text_of(row, name) for name in ("tool_call_id", "agent_turn_id", "thread_id"))
    message, batch, interrupt = (_text_of(row, name) for name in ("request_id", "batch_id", "interrupt_id"))
    file = _text_of(row, "artifact_id")
    command = getattr(row, "command", None)
    return {
        "agent": agent,
        "turn": turn,
        "thread": thread,
        "message": message,
        "batch": batch,
        "interrupt": interrupt,
        "file": file,
        "call": call,
        "tool": call if command is None else command.tool_name,
        "due": _due(row),
        "silent": times.command_retry * getattr(row, "repeat", 1),
        "times": times,
        "id": next(filter(None, (call, turn, thread, message, batch, interrupt, file, agent)), ""),
    }


def _due(row: Any) -> str:
    """How long a row waited, and for what: a deferred one for its time, a pending one for a doorbell."""
    if not isinstance(row, DueAgent):
        return "its inbox had a row that was due"
    if row.is_deferred:
        return f"a deferred row was due for {row.due_seconds:.1f} s"
    return f"a request was due for {row.due_seconds:.1f} s and no doorbell was heard"


def agent_of(row: Any) -> str:
    """The agent of a found thing, as project/agent; empty if it has none."""
    if isinstance(row, tuple):
        return "/".join(cast("AgentKey", row))
    agent = _text_of(row, "agent_id")
    return f"{_text_of(row, 'project_id')}/{agent}" if agent else ""


def _text_of(row: Any, name: str) -> str:
    return str(getattr(row, name, ""))
