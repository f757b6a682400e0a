"""Ends turns by force, publishes their events and doorbells, and marks them announced (protocol §6, §8)."""

import logging
from collections.abc import Sequence

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.transitions import LIVE, FinishedTurn, fence, mark_announced
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.events import Address, TaskEvent

log = logging.getLogger(__name__)


async def announce(
    pool: Pool, publisher: Publisher, turn: TurnRef, done: FinishedTurn, telemetry: Telemetry = SILENT
) -> None:
    """Publish the end of a turn that was ended here, and the doorbell of the agent's next turn."""
    if done.result == "done":
        telemetry.turn_ended(turn, done.context_headers, done.status, done.error_code, done.stats, done.ended_at)
    address = Address(
        project_id=turn.project_id,
        channel_id=turn.channel_id,
        agent_id=turn.agent_id,
        agent_turn_id=turn.agent_turn_id,
        turn_epoch=turn.turn_epoch,
        context=done.context_headers,
        sender=SENDER,
    )
    event = TaskEvent(
        agent_turn_id=turn.agent_turn_id,
        status=done.status,
        output_box_id=done.output_box_id,
        deliverable_card_id=done.deliverable_card_id,
        tool_result_card_id=done.tool_result_card_id,
        error=done.error,
        error_code=done.error_code,
        stats=done.stats,
    )
    messages = address.ended(event, done.ui_action)
    if (lease := done.next_lease(turn)) is not None:
        messages.append(lease.doorbell(SENDER, "next_turn"))
    if await publish_best_effort(publisher, *messages):
        await pool.run(lambda conn: mark_announced(conn, [turn.agent_turn_id]))


async def end_by_force(
    pool: Pool,
    publisher: Publisher,
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    from_statuses: Sequence[HeadStatus] = LIVE,
    telemetry: Telemetry = SILENT,
) -> bool:
    """Fence the turn and announce its end; False if it had ended or moved on before."""
    try:
        done = await fence(pool, turn, status, error_code, reason, from_statuses)
    except StaleTurn:
        log.info("turn %s went on before it was fenced (%s)", turn.agent_turn_id, error_code)
        return False
    await announce(pool, publisher, turn, done, telemetry)
    return True
