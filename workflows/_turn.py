"""The reducer of `AgentTurn`: `(state, event) -> (state, action)`, pure, so that every order of events can be tested.

A turn runs a step, settles reports, waits, or has ended. Reports that arrive while an activity runs are kept and then
applied together (greedy batch, protocol §7.5). The reducer knows ids and counts only; the ledger decides whether a
report counts.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import assert_never

from turnstile.schema.ids import InboxId, ToolCallId
from turnstile.schema.message_types import Purpose, purpose_of
from turnstile.schema.turns import (
    Outcome,
    ReportsApplied,
    Ring,
    StepContinues,
    StepEnds,
    StepResult,
    StepStale,
    StepSuspends,
    TurnStopped,
)


class Phase(StrEnum):
    """What the workflow is doing."""

    BUSY = "running"  # an activity runs
    WAITING = "suspended"  # calls are out
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class TurnState:
    """The workflow's whole state. `step` is the last one an activity returned; `rings` are reports not yet settled."""

    phase: Phase = Phase.BUSY
    step: int = 0
    waiting: tuple[ToolCallId, ...] = ()
    tools: tuple[str, ...] = ()
    deadline: datetime | None = None
    rings: tuple[Ring, ...] = ()
    stopping: bool = False
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class DoorbellRang:
    """A doorbell came, with pointers to inbox rows."""

    rings: tuple[Ring, ...]


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The turn shall end: a stop row came, or the workflow was cancelled."""


@dataclass(frozen=True, slots=True)
class StepReturned:
    """`run_step` returned."""

    result: StepResult


@dataclass(frozen=True, slots=True)
class StepGaveUp:
    """`run_step` was canceled before it could end the turn itself."""


@dataclass(frozen=True, slots=True)
class Settled:
    """`apply_reports` returned."""

    result: ReportsApplied


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The timer of `Wait` has fired."""


@dataclass(frozen=True, slots=True)
class Expired:
    """`inject_timeouts` returned pointers to the rows that are due now."""

    rings: tuple[Ring, ...]


@dataclass(frozen=True, slots=True)
class Stopped:
    """`stop_turn` returned."""

    result: TurnStopped


Event = DoorbellRang | StopAsked | StepReturned | StepGaveUp | Settled | DeadlinePassed | Expired | Stopped


@dataclass(frozen=True, slots=True)
class RunStep:
    """Apply these reports, then run this step; 0 stands for the next step by the ledger."""

    step: int
    reports: tuple[InboxId, ...] = ()


@dataclass(frozen=True, slots=True)
class Settle:
    """Apply these reports; other calls still wait."""

    reports: tuple[InboxId, ...]


@dataclass(frozen=True, slots=True)
class Expire:
    """Inject timeouts for the calls whose deadline has passed."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the turn as canceled."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Sleep until a doorbell or the deadline; None means that no call has a deadline ahead."""

    deadline: datetime | None


@dataclass(frozen=True, slots=True)
class Return:
    """The turn is over; the outcome is None if it was ended elsewhere."""

    outcome: Outcome | None


Action = RunStep | Settle | Expire | Stop | Wait | Return


def begin(rings: tuple[Ring, ...] = ()) -> tuple[TurnState, Action]:
    """The first state and action of a new, restarted or continued workflow: run the step that is next by the ledger."""
    return TurnState(rings=_reports(rings)), RunStep(0)


def reduce(state: TurnState, event: Event) -> tuple[TurnState, Action | None]:
    """The next state and action; the action is None while another is carried out, or once the turn is over."""
    if state.phase is Phase.ENDED:
        return state, None
    match event:
        case DoorbellRang(rings):
            state = replace(state, rings=_merged(state.rings, rings))
            return _next(state) if state.phase is Phase.WAITING else (state, None)
        case StopAsked():
            state = replace(state, stopping=True)
            return _next(state) if state.phase is Phase.WAITING else (state, None)
        case StepReturned(result):
            return _returned(state, result)
        case Stopped(result):
            return replace(state, phase=Phase.ENDED, step=result.step, outcome=result.outcome), Return(result.outcome)
        case StepGaveUp():
            return replace(state, stopping=True), Stop()
        case Settled(result):
            if result.stale:
                return _follow_ledger(state)
            return _next(replace(state, phase=Phase.WAITING, waiting=result.waiting, deadline=result.deadline))
        case DeadlinePassed():
            if state.phase is not Phase.WAITING:
                return state, None  # a doorbell came first
            return replace(state, phase=Phase.BUSY), Expire()
        case Expired(rings):
            if not rings:  # the deadline moved, or the turn is over
                return _follow_ledger(state)
            return _next(replace(state, phase=Phase.WAITING, rings=_merged(state.rings, rings)))
        case _:
            assert_never(event)


def _returned(state: TurnState, result: StepResult) -> tuple[TurnState, Action]:
    state = replace(state, step=result.step, waiting=(), tools=(), deadline=None)
    match result:
        case StepContinues():
            return _step(state, result.step + 1)
        case StepSuspends(waiting=waiting, tools=tools, deadline=deadline):
            return _next(replace(state, phase=Phase.WAITING, waiting=waiting, tools=tools, deadline=deadline))
        case StepEnds(outcome=outcome):
            return replace(state, phase=Phase.ENDED, outcome=outcome), Return(outcome)
        case StepStale():
            return replace(state, phase=Phase.ENDED), Return(None)
        case _:
            assert_never(result)


def _next(state: TurnState) -> tuple[TurnState, Action]:
    """The action of a suspended turn: stop, resume if every call has a report, settle the reports so far, or sleep."""
    if state.stopping:
        return replace(state, phase=Phase.BUSY), Stop()
    reports = tuple(ring.inbox_id for ring in state.rings)
    if {ring.correlation_id for ring in state.rings}.issuperset(state.waiting):
        return _step(state, state.step + 1, reports)
    if reports:
        return replace(state, phase=Phase.BUSY, rings=()), Settle(reports)
    return state, Wait(state.deadline)


def _follow_ledger(state: TurnState) -> tuple[TurnState, Action]:
    """Run the step that is next by the ledger, or stop."""
    return replace(state, phase=Phase.BUSY), Stop() if state.stopping else RunStep(0)


def _step(state: TurnState, step: int, reports: tuple[InboxId, ...] = ()) -> tuple[TurnState, Action]:
    if state.stopping:
        return replace(state, phase=Phase.BUSY), Stop()
    kept = () if reports else state.rings
    return replace(state, phase=Phase.BUSY, step=step, waiting=(), deadline=None, rings=kept), RunStep(step, reports)


def _reports(rings: tuple[Ring, ...]) -> tuple[Ring, ...]:
    return tuple(ring for ring in rings if _is_report(ring))


def _is_report(ring: Ring) -> bool:
    match purpose_of(ring.message_type):
        case Purpose.REPORT:
            return True
        case Purpose.STOP:  # heard of by `StopAsked`
            return False
        case Purpose.RECORD:  # never rung for: the next step takes it
            return False
        case Purpose.MODEL_TURN | Purpose.TOOL_TURN:  # the row of this turn, for which the workflow was started
            return False


def _merged(known: tuple[Ring, ...], rings: tuple[Ring, ...]) -> tuple[Ring, ...]:
    ids = {ring.inbox_id for ring in known}
    fresh = {ring.inbox_id: ring for ring in _reports(rings) if ring.inbox_id not in ids}
    return (*known, *fresh.values())
