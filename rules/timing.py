"""Durations of steps and turns: as `timing` and `stats` (protocol §4, §5), as metrics and as spans.

`timing`, `turn_stats` and `suspended` compute only; `record_…` record to telemetry. The attempt that committed a step
records it, so it is recorded once. Its span id is derived, so spans of a lost attempt are still its children. Records
hold ids, codes and numbers only.
"""

import time

from turnstile.rules.call_spans import agent_name
from turnstile.rules.turn_step import BegunStep, StepHead, StepRecord
from turnstile.runtime.telemetry import (
    Metric,
    Span,
    Telemetry,
    step_traceparent,
    turn_attributes,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import step_id
from turnstile.schema.step_metadata import StepFigures, StepTiming
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
    own = step_traceparent(head.context_headers, step_id(turn.agent_turn_id, record.step))
    if own is None:
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
    telemetry.tracer.record(Span("step", own, parent, *times, attributes, record.metadata.error_code))


def _millis(seconds: float) -> int:
    return max(0, round(seconds * 1000))
