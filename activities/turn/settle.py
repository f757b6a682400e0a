"""What a sleeping turn needs done without a model: partial sets of reports, timeouts, a stop.

Local activities of a few round trips each, idempotent, since a worker that dies runs them whole again.
"""

import logging

from temporalio import activity

from turnstile.activities.turn.turn_events import TurnEvents
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import STOP_REASON, STOPPED, end_by_fallback, recall_step
from turnstile.ledger.turns.waiting import AppliedReports, apply_reports, inject_timeouts
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import ApplyInput, ReportsApplied, Ring, TurnRef, TurnStopped
from turnstile.schema.wire.events import InboxProgress

log = logging.getLogger(__name__)


class SettleActivities:
    """The activities and what they need; nothing of any turn."""

    def __init__(self, pool: Pool, publisher: Publisher, telemetry: Telemetry = SILENT) -> None:
        self._pool = pool
        self._publisher = publisher
        self._telemetry = telemetry

    @activity.defn(name="apply_reports")
    async def apply_reports(self, given: ApplyInput) -> ReportsApplied:
        """Apply the reports of some of the calls; the answer says which still wait."""
        with about(given.turn):
            try:
                done = await self._pool.run(lambda conn: apply_reports(conn, given.turn, given.reports))
            except StaleTurn:
                return ReportsApplied(waiting=(), deadline=None, stale=True)
            hit(Fault.REPORTS_APPLIED)
            await publish_applied(self._pool, self._publisher, given.turn, done)
            return ReportsApplied(waiting=tuple(done.waiting), deadline=done.deadline)

    @activity.defn(name="inject_timeouts")
    async def inject_timeouts(self, turn: TurnRef) -> list[Ring]:
        """The deadline is over: pointers to the timeouts, and to what came in the meantime."""
        with about(turn):
            rings = await self._pool.run(lambda conn: inject_timeouts(conn, turn))
            hit(Fault.TIMEOUTS_INJECTED)
            return rings

    @activity.defn(name="stop_turn")
    async def stop_turn(self, turn: TurnRef) -> TurnStopped:
        """End a turn that sleeps, or whose step is over: canceled, with what there is."""
        with about(turn):
            return await end_stopped(self._pool, self._publisher, turn, self._telemetry)


async def end_stopped(pool: Pool, publisher: Publisher, turn: TurnRef, telemetry: Telemetry = SILENT) -> TurnStopped:
    """Finish the turn as canceled without a step, or find that it is over (protocol §6, stop)."""
    found = await pool.run(lambda conn: recall_step(conn, turn, 0))
    step = found.step or 0
    try:
        done = await end_by_fallback(pool, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON)
    except StaleTurn:
        return TurnStopped(step=step, outcome=None)
    await TurnEvents(publisher, turn, done.context_headers, telemetry).finished(pool, done, None)
    return TurnStopped(step=step, outcome=done.outcome(turn.agent_turn_id))


async def publish_applied(pool: Pool, publisher: Publisher, turn: TurnRef, done: AppliedReports) -> None:
    """Publish what became of the rows and, if other calls still wait, the head's change; log what was refused.

    A turn that waits for none says so with its next step.
    """
    for row in done.rows:
        if row.flaw is not None:
            log.warning("a report of call %s by %r is refused: %s", row.call, row.author, row.flaw)
    turn_events = TurnEvents(publisher, turn, done.context_headers)
    messages = [
        turn_events.address.inbox_progress(
            InboxProgress.model_validate({"inbox_id": row.inbox_id, "status": row.status, "reason": row.reason})
        )
        for row in done.rows
    ]
    if done.applied and done.status is HeadStatus.SUSPENDED:
        messages.append(turn_events.waiting(done.waiting_tools, done.updated_at))
    if messages:
        await turn_events.publish(*messages)
