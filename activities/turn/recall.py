"""Answers a step whose gate is closed from the ledger, and publishes again what its commit implies (protocol §7)."""

from collections.abc import Awaitable, Callable

from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import recall_step
from turnstile.ledger.turns.turn_publisher import TurnPublisher
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.states import HeadStatus
from turnstile.schema.step_metadata import EndMetadata, SuspendMetadata
from turnstile.schema.turns import StepContinues, StepEnds, StepResult, StepStale, StepSuspends, TurnRef


async def recall(
    pool: Pool,
    publisher: Publisher,
    turn: TurnRef,
    step: int,
    telemetry: Telemetry,
    stop: Callable[[], Awaitable[StepResult]],
) -> StepResult:
    """The recorded result of the step or its turn; raises `StaleTurn` if no record explains the head's state.

    A mark may have closed the gate: then the turn is ended by `stop` (protocol §6, join).
    """
    found = await pool.run(lambda conn: recall_step(conn, turn, step))
    if found.gate and found.stopping:
        return await stop()
    number = found.step or step
    recorded = found.step_metadata
    turn_events = TurnPublisher(turn, found.context_headers, publisher=publisher, telemetry=telemetry)
    if isinstance(recorded, EndMetadata) and (done := found.finished()) is not None:
        await turn_events.finished(pool, done, [turn_events.completed(number, recorded)])
        return StepEnds(step=number, outcome=done.outcome(turn.agent_turn_id))
    if not found.gate:
        return StepStale(step=number, head_status=found.head_status)
    if found.head_status == HeadStatus.SUSPENDED and found.updated_at is not None:
        if isinstance(recorded, SuspendMetadata):
            messages = turn_events.suspended(number, recorded, found.waiting, found.updated_at)
            await turn_events.publish(*messages)
        # A step without a record was not begun: the turn is still suspended in the step before it.
        asleep = number if recorded is not None else max(0, number - 1)
        return StepSuspends(step=asleep, waiting=tuple(found.waiting), deadline=found.resume_deadline)
    if recorded is not None:
        await turn_events.publish(turn_events.completed(number, recorded))
        return StepContinues(step=number, output_box_id=recorded.box_after)
    raise StaleTurn(f"turn {turn.agent_turn_id} step {step}: no record explains its head, which is {found.head_status}")
