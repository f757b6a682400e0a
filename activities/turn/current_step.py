"""The step that runs: the request to its model, its budget, and the record of its commit. No I/O.

`with_gate` gives a step the gate that its attempts pass if the turn has a budget; its warning is the only thing that is
published here.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from turnstile.activities.budgets.gate import BudgetExhausted, BudgetGate, Write
from turnstile.activities.prompt.model_attempts import Attempts, StepLimits
from turnstile.ledger.budgets.attempts import SoftLimit
from turnstile.ledger.turns.turn_publisher import TurnPublisher
from turnstile.rules.action_turn import call_ended
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.arguments import Patience
from turnstile.rules.decide import StepRequest, Suspend, brought_files, partial_thought, repairs
from turnstile.rules.memory import BoxMemory
from turnstile.rules.messages import build_messages
from turnstile.rules.results import ResultView
from turnstile.rules.resume import Termination, termination
from turnstile.rules.timing import timing, turn_stats
from turnstile.rules.tool_specs import called_function, wanted_fields
from turnstile.rules.turn_config import PinnedConfig, TurnConfig, run_by_of
from turnstile.rules.turn_ends import Ending, fallback_ending
from turnstile.rules.turn_step import BegunStep, MadeBox, StepRecord
from turnstile.runtime.ports import Model, ModelMessage
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.lacks import BudgetLack
from turnstile.schema.cards import Card, CardType
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import StepId, step_id
from turnstile.schema.message_types import asks_model
from turnstile.schema.people.interrupts import Hold
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.states import SteerStatus, StepPhase, StepStatus, TurnStatus
from turnstile.schema.step_metadata import StepFigures, StepMetadata, SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.events import Message

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CurrentStep:
    """A step that began at `clock` by `time.monotonic`, at its head's `updated_at` by the ledger's clock.

    `attempts` grows with each model call.
    """

    turn: TurnRef
    number: int
    begun: BegunStep
    turn_events: TurnPublisher
    clock: float
    attempts: Attempts
    gate: BudgetGate | None = None
    """Of a turn that has a budget."""

    @property
    def key(self) -> StepId:
        """The step's id."""
        return step_id(self.turn.agent_turn_id, self.number)

    @property
    def asks_model(self) -> bool:
        """Whether its turn asks a model; else one call is the whole turn (protocol §7.10, §21)."""
        return asks_model(self.begun.head.message_type) and run_by_of(self.begun) is None

    def termination(self) -> Termination | None:
        """How the results of the last step's calls end the turn; None if they do not."""
        head, output = self.begun.head, self.begun.output
        if not self.asks_model:
            return call_ended(self.turn, self.begun)
        if not head.answered:
            return None
        if head.turn_config is None:
            return termination(self.turn, head.answered, output, {})
        config = TurnConfig.model_validate(head.turn_config)
        return termination(self.turn, head.answered, output, config.tools, config.output_schema)

    def check_attempts(self, limits: StepLimits) -> None:
        """Raise `ModelError` (step_attempts_exhausted) if the step was begun too often."""
        attempt = self.begun.head.step_attempt
        if attempt > limits.max_step_attempts:
            raise ModelError("step_attempts_exhausted", f"the step was begun {attempt} times", retryable=False)

    def prepare(self, pinned: PinnedConfig, patience: Patience) -> tuple[StepRequest, tuple[ModelMessage, ...]]:
        """The step's request and the messages for the model (protocol §7.3); raises `CardUnreadable`."""
        turn, begun = self.turn, self.begun
        fields = wanted_fields(begun.context)
        for card in fields.unreadable:
            log.warning("turn %s: task.result_fields in card %s does not parse: not checked", turn.agent_turn_id, card)
        parent, cuts = begun.head.parent_step_id or "", len(self.memory.compactions)
        readable = (*begun.context, *begun.output)
        tries = 0 if pinned.config.output_schema is None else repairs(self.memory.own)
        wanted = fields.fields if pinned.config.output_schema is None else ()
        request = StepRequest(
            turn,
            self.number,
            pinned.config,
            wanted,
            parent,
            patience,
            readable,
            tries,
            brought_files(turn, begun.output),
            compactions=cuts,
        )
        return request, self.messages(pinned)

    @property
    def memory(self) -> BoxMemory:
        """What it reads of its output box."""
        rerun, turn = self.begun.head.rerun, self.turn.agent_turn_id
        return BoxMemory(self.begun.output, frozenset({turn, *(() if rerun is None else rerun.line)}), turn)

    def messages(
        self,
        pinned: PinnedConfig,
        first: int = 0,
        summary: Card | None = None,
        *,
        short: int = 0,
        memory: BoxMemory | None = None,
    ) -> tuple[ModelMessage, ...]:
        """The messages of its request, if the memory begins at this place; raises `CardUnreadable`.

        So many of its results, the oldest, are shown short. `memory`: that of another box.
        """
        memory, view = memory or self.memory, ResultView(pinned.config.inline_result_chars, short)
        turn_cards = (*memory.own, *self.begun.steers)
        note = pinned.steps_note(self.number - len(self.memory.compactions))
        return build_messages(
            pinned.system_prompt, memory.earlier(first, summary), self.begun.context, turn_cards, view, note
        )

    def llm_config(self, pinned: PinnedConfig) -> LlmConfig:
        """The configuration of its model: that which answered in the step before, where another one had failed."""
        config, choice = pinned.config.model, pinned.config.tool_choice
        if choice is not None and not any(card.type == CardType.THOUGHT for card in self.memory.own):
            wanted: JsonValue = "required" if choice == "required" else called_function(choice)
            params = {name: value for name, value in config.params.items() if name != "tool_choice"}
            config = config.model_copy(update={"tool_choice": wanted, "params": params})
        if not config.fallbacks:
            return config
        thoughts = (card for card in reversed(self.memory.own) if card.type == CardType.THOUGHT)
        model = next((card.metadata.model for card in thoughts), None)
        if model is None or model not in config.fallbacks:
            return config
        others = [name for name in (config.model, *config.fallbacks) if name != model]
        return config.model_copy(update={"model": model, "fallbacks": others})

    def figures(
        self, pinned: PinnedConfig | None, answer: ModelAnswer | None = None, error_code: str | None = None
    ) -> StepFigures:
        """The figures for the step's row: usage, cost and timing so far; in the first step the pinned configuration."""
        records = self.attempts.records
        usage, cost = self.attempts.spent()
        first_token = records[-1]["first_token_ms"] if records else None
        pins = pinned if self.number == 1 else None
        return StepFigures(
            timing=timing(self.begun.head, time.monotonic() - self.clock, first_token),
            finish_reason=None if answer is None else answer.finish_reason,
            truncated=None if answer is None else answer.truncated,
            error_code=error_code,
            llm_usage=usage,
            llm_response_cost=cost,
            attempts=tuple(records),
            turn_config=None if pins is None else pins.config.model_dump(mode="json"),
            budget=None if self.gate is None or not records else self.gate.used(records),
        )

    def fallback(
        self,
        cards: tuple[Card, ...],
        status: TurnStatus,
        code: str,
        reason: str,
        figures: StepFigures,
        lack: BudgetLack | None = None,
        quoted: str | None = None,
    ) -> tuple[tuple[Card, ...], Ending]:
        """The end of the turn with this step, by a fallback: the cards with the fallback added, and the ending."""
        turn_cards, stats = (*self.begun.output, *cards), turn_stats(self.number, figures)
        card, ending = fallback_ending(self.turn, turn_cards, status, code, reason, stats, lack, quoted)
        return (*cards, card), ending

    def applied(self, record: StepRecord) -> list[Message]:
        """The events of the steers that the commit of the step applied."""
        return self.turn_events.steers(record.steers, SteerStatus.APPLIED, self.key)

    def record(
        self,
        cards: tuple[Card, ...],
        metadata: StepMetadata,
        status: StepStatus,
        call_waits: Sequence[float] = (),
        holds: Sequence[Hold | None] = (),
        made_box: MadeBox | None = None,
        *,
        steered: bool = False,
    ) -> StepRecord:
        """What the step's commit writes; cards of the context box enter the output box without being made again.

        So do steers; but these are new to the turn, and its step row names them.
        """
        known, steered_cards = ({card.card_id for card in of} for of in (self.begun.context, self.begun.steers))
        kept = [card.card_id for card in cards if card.card_id in known | steered_cards]
        new = tuple(card.card_id for card in cards if card.card_id not in known)
        read = self.begun.head.output_position
        metadata = metadata.model_copy(update={"new_card_ids": new, "output_position": read})
        calls = [call.tool_call_id for card in cards for call in card.tool_calls or ()]
        if not calls and isinstance(metadata, SuspendMetadata):  # a UI action has no thought with its calls
            calls = [command.tool_call_id for command in metadata.commands]
        return StepRecord(
            self.number,
            metadata,
            cards,
            calls,
            self.begun.head.updated_at,
            status,
            call_waits=call_waits,
            holds=holds,
            kept=kept,
            steers=[card.card_id for card in cards if card.card_id in steered_cards],
            steered=steered,
            made_box=made_box,
        )


def with_gate(step: CurrentStep, model: Model, limits: StepLimits, write: Write) -> CurrentStep:
    """The step with the gate that its attempts at the model pass; as it is, if nothing limits its turn.

    When a soft limit is passed, a `planning` event of the step says so.
    """
    budget, head = step.begun.head.budget, step.begun.head
    if budget is None:
        return step

    async def warn(model: str, passed: SoftLimit) -> None:
        log.warning("turn %s: %d %% of budget %s are passed", step.turn.agent_turn_id, passed.percent, passed.budget_id)
        metadata: JsonObject = {"model": model, "budget": passed.model_dump(mode="json")}
        await step.turn_events.publish(step.turn_events.step(step.key, StepPhase.PLANNING, metadata))

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
