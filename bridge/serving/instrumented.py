"""Instrumented verbs: each call is counted, timed, recorded as a span, and logged with its ids.

The span is a child of the caller's and the parent of what the verb causes: the handler sees it as `traceparent`.
Without metrics and traces only the log ids are set. The `enqueue` of a turn and the `report` of a call are the spans of
those primitives (§5).
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel

from turnstile.bridge.serving.micro_service import VerbHandler, VerbRequest
from turnstile.runtime import gen_ai
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.log_context import about
from turnstile.runtime.telemetry import Metric, Span, Telemetry
from turnstile.schema.base import Reply
from turnstile.schema.errors import Limited, ServerUnavailable, TurnstileError
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import ReportRequest
from turnstile.schema.wire.limits import SIZE_LIMITS

_IDS = {
    "agent_id": "gen_ai.agent.id",
    "tool_call_id": "gen_ai.tool.call.id",
    **{name: f"turnstile.{name}" for name in ("agent_turn_id", "inbox_id", "thread_id", "message_id")},
}
"""The ids of a reply, and their attributes."""
_PLACES = ("conversation_id", "output_box_id", "thread_id")
"""What a reply names its conversation by, the first that it has."""


def instrumented(verbs: Mapping[str, VerbHandler], telemetry: Telemetry) -> dict[str, VerbHandler]:
    """The same verbs, instrumented."""
    return {verb: _instrumented(handler, telemetry) for verb, handler in verbs.items()}


def _instrumented(handler: VerbHandler, telemetry: Telemetry) -> VerbHandler:
    recording = telemetry.meter.enabled or telemetry.tracer.enabled

    async def run(request: VerbRequest) -> BaseModel:
        named = (headers.AGENT_ID, headers.TURN_ID, headers.TOOL_CALL_ID, headers.THREAD_ID)
        agent, turn, call, thread = (headers.named(request.headers, name) for name in named)
        with about(
            project_id=request.project_id, agent_id=agent, agent_turn_id=turn, tool_call_id=call, thread_id=thread
        ):
            return await _run_recorded(handler, request, telemetry) if recording else await handler(request)

    return run


async def _run_recorded(handler: VerbHandler, request: VerbRequest, telemetry: Telemetry) -> BaseModel:
    received = request.headers.get(headers.TRACEPARENT, "")
    parent = headers.span_id(received)
    traceparent = headers.child_span(received) if parent else headers.new_traceparent()
    started, clock = time.time_ns(), time.perf_counter()
    if telemetry.tracer.enabled:
        request = replace(request, headers={**request.headers, headers.TRACEPARENT: traceparent})
    status, code = "error", TurnstileError.code
    reply: BaseModel | None = None
    try:
        reply = await handler(request)
    except ServerUnavailable as error:
        code = error.code
        raise
    except Limited as error:
        status, code = "busy", error.code
        telemetry.meter.count(Metric.LIMITED, limit=error.code)
        raise
    except TurnstileError as error:
        status, code = "rejected", error.code
        if code in SIZE_LIMITS:
            telemetry.meter.count(Metric.LIMITED, limit=code)
        raise
    else:
        busy = isinstance(reply, Reply) and reply.status is ReplyStatus.BUSY
        status, code = ("busy", "busy") if busy else ("accepted", None)
        return reply
    finally:
        meter = telemetry.meter
        meter.count(Metric.VERBS, verb=request.verb, status=status)
        meter.observe(Metric.VERB_SECONDS, time.perf_counter() - clock, verb=request.verb)
        if reply is not None and request.verb == "report" and meter.enabled and not getattr(reply, "duplicate", False):
            meter.count(Metric.TOOL_REPORTS, status=request.parse(ReportRequest).status.value)
        if telemetry.tracer.enabled:
            attributes = _attributes(request, reply)
            times = (started, time.time_ns())
            telemetry.tracer.record(Span(request.verb, traceparent, parent, *times, attributes, code, "server"))


def _attributes(request: VerbRequest, reply: BaseModel | None) -> Attributes:
    values = {name: value for name in (*_IDS, *_PLACES) if isinstance(value := getattr(reply, name, None), str)}
    conversation = (
        values.get("conversation_id"),
        request.headers.get(headers.CONVERSATION_ID),
        *map(values.get, _PLACES),
    )
    return {
        "turnstile.verb": request.verb,
        "turnstile.source": request.source,
        "turnstile.project_id": request.project_id,
        "turnstile.channel_id": request.channel_id,
        **gen_ai.conversation({}, next(filter(None, conversation), None)),
        **{attribute: values[name] for name, attribute in _IDS.items() if name in values},
        **({"turnstile.duplicate": True} if getattr(reply, "duplicate", False) else {}),
    }
