"""The reducer of `AgentTurn`: `(state, event) -> (state, action)`, pure, so that every order of events can be tested.

A turn steps, or waits for reports, or has ended. Reports that arrive while it steps are kept and applied by the next
step (greedy batch, protocol §7.5). It knows ids and counts only; whether a report counts is decided by the ledger.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from schema.ids import InboxId, ToolCallId
from schema.states import MessageType
from schema.turns import Outcome, Ring, StepContinues, StepEnds, StepResult, StepStale, StepSuspends


class Phase(StrEnum):
    """Where the workflow is in its turn."""

    STEPPING = "stepping"  # an activity runs
    WAITING = "waiting"  # suspended: calls are out
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class TurnState:
    """All that the workflow knows. `step` is the one in hand, 0 until the ledger has said which."""

    phase: Phase = Phase.STEPPING
    step: int = 0
    steps_done: int = 0
    waiting: tuple[ToolCallId, ...] = ()
    deadline: datetime | None = None
    rings: tuple[Ring, ...] = ()
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Rang:
    """A doorbell: pointers to inbox rows."""

    rings: tuple[Ring, ...]


@dataclass(frozen=True, slots=True)
class StepReturned:
    """`run_step` answered."""

    result: StepResult


Event = Rang | StepReturned


@dataclass(frozen=True, slots=True)
class RunStep:
    """Run this step (0: whichever is next), after applying these reports."""

    step: int
    reports: tuple[InboxId, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep until a doorbell or the deadline."""

    deadline: datetime


@dataclass(frozen=True, slots=True)
class Return:
    """The turn is over; None where it was ended elsewhere."""

    outcome: Outcome | None


Action = RunStep | Wait | Return

_REPORTS = (MessageType.TOOL_RESULT, MessageType.TIMEOUT)


def begin() -> tuple[TurnState, Action]:
    """A fresh or restarted workflow: the ledger says where the turn stands."""
    return TurnState(), RunStep(0)


def reduce(state: TurnState, event: Event) -> tuple[TurnState, Action | None]:
    """The next state, and what to do; None while something is still being done."""
    match event:
        case Rang(rings):
            known = {ring.inbox_id for ring in state.rings}
            fresh = {ring.inbox_id: ring for ring in rings if ring.inbox_id not in known}
            state = replace(state, rings=(*state.rings, *fresh.values()))
            return _next(state) if state.phase is Phase.WAITING else (state, None)
        case StepReturned(result):
            return _returned(state, result)
        case _:
            assert_never(event)


def _returned(state: TurnState, result: StepResult) -> tuple[TurnState, Action]:
    done = replace(state, step=result.step, steps_done=max(state.steps_done, result.step))
    match result:
        case StepContinues():
            following = result.step + 1
            return replace(done, phase=Phase.STEPPING, step=following), RunStep(following)
        case StepSuspends(waiting=waiting, deadline=deadline):
            return _next(replace(done, phase=Phase.WAITING, waiting=waiting, deadline=deadline))
        case StepEnds(outcome=outcome):
            return replace(done, phase=Phase.ENDED, outcome=outcome), Return(outcome)
        case StepStale():
            return replace(done, phase=Phase.ENDED), Return(None)
        case _:
            assert_never(result)


def _next(state: TurnState) -> tuple[TurnState, Action]:
    """A suspended turn: go on once every call it waits for has rung, else sleep."""
    if state.deadline is None:
        raise ValueError("a suspended turn has a deadline")
    reported = {ring.correlation_id for ring in state.rings if ring.message_type in _REPORTS}
    if not reported.issuperset(state.waiting):
        return state, Wait(state.deadline)
    reports = tuple(ring.inbox_id for ring in state.rings if ring.message_type in _REPORTS)
    following = state.step + 1
    resumed = replace(state, phase=Phase.STEPPING, step=following, waiting=(), deadline=None, rings=())
    return resumed, RunStep(following, reports)
