"""A call's spans as its tool makes them: `tool` below the span of its command, and below that each part of the work.

What the tool asks the bridge, and what the function itself enqueues, goes under the part that asks. Where nobody
listens, the command's own place goes on being used.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from turnstile.runtime.telemetry import Attribute, Metric, Span, SpanKind, Telemetry
from turnstile.schema.wire import headers
from turnstile.sdk.tools.commands import CallCommand


@dataclass(slots=True)
class CallTrace:
    """One run of one call. `error_code` is what came of it, if it failed."""

    telemetry: Telemetry
    command: CallCommand
    own: str = ""
    error_code: str | None = None
    started: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        given = self.command.headers.get(headers.TRACEPARENT, "")
        if self.telemetry.tracer.enabled and headers.span_id(given):
            self.own = headers.child_span(given)

    @contextmanager
    def part(self, name: str, kind: SpanKind = "internal") -> Generator[CallCommand]:
        """A part of the work; gives the command as it stands in it."""
        if not self.own:
            yield self.command
            return
        place, started, code = headers.child_span(self.own), time.time_ns(), "failed"
        try:
            yield self.command.under(place)
            code = None
        finally:
            self._record(name, place, headers.span_id(self.own), started, code, kind)

    def ended(self) -> None:
        """Nothing more is done for the call here."""
        if self.own:
            parent = headers.span_id(self.command.headers[headers.TRACEPARENT])
            self._record("tool", self.own, parent, self.started, self.error_code, "consumer")

    def ran(self, status: str, error_code: str | None) -> None:
        """The function has run, or could not be given its arguments."""
        self.error_code = error_code
        meter, tool = self.telemetry.meter, self.command.tool_name
        meter.count(Metric.TOOL_RUNS, tool=tool, status=status)
        meter.observe(Metric.TOOL_RUN_SECONDS, (time.time_ns() - self.started) / 1e9, tool=tool)

    def _record(self, name: str, place: str, parent: str, started: int, code: str | None, kind: SpanKind) -> None:
        attributes: dict[str, Attribute] = {
            "gen_ai.tool.name": self.command.tool_name,
            "turnstile.project_id": self.command.project_id,
            "turnstile.tool_call_id": self.command.tool_call_id,
            "turnstile.delivery": self.command.delivery,
        }
        self.telemetry.tracer.record(Span(name, place, parent, started, time.time_ns(), attributes, code, kind))
