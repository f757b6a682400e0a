"""Durations of steps and turns: as `timing` and `stats` (protocol §4, §5), as metrics and as spans.

`timing`, `turn_stats` and `suspended` compute only; `record_…` record to telemetry. The attempt that committed a step
records it, so it is recorded once. Its span id is derived, so spans of a lost attempt are still its children. Records
hold ids, codes and numbers only.

A call has a span too, `execute_tool`, from the commit of the call to its result (docs/observability.md): the one that
its command carries, so what the tool records, and the turns that it requests, are its children. The step that reads
the results first records it, or the end of a turn that is stopped while it waits.
"""

import time
from collections.abc import Mapping
from datetime import datetime

from turnstile.rules.turn_ends import RecalledStep
from turnstile.rules.turn_step import BegunStep, StepHead, StepRecord
from turnstile.runtime import gen_ai, span_content
from turnstile.runtime.telemetry import (
    Metric,
    Span,
    Telemetry,
    nanoseconds,
    step_traceparent,
    turn_attributes,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, ToolCallContent, ToolResultContent, readable_content
from turnstile.schema.ids import step_id
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import StepFigures, StepTiming, SuspendMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers


def timing(head: StepHead, seconds: float, first_token_ms: object) -> StepTiming:
    """`timing` of a step that has taken so long until now.

    Moments are the ledger's and what passed since is monotonic: the wall clock of this process may be wrong.
    """
    slept = suspended(head)
    return StepTiming(
        queue_delay_ms=_millis((head.started_at - head.enqueued_at).total_seconds()),
        step_ms=_millis(seconds),
        first_token_ms=first_token_ms if isinstance(first_token_ms, int) else None,
        e2e_ms=_millis((head.updated_at - head.enqueued_at).total_seconds() + seconds),
        suspended_ms=None if slept is None else _millis(slept),
    )


def turn_stats(step: int, figures: StepFigures) -> JsonObject:
    """`stats` of a turn that ends with this step; the ledger adds `queue_delay_ms` and `e2e_ms` by its own clock."""
    timing = figures.timing or StepTiming()
    stats: JsonObject = {
        "steps": step,
        "step_ms": timing.step_ms,
        "first_token_ms": timing.first_token_ms,
        "model": figures.attempts[-1].get("model") if figures.attempts else None,
        "llm_usage": figures.llm_usage,
    }
    if figures.truncated is not None:
        stats["truncated"] = figures.truncated
    return stats


def suspended(head: StepHead) -> float | None:
    """Seconds for which the turn was suspended before this step; None if it was not, or in a repeat of the step."""
    if head.suspended_at is None or head.step_attempt != 1:
        return None
    return (head.updated_at - head.suspended_at).total_seconds()


def record_begun(telemetry: Telemetry, turn: TurnRef, head: StepHead) -> None:
    """Record how long the turn was dispatched, at its first step, or suspended, at the first step after that."""
    project, agent = turn.project_id, turn.agent_id
    if head.step_count == 0 and head.step_attempt == 1:
        waited = (head.started_at - head.due_at).total_seconds()
        telemetry.meter.observe(Metric.DISPATCHED_SECONDS, waited, project=project, agent=agent)
    if (slept := suspended(head)) is not None:
        telemetry.meter.observe(Metric.SUSPENDED_SECONDS, slept, project=project, agent=agent)


def record_step(
    telemetry: Telemetry, turn: TurnRef, begun: BegunStep, record: StepRecord, seconds: float, attempts: int
) -> None:
    """Record a committed step, for which the model was asked `attempts` times."""
    telemetry.meter.observe(Metric.STEP_SECONDS, seconds, status=record.status)
    telemetry.meter.count(Metric.TOOL_CALLS, len(record.calls))
    if not telemetry.tracer.enabled:
        return
    head, name = begun.head, agent_name(begun)
    traceparent = step_traceparent(head.context_headers, step_id(turn.agent_turn_id, record.step))
    if traceparent is None:
        return
    attributes = turn_attributes(turn, head.context_headers, name) | {
        "turnstile.step_id": step_id(turn.agent_turn_id, record.step),
        "turnstile.step": record.step,
        "turnstile.step_attempt": head.step_attempt,
        "turnstile.next": record.metadata.next,
        "turnstile.model_attempts": attempts,
    }
    now = time.time_ns()
    times = (now - round(seconds * 1e9), now)
    parent = headers.span_id(head.context_headers[headers.TRACEPARENT])
    telemetry.tracer.record(Span("step", traceparent, parent, *times, attributes, record.metadata.error_code))


def _millis(seconds: float) -> int:
    return max(0, round(seconds * 1000))


CANCELED = "canceled"
"""`error.type` of a call that its turn did not wait for."""
_NAME_LENGTH = 128


def agent_name(begun: BegunStep) -> str:
    """The name of the profile that the agent works by; empty if it cannot be read."""
    if (pinned := begun.head.turn_config) is not None:
        return str(pinned.get("profile_name", ""))
    for card in reversed(begun.profile):
        if card.type == CardType.PROFILE and isinstance(card.content, dict):
            match card.content.get("data"):
                case {"name": str() as name}:
                    return name[:_NAME_LENGTH]
                case _:
                    pass
    return ""


def record_answers(telemetry: Telemetry, turn: TurnRef, begun: BegunStep) -> None:
    """Record the calls whose results the step read first."""
    head, tracer = begun.head, telemetry.tracer
    if not tracer.enabled or not head.answered:
        return
    name, sent = agent_name(begun), head.suspended_at or head.updated_at
    cards = {(card.type, card.tool_call_id): card for card in begun.output if card.tool_call_id is not None}
    for call in head.answered:
        result = _result(cards.get((CardType.TOOL_RESULT, call.tool_call_id)))
        attributes = gen_ai.tool(call.tool_name, call.tool_call_id)
        if tracer.clear is not None:
            call_card = cards.get((CardType.TOOL_CALL, call.tool_call_id))
            content = None if call_card is None else readable_content(call_card)
            arguments = content.arguments if isinstance(content, ToolCallContent) else None
            attributes |= span_content.call_content(arguments, None if result is None else result.result, tracer.clear)
        of_turn = turn_attributes(turn, head.context_headers, name)
        times = sent, call.reported_at or head.updated_at
        _record(telemetry, head.context_headers, turn, head.step_count, times, of_turn | attributes, _code(result))


def record_unanswered(telemetry: Telemetry, turn: TurnRef, recalled: RecalledStep, ended: datetime) -> None:
    """Record the calls of a turn that was ended while it waited for them."""
    if not telemetry.tracer.enabled or recalled.step is None or not isinstance(recalled.step_metadata, SuspendMetadata):
        return
    of_turn = turn_attributes(turn, recalled.context_headers)
    for call in recalled.step_metadata.commands:
        attributes = of_turn | gen_ai.tool(call.tool_name, call.tool_call_id)
        code = CANCELED if call.tool_call_id in recalled.waiting else None
        times = recalled.updated_at or ended, ended
        _record(telemetry, recalled.context_headers, turn, recalled.step, times, attributes, code)


def _record(
    telemetry: Telemetry,
    context: Mapping[str, str],
    turn: TurnRef,
    step: int,
    times: tuple[datetime, datetime],
    attributes: gen_ai.Attributes,
    error_code: str | None,
) -> None:
    under = step_traceparent(context, step_id(turn.agent_turn_id, step))
    traceparent = None if under is None else headers.derived_span(under, str(attributes["gen_ai.tool.call.id"]))
    if under is None or traceparent is None:
        return
    name, what = gen_ai.operation("execute_tool", str(attributes["gen_ai.tool.name"]))
    began, ended = map(nanoseconds, times)
    telemetry.tracer.record(
        Span(name, traceparent, headers.span_id(under), began, ended, what | attributes, error_code)
    )


def _result(card: Card | None) -> ToolResultContent | None:
    content = None if card is None else readable_content(card)
    return content if isinstance(content, ToolResultContent) else None


def _code(result: ToolResultContent | None) -> str | None:
    """Why a call failed; None if it did not, or nobody can say."""
    if result is None or result.status is TurnStatus.SUCCESS:
        return None
    return result.status.value if result.error is None else result.error.code
