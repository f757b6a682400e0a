"""`run_step` does one step of a turn (protocol §7).

A step opens the gate, reads the boxes, asks the model, commits the result and publishes it: two round trips to the
ledger, three for the last step, and one more for each attempt if the turn has a budget. It may run any number of
times, concurrently or late: the gate and the unique step id let one attempt commit, and a repeat returns the recorded
result without asking the model again. It keeps nothing between calls but a bounded cache of box contents, and returns
ids and codes only. The end of a turn is committed first and published then; a repeat publishes what is recorded.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from temporalio import activity

from turnstile.activities.budgets.gate import BudgetExhausted
from turnstile.activities.cancellation import is_stopped
from turnstile.activities.heartbeat import beating
from turnstile.activities.prompt.model_attempts import Attempts, Question, StepLimits, ask
from turnstile.activities.prompt.model_queues import ModelQueues
from turnstile.activities.turn.compaction import Compacted, FittedStep, Windows
from turnstile.activities.turn.current_step import CurrentStep, exhausted, with_gate, within_budget
from turnstile.activities.turn.files import FileReader
from turnstile.activities.turn.settle import publish_applied
from turnstile.ledger.delegation.targets import read_prompt_roster
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.ends import recall_step
from turnstile.ledger.turns.steps import begin_step, commit_step, retry_step
from turnstile.ledger.turns.turn_publisher import TurnPublisher, end_stopped, end_unstepped
from turnstile.ledger.turns.waiting import apply_reports
from turnstile.rules.action_turn import action_call, agent_call, wanted_call
from turnstile.rules.answer import ModelAnswer
from turnstile.rules.decide import Continue, Decision, Deliver, StepRequest, Suspend, decide, partial_thought
from turnstile.rules.model_files import read_request
from turnstile.rules.outgoing import CallOrigin
from turnstile.rules.resume import Termination
from turnstile.rules.timing import agent_name, record_answers, record_begun, record_step, turn_stats
from turnstile.rules.turn_config import PinnedConfig, asks_roster, pin
from turnstile.rules.turn_ends import STOP_REASON, STOPPED, Ending, fallback_card
from turnstile.rules.turn_step import BegunStep, MadeBox, StepRecord
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Model, ModelMessage, Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardUnreadable, parts_of
from turnstile.schema.errors import ModelError, Refused, StaleTurn, SteerWaits
from turnstile.schema.ids import InboxId
from turnstile.schema.message_types import asks_model
from turnstile.schema.profiles import KEEP_FILES
from turnstile.schema.states import Activity, HeadStatus, SteerStatus, StepPhase, StepStatus, TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata, StepFigures, SuspendMetadata
from turnstile.schema.tools import READ_FILE
from turnstile.schema.turns import (
    RunStepInput,
    StepContinues,
    StepEnds,
    StepResult,
    StepStale,
    StepSuspends,
    TurnRef,
)
from turnstile.schema.wire.events import Message

log = logging.getLogger(__name__)
FAULTY = "internal_error"
"""`error_code` of a turn whose step failed in our own code, and again as it was begun anew."""
_FAULTY_REASON = "a step failed twice for a fault of Turnstile's own: see the worker's log"
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
        finished = await step.turn_events.finish(
            self.pool,
            ending,
            cards=[ended.deliverable],
            committed=lambda: record_answers(self.telemetry, step.turn, step.begun),
        )
        return StepEnds(step=head.step_count, outcome=finished.outcome(step.turn.agent_turn_id))

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
        finished = await step.turn_events.finish(
            self.pool,
            ending,
            record=record,
            before=step.applied(record),
            raise_epoch=fences,
            yields=yields,
            committed=lambda: self.record(step, record),
        )
        return StepEnds(step=step.number, outcome=finished.outcome(step.turn.agent_turn_id))

    async def keep(self, step: CurrentStep, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """Commit the answer, however long the ledger is away: without the commit the model would be asked again."""
        return await self.pool.insist(transition)

    def record(self, step: CurrentStep, record: StepRecord) -> None:
        """Record metrics and span of a step that this attempt has committed, so that each step is recorded once."""
        seconds = time.monotonic() - step.clock
        record_answers(self.telemetry, step.turn, step.begun)
        record_step(self.telemetry, step.turn, step.begun, record, seconds, len(step.attempts.records))


@dataclass(frozen=True, slots=True)
class StepActivities(Endings):
    """The activities and their dependencies: pools, clients, settings, a cache. It holds no state of a turn."""

    model: Model
    limits: StepLimits
    cache: BoxCache
    windows: Windows = field(default_factory=Windows, kw_only=True)
    queues: ModelQueues | None = field(default=None, kw_only=True)
    files: FileReader | None = field(default=None, kw_only=True)
    """Reads the files of turns; None where this installation keeps none."""

    @activity.defn
    async def run_step(self, arguments: RunStepInput) -> StepResult:
        """Do the step, or return its recorded result; see the module's docstring."""
        attempts = Attempts.resumed(activity.info().heartbeat_details)
        with about(arguments.turn, step=arguments.step or None):
            async with beating(attempts.heartbeat_details):
                return await self._run_step(arguments, attempts)

    async def _run_step(self, arguments: RunStepInput, attempts: Attempts) -> StepResult:
        clock = time.monotonic()
        try:
            begun = await self._begin(arguments)
        except StaleTurn:
            return await self._recall(
                arguments.turn, arguments.step, lambda: self._stop_between(arguments.turn, arguments.step)
            )
        except Exception as error:
            if not attempts.is_last_fault(error):
                raise
            return await self._give_up(arguments.turn, arguments.step, error)
        hit(Fault.STEP_BEGUN)
        name = agent_name(begun) if self.telemetry.tracer.enabled else ""
        context = begun.head.context_headers
        turn = arguments.turn.model_copy(update={"output_box_id": begun.head.output_box_id})
        turn_events = TurnPublisher(turn, context, agent_name=name, publisher=self.publisher, telemetry=self.telemetry)
        number = begun.head.step_count + 1
        step = CurrentStep(turn, number, begun, turn_events, clock, attempts)
        step = with_gate(step, self.model, self.limits, lambda reserve: self.keep(step, reserve))
        try:
            return await self._run(step)
        except StaleTurn:
            return await self._recall(arguments.turn, step.number, lambda: self._stop(step))
        except asyncio.CancelledError:
            if not await is_stopped():
                raise
            return await self._stop(step)
        except Exception as error:
            if not attempts.is_last_fault(error):
                raise
            with suppress(Exception):  # what failed twice may fail here, too: the turn ends all the same
                return await self.fail(step, None, FAULTY, _FAULTY_REASON)
            return await self._give_up(arguments.turn, step.number, error)

    async def _give_up(self, turn: TurnRef, step: int, error: Exception) -> StepResult:
        """End a turn whose step failed twice in our own code, without anything of the step."""
        log.error("turn %s: its step failed again: %s", turn.agent_turn_id, type(error).__name__)
        how = TurnStatus.FAILED, FAULTY, _FAULTY_REASON
        ended = await end_unstepped(self.pool, self.publisher, turn, *how, self.telemetry)
        if ended.outcome is None:
            return await self._recall(turn, step, lambda: self._stop_between(turn, step))
        return StepEnds(step=ended.step, outcome=ended.outcome)

    async def _recall(self, turn: TurnRef, step: int, stop: Callable[[], Awaitable[StepResult]]) -> StepResult:
        return await recall(self.pool, self.publisher, turn, step, self.telemetry, stop)

    async def _stop_between(self, turn: TurnRef, step: int) -> StepResult:
        """End a marked turn that no step may begin of any more."""
        stopped = await end_stopped(self.pool, self.publisher, turn, self.telemetry)
        if stopped.outcome is None:
            return await self._recall(turn, step, lambda: self._stop_between(turn, step))
        return StepEnds(step=stopped.step, outcome=stopped.outcome)

    async def _begin(self, arguments: RunStepInput) -> BegunStep:
        """Apply the reports and begin the step; wakes a suspended turn that waits for no call any more (§8)."""
        if arguments.reports:
            await self._apply(arguments.turn, arguments.reports)
        try:
            return await self.pool.run(lambda conn: begin_step(conn, arguments.turn, arguments.step, self.cache))
        except StaleTurn:
            recalled = await self.pool.run(lambda conn: recall_step(conn, arguments.turn, 0))
            if not recalled.gate or recalled.head_status != HeadStatus.SUSPENDED or recalled.waiting:
                raise
        await self._apply(arguments.turn, ())
        return await self.pool.run(lambda conn: begin_step(conn, arguments.turn, arguments.step, self.cache))

    async def _apply(self, turn: TurnRef, reports: Sequence[InboxId]) -> None:
        applied = await self.pool.run(lambda conn: apply_reports(conn, turn, reports))
        hit(Fault.REPORTS_APPLIED)
        await publish_applied(self.pool, self.publisher, turn, applied)

    async def _run(self, step: CurrentStep) -> StepResult:
        head = step.begun.head
        record_begun(self.telemetry, step.turn, head)
        if (ended := step.termination()) is not None:
            return await self.terminate(step, ended)
        await self._publish_start(step, Activity.THINKING if step.asks_model else Activity.EXECUTING_TOOL)
        if not step.asks_model:
            return await self._call_tool(step)
        pinned: PinnedConfig | None = None
        try:
            step.check_attempts(self.limits)
            pinned = await self._pin(step)
            request, messages = step.prepare(pinned, self.limits.patience)
            answer = await self._ask_or_compact(step, pinned, request, messages)
            if isinstance(answer, ModelAnswer) and any(call.name == READ_FILE for call in answer.calls):
                request = await self._with_read_files(request, answer)
        except BudgetExhausted as error:
            return await self.run_out(step, pinned, error)
        except (ModelError, CardUnreadable) as error:
            if isinstance(error, ModelError):
                return await self.fail(step, pinned, error.code, str(error), error.quotation)
            return await self.fail(step, pinned, "model_request_invalid", str(error))
        if isinstance(answer, Compacted):
            figures = step.figures(pinned).model_copy(update={"compaction": answer.compaction})
            cards = (*pinned.cards, *step.begun.steers, *answer.cards)
            return await self._continue(step, cards, figures, answer.made_box)
        hit(Fault.MODEL_ANSWERED)
        return await self._commit(step, pinned, decide(request, answer), answer)

    async def _pin(self, step: CurrentStep) -> PinnedConfig:
        """Its configuration; one statement more for a first step whose prompt says something of the roster."""
        turn, profile = step.turn, asks_roster(step.begun)
        values: dict[str, str] = {}
        if profile is not None:
            policy = profile.delegation_policy
            roster = await self.pool.run(lambda conn: read_prompt_roster(conn, turn.project_id, turn.agent_id, policy))
            values = roster.values(profile)
        limits = self.limits
        chars, repairs = limits.inline_result_chars, limits.output_repairs
        return pin(turn, step.begun, limits.max_steps, chars, values, output_repairs=repairs)

    async def _ask_or_compact(
        self, step: CurrentStep, pinned: PinnedConfig, request: StepRequest, messages: tuple[ModelMessage, ...]
    ) -> ModelAnswer | Compacted:
        """The model's answer; or a compaction, where the request is too large (protocol §7.3)."""
        first = (step.begun.head.step_attempt, step.begun.head.model_failures)
        files = None
        if self.files is not None:
            memory = pinned.config.memory
            files = await self.files.shown(step.turn, messages, KEEP_FILES if memory is None else memory.keep_files)
        ask_model = partial(self._answer, step, first)
        fitting = FittedStep(step, pinned, request, self.model, self.windows, ask_model, files)
        ready = await fitting.fitted(messages)
        while not isinstance(ready, Compacted):
            try:
                return await self._answer(step, first, fitting.question(ready))
            except ModelError as error:
                ready = await fitting.refitted(ready, error)
            if not isinstance(ready, Compacted):
                first = await self._count_failure(step)
        return ready

    async def _with_read_files(self, request: StepRequest, answer: ModelAnswer) -> StepRequest:
        """The request with what the answer's calls of `read_file` came to; nothing where nobody reads files here."""
        if self.files is None:
            return request
        named = [part for card in request.results for part in parts_of(card)]
        most, read = request.config.inline_result_chars // 2, dict[str, JsonObject | str]()
        for call in answer.calls:
            if call.name == READ_FILE and call.arguments_text not in read:
                asked = read_request(call.arguments_text)
                read[call.arguments_text] = (
                    asked if isinstance(asked, str) else await self.files.read(request.turn, asked, named, most)
                )
        return replace(request, read_files=read)

    async def _publish_start(self, step: CurrentStep, doing: Activity) -> None:
        """Publish the changes of the begin: the head, if it was not running before, and the turn's inbox row."""
        head, events = step.begun.head, step.turn_events
        opening: list[Message] = []
        if step.number == 1 or head.suspended_at is not None:
            opening.append(events.state(HeadStatus.RUNNING, head.updated_at, activity=doing))
        if step.number == 1 and head.step_attempt == 1:
            opening.append(events.consumed())
        started = events.step(step.key, StepPhase.STARTED, {"attempt": head.step_attempt})
        steer_cards = (card.card_id for card in step.begun.steers)
        await events.publish(*opening, started, *events.steers(steer_cards, SteerStatus.TAKEN, step.key))

    async def _call_tool(self, step: CurrentStep) -> StepResult:
        """Make the call that is the turn: of a UI action (protocol §7.10), or of an agent in code (§21)."""
        head = step.begun.head
        place = CallOrigin(step.turn, step.key, head.parent_step_id or "", self.limits.patience)
        pinned: PinnedConfig | None = None
        try:
            step.check_attempts(self.limits)
            if step.gate is not None:
                step.gate.check_time()
            if asks_model(head.message_type):
                pinned = await self._pin(step)
                sent = agent_call(place, step.begun, pinned.config)
            else:
                sent = action_call(place, wanted_call(step.turn, step.begun.context), head.tools)
        except BudgetExhausted as error:
            return await self.run_out(step, pinned, error)
        except (Refused, ModelError, CardUnreadable) as error:
            # The error's message may quote the arguments, and an outcome holds no content.
            return await self.fail(step, pinned, error.code, "the tool could not be called")
        decision = Suspend((sent.card,), (sent.command,), (sent.wait_seconds,), (sent.hold,))
        opening = () if pinned is None else pinned.cards
        return await self._suspend(
            step, decision, (*opening, *step.begun.steers, *decision.cards), step.figures(pinned)
        )

    async def _count_failure(self, step: CurrentStep) -> tuple[int, int]:
        return await self.keep(step, lambda conn: retry_step(conn, step.turn, step.number))

    async def _answer(self, step: CurrentStep, first: tuple[int, int], question: Question) -> ModelAnswer:
        model: JsonObject = {"model": question.config.model}
        await step.turn_events.publish(step.turn_events.step(step.key, StepPhase.PLANNING, model))
        return await ask(
            self.model,
            self.publisher,
            question,
            self.limits,
            step.attempts,
            first,
            lambda: self._count_failure(step),
            self.telemetry,
            step.gate,
            self.queues,
        )

    async def _commit(
        self, step: CurrentStep, pinned: PinnedConfig, decision: Decision, answer: ModelAnswer
    ) -> StepResult:
        opening = (*pinned.cards, *step.begun.steers)
        cards = (*opening, *decision.cards)
        figures = step.figures(pinned, answer)
        match decision:
            case Continue():
                return await self._continue(step, cards, figures)
            case Suspend():
                return await self._suspend(step, decision, cards, figures)
            case Deliver():
                deliverable = decision.deliverable
                if deliverable is None:
                    fallback = fallback_card(
                        step.turn, (*step.begun.output, *cards), decision.status, "the step limit was reached"
                    )
                    cards, deliverable = (*cards, fallback), fallback.card_id
                ending = Ending(
                    decision.status,
                    deliverable,
                    decision.error_code,
                    None,
                    decision.tool_result,
                    turn_stats(step.number, figures),
                )
                more = decision.if_steered
                try:
                    return await self.finish(
                        step, cards, ending, figures, StepStatus.COMPLETED, yields=more is not None
                    )
                except SteerWaits:
                    hit(Fault.TURN_STEERED)
                    kept = () if more is None else more.cards
                    return await self._continue(step, (*opening, *kept), figures, steered=True)

    async def _continue(
        self,
        step: CurrentStep,
        cards: tuple[Card, ...],
        figures: StepFigures,
        made_box: MadeBox | None = None,
        *,
        steered: bool = False,
    ) -> StepResult:
        """Another step follows; with `made_box`, in that box."""
        metadata = ContinueMetadata.of(figures)
        record = step.record(cards, metadata, StepStatus.COMPLETED, made_box=made_box, steered=steered)
        committed = await self.keep(step, lambda conn: commit_step(conn, step.turn, record))
        hit(Fault.STEP_COMMITTED if made_box is None else Fault.MEMORY_CUT)
        if committed.result == "done":
            self.record(step, record)
        completed = step.turn_events.completed(step.number, committed.step_metadata)
        await step.turn_events.publish(completed, *step.applied(record))
        hit(Fault.STEP_PUBLISHED)
        return StepContinues(step=step.number, output_box_id=committed.step_metadata.box_after)

    async def _suspend(
        self, step: CurrentStep, decision: Suspend, cards: tuple[Card, ...], figures: StepFigures
    ) -> StepResult:
        """Commit the calls with the suspended head, then publish their commands (protocol §6, command_intent).

        The commands of held calls are published once a person has decided (§13); here their interrupts are published.
        """
        holds = dict(zip((c.tool_call_id for c in decision.commands), decision.holds, strict=False))
        held = tuple(call for call, hold in holds.items() if hold is not None)
        metadata = SuspendMetadata.of(figures, activity=Activity.EXECUTING_TOOL, commands=decision.commands, held=held)
        decision = within_budget(step, decision)
        record = step.record(cards, metadata, StepStatus.COMPLETED, call_waits=decision.waits, holds=decision.holds)
        committed = await self.keep(step, lambda conn: commit_step(conn, step.turn, record))
        hit(Fault.CALLS_COMMITTED)
        if committed.result == "done":
            self.record(step, record)
            await step.turn_events.publish(*step.turn_events.asked(step.number, record, committed.updated_at))
        asleep = committed.updated_at if committed.status is HeadStatus.SUSPENDED else None
        messages = step.turn_events.suspended(step.number, committed.step_metadata, None, asleep)
        messages += step.applied(record)
        await step.turn_events.publish(*messages)
        hit(Fault.CALLS_PUBLISHED)
        return StepSuspends(
            step=step.number,
            waiting=tuple(command.tool_call_id for command in decision.commands),
            tools=tuple(command.tool_name for command in decision.commands),
            deadline=committed.resume_deadline,
        )

    async def _stop(self, step: CurrentStep) -> StepResult:
        """End the turn, which was stopped in this step; the model's text so far becomes a card (§6, stop)."""
        if step.number > 1 and not step.asks_model:
            # Its only step is committed.
            return await self._stop_between(step.turn, step.number)
        partial = partial_thought(step.turn, step.number, step.attempts.draft)
        cards = () if partial is None else (*step.begun.steers, partial)  # it says something with these in mind
        figures = step.figures(None, error_code=STOPPED)
        ended = step.fallback(cards, TurnStatus.CANCELED, STOPPED, STOP_REASON, figures)
        try:
            return await self.finish(step, *ended, figures, StepStatus.CANCELED)
        except StaleTurn:
            # The step was committed before the stop arrived: end the turn after it.
            return await self._stop_between(step.turn, step.number)


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
    recalled = await pool.run(lambda conn: recall_step(conn, turn, step))
    if recalled.gate and recalled.stopping:
        return await stop()
    number = recalled.step or step
    recorded = recalled.step_metadata
    turn_events = TurnPublisher(turn, recalled.context_headers, publisher=publisher, telemetry=telemetry)
    if isinstance(recorded, EndMetadata) and (ended := recalled.finished()) is not None:
        await turn_events.finished(pool, ended, [turn_events.completed(number, recorded)])
        return StepEnds(step=number, outcome=ended.outcome(turn.agent_turn_id))
    if not recalled.gate:
        return StepStale(step=number, head_status=recalled.head_status)
    if recalled.head_status == HeadStatus.SUSPENDED and recalled.updated_at is not None:
        if isinstance(recorded, SuspendMetadata):
            messages = turn_events.suspended(number, recorded, recalled.waiting, recalled.updated_at)
            await turn_events.publish(*messages)
        # A step without a record was not begun: the turn is still suspended in the step before it.
        asleep = number if recorded is not None else max(0, number - 1)
        return StepSuspends(step=asleep, waiting=tuple(recalled.waiting), deadline=recalled.resume_deadline)
    if recorded is not None:
        await turn_events.publish(turn_events.completed(number, recorded))
        return StepContinues(step=number, output_box_id=recorded.box_after)
    raise StaleTurn(
        f"turn {turn.agent_turn_id} step {step}: no record explains its head, which is {recalled.head_status}"
    )
