"""Ends turns: finish_turn, recall_step, mark_announced, and fence (protocol §3, §7, §8).

Guarantees: a finish frees the agent and leases its next turn in one transaction, behind the CAS gate; a repeat returns
the recorded outcome. Each statement is one round trip. Never publishes. A closed gate raises `StaleTurn`; then
`recall_step` reads the recorded state.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.turns.cards import box_cards, card_columns
from turnstile.ledger.turns.steps import gate, step_columns
from turnstile.rules.turn_ends import LIVE, Ending, FinishedTurn, RecalledStep, fallback_ending
from turnstile.rules.turn_step import StepRecord
from turnstile.schema.cards import (
    Card,
)
from turnstile.schema.errors import StaleTurn, SteerWaits
from turnstile.schema.ids import (
    AgentTurnId,
    StepId,
)
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool


async def finish_turn(
    conn: Connection,
    turn: TurnRef,
    ending: Ending,
    *,
    record: StepRecord | None = None,
    cards: Sequence[Card] = (),
    from_statuses: Sequence[HeadStatus] = (HeadStatus.RUNNING,),
    raise_epoch: bool = False,
    yields: bool = False,
) -> FinishedTurn:
    """End the turn, with its last step's record or by force with `cards`; raises `StaleTurn` if the gate is closed.

    With `yields`, raises `SteerWaits` if a steer waits, and nothing has changed: another step shall follow (§6, steer).
    `raise_epoch` raises the epoch even if no next turn is leased, which fences the turn's worker (protocol §8).
    """
    last: dict[str, Any] = {"step_id": None, "step": 0, "tool_call_ids": None, "step_metadata": None}
    last |= {"step_started_at": None, "step_status": None}
    if record is not None:
        last = {**step_columns(turn, record), "step_status": record.status}
    arguments: dict[str, Any] = {
        **gate(turn),
        **last,
        **card_columns(record.new_cards if record is not None else cards),
        "kept_ids": [] if record is None else list(record.kept),
        "steer_ids": [] if record is None else list(record.steers),
        "yields": yields,
        "from_statuses": list(from_statuses),
        "idle_bump": int(raise_epoch),
        "status": ending.status,
        "deliverable_card_id": ending.deliverable_card_id,
        "tool_result_card_id": ending.tool_result_card_id,
        "error_code": ending.error_code,
        "error": ending.error,
        "stats": json.dumps(ending.stats or {}),
    }
    # A running turn has no call that waits, and its row is consumed: its own step has nothing to drop or settle.
    by_step = record is not None and not record.steers and tuple(from_statuses) == (HeadStatus.RUNNING,)
    row = await query("finish_running_turn" if by_step else "finish_turn").opt_of(conn, arguments)
    if row is None:
        return await _recorded_end(conn, turn, last["step_id"])
    if row["result"] == "again":
        raise Again
    if row["result"] == "steered":
        raise SteerWaits(f"a steer waits for turn {turn.agent_turn_id}")
    return FinishedTurn.model_validate(dict(row))


async def _recorded_end(conn: Connection, turn: TurnRef, step: StepId | None) -> FinishedTurn:
    """The end that is recorded, by this step or, without one, by anybody; raises `StaleTurn` if there is none."""
    ids = {"project_id": turn.project_id, "agent_id": turn.agent_id, "agent_turn_id": turn.agent_turn_id}
    finished = await query("recorded_end").opt_as(conn, FinishedTurn, **ids, step_id=step)
    if finished is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    return finished


async def end_by_fallback(
    pool: "Pool",
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    from_statuses: Sequence[HeadStatus] = LIVE,
) -> FinishedTurn:
    """End a turn outside of its steps: fallback deliverable, outcome, raised epoch, next lease (§8).

    Raises `StaleTurn` if the agent's head has another turn or epoch. Two round trips.
    """
    cards = await pool.run(lambda conn: box_cards(conn, turn.project_id, turn.output_box_id))
    card, ending = fallback_ending(turn, cards or (), status, error_code, reason)
    return await pool.run(
        lambda conn: finish_turn(conn, turn, ending, cards=[card], from_statuses=from_statuses, raise_epoch=True)
    )


async def fence(
    pool: "Pool",
    turn: TurnRef,
    status: TurnStatus,
    error_code: str,
    reason: str,
    from_statuses: Sequence[HeadStatus] = LIVE,
) -> FinishedTurn:
    """As `end_by_fallback`, but raises `StaleTurn` also if the turn was over."""
    ended = await end_by_fallback(pool, turn, status, error_code, reason, from_statuses)
    if not ended.is_new:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} was over")
    return ended


async def recall_step(conn: Connection, turn: TurnRef, step: int) -> RecalledStep:
    """Read what is recorded of a step (0: the latest) and its turn."""
    return await query("recall_step").one_as(conn, RecalledStep, **gate(turn), step=step, inbox_id=turn.inbox_id)


async def mark_announced(conn: Connection, turns: Sequence[AgentTurnId]) -> None:
    """Record that the `task` events of these turns are in the event stream."""
    await query("mark_announced").many(conn, agent_turn_ids=list(turns))
