"""The safety net (protocol §8): finds what a crash, a lost doorbell or an absent server left behind, and mends it.

Every rule is one statement on live rows, safe with many bridges at once, and touches only served worker targets. A rule
that fails is logged and tried at the next tick; the others go on. The poll is a doorbell to itself: what it finds due
it claims directly, so turns move on while NATS is away.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bridge.starter import Starter
from bridge.stopping import fence_stopped
from bridge.telling import SENDER, tell
from ledger.lease import AgentKey, dispatch_next
from ledger.pool import Pool
from ledger.sweep import (
    list_due_agents,
    list_overdue,
    list_stops_overdue,
    list_stranded,
    list_unannounced,
    release_stale_claims,
    retry_commands,
    retry_dispatched,
)
from ledger.turns import mark_announced
from ledger.waiting import inject_timeouts
from schema.errors import TurnstileError
from schema.ports import Publisher

log = logging.getLogger(__name__)
ROW_LIMIT = 500


@dataclass(frozen=True, slots=True)
class WatchdogTimes:
    """The rules' ages, in seconds (`[bridge]`)."""

    poll_interval: float = 1.0
    inbox_processing_timeout: float = 300.0
    pending_wakeup: float = 5.0
    dispatched_retry: float = 10.0
    unannounced: float = 5.0
    overdue: float = 2.0
    """How long after its resume deadline a turn's own timer has had its chance."""
    stop_grace: float = 5.0
    command_retry: float = 30.0


class Watchdog:
    """Runs the rules at every tick. Holds counters only."""

    def __init__(
        self, pool: Pool, starter: Starter, publisher: Publisher, worker_targets: Sequence[str], times: WatchdogTimes
    ) -> None:
        self._pool = pool
        self._starter = starter
        self._publisher = publisher
        self._targets = tuple(worker_targets)
        self._times = times
        self.repairs: Counter[str] = Counter()
        """Rows mended, by rule."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`."""
        while not stop.is_set():
            await self.tick()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), self._times.poll_interval)

    async def tick(self) -> None:
        """Each rule once."""
        await self._rule("claims", self._claims)
        await self._rule("dispatched_retry", self._dispatched)
        await self._rule("suspended", self._suspended)
        await self._rule("stop", self._stops)
        await self._rule("command", self._commands)
        await self._rule("stranded", self._stranded)
        await self._rule("doorbell", self._doorbell)
        await self._rule("unannounced", self._unannounced)

    async def _rule(self, name: str, rule: Callable[[], Awaitable[int]]) -> None:
        try:
            mended = await rule()
        except TurnstileError as error:
            log.warning("watchdog rule %s: %s", name, error)
        except Exception:  # the net must not fall because one rule did
            log.exception("watchdog rule %s failed", name)
        else:
            self.repairs[name] += mended
            if mended:
                log.info("watchdog rule %s: %d", name, mended)

    async def _claims(self) -> int:
        older = self._times.inbox_processing_timeout
        return await self._again(
            await self._pool.run(
                lambda conn: release_stale_claims(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
            )
        )

    async def _dispatched(self) -> int:
        older = self._times.dispatched_retry
        return await self._again(
            await self._pool.run(
                lambda conn: retry_dispatched(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
            )
        )

    async def _doorbell(self) -> int:
        older = self._times.pending_wakeup
        return await self._again(
            await self._pool.run(
                lambda conn: list_due_agents(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
            )
        )

    async def _suspended(self) -> int:
        """Deadlines that the turn's own timer did not see to: the same statement, then the doorbell rings it."""
        older = self._times.overdue
        late = await self._pool.run(
            lambda conn: list_overdue(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
        )
        for turn in late:
            await self._pool.run(lambda conn, turn=turn: inject_timeouts(conn, turn))
        return await self._again([(turn.project_id, turn.agent_id) for turn in late])

    async def _stops(self) -> int:
        """Turns that did not stop in time are fenced: whatever their worker still does is stale."""
        older = self._times.stop_grace
        found = await self._pool.run(
            lambda conn: list_stops_overdue(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
        )
        fenced = [await fence_stopped(self._pool, self._publisher, turn) for turn in found]
        return sum(fenced)

    async def _commands(self) -> int:
        older = self._times.command_retry
        silent = await self._pool.run(
            lambda conn: retry_commands(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
        )
        messages = [message for call in silent if (message := call.message(SENDER)) is not None]
        if messages:
            await tell(self._publisher, *messages)
        return len(messages)

    async def _stranded(self) -> int:
        agents = await self._pool.run(lambda conn: list_stranded(conn, self._targets, row_limit=ROW_LIMIT))
        if not agents:
            return 0
        leases = await self._pool.run(lambda conn: dispatch_next(conn, agents))
        return await self._again([(lease.project_id, lease.agent_id) for lease in leases])

    async def _unannounced(self) -> int:
        older = self._times.unannounced
        found = await self._pool.run(
            lambda conn: list_unannounced(conn, self._targets, older_seconds=older, row_limit=ROW_LIMIT)
        )
        if not found or not await tell(self._publisher, *(outcome.task_event(SENDER) for outcome in found)):
            return 0
        await self._pool.run(lambda conn: mark_announced(conn, [outcome.agent_turn_id for outcome in found]))
        return len(found)

    async def _again(self, agents: Sequence[AgentKey]) -> int:
        await self._starter.claim(agents, "watchdog")
        return len(agents)
