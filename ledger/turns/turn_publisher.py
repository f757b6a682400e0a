"""Ends turns and publishes what their transitions say: worker, bridge and services end a turn here (protocol §6, §8).

Every end commits first, by a statement of `turnstile.ledger.turns`, and is published then; a repeat publishes what is
recorded, under the same message ids. Only the `task` event is required: if it is not acknowledged, the outcome stays
unannounced, and the safety net publishes it again. It publishes through the port and knows no NATS.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.marks import rings_of
from turnstile.ledger.turns.ends import end_by_fallback, fence, finish_turn, mark_announced, recall_step
from turnstile.ledger.turns.intake import QueuedStop, stop_queued_turn
from turnstile.ledger.turns.views import locate_turn
from turnstile.ledger.turns.waiting import RequestedStop
from turnstile.rules.timing import record_unanswered
from turnstile.rules.turn_ends import (
    LIVE,
    STOP_REASON,
    STOPPED,
    EndedTurn,
    Ending,
    FinishedTurn,
    fallback_card,
)
from turnstile.rules.turn_events import TurnEvents
from turnstile.rules.turn_step import StepRecord
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Span, Telemetry, nanoseconds, turn_attributes
from turnstile.schema.cards import Card
from turnstile.schema.errors import ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef, TurnStopped
from turnstile.schema.wire import headers
from turnstile.schema.wire.events import InboxProgress, Message

log = logging.getLogger(__name__)
BRIDGE = "turnstile.bridge"
"""The sender of what a bridge publishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPublisher(TurnEvents):
    """The events of one turn, and what publishes them; each activity creates its own."""

    publisher: Publisher
    telemetry: Telemetry = SILENT

    async def publish(self, *messages: Message) -> None:
        """Publish best-effort messages; errors are logged."""
        try:
            await self.publisher.publish(messages)
        except ServerUnavailable as error:
            log.warning("turn %s: events not published: %s", self.turn.agent_turn_id, error)

    async def finish(
        self,
        pool: Pool,
        ending: Ending,
        *,
        record: StepRecord | None = None,
        cards: Sequence[Card] = (),
        before: Sequence[Message] = (),
        raise_epoch: bool = False,
        yields: bool = False,
        committed: Callable[[], None] | None = None,
    ) -> FinishedTurn:
        """End the running turn with a step's record, or with `cards`, and announce it after the messages `before`.

        It waits for the ledger however long it is away: what the end writes cannot be had again. `committed` is called
        if this call ended the turn. Raises as `finish_turn` does.
        """
        outcome = await pool.insist(
            lambda conn: finish_turn(
                conn, self.turn, ending, record=record, cards=cards, raise_epoch=raise_epoch, yields=yields
            )
        )
        if outcome.is_new and committed is not None:
            committed()
        if record is not None:
            before = (*before, self.completed(record.step, outcome.step_metadata or record.metadata))
        await self.finished(pool, outcome, before)
        return outcome

    async def finished(self, pool: Pool, outcome: FinishedTurn, before: Sequence[Message] = ()) -> None:
        """Announce the end of this worker's turn after its last events, and record the span of the announcement."""
        hit(Fault.TURN_FINISHED)
        announced = await self.announce(pool, outcome, before)
        if outcome.is_new:
            self._finish_span(outcome, None if announced else ServerUnavailable.code)

    async def announce(self, pool: Pool, outcome: EndedTurn, before: Sequence[Message] = ()) -> bool:
        """Publish the end of the turn, and have it marked as announced soon; False if that is left to the safety net.

        A mark that is lost is mended: the safety net publishes the end again, under the same message id.
        """
        if outcome.is_new:
            figures = (outcome.status, outcome.error_code, outcome.stats, outcome.ended_at)
            self.telemetry.turn_ended(self.turn, self.context, *figures, self.agent_name)
        turn, rings = self.turn.agent_turn_id, ()
        if outcome.is_new and outcome.in_tree:  # the end may have answered a parent, or marked others
            rings = await pool.run(lambda conn: rings_of(conn, [turn]))
        try:
            await self.publisher.publish(self.ended(outcome, before, rings))
        except ServerUnavailable as error:
            log.warning("turn %s: its task event is left to the safety net: %s", turn, error)
            return False
        hit(Fault.TURN_PUBLISHED)
        pool.soon.add(_mark, turn)
        return True

    def _finish_span(self, outcome: FinishedTurn, error_code: str | None) -> None:
        """Record the span from the end in the ledger to its announcement."""
        if not self.telemetry.tracer.enabled:
            return
        under = self.context.get(headers.TRACEPARENT, "")
        if (span := headers.derived_span(under, f"{self.turn.agent_turn_id}-finish")) is None:
            return
        attributes = turn_attributes(self.turn, self.context, self.agent_name) | {
            "turnstile.turn.status": outcome.status.value
        }
        ended = nanoseconds(outcome.ended_at)
        times = (ended, max(ended, time.time_ns()))
        self.telemetry.tracer.record(
            Span("finish", span, headers.span_id(under), *times, attributes, error_code, "producer")
        )


async def _mark(conn: Connection, turns: Sequence[str]) -> None:
    await mark_announced(conn, [AgentTurnId(turn) for turn in turns])
    hit(Fault.TURN_ANNOUNCED)


async def announce_all(
    pool: Pool, publisher: Publisher, turns: Sequence[AgentTurnId], messages: Sequence[Message]
) -> None:
    """Publish the ends of these turns, and mark them as announced; raises `ServerUnavailable`, and marks none then."""
    await publisher.publish(messages)
    hit(Fault.TURN_PUBLISHED)
    await pool.run(lambda conn: mark_announced(conn, turns))


async def end_stopped(pool: Pool, publisher: Publisher, turn: TurnRef, telemetry: Telemetry = SILENT) -> TurnStopped:
    """End the turn as canceled, without a step; the outcome is None if it was over (protocol §6, stop)."""
    return await end_unstepped(pool, publisher, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON, telemetry)


async def end_unstepped(
    pool: Pool,
    publisher: Publisher,
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    telemetry: Telemetry = SILENT,
) -> TurnStopped:
    """End the turn by a fallback, without a step, as its worker; the outcome is None if it was over."""
    recorded = await pool.run(lambda conn: recall_step(conn, turn, 0))
    step = recorded.step or 0
    try:
        outcome = await end_by_fallback(pool, turn, status, error_code, reason)
    except StaleTurn:
        return TurnStopped(step=step, outcome=None)
    if outcome.is_new and recorded.head_status is HeadStatus.SUSPENDED:
        record_unanswered(telemetry, turn, recorded, outcome.ended_at)
    events = TurnPublisher(turn, outcome.context_headers, publisher=publisher, telemetry=telemetry)
    await events.finished(pool, outcome)
    return TurnStopped(step=step, outcome=outcome.outcome(turn.agent_turn_id))


async def end_by_force(
    pool: Pool,
    publisher: Publisher,
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    from_statuses: Sequence[HeadStatus] = LIVE,
    telemetry: Telemetry = SILENT,
    *,
    again: bool = False,
) -> bool:
    """Fence the turn and announce its end, as a bridge; False if it moved on before.

    If it was over, False too; or, with `again`, its end is announced once more.
    """
    end = end_by_fallback if again else fence
    try:
        outcome = await end(pool, turn, status, error_code, reason, from_statuses)
    except StaleTurn:
        log.info("turn %s went on before it was fenced (%s)", turn.agent_turn_id, error_code)
        return False
    await _of_bridge(publisher, turn, outcome, telemetry).announce(pool, outcome)
    return True


async def end_dispatched(
    pool: Pool,
    publisher: Publisher,
    project: ProjectId,
    turn_id: AgentTurnId,
    error: str,
    telemetry: Telemetry = SILENT,
) -> bool:
    """Stop a leased turn that was not begun, by one statement; False if a worker began it meanwhile."""
    turn = await pool.run(lambda conn: locate_turn(conn, project, turn_id))
    if turn is None:
        return False
    how = (TurnStatus.CANCELED, STOPPED, error, (HeadStatus.DISPATCHED,))
    return await end_by_force(pool, publisher, turn, *how, telemetry, again=True)


async def end_queued(
    pool: Pool,
    publisher: Publisher,
    project: ProjectId,
    stop: RequestedStop,
    turn_id: AgentTurnId,
    error: str,
    telemetry: Telemetry = SILENT,
) -> bool:
    """Stop a turn that waits in its agent's queue; False if it was leased meanwhile."""
    agent, card = AgentId(stop.agent_id or ""), queued_deliverable(project, stop, turn_id, error)
    outcome = await pool.run(lambda conn: stop_queued_turn(conn, project, agent, turn_id, card, STOPPED, error))
    if outcome is None:
        return False
    await announce_queued(pool, publisher, project, stop, turn_id, outcome, error, telemetry)
    return True


async def announce_queued(
    pool: Pool,
    publisher: Publisher,
    project: ProjectId,
    stop: RequestedStop,
    turn_id: AgentTurnId,
    outcome: QueuedStop,
    error: str,
    telemetry: Telemetry = SILENT,
) -> None:
    """Publish the end of a turn that was queued."""
    how = {"error_code": STOPPED, "error": error}
    ended = EndedTurn.model_validate(outcome.model_dump(round_trip=True) | how)
    events = _of_bridge(publisher, _unleased(project, stop, turn_id), ended, telemetry)
    skipped = InboxProgress(inbox_id=outcome.inbox_id, status="skipped", reason=STOPPED)
    await events.publish(events.address.inbox_progress(skipped))
    await events.announce(pool, ended)


def queued_deliverable(project: ProjectId, stop: RequestedStop, turn_id: AgentTurnId, error: str) -> Card:
    """The deliverable of a turn that is stopped in its agent's queue."""
    return fallback_card(_unleased(project, stop, turn_id), (), TurnStatus.CANCELED, error)


def _unleased(project: ProjectId, stop: RequestedStop, turn_id: AgentTurnId) -> TurnRef:
    """A reference to a turn without a lease, for its card and event: epoch 0, no boxes."""
    return TurnRef.model_validate(
        {
            "project_id": project,
            "channel_id": stop.channel_id,
            "agent_id": stop.agent_id,
            "agent_turn_id": turn_id,
            "turn_epoch": 0,
            "inbox_id": stop.inbox_id or "",
            "worker_target": stop.worker_target or "",
            "profile_box_id": "",
            "context_box_id": "",
            "output_box_id": "",
            "trace_id": stop.context_headers.get(headers.TRACEPARENT, "--").split("-")[1],
        }
    )


def _of_bridge(publisher: Publisher, turn: TurnRef, outcome: EndedTurn, telemetry: Telemetry) -> TurnPublisher:
    return TurnPublisher(turn, outcome.context_headers, BRIDGE, publisher=publisher, telemetry=telemetry)
