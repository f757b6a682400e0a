"""`run_step`: one step of a turn as one activity (protocol §7; architecture: Temporal).

It opens the gate, reads the boxes, asks the model, commits what follows and publishes it: two round trips to the
ledger, three for the last step. It may run any number of times, at once or late: the gate and the unique step id let
one attempt win, and a repeat answers what is recorded without asking the model again. It holds nothing between calls
but a bounded cache of box contents. It returns ids and codes only.
"""

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio import activity

from activities.asking import Attempts, Question, StepLimits, ask
from activities.decide import Asked, Continue, Decision, Deliver, decide
from activities.heartbeat import beating
from activities.messages import build_messages
from activities.models.answer import ModelAnswer
from activities.telling import Teller
from activities.toolspecs import wanted_fields
from activities.turnconfig import Pinned, last_step_specs, pin
from ledger.cards import BoxCache
from ledger.pool import Pool
from ledger.turns import (
    BegunStep,
    Ending,
    StepRecord,
    begin_step,
    commit_step,
    fallback_card,
    finish_turn,
    recall_step,
    retry_step,
)
from schema.base import JsonObject
from schema.cards import Card, CardUnreadable
from schema.errors import ModelError, StaleTurn
from schema.events import Message
from schema.headers import new_traceparent
from schema.ids import CardId, step_id
from schema.ports import Model, ModelMessage, Publisher
from schema.states import HeadStatus, StepPhase, StepStatus, TurnStatus
from schema.turns import RunStepInput, StepContinues, StepEnds, StepResult, StepStale, StepSuspends, TurnRef

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in hand. `attempts` fills as the model is asked."""

    turn: TurnRef
    number: int
    begun: BegunStep
    teller: Teller
    started: datetime
    clock: float
    attempts: Attempts


class StepActivities:
    """The activity and what it needs: pools, clients, settings, a cache; nothing of any turn."""

    def __init__(self, pool: Pool, model: Model, publisher: Publisher, limits: StepLimits, cache: BoxCache) -> None:
        self._pool = pool
        self._model = model
        self._publisher = publisher
        self._limits = limits
        self._cache = cache

    @activity.defn
    async def run_step(self, given: RunStepInput) -> StepResult:
        """Do the step, or answer what was done; see the module's docstring."""
        attempts = Attempts.resumed(activity.info().heartbeat_details)
        async with beating(attempts.told):
            clock, started = time.monotonic(), datetime.now(UTC)
            try:
                begun = await self._pool.run(lambda conn: begin_step(conn, given.turn, given.step, self._cache))
            except StaleTurn:
                return await self._recall(given.turn, given.step)
            teller = Teller(self._publisher, given.turn, begun.head.traceparent, begun.head.recursion_depth)
            step = _Step(given.turn, begun.head.step_count + 1, begun, teller, started, clock, attempts)
            try:
                return await self._run(step)
            except StaleTurn:
                return await self._recall(given.turn, step.number)

    async def _run(self, step: _Step) -> StepResult:
        head, step_key = step.begun.head, step_id(step.turn.agent_turn_id, step.number)
        opening = [step.teller.step(step_key, StepPhase.STARTED, {"attempt": head.step_attempt})]
        if step.number == 1:
            opening.insert(0, step.teller.state(HeadStatus.RUNNING, head.updated_at, activity="thinking"))
        await step.teller.tell(*opening)
        pinned: Pinned | None = None
        try:
            _check_attempts(head.step_attempt, self._limits)
            pinned = pin(step.turn, step.begun, self._limits.max_steps)
            asked, messages = _prepare(step, pinned)
            answer = await self._ask(step, pinned, asked, messages)
        except (ModelError, CardUnreadable) as error:
            code = error.code if isinstance(error, ModelError) else "model_request_invalid"
            return await self._fail(step, pinned, code, str(error))
        return await self._commit(step, pinned, decide(asked, answer), answer)

    async def _ask(self, step: _Step, pinned: Pinned, asked: Asked, messages: tuple[ModelMessage, ...]) -> ModelAnswer:
        head = step.begun.head
        question = Question(
            turn=step.turn.agent_turn_id,
            step_id=asked.step_id,
            step=step.number,
            config=pinned.config.llm_config,
            messages=messages,
            tools=last_step_specs(pinned.specs) if asked.is_last else pinned.specs,
            address=step.teller.address,
        )
        return await ask(
            self._model,
            self._publisher,
            question,
            self._limits,
            step.attempts,
            (head.step_attempt, head.model_failures),
            lambda: self._pool.run(lambda conn: retry_step(conn, step.turn, step.number)),
        )

    async def _commit(self, step: _Step, pinned: Pinned, decision: Decision, answer: ModelAnswer) -> StepResult:
        cards = (*pinned.cards, *decision.cards)
        metadata = _metadata(step, pinned) | {"finish_reason": answer.finish_reason}
        match decision:
            case Continue():
                return await self._continue(step, cards, metadata)
            case Deliver():
                made = decision.deliverable
                if made is None:
                    fallback = fallback_card(
                        step.turn, (*step.begun.output, *cards), decision.status, "the step limit was reached"
                    )
                    cards, made = (*cards, fallback), fallback.card_id
                ending = Ending(
                    decision.status, made, decision.error_code, None, decision.tool_result, _stats(step, metadata)
                )
                return await self._finish(step, ending, cards, metadata, StepStatus.COMPLETED)

    async def _fail(self, step: _Step, pinned: Pinned | None, code: str, message: str) -> StepResult:
        """The turn ends as failed, with what there is."""
        cards = () if pinned is None else pinned.cards
        fallback = fallback_card(step.turn, (*step.begun.output, *cards), TurnStatus.FAILED, message)
        metadata = _metadata(step, pinned) | {"error_code": code}
        ending = Ending(TurnStatus.FAILED, fallback.card_id, code, message, None, _stats(step, metadata))
        return await self._finish(step, ending, (*cards, fallback), metadata, StepStatus.FAILED)

    async def _continue(self, step: _Step, cards: tuple[Card, ...], metadata: JsonObject) -> StepResult:
        record = _record(step, cards, metadata | {"next": "continue"}, StepStatus.COMPLETED)
        done = await self._pool.run(lambda conn: commit_step(conn, step.turn, record))
        await step.teller.tell(_completed(step.teller, step.number, done.step_metadata))
        return StepContinues(step=step.number)

    async def _finish(
        self, step: _Step, ending: Ending, cards: tuple[Card, ...], metadata: JsonObject, status: StepStatus
    ) -> StepResult:
        record = _record(step, cards, metadata | {"next": "end"}, status)
        done = await self._pool.run(lambda conn: finish_turn(conn, step.turn, ending, record=record))
        recorded = done.step_metadata or record.metadata
        await step.teller.finished(self._pool, done, _completed(step.teller, step.number, recorded))
        return StepEnds(step=step.number, outcome=done.outcome(step.turn.agent_turn_id))

    async def _recall(self, turn: TurnRef, step: int) -> StepResult:
        """The gate did not open for this step: answer what is recorded, and publish only that (protocol §7)."""
        found = await self._pool.run(lambda conn: recall_step(conn, turn, step))
        number = found.step or step
        recorded = found.step_metadata
        teller = Teller(self._publisher, turn, found.traceparent or new_traceparent(), found.recursion_depth)
        if recorded is not None and recorded.get("next") == "end" and (done := found.finished()) is not None:
            await teller.finished(self._pool, done, _completed(teller, number, recorded))
            return StepEnds(step=number, outcome=done.outcome(turn.agent_turn_id))
        if not found.gate:
            return StepStale(step=number, head_status=found.head_status)
        if found.head_status == HeadStatus.SUSPENDED and found.resume_deadline is not None:
            return StepSuspends(step=number, waiting=tuple(found.waiting), deadline=found.resume_deadline)
        if recorded is not None:
            await teller.tell(_completed(teller, number, recorded))
            return StepContinues(step=number)
        raise StaleTurn(f"turn {turn.agent_turn_id} step {step}: the head is elsewhere, at {found.head_status}")


def _check_attempts(attempt: int, limits: StepLimits) -> None:
    if attempt > limits.max_step_attempts:
        raise ModelError("step_attempts_exhausted", f"the step was begun {attempt} times", retryable=False)


def _prepare(step: _Step, pinned: Pinned) -> tuple[Asked, tuple[ModelMessage, ...]]:
    turn, begun = step.turn, step.begun
    wanted = wanted_fields(begun.context)
    for card in wanted.unreadable:
        log.warning("turn %s: task.result_fields in card %s does not parse: not checked", turn.agent_turn_id, card)
    own = [card for card in begun.output if card.metadata.agent_turn_id == turn.agent_turn_id]
    memory = [card for card in begun.output if card.metadata.agent_turn_id != turn.agent_turn_id]
    messages = build_messages(pinned.system_prompt, memory, begun.context, own)
    return Asked(turn, step.number, pinned.config, wanted.fields), messages


def _metadata(step: _Step, pinned: Pinned | None) -> JsonObject:
    head, metadata = step.begun.head, step.attempts.metadata()
    first_token = step.attempts.records[-1]["first_token_ms"] if step.attempts.records else None
    timing: JsonObject = {"step_ms": _millis(time.monotonic() - step.clock), "first_token_ms": first_token}
    if step.number == 1:
        timing["queue_delay_ms"] = _millis((head.started_at - head.enqueued_at).total_seconds())
        if pinned is not None:
            metadata["turn_config"] = pinned.config.model_dump(mode="json")
    metadata["timing"] = timing
    return metadata


def _stats(step: _Step, metadata: JsonObject) -> JsonObject:
    head = step.begun.head
    return {
        "steps": step.number,
        "queue_delay_ms": _millis((head.started_at - head.enqueued_at).total_seconds()),
        "e2e_ms": _millis((datetime.now(UTC) - head.enqueued_at).total_seconds()),
        "model": (step.attempts.records[-1]["model"] if step.attempts.records else None),
        "llm_usage": metadata["llm_usage"],
    }


def _record(step: _Step, cards: tuple[Card, ...], metadata: JsonObject, status: StepStatus) -> StepRecord:
    new_cards: JsonObject = {"new_card_ids": [card.card_id for card in cards]}
    return StepRecord(step.number, metadata | new_cards, cards, (), step.started, status)


def _completed(teller: Teller, number: int, recorded: JsonObject) -> Message:
    failed = "error_code" in recorded
    ids = recorded.get("new_card_ids")
    shown = {name: recorded[name] for name in ("timing", "finish_reason", "error_code") if name in recorded}
    return teller.step(
        step_id(teller.turn.agent_turn_id, number),
        StepPhase.FAILED if failed else StepPhase.COMPLETED,
        shown,
        [CardId(str(each)) for each in ids] if isinstance(ids, list) else [],
    )


def _millis(seconds: float) -> int:
    return max(0, round(seconds * 1000))
