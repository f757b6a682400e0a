"""The metrics and spans of the pump's messages, handlers and answers (docs/observability.md).

The run that settled a message records it, and the process that marked an answer as announced records that, so each is
recorded at most once. Their span ids are derived, so spans recorded earlier can be their children. Records hold ids,
codes, numbers and names of listeners, never a payload.
"""

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from enum import StrEnum

from turnstile.rules.hop import BegunMessage, Effect, Iterate, Respond, Settled, ThreadReply
from turnstile.runtime import gen_ai
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.telemetry import Metric, Span, Telemetry, nanoseconds
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.pump.threads import EndReason, MessageId, ThreadRef
from turnstile.schema.wire import headers


class HandlerOutcome(StrEnum):
    """How a run of a handler ended."""

    RETURNED = "returned"
    INVALID = "invalid"
    """It returned something other than a message."""
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELED = "canceled"


UNKNOWN = "unknown"
"""The label of listeners that are not registered here, since their names come from outside."""


def message_traceparent(begun: BegunMessage) -> str | None:
    """The `traceparent` of a message's span in its request's trace; None if the request has no valid trace."""
    return headers.derived_span(_request_traceparent(begun), begun.message_id)


def record_message(
    telemetry: Telemetry, thread: ThreadRef, begun: BegunMessage, listener: str | None, effect: Effect, settled: Settled
) -> None:
    """Record a settled message, unless it was settled before. `listener` is None if none has the name."""
    if settled.effect is None:
        return
    meter, name = telemetry.meter, listener or UNKNOWN
    is_ours = isinstance(effect, Respond | Iterate) and effect.system
    if meter.enabled:
        by = "pump" if is_ours else "listener"
        meter.count(Metric.THREAD_MESSAGES, listener=name, effect=settled.effect, by=by)
        if settled.canceled:
            meter.count(Metric.THREAD_MESSAGES, settled.canceled, listener=name, effect="canceled", by="pump")
        delay = (begun.begun_at - begun.created_at).total_seconds()
        meter.observe(Metric.THREAD_MESSAGE_DELAY, delay, listener=name)
    if telemetry.tracer.enabled and (traceparent := message_traceparent(begun)) is not None:
        attributes = _attributes(thread, begun) | {"turnstile.effect": settled.effect}
        code = settled.effect if settled.effect in {"timeout", "limit"} else "undelivered" if is_ours else None
        times = (nanoseconds(begun.begun_at), time.time_ns())
        parent = headers.span_id(_request_traceparent(begun))
        telemetry.tracer.record(Span("message", traceparent, parent, *times, attributes, code, "consumer"))


def record_handler(
    telemetry: Telemetry, thread: ThreadRef, begun: BegunMessage, seconds: float, outcome: HandlerOutcome
) -> None:
    """Record a run of a handler that lasted `seconds` and ended now."""
    telemetry.meter.observe(Metric.HANDLER_SECONDS, seconds, listener=begun.listener, outcome=outcome.value)
    if telemetry.tracer.enabled and (above := message_traceparent(begun)) is not None:
        ended = time.time_ns()
        times = (ended - round(seconds * 1e9), ended)
        code = None if outcome is HandlerOutcome.RETURNED else outcome.value
        traceparent, parent = headers.child_span(above), headers.span_id(above)
        telemetry.tracer.record(Span("handler", traceparent, parent, *times, _attributes(thread, begun), code))


def enqueue_traceparent(telemetry: Telemetry, begun: BegunMessage) -> str | None:
    """The `traceparent` of the span under which a message's turn is enqueued; None if spans are discarded."""
    above = message_traceparent(begun) if telemetry.tracer.enabled else None
    return None if above is None else headers.derived_span(above, f"{begun.message_id}-enqueue")


def record_enqueue(
    telemetry: Telemetry, thread: ThreadRef, begun: BegunMessage, turn: AgentTurnId, started: datetime
) -> None:
    """Record the enqueue of an agent's turn; the turn's span is a child of it."""
    above, traceparent = message_traceparent(begun), enqueue_traceparent(telemetry, begun)
    if above is not None and traceparent is not None:
        attributes = _attributes(thread, begun) | {"turnstile.agent_turn_id": turn}
        times = (nanoseconds(started), time.time_ns())
        telemetry.tracer.record(
            Span("enqueue", traceparent, headers.span_id(above), *times, attributes, None, "producer")
        )


def record_replies(telemetry: Telemetry, replies: Sequence[ThreadReply], newly: Collection[MessageId]) -> None:
    """Record answers that are in the event stream; only those in `newly`, which were not announced before."""
    now = datetime.now(UTC)
    for reply in replies:
        if reply.request_id not in newly:
            continue
        telemetry.meter.count(Metric.THREAD_REPLIES, kind=reply.kind.value, reason=reply.reason.value)
        lasted = (reply.created_at - reply.requested_at).total_seconds()
        telemetry.meter.observe(Metric.THREAD_REQUEST_SECONDS, lasted, kind=reply.kind.value)
        request = reply.context_headers.get(headers.TRACEPARENT, "")
        if (
            telemetry.tracer.enabled
            and (place := headers.derived_span(request, f"{reply.request_id}-reply")) is not None
        ):
            _record_reply(telemetry, reply, request, place, now)


def _record_reply(telemetry: Telemetry, reply: ThreadReply, request: str, place: str, now: datetime) -> None:
    attributes: Attributes = {
        "turnstile.project_id": reply.project_id,
        "turnstile.channel_id": reply.channel_id,
        "turnstile.thread_id": reply.thread_id,
        "turnstile.message_id": reply.request_id,
        "turnstile.reply.kind": reply.kind.value,
        "turnstile.reply.reason": reply.reason.value,
        **gen_ai.conversation(reply.context_headers, reply.thread_id),
    }
    name, what = gen_ai.operation(
        "invoke_workflow", (reply.listener or "") if reply.reason is EndReason.RESPONDED else ""
    )
    if reply.listener:
        what["gen_ai.workflow.name"] = reply.listener
    code = reply.reason.value if reply.reason in {EndReason.UNDELIVERED, EndReason.LIMIT} else None
    requested, answered, announced = map(nanoseconds, (reply.requested_at, reply.created_at, now))
    above = headers.parent_span(reply.context_headers)
    telemetry.tracer.record(Span(name, request, above, requested, answered, what | attributes, code))
    telemetry.tracer.record(
        Span("reply", place, headers.span_id(request), answered, announced, attributes, None, "producer")
    )


def _request_traceparent(begun: BegunMessage) -> str:
    return begun.context_headers.get(headers.TRACEPARENT, "")


def _attributes(thread: ThreadRef, begun: BegunMessage) -> Attributes:
    return {
        "turnstile.project_id": thread.project_id,
        "turnstile.channel_id": thread.channel_id,
        "turnstile.thread_id": thread.thread_id,
        "turnstile.message_id": begun.message_id,
        "turnstile.request_id": begun.request_id,
        "turnstile.listener": begun.listener,
        "turnstile.message.kind": begun.kind.value,
        "turnstile.message.hop": begun.hop,
        "turnstile.message.attempt": begun.attempt,
        **gen_ai.conversation(begun.context_headers, thread.thread_id),
    }
