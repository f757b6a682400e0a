"""The spans of a call in its tool: `tool` as a child of the command's span, and one child of it per part of the work.

Requests to the bridge, and turns that the function enqueues, become children of the part that makes them. If telemetry
is off, they are children of the command's span.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnstile.runtime import gen_ai
from turnstile.runtime.gen_ai import Attributes
from turnstile.runtime.telemetry import Metric, Span, SpanKind, Telemetry
from turnstile.schema.wire import headers
from turnstile.sdk.tools.commands import CallCommand


@dataclass(slots=True)
class CallTrace:
    """The spans of one run of one call. `error_code` is set if it failed."""

    telemetry: Telemetry
    command: CallCommand
    traceparent: str = ""
    error_code: str | None = None
    started: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        received = self.command.headers.get(headers.TRACEPARENT, "")
        if self.telemetry.tracer.enabled and headers.span_id(received):
            self.traceparent = headers.child_span(received)

    @contextmanager
    def part(self, name: str, kind: SpanKind = "internal") -> Generator[CallCommand]:
        """Record the block as a part of the work; yields the command under the part's span."""
        if not self.traceparent:
            yield self.command
            return
        place, started, code = headers.child_span(self.traceparent), time.time_ns(), "failed"
        try:
            yield self.command.under(place)
            code = None
        finally:
            self._record(name, place, headers.span_id(self.traceparent), started, code, kind)

    def ended(self) -> None:
        """Record the `tool` span: this replica's work on the call has ended."""
        if self.traceparent:
            parent = headers.span_id(self.command.headers[headers.TRACEPARENT])
            self._record("tool", self.traceparent, parent, self.started, self.error_code, "consumer")

    def ran(self, status: str, error_code: str | None) -> None:
        """Count a run of the function, or a failure to prepare its arguments."""
        self.error_code = error_code
        meter, tool = self.telemetry.meter, self.command.tool_name
        meter.count(Metric.TOOL_RUNS, tool=tool, status=status)
        meter.observe(Metric.TOOL_RUN_SECONDS, (time.time_ns() - self.started) / 1e9, tool=tool)

    def _record(self, name: str, place: str, parent: str, started: int, code: str | None, kind: SpanKind) -> None:
        received = self.command.headers
        attributes: Attributes = {
            **gen_ai.tool(self.command.tool_name, self.command.tool_call_id),
            **gen_ai.conversation(received, None),
            "turnstile.project_id": self.command.project_id,
            "turnstile.delivery": self.command.delivery,
        }
        if agent := received.get(headers.AGENT_ID):
            attributes |= gen_ai.agent(agent)
        if turn := received.get(headers.TURN_ID):
            attributes["turnstile.agent_turn_id"] = turn
        self.telemetry.tracer.record(Span(name, place, parent, started, time.time_ns(), attributes, code, kind))
