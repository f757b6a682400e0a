"""`AgentTurn`: one turn as a workflow (protocol §7; architecture: Temporal).

It holds ids only and decides nothing: the ledger does, and `_turn` says what comes next. Its history grows by a
constant number of bytes per step whatever the model says. Business ends (failed, canceled, timeout) return; only bugs
raise, and then the safety net starts it again from the head. The Web UI shows its summary and details.
"""

from collections import deque
from datetime import timedelta
from typing import assert_never

from temporalio import workflow

from schema.turns import Outcome, Ring, RunStepInput, StepResult, TurnInput, TurnRef, TurnResult
from workflows import _turn, options


@workflow.defn(name="AgentTurn")
class AgentTurn:
    """One delivery closure: one enqueue in, exactly one deliverable and one `task` event out."""

    @workflow.init
    def __init__(self, turn: TurnInput) -> None:
        self._turn = turn.ref()
        self._heartbeat_timeout = timedelta(seconds=turn.heartbeat_timeout_seconds)
        self._events: deque[_turn.Event] = deque()

    @workflow.signal
    def doorbell(self, rings: list[Ring]) -> None:
        """Inbox rows for this turn are due."""
        self._events.append(_turn.Rang(tuple(rings)))

    @workflow.run
    async def run(self, turn: TurnInput) -> TurnResult:
        """Drive the turn to its end; returns its outcome, or none if it was ended elsewhere."""
        state, action = _turn.begin()
        while not isinstance(action, _turn.Return):
            workflow.set_current_details(_details(turn, state))
            match action:
                case _turn.RunStep():
                    self._events.append(_turn.StepReturned(await self._run_step(action)))
                case _turn.Wait(deadline):
                    await workflow.wait_condition(lambda: bool(self._events), timeout=deadline - workflow.now())
                case _:
                    assert_never(action)
            action = None
            while self._events and action is None:
                state, action = _turn.reduce(state, self._events.popleft())
            if action is None:
                raise RuntimeError("no event and nothing to do")
        self._end(turn, state, action.outcome)
        return TurnResult(
            agent_turn_id=turn.agent_turn_id,
            turn_epoch=turn.turn_epoch,
            steps=state.steps_done,
            outcome=action.outcome,
        )

    async def _run_step(self, action: _turn.RunStep) -> StepResult:
        given = RunStepInput(turn=self._turn, step=action.step, reports=action.reports)
        return await workflow.execute_activity(
            "run_step",
            given,
            result_type=StepResult,  # pyright: ignore[reportArgumentType] -- a union of models, which the converter reads
            start_to_close_timeout=options.STEP_START_TO_CLOSE,
            heartbeat_timeout=self._heartbeat_timeout,
            retry_policy=options.STEP_RETRY,
            cancellation_type=options.STEP_CANCELLATION,
            summary=f"step {action.step or 'next'}",
        )

    def _end(self, turn: TurnRef, state: _turn.TurnState, outcome: Outcome | None) -> None:
        status = "fenced" if outcome is None else outcome.status.value
        workflow.upsert_search_attributes([options.TURN_STATUS.value_set(status)])  # pyright: ignore[reportUnknownMemberType] -- the SDK leaves a type variable open
        workflow.set_current_details(_details(turn, state))


def _details(turn: TurnRef, state: _turn.TurnState) -> str:
    """The turn's state in Markdown: ids and codes, no content."""
    lines = [
        f"**{turn.agent_id}** in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}: {state.phase.value}",
        f"- step {state.step or 'next'}, {state.steps_done} done",
    ]
    if state.waiting:
        lines.append(f"- waits for {len(state.waiting)} calls until {state.deadline}: {', '.join(state.waiting)}")
    if state.outcome is not None:
        code = f" ({state.outcome.error_code})" if state.outcome.error_code else ""
        lines.append(f"- outcome **{state.outcome.status.value}**{code}, card {state.outcome.deliverable_card_id}")
    return "\n".join(lines)
