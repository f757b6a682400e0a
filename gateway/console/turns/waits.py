"""What a live turn waits for, and why it stands still, in words. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, assert_never

from turnstile.gateway.console.formats import part
from turnstile.ledger.access.now import OpenCall, TurnNow
from turnstile.schema.amounts import counted, duration
from turnstile.schema.states import DeferReason, HeadStatus, WaitStatus

_QUEUED = {
    "agent_paused": "its agent, which is paused",
    "agent_busy": "its agent, which is busy with another turn",
    "output_box_busy": "its output box, which another agent's turn is writing",
}

_CLAIMED: Final[dict[str, str]] = {
    DeferReason.ENGINE_UNREACHABLE: "Temporal, which does not accept it",
    DeferReason.WORKFLOW_ENDED: "a restart of its workflow, which is closed",
}


@dataclass(frozen=True, slots=True)
class TurnWait:
    """Something that a turn waits for; `href` leads there."""

    text: str
    href: str | None = None
    of_people: bool = False


def waits_of(turn: TurnNow) -> list[TurnWait]:
    """What the turn waits for now, at most six things."""
    match turn.status:
        case HeadStatus.DISPATCHED:
            return [TurnWait(_CLAIMED.get(turn.defer_reason or "", "a worker to begin it") + _tries(turn))]
        case HeadStatus.RUNNING:
            return [_of_model(turn)]
        case HeadStatus.SUSPENDED:
            return list(_of_calls(turn))
        case _:
            agent = f"/console/agents/{part(turn.agent_id)}"
            because = turn.queued_because
            return [TurnWait(_QUEUED.get(because or "", "its lease: it is next"), agent if because else None)]


def _tries(turn: TurnNow) -> str:
    return f" (tried {counted(turn.retry_count, 'time')})" if turn.defer_reason is not None else ""


def _of_model(turn: TurnNow) -> TurnWait:
    words = f"model {turn.model or 'unknown'}, step {turn.steps + 1}"
    if turn.step_attempt > 1:
        words += f", attempt {turn.step_attempt}"
    if turn.model_failures:
        words += f", {counted(turn.model_failures, 'failure')}"
    return TurnWait(words)


def _of_calls(turn: TurnNow) -> Iterator[TurnWait]:
    calls = turn.calls or []
    for call in calls:
        yield _of_call(turn, call)
    if turn.open_calls > len(calls):
        yield TurnWait(f"{turn.open_calls - len(calls)} more calls")
    if not calls:
        yield TurnWait("its next step: all calls are answered")


def _of_call(turn: TurnNow, call: OpenCall) -> TurnWait:
    if call.question_id is not None:
        href = f"/console/approvals/{part(call.question_id)}"
        return TurnWait(f"a person, about {call.tool_name}", href, of_people=True)
    if call.wait_status == WaitStatus.RECEIVED:
        return TurnWait(f"its next step: {call.tool_name} has answered")
    if call.only_turn_id is not None:
        return TurnWait(f"a turn that {call.tool_name} started", f"/console/turns/{part(call.only_turn_id)}")
    if call.tasks:
        text = f"{call.tasks_done or 0} of {call.tasks} turns of {call.tool_name} are over"
        return TurnWait(text, f"/console/turns/{part(turn.agent_turn_id)}/tree")
    return TurnWait(f"tool {call.tool_name}", "/console/calls")


def stall_of(turn: TurnNow, now: datetime, usual_seconds: float | None) -> str | None:
    """Why the turn stands still, and for how long; None if it does not."""
    still = duration(max((now - turn.since).total_seconds(), 0.0))
    nobody = ": no worker serves its agent's target" if turn.unserved else ""
    match turn.stalled:
        case None:
            return None
        case "not_leased":
            return f"nothing has leased it for {still}"
        case "not_begun":
            return f"no worker has begun it for {still}{nobody}"
        case "slow_step":
            usual = f" (usual is {duration(usual_seconds)})" if usual_seconds is not None and not nobody else ""
            return f"no step for {still}{usual}{nobody}"
        case "overdue":
            if turn.resume_deadline is None:
                return "its deadline has passed"
            return f"its deadline passed {duration(max((now - turn.resume_deadline).total_seconds(), 0.0))} ago"
        case _:
            assert_never(turn.stalled)
