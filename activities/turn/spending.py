"""The budget of a turn as its steps meet it: the gate of a step, and the cards of one that ends for want of budget."""

import logging
from dataclasses import replace

from turnstile.activities.budgets.gate import BudgetExhausted, BudgetGate, Write
from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.turn.current_step import CurrentStep
from turnstile.ledger.budgets.attempts import SoftLimit
from turnstile.rules.decide import Suspend, partial_thought
from turnstile.rules.turn_config import PinnedConfig
from turnstile.rules.turn_ends import Ending
from turnstile.runtime.ports import Model
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card
from turnstile.schema.states import StepPhase, TurnStatus
from turnstile.schema.step_metadata import StepFigures

log = logging.getLogger(__name__)


def with_gate(step: CurrentStep, model: Model, limits: StepLimits, write: Write) -> CurrentStep:
    """The step with the gate that its attempts at the model pass; as it is, if nothing limits its turn.

    When a soft limit is passed, a `planning` event of the step says so.
    """
    budget, head = step.begun.head.budget, step.begun.head
    if budget is None:
        return step

    async def warn(asked: str, passed: SoftLimit) -> None:
        log.warning("turn %s: %d %% of budget %s are passed", step.turn.agent_turn_id, passed.percent, passed.budget_id)
        told: JsonObject = {"model": asked, "budget": passed.model_dump(mode="json")}
        await step.turn_events.publish(step.turn_events.step(step.key, StepPhase.PLANNING, told))

    gate = BudgetGate(
        turn=step.turn,
        step=step.number,
        model=model,
        write=write,
        warn=warn,
        until=budget.until,
        # by the ledger's clock, whatever this machine's says
        expires=None if budget.until is None else step.clock + (budget.until - head.updated_at).total_seconds(),
        max_tokens=limits.budget_max_tokens,
        telemetry=step.turn_events.telemetry,
    )
    return replace(step, gate=gate)


def within_budget(step: CurrentStep, decision: Suspend) -> Suspend:
    """The calls, which wait no longer than until the turn's time is over."""
    if step.gate is None:
        return decision
    return replace(
        decision, waits=tuple(map(step.gate.within, decision.waits)), holds=tuple(step.gate.bounded(decision.holds))
    )


def exhausted(
    step: CurrentStep, pinned: PinnedConfig | None, error: BudgetExhausted
) -> tuple[tuple[Card, ...], Ending, StepFigures]:
    """The partial end of a turn for want of budget: its cards, the ending, and the figures for the step's row.

    What a model had written is kept: it may be why the turn's time was over.
    """
    log.info("turn %s: %s", step.turn.agent_turn_id, error)
    begun = partial_thought(step.turn, step.number, step.attempts.draft)
    written = () if begun is None else (*step.begun.steers, begun)
    cards = (*(() if pinned is None else pinned.cards), *written)
    figures = step.figures(pinned, error_code=error.code)
    return *step.fallback(cards, TurnStatus.PARTIAL, error.code, str(error), figures, error.lack), figures
