"""The rules of the safety net (protocol §8): how each finds a fault, and how it repairs it.

A rule finds rows by one statement. It reads live rows of served worker targets only, and many bridges may run it at
once; if it changes rows, it claims them (`SKIP LOCKED`). `find` gets the function that runs statements, so a dry run
finds the same rows and rolls back. Rules claim rows directly, without a doorbell, so turns move on while NATS is away.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.people.unknown_outcomes import UnknownOutcomes
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.publishing.stop import end_marked, fence_stopped
from turnstile.bridge.safety.beyond_ledger import BeyondLedger
from turnstile.bridge.safety.eras import Eras
from turnstile.bridge.safety.reconciler import Reconciler
from turnstile.ledger.operations import sweep
from turnstile.ledger.operations.recovery import RunTransition, follow_clock
from turnstile.ledger.operations.sweep import DueAgent, MarkedTurn, Orphan, SilentCall, Unannounced, Undecided
from turnstile.ledger.people.decisions import ExpiredInterrupt, expire_interrupt, list_expired
from turnstile.ledger.people.unknown_calls import UnsureCall, list_unsure
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.batches import expire_batch
from turnstile.ledger.trees.marks import rings_of
from turnstile.ledger.turns.lease import AgentKey, dispatch_next
from turnstile.ledger.turns.turn_publisher import announce_all
from turnstile.ledger.turns.waiting import inject_timeouts
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)
T = TypeVar("T")
ROW_LIMIT = 500
RETRY_LIMIT = 32
"""Turns that were leased and not begun, claimed again per tick. Most of them wait in a worker's long queue, where
another claim is wasted work; a crash loses at most the starts in flight, which are this many."""


@dataclass(frozen=True, slots=True)
class WatchdogTimes:
    """The age in seconds after which each rule acts (`[bridge]`)."""

    poll_interval: float = 1.0
    inbox_processing_timeout: float = 300.0
    pending_wakeup: float = 5.0
    dispatched_retry: float = 10.0
    dispatched_timeout: float = 30.0
    """0 turns the rule off."""
    active_reap: float = 300.0
    engine_interval: float = 10.0
    unannounced: float = 5.0
    overdue: float = 2.0
    """How long after its resume deadline a turn is left to its own timer."""
    stop_grace: float = 3.0
    command_retry: float = 30.0


@dataclass(frozen=True, slots=True)
class SafetyRule(Generic[T]):
    """One rule of §8."""

    name: str
    find: Callable[[RunTransition], Awaitable[Sequence[T]]]
    mend: Callable[[Sequence[T]], Awaitable[int]]
    """Returns how many were mended."""
    every: float = 0.0
    """Seconds between two runs across all bridges; 0 means that each bridge runs the rule at every tick."""


@dataclass(frozen=True, slots=True)
class LedgerRules:
    """The rules that need only ledger and NATS, with the settings and clients that they use."""

    pool: Pool
    starter: Claims
    publisher: Publisher
    served: ServedTargets
    times: WatchdogTimes
    telemetry: Telemetry = SILENT
    more: Sequence[SafetyRule[Any]] = ()
    """Rules of layers above the kernel, such as the message pump."""
    outcomes: UnknownOutcomes | None = None
    """Settles calls that died; without it (no NATS to ask who runs a call) they are left alone."""
    queue: ClaimQueue | None = None
    """The bridge's claim queue. With it a rule does not wait for starts, so many due rows do not delay other rules."""

    def all(self) -> list[SafetyRule[Any]]:
        """All rules, in the order in which they run."""
        return [*self._by_ledger(), *self.more]

    def _by_ledger(self) -> list[SafetyRule[Any]]:
        times = self.times
        return [
            self._rows("claims", sweep.release_stale_claims, times.inbox_processing_timeout, self._claim),
            self._rows("dispatched_retry", sweep.retry_dispatched, times.dispatched_retry, self._claim, RETRY_LIMIT),
            self._rows("resume", sweep.retry_resumes, times.dispatched_retry, self._claim),
            self._rows("suspended", sweep.list_overdue, times.overdue, self._time_out),
            self._rows("stop", sweep.list_stops_overdue, times.stop_grace, self._fence),
            self._rows("batch", sweep.retry_forks, times.pending_wakeup, self._command),
            self._rows("batch_due", sweep.list_undecided, 0, self._decide),
            self._rows("interrupts", list_expired, 0, self._expire),
            self._rows("marked_queued", sweep.list_marked_queued, times.pending_wakeup, self._end_marked),
            self._rows("marked", sweep.list_marked_in_hand, times.stop_grace, self._fence),
            self._rows("command", sweep.retry_commands, times.command_retry, self._command),
            *([self._rows("outcome", list_unsure, times.command_retry, self._settle)] if self.outcomes else []),
            SafetyRule("stranded", self._stranded, self._dispatch),
            SafetyRule("orphans", self._orphans, self._warn, times.engine_interval),
            self._rows("doorbell", sweep.list_due_agents, times.pending_wakeup, self._take_up),
            self._rows("unannounced", sweep.list_unannounced, times.unannounced, self._announce),
            SafetyRule("clock", lambda run: run(follow_clock), self._claim, times.engine_interval),
        ]

    def _rows(
        self,
        name: str,
        statement: Callable[..., Awaitable[Sequence[T]]],
        older_seconds: float,
        mend: Callable[[Sequence[T]], Awaitable[int]],
        row_limit: int = ROW_LIMIT,
    ) -> SafetyRule[T]:
        """A rule whose `find` is one statement on rows of some age."""

        async def find(conn: Connection) -> Sequence[T]:
            return await statement(conn, self.served.now(), older_seconds=older_seconds, row_limit=row_limit)

        return SafetyRule(name, lambda run: run(find), mend)

    async def _claim(self, agents: Sequence[AgentKey]) -> int:
        if self.queue is not None:
            return self.queue.offer(agents, "watchdog")
        await self.starter.claim(agents, "watchdog")
        return len(agents)

    async def _take_up(self, agents: Sequence[DueAgent]) -> int:
        return await self._claim([(a.project_id, a.agent_id) for a in agents])

    async def _time_out(self, late: Sequence[TurnRef]) -> int:
        """Time out calls whose turn's own timer did not: run the timer's statement, then claim what became due."""
        for turn in late:
            await self.pool.run(lambda conn, turn=turn: inject_timeouts(conn, turn))
        return await self._claim([(turn.project_id, turn.agent_id) for turn in late])

    async def _fence(self, turns: Sequence[TurnRef]) -> int:
        """Fence turns that did not stop in time: later writes of their workers are stale."""
        fenced = [await fence_stopped(self.pool, self.publisher, turn, self.telemetry) for turn in turns]
        return sum(fenced)

    async def _decide(self, batches: Sequence[Undecided]) -> int:
        """Decide batches whose deadline has passed or whose call waits no more, one a transaction."""
        decided = [b.batch_id for b in batches if await expire_batch(self.pool, b.batch_id)]
        if decided:
            rings = await self.pool.run(lambda conn: rings_of(conn, decided))
            await self._claim([(ring.project_id, ring.agent_id) for ring in rings])
        return len(decided)

    async def _expire(self, interrupts: Sequence[ExpiredInterrupt]) -> int:
        """Close questions that nobody answered in time, one a transaction, and claim what their calls are answered."""
        closed = [i for i in interrupts if await expire_interrupt(self.pool, i.interrupt_id)]
        await self._claim(list(dict.fromkeys((i.project_id, i.agent_id) for i in closed)))
        return len(closed)

    async def _end_marked(self, turns: Sequence[MarkedTurn]) -> int:
        return await end_marked(self.pool, self.publisher, turns, self.telemetry)

    async def _command(self, silent: Sequence[SilentCall]) -> int:
        messages = [message for call in silent if (message := call.message(SENDER)) is not None]
        if messages:
            await publish_best_effort(self.publisher, *messages)
        return len(messages)

    async def _settle(self, calls: Sequence[UnsureCall]) -> int:
        """Ask people about calls that began and that nobody runs any more, or fail them; claim what has a result."""
        if self.outcomes is None:
            return 0
        settled, answered = await self.outcomes.settle(calls)
        await self._claim(list(dict.fromkeys(answered)))
        return settled

    async def _stranded(self, run: RunTransition) -> Sequence[AgentKey]:
        return await run(lambda conn: sweep.list_stranded(conn, self.served.now(), row_limit=ROW_LIMIT))

    async def _dispatch(self, agents: Sequence[AgentKey]) -> int:
        leases = await self.pool.run(lambda conn: dispatch_next(conn, agents))
        await publish_best_effort(self.publisher, *(lease.dispatched(SENDER) for lease in leases))
        return await self._claim([(lease.project_id, lease.agent_id) for lease in leases])

    async def _orphans(self, run: RunTransition) -> Sequence[Orphan]:
        age = self.times.pending_wakeup
        return await run(lambda conn: sweep.end_orphans(conn, older_seconds=age, row_limit=ROW_LIMIT))

    async def _warn(self, orphans: Sequence[Orphan]) -> int:
        """Log whose rows were ended: nothing else can be done for them."""
        for row in orphans:
            log.warning(
                "inbox row %s (%s) by %r is for agent %s/%s, which no roster has: it is marked error",
                row.inbox_id,
                row.message_type,
                row.sender,
                row.project_id,
                row.agent_id,
            )
        return len(orphans)

    async def _announce(self, outcomes: Sequence[Unannounced]) -> int:
        messages = [message for outcome in outcomes for message in outcome.messages(SENDER)]
        await announce_all(self.pool, self.publisher, [outcome.agent_turn_id for outcome in outcomes], messages)
        return len(outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(LedgerRules):
    """All rules of a bridge, including those that query Temporal."""

    reconciler: Reconciler
    eras: Eras
    beyond: BeyondLedger | None = None
    """Without it (no NATS), ends that were published and lost are not looked for."""

    def all(self) -> list[SafetyRule[Any]]:
        """All rules, in the order in which they run."""
        engine, times = self.reconciler, self.times
        return [
            *self._by_ledger(),
            SafetyRule("era", self.eras.list_carried, self.eras.carry, times.poll_interval),
            *self._beyond(),
            SafetyRule("engine", engine.list_lost, engine.bring_back, times.engine_interval),
            SafetyRule("engine_over", engine.list_over, engine.close, 6 * times.engine_interval),
            SafetyRule("engine_unknown", engine.list_unknown, engine.close_unknown, 6 * times.engine_interval),
            *self._reaps(),
            *self.more,
        ]

    def _beyond(self) -> list[SafetyRule[Any]]:
        if self.beyond is None:
            return []
        return [SafetyRule("beyond", self.beyond.list_eras, self.beyond.compare, self.times.engine_interval)]

    def _reaps(self) -> list[SafetyRule[Any]]:
        engine, times = self.reconciler, self.times
        silent = SafetyRule(
            "running_reap",
            lambda run: engine.list_silent(run, older_seconds=times.active_reap),
            engine.reap_silent,
            times.engine_interval,
        )
        if not times.dispatched_timeout:
            return [silent]
        undispatched = SafetyRule(
            "dispatched_reap",
            lambda run: engine.list_undispatched(run, older_seconds=times.dispatched_timeout),
            engine.reap_undispatched,
            times.engine_interval,
        )
        return [undispatched, silent]
