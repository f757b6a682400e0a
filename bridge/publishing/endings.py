"""Ends turns by force, publishes their events and doorbells, and marks them announced (protocol §6, §8)."""

import logging
from collections.abc import Sequence

from turnstile.activities.turn.turn_events import TurnEvents
from turnstile.bridge.publishing.best_effort import SENDER
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence
from turnstile.rules.turn_ends import LIVE, EndedTurn
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)


async def announce(
    pool: Pool, publisher: Publisher, turn: TurnRef, done: EndedTurn, telemetry: Telemetry = SILENT
) -> None:
    """Publish the end of a turn that was ended here, and the doorbell of the agent's next turn."""
    await TurnEvents(publisher, turn, done.context_headers, telemetry, SENDER).ended(pool, done)


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
