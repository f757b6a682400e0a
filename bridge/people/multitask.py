"""Enqueues with a `multitask_strategy`: what becomes of the turns before the new one (protocol §6, enqueue).

The ledger decides and writes all in one transaction. What follows its commit is best effort, and repaired by the safety
net: ends of queued turns are announced, the turn in hand is rung for, or ended here if no step of it has begun.
"""

from dataclasses import dataclass
from typing import Final

from turnstile.bridge.people.steering import publish_steer
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.publishing.stop import ring_stop, stop_reason
from turnstile.ledger.people.multitask import DisplacedTurn, EnqueueStatement, MadeWay, Over, enqueue_over
from turnstile.ledger.people.steered_enqueues import Steered, steer_or_enqueue
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.marks import rings_of
from turnstile.ledger.turns.intake import Enqueue, Enqueued, enqueue_turn
from turnstile.ledger.turns.turn_publisher import announce_queued, end_dispatched, queued_deliverable
from turnstile.rules.turn_ends import STOPPED
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import Telemetry
from turnstile.schema.access import Caller
from turnstile.schema.cards import Card
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ConversationId, InboxId
from turnstile.schema.states import InboxStatus, MultitaskStrategy, ReplyStatus, SteerStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueReply

_NEEDS_PRINCIPAL = (
    "a multitask_strategy needs to know whose turns are meant: set TURNSTILE_PRINCIPAL to your name, which then ends"
    " the subject of each request (req.sys.bridge.enqueue.{name}), or ask the gateway"
)

_ROW: Final = {
    SteerStatus.WAITING: InboxStatus.PENDING,
    SteerStatus.TAKEN: InboxStatus.PROCESSING,
    SteerStatus.APPLIED: InboxStatus.CONSUMED,
    SteerStatus.SKIPPED: InboxStatus.SKIPPED,
}
"""Where the inbox row of a steer stands."""


@dataclass(frozen=True, slots=True)
class MultitaskEnqueues:
    """Enqueues that make others stop, or are refused for their sake."""

    pool: Pool
    publisher: Publisher
    telemetry: Telemetry

    async def enqueue(
        self, command: Enqueue, caller: Caller | None, enqueue: EnqueueStatement = enqueue_turn
    ) -> Enqueued:
        """Enqueue by the request's strategy, or steer, and publish what became of the turns before it.

        Raises `Refused` (principal_required, no_conversation, turn_in_progress), and as a plain enqueue does.
        """
        if caller is None:
            raise Refused("principal_required", _NEEDS_PRINCIPAL)
        error = stop_reason(caller)

        def deliverable(turn: DisplacedTurn) -> Card:
            return queued_deliverable(command.project_id, turn, turn.agent_turn_id, error)

        reason = f"{command.request.multitask_strategy} by {caller.name}"
        how = Over(caller, reason, deliverable, (STOPPED, error))
        if command.request.multitask_strategy is MultitaskStrategy.STEER:
            way = await steer_or_enqueue(self.pool, command, how)
        else:
            way = await enqueue_over(self.pool, command, how, enqueue)
        hit(Fault.ENQUEUE_COMMITTED)
        if isinstance(way, Steered):
            hit(Fault.STEER_COMMITTED)
            await publish_steer(self.publisher, command.project_id, way.agent_turn_id, way.steer)
            hit(Fault.STEER_PUBLISHED)
            return Enqueued(_steered(command, way), None)
        hit(Fault.WAY_MADE)
        await self._publish(command, way, error)
        hit(Fault.WAY_PUBLISHED)
        return way.enqueued

    async def _publish(self, command: Enqueue, way: MadeWay, error: str) -> None:
        project = command.project_id
        for turn, queued in way.stopped:
            turn_id = turn.agent_turn_id
            if queued is not None:
                await announce_queued(self.pool, self.publisher, project, turn, turn_id, queued, error, self.telemetry)
            elif turn.verdict != "dispatched" or not await end_dispatched(
                self.pool, self.publisher, project, turn_id, error, self.telemetry
            ):
                await ring_stop(self.publisher, project, turn, turn_id)
                if len(way.marked) > 1:
                    rings = await self.pool.run(lambda conn, turn_id=turn_id: rings_of(conn, [turn_id]))
                    await publish_best_effort(self.publisher, *(ring.doorbell(SENDER, "stop") for ring in rings))


def _steered(command: Enqueue, steered: Steered) -> EnqueueReply:
    steer = steered.steer
    return EnqueueReply(
        status=ReplyStatus.STEERED,
        agent_id=steer.agent_id,
        conversation_id=command.request.conversation_id or ConversationId(""),
        steered_turn_id=steered.agent_turn_id,
        inbox_id=InboxId(steer.steer_id),
        inbox_status=_ROW[steer.steer_status],
        trace_id=headers.trace_id(steer.context_headers.get(headers.TRACEPARENT, "--")),
        duplicate=not steer.is_new,
    )
