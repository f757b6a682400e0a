"""Activities for a suspended turn, which need no model: apply some of its reports, inject timeouts, stop it.

Each is a local activity of a few round trips, and idempotent: after the death of a worker it runs again as a whole.
"""

import logging
from dataclasses import dataclass

from temporalio import activity

from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.turn_publisher import TurnPublisher, end_stopped
from turnstile.ledger.turns.waiting import AppliedReports, apply_reports, inject_timeouts
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.states import HeadStatus
from turnstile.schema.turns import ApplyInput, ReportsApplied, Ring, TurnRef, TurnStopped
from turnstile.schema.wire.events import InboxProgress

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SettleActivities:
    """The activities and their dependencies. It holds no state of a turn."""

    pool: Pool
    publisher: Publisher
    telemetry: Telemetry = SILENT

    @activity.defn(name="apply_reports")
    async def apply_reports(self, arguments: ApplyInput) -> ReportsApplied:
        """Apply the reports of some of the calls; returns the calls that still wait."""
        with about(arguments.turn):
            try:
                applied = await self.pool.run(lambda conn: apply_reports(conn, arguments.turn, arguments.reports))
            except StaleTurn:
                return ReportsApplied(waiting=(), deadline=None, stale=True)
            hit(Fault.REPORTS_APPLIED)
            await publish_applied(self.pool, self.publisher, arguments.turn, applied)
            return ReportsApplied(waiting=tuple(applied.waiting), deadline=applied.deadline)

    @activity.defn(name="inject_timeouts")
    async def inject_timeouts(self, turn: TurnRef) -> list[Ring]:
        """Time out the calls past their deadline; returns pointers to timeouts and to reports that came meanwhile."""
        with about(turn):
            rings = await self.pool.run(lambda conn: inject_timeouts(conn, turn))
            hit(Fault.TIMEOUTS_INJECTED)
            return rings

    @activity.defn(name="stop_turn")
    async def stop_turn(self, turn: TurnRef) -> TurnStopped:
        """End a turn that is suspended or between two steps, as canceled."""
        with about(turn):
            return await end_stopped(self.pool, self.publisher, turn, self.telemetry)


async def publish_applied(pool: Pool, publisher: Publisher, turn: TurnRef, applied: AppliedReports) -> None:
    """Publish the rows' new status and, if calls still wait, the head's state, best effort; log refused reports.

    If no call waits any more, the turn's next step publishes its state.
    """
    for row in applied.rows:
        if row.flaw is not None:
            log.warning("a report of call %s by %r is refused: %s", row.call, row.author, row.flaw)
    turn_events = TurnPublisher(turn, applied.context_headers, publisher=publisher)
    messages = [
        turn_events.address.inbox_progress(
            InboxProgress.model_validate({"inbox_id": row.inbox_id, "status": row.status, "reason": row.reason})
        )
        for row in applied.rows
    ]
    if applied.applied and applied.status is HeadStatus.SUSPENDED:
        messages.append(turn_events.waiting(applied.waiting_tools, applied.updated_at))
    if messages:
        await turn_events.publish(*messages)
