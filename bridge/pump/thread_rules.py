"""The safety net's rules for threads (protocol §8, §9); `turnstile.bridge.safety.rules` has those for turns."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.pump.thread_wakes import ThreadStarter
from turnstile.bridge.safety.rules import ROW_LIMIT, SafetyRule
from turnstile.bridge.safety.visibility import list_executions
from turnstile.ledger.operations.recovery import RunTransition
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import (
    ThreadTurn,
    list_canceled_turns,
    list_late_replies,
    list_open_threads,
    list_stalled_threads,
    list_unserved,
    mark_replied,
)
from turnstile.rules.hop import ThreadReply
from turnstile.rules.thread_metrics import record_replies
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.pump.threads import ThreadId, ThreadRef, thread_workflow_id
from turnstile.transport.limited_log import LimitedLog
from turnstile.workflows import options

_RPC_TIMEOUT = timedelta(seconds=10)
_PAGE = 1000
_AT_ONCE = 16
_LOGGED_LISTENERS = 5
_LOG_SECONDS = 30.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ThreadRules:
    """The rules with the settings and clients that they need."""

    pool: Pool
    client: Client
    publisher: Publisher
    threads: ThreadStarter
    worker_targets: Sequence[str]
    older_seconds: float
    engine_interval: float
    telemetry: Telemetry = SILENT
    trouble: LimitedLog = field(default_factory=lambda: LimitedLog(log, every=_LOG_SECONDS))

    def all(self) -> list[SafetyRule[Any]]:
        """All rules, in the order in which they run."""
        return [
            SafetyRule("thread", self._stalled, self._wake_stalled),
            SafetyRule("thread_turn", self._canceled, self._stop, self.engine_interval),
            SafetyRule("thread_reply", self._unannounced, self._announce),
            SafetyRule("thread_engine", self._lost, self._wake, self.engine_interval),
        ]

    async def _stalled(self, run: RunTransition) -> Sequence[ThreadRef]:
        """Threads with a message that was not begun, or whose turn is over or late."""
        older = self.older_seconds
        return await run(
            lambda conn: list_stalled_threads(conn, self.worker_targets, older_seconds=older, row_limit=ROW_LIMIT)
        )

    async def _wake_stalled(self, stalled: Sequence[ThreadRef]) -> int:
        """Wake the threads; log listeners that no process serves, since waking does not help their messages."""
        woken = await self._wake(stalled)
        older = self.older_seconds
        unserved = await self.pool.run(
            lambda conn: list_unserved(conn, self.worker_targets, older_seconds=older, row_limit=_LOGGED_LISTENERS)
        )
        if unserved:
            self.trouble.warning("unserved", "%s", "; ".join(t.sentence() for t in unserved))
        return woken

    async def _wake(self, stalled: Sequence[ThreadRef]) -> int:
        woken = 0
        for first in range(0, len(stalled), _AT_ONCE):
            starts = await asyncio.gather(*map(self.threads.wake, stalled[first : first + _AT_ONCE]))
            woken += sum(starts)
            if not any(starts):
                break  # Temporal is away: the other rules must not wait for it
        return woken

    async def _canceled(self, run: RunTransition) -> Sequence[ThreadTurn]:
        """Live turns that work for a message that was ended."""
        return await run(lambda conn: list_canceled_turns(conn, self.worker_targets, row_limit=ROW_LIMIT))

    async def _stop(self, turns: Sequence[ThreadTurn]) -> int:
        stops = [turn.stop("the message it worked for was ended") for turn in turns]
        return len(turns) if await publish_best_effort(self.publisher, *stops) else 0

    async def _unannounced(self, run: RunTransition) -> Sequence[ThreadReply]:
        """Replies whose event NATS did not acknowledge."""
        older = self.older_seconds
        return await run(
            lambda conn: list_late_replies(conn, self.worker_targets, older_seconds=older, row_limit=ROW_LIMIT)
        )

    async def _announce(self, replies: Sequence[ThreadReply]) -> int:
        if not await publish_best_effort(self.publisher, *(reply.event(SENDER) for reply in replies)):
            return 0
        for copy in filter(None, (reply.copy_to_requester(SENDER) for reply in replies)):
            await self.publisher.emit(copy)
        marked = await self.pool.run(lambda conn: mark_replied(conn, [reply.request_id for reply in replies]))
        record_replies(self.telemetry, replies, marked)
        return len(replies)

    async def _lost(self, run: RunTransition) -> Sequence[ThreadRef]:
        """Open threads without a visible workflow; visibility lags, and waking a running workflow is harmless."""
        visible = await self._visible()
        lost: list[ThreadRef] = []
        after: ThreadId | None = None
        while True:
            page = await run(
                lambda conn, after=after: list_open_threads(
                    conn, self.worker_targets, after=after, older_seconds=self.older_seconds, row_limit=_PAGE
                )
            )
            lost += [thread for thread in page if thread_workflow_id(thread.thread_id) not in visible]
            if len(page) < _PAGE:
                return lost
            after = page[-1].thread_id

    async def _visible(self) -> set[str]:
        queues = ", ".join(f"'{options.task_queue(target)}'" for target in self.worker_targets)
        query = f"WorkflowType = 'MessageThread' AND ExecutionStatus = 'Running' AND TaskQueue IN ({queues})"
        return {execution.execution.workflow_id for execution in await list_executions(self.client, query)}
