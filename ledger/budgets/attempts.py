"""Reserves what an attempt at a model may use, before the request leaves: `reserve_attempt` (protocol §15).

Guarantees: of turns that share a budget never more are let through than fit; a repeat of the same attempt hears the
same and reserves nothing twice. One round trip and one commit. What was used is said by the step's row
(`metadata.budget.uses`) and booked by a trigger with its commit; what nobody says is booked whole at the turn's end.
"""

from datetime import datetime
from decimal import Decimal
from typing import Literal

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.steps import gate
from turnstile.runtime.faults import Fault, hit
from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.plans import BudgetId, Dimension
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.errors import StaleTurn
from turnstile.schema.turns import TurnRef


class SoftLimit(Tolerant):
    """The limit of which this reservation passed the soft limit, as the first one."""

    budget_id: BudgetId
    dimension: Dimension
    percent: int
    spent: int
    reserved: int
    """With this reservation."""
    max: int


class Reservation(Tolerant):
    """What became of an attempt that asked: `reserved`, or why the model must not be asked."""

    verdict: Literal["reserved", "exhausted", "unpriced"]
    """exhausted: a budget has not so much left, or the time is over; unpriced: a cost is limited, and the model has
    no price."""
    dimension: Dimension | None = None
    """Which one is exhausted."""
    budget_id: BudgetId | None = None
    had: int | None = None
    """The limit of that budget; tokens, or micro-dollars."""
    spent: int | None = None
    reserved: int | None = None
    wanted: int | None = None
    until: datetime | None = None
    """When the turn's time is over."""
    warned: Json[SoftLimit] | None = None
    input_per_million: Decimal | None = None
    output_per_million: Decimal | None = None
    cached_input_per_million: Decimal | None = None
    max_output_tokens: int | None = None

    @property
    def price(self) -> ModelPrice | None:
        """What the model costs; None if that is not known."""
        if self.input_per_million is None or self.output_per_million is None:
            return None
        return ModelPrice(
            input_per_million=self.input_per_million,
            output_per_million=self.output_per_million,
            cached_input_per_million=self.cached_input_per_million,
            max_output_tokens=self.max_output_tokens,
        )


async def reserve_attempt(
    conn: Connection, turn: TurnRef, step: int, attempt: int, model: str, *, input_tokens: int, max_tokens: int
) -> Reservation:
    """Reserve `input_tokens` and as many as the model may answer, and what both cost, at the turn's budgets.

    `attempt` is that of the head (`step_attempt`); of a request for a summary it is that, negative. Raises `StaleTurn`
    if the gate is closed, by a mark too.
    """
    row = await query("reserve_attempt").one(
        conn,
        **gate(turn),
        step=step,
        attempt=attempt,
        model=model,
        input_tokens=input_tokens,
        max_tokens=max_tokens,
    )
    if row["verdict"] is None:
        raise StaleTurn(f"turn {turn.agent_turn_id}: the gate of step {step} is closed")
    reservation = Reservation.model_validate(dict(row))
    if reservation.verdict == "reserved":
        hit(Fault.ATTEMPT_RESERVED)
    return reservation
