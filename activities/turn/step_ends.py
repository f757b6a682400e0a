"""The ends of turns by their own steps: finished, failed, out of budget, ended by a tool's result (protocol §7).

Each commits first and publishes then; a repeat publishes what is recorded.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from turnstile.activities.budgets.gate import BudgetExhausted
from turnstile.activities.turn.current_step import CurrentStep
from turnstile.activities.turn.spending import exhausted
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.rules.call_spans import record_answers
from turnstile.rules.resume import Termination
from turnstile.rules.timing import record_step
from turnstile.rules.turn_config import PinnedConfig
from turnstile.rules.turn_ends import Ending
from turnstile.rules.turn_step import StepRecord
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.cards import Card
from turnstile.schema.states import StepStatus, TurnStatus
from turnstile.schema.step_metadata import EndMetadata, StepFigures
from turnstile.schema.turns import StepEnds, StepResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Endings:
    """Ends the turns of steps, and keeps what they write."""

    pool: Pool
    publisher: Publisher
    telemetry: Telemetry = field(default=SILENT, kw_only=True)

    async def run_out(self, step: CurrentStep, pinned: PinnedConfig | None, error: BudgetExhausted) -> StepResult:
        """End the turn as partial for want of budget, with what there is."""
        cards, ending, figures = exhausted(step, pinned, error)
        return await self.finish(step, cards, ending, figures, StepStatus.COMPLETED)

    async def fail(
        self, step: CurrentStep, pinned: PinnedConfig | None, code: str, message: str, quoted: str | None = None
    ) -> StepResult:
        """End the turn as failed, with the cards that there are; its deliverable alone has what is `quoted`."""
        cards = () if pinned is None else pinned.cards
        figures = step.figures(pinned, error_code=code)
        ended = step.fallback(cards, TurnStatus.FAILED, code, message, figures, quoted=quoted)
        return await self.finish(step, *ended, figures, StepStatus.FAILED)

    async def terminate(self, step: CurrentStep, ended: Termination) -> StepResult:
        """End the turn with a tool's result, without a step."""
        head = step.begun.head
        ending = Ending(ended.status, ended.deliverable.card_id, ended.error_code, None, ended.tool_result)
        done = await step.turn_events.finish(
            self.pool,
            ending,
            cards=[ended.deliverable],
            committed=lambda: record_answers(self.telemetry, step.turn, step.begun),
        )
        return StepEnds(step=head.step_count, outcome=done.outcome(step.turn.agent_turn_id))

    async def finish(
        self,
        step: CurrentStep,
        cards: tuple[Card, ...],
        ending: Ending,
        figures: StepFigures,
        status: StepStatus,
        *,
        yields: bool = False,
    ) -> StepResult:
        record = step.record(cards, EndMetadata.of(figures), status)
        fences = status is StepStatus.CANCELED  # every stop raises the epoch (§3)
        done = await step.turn_events.finish(
            self.pool,
            ending,
            record=record,
            before=step.applied(record),
            raise_epoch=fences,
            yields=yields,
            committed=lambda: self.record(step, record),
        )
        return StepEnds(step=step.number, outcome=done.outcome(step.turn.agent_turn_id))

    async def keep(self, step: CurrentStep, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Commit the answer, however long the ledger is away: without the commit the model would be asked again."""
        return await self.pool.insist(transition)

    def record(self, step: CurrentStep, record: StepRecord) -> None:
        """Record metrics and span of a step that this attempt has committed, so that each step is recorded once."""
        seconds = time.monotonic() - step.clock
        record_answers(self.telemetry, step.turn, step.begun)
        record_step(self.telemetry, step.turn, step.begun, record, seconds, len(step.attempts.records))
