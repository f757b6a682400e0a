"""`AgentTurn`: one turn as a workflow (protocol §7; ARCHITECTURE.md).

It holds ids only. The ledger decides, and `_turn` derives the next action. The history grows by a constant number of
bytes per step, however long the model's answer. The turn's ends (failed, canceled, timeout) are returned; only bugs
raise, which fails the workflow instead of blocking it. The Web UI shows the workflow's summary and details.
"""

import asyncio
from collections import deque
from datetime import timedelta
from typing import TypeVar, assert_never

from temporalio import workflow
from temporalio.exceptions import ActivityError
from temporalio.exceptions import CancelledError as ActivityCancelledError

from turnstile.schema.message_types import Purpose, purpose_of
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import (
    ApplyInput,
    Outcome,
    ReportsApplied,
    Ring,
    RunStepInput,
    StepContinues,
    StepResult,
    TurnInput,
    TurnRef,
    TurnStopped,
    TurnWorkflowResult,
)
from turnstile.workflows import _turn, options

Answer = TypeVar("Answer")


@workflow.defn(name="AgentTurn")
class AgentTurn:
    """One delivery closure: one enqueue in, exactly one deliverable and one `task` event out."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._input = turn
        self._turn = turn.ref()
        self._events: deque[_turn.Event] = deque()
        self._stop = False
        self._early_looks = 0
        """How often in a row a deadline was looked at that the ledger's clock had not reached."""
        self._status = _turn.Phase.BUSY.value

    @workflow.signal
    def doorbell(self, rings: list[Ring]) -> None:
        """Take pointers to inbox rows of this turn that are due."""
        self._events.append(_turn.DoorbellRang(tuple(rings)))
        if any(purpose_of(ring.message_type) is Purpose.STOP for ring in rings):
            self._ask_stop()

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnWorkflowResult:
        """Run the turn to its end; returns its outcome, which is None if it was ended elsewhere."""
        state, action = _turn.begin(turn.rings)
        while not isinstance(action, _turn.Return):
            self._show(state)
            if self._may_continue_as_new(action):
                workflow.continue_as_new(self._continued(state))
            await self._do(action)
            state, action = self._decide(state)
        self._show(state)
        status = "fenced" if action.outcome is None else action.outcome.status.value
        self._set_status(status)
        return TurnWorkflowResult(
            status=status,
            error_code=None if action.outcome is None else action.outcome.error_code,
            agent_turn_id=turn.agent_turn_id,
            turn_epoch=turn.turn_epoch,
            steps=state.step,
            outcome=action.outcome,
        )

    def _continued(self, state: _turn.TurnState) -> TurnInput:
        """The input of the next run."""
        return self._input.model_copy(update={"rings": state.rings, "output_box_id": self._turn.output_box_id})

    def _may_continue_as_new(self, action: _turn.Action) -> bool:
        """Whether to continue as new: the history is long, and the next run's input can hold the whole state."""
        idle = isinstance(action, _turn.Wait) or (isinstance(action, _turn.RunStep) and not action.reports)
        return idle and not self._events and workflow.info().is_continue_as_new_suggested()

    def _decide(self, state: _turn.TurnState) -> tuple[_turn.TurnState, _turn.Action]:
        """Reduce the events, in order, until one yields an action."""
        while self._events:
            state, action = _turn.reduce(state, self._events.popleft())
            if action is not None:
                return state, action
        raise RuntimeError("an action ended and no action follows")

    async def _do(self, action: _turn.Action) -> None:
        """Carry out the action and append the event that follows from it."""
        match action:
            case _turn.RunStep():
                self._events.append(await self._run_step(action))
            case _turn.Settle(reports):
                apply = ApplyInput(turn=self._turn, reports=reports)
                applied = await self._run_locally("apply_reports", apply, ReportsApplied)
                self._events.append(_turn.Settled(applied))
            case _turn.Expire():
                rings = await self._run_locally("inject_timeouts", self._turn, list[Ring])
                self._early_looks = 0 if rings else self._early_looks + 1
                self._events.append(_turn.Expired(tuple(rings)))
            case _turn.Stop():
                self._events.append(_turn.Stopped(await self._run_locally("stop_turn", self._turn, TurnStopped)))
            case _turn.Wait():
                await self._wait(action)
            case _turn.Return():
                pass
            case _:
                assert_never(action)

    async def _run_step(self, action: _turn.RunStep) -> _turn.Event:
        self._set_status(_turn.Phase.BUSY.value)
        step = RunStepInput(turn=self._turn, step=action.step, reports=action.reports)
        handle = workflow.start_activity(
            "run_step",
            step,
            result_type=StepResult,  # pyright: ignore[reportArgumentType] -- the converter reads unions
            start_to_close_timeout=options.STEP_START_TO_CLOSE,
            heartbeat_timeout=timedelta(seconds=self._input.heartbeat_timeout_seconds),
            retry_policy=options.STEP_RETRY,
            cancellation_type=options.STEP_CANCELLATION,
            summary=f"step {action.step or 'next'}",
        )
        try:
            await workflow.wait_condition(lambda: handle.done() or self._stop)
        except asyncio.CancelledError:
            self._ask_stop()
        if self._stop and not handle.done():
            handle.cancel()
        try:
            return self._returned(await self._shielded(handle))
        except asyncio.CancelledError:
            return _turn.StepGaveUp()
        except ActivityError as error:
            # A step that was asked to stop is not run again, even if its worker died: `stop_turn` ends the turn.
            if self._stop or isinstance(error.cause, ActivityCancelledError):
                return _turn.StepGaveUp()
            raise

    def _returned(self, result: StepResult) -> _turn.StepReturned:
        """The event of a finished step. A compaction has moved the turn into another box."""
        if isinstance(result, StepContinues) and result.output_box_id is not None:
            self._turn = self._turn.model_copy(update={"output_box_id": result.output_box_id})
        return _turn.StepReturned(result)

    async def _run_locally(self, name: str, arguments: TurnRef | ApplyInput, answer: type[Answer]) -> Answer:
        handle = workflow.start_local_activity(
            name,
            arguments,
            result_type=answer,
            start_to_close_timeout=options.SETTLE_START_TO_CLOSE,
            retry_policy=options.SETTLE_RETRY,
            summary=name.replace("_", " "),
        )
        return await self._shielded(handle)

    async def _shielded(self, handle: workflow.ActivityHandle[Answer]) -> Answer:
        """Await the activity; a cancellation of the workflow does not cancel it but asks for a stop afterwards."""
        try:
            return await asyncio.shield(handle)
        except asyncio.CancelledError:
            if handle.done():
                raise
            self._ask_stop()
            return await handle

    async def _wait(self, action: _turn.Wait) -> None:
        """Sleep until an event or the deadline; without one, for `OVERDUE_LOOK`, and then look what is due.

        The deadline is the ledger's. Where its clock is behind the engine's, it is looked at ever more seldom.
        """
        self._set_status(_turn.Phase.WAITING.value)
        left = options.OVERDUE_LOOK if action.deadline is None else action.deadline - workflow.now()
        again = options.look_again(self._early_looks)
        if left < again and workflow.patched("look-ever-more-seldom"):
            left = again
        try:
            await workflow.wait_condition(
                lambda: bool(self._events), timeout=max(left, timedelta()), timeout_summary="resume deadline"
            )
        except TimeoutError:
            self._events.append(_turn.DeadlinePassed())
        except asyncio.CancelledError:
            self._ask_stop()

    def _ask_stop(self) -> None:
        if not self._stop:
            self._stop = True
            self._events.append(_turn.StopAsked())

    def _set_status(self, status: str) -> None:
        """Set the search attribute, only if it changed: each upsert is a write in the engine."""
        if status != self._status:
            self._status = status
            workflow.upsert_search_attributes(  # pyright: ignore[reportUnknownMemberType] -- a type variable left open
                [options.TURN_STATUS.value_set(status)]
            )

    def _show(self, state: _turn.TurnState) -> None:
        workflow.set_current_details(_details(self._turn, state))


def _details(turn: TurnRef, state: _turn.TurnState) -> str:
    """The turn's state in Markdown: ids and codes, no content."""
    lines = [
        *_headline(state),
        f"**{turn.agent_id}** in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}: {state.phase.value}",
        "",  # without it, the Web UI would join the list to the sentence
        f"- step {state.step or 'next'}",
    ]
    if state.waiting:
        lines.append(f"- waits for {', '.join(state.tools) or 'tools'}{_until(state)}")
        lines.extend(f"  - {call}" for call in state.waiting)
    if state.stopping:
        lines.append("- asked to stop")
    if state.outcome is not None:
        lines.append(_outcome(state.outcome))
    return "\n".join(lines)


def _headline(state: _turn.TurnState) -> list[str]:
    """How the turn ended. The engine shows every workflow as completed, whatever the turn's status."""
    if state.outcome is None:
        return []
    status, code = state.outcome.status, state.outcome.error_code
    mark = "✅" if status is TurnStatus.SUCCESS else "⚠️" if status is TurnStatus.PARTIAL else "❌"
    return [f"## {mark} {status.value}{f': {code}' if code else ''}", ""]


def _until(state: _turn.TurnState) -> str:
    return "" if state.deadline is None else f" until {state.deadline.isoformat(timespec='seconds')}"


def _outcome(outcome: Outcome) -> str:
    code = f" ({outcome.error_code})" if outcome.error_code else ""
    return f"- outcome **{outcome.status.value}**{code}, card {outcome.deliverable_card_id}"
