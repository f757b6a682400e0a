"""The telemetry interfaces: finished spans and metrics (docs/observability.md).

Bridge, activities and tools record; `turnstile` decides where the records go. Recording never waits and never raises;
`SILENT` discards everything. Records hold ids, codes, counts, tokens and cost; spans hold content only if the tracer
says so. Workflows record nothing, so a replay records nothing twice. A step or a call that may be repeated has a
derived span id.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, Protocol

from turnstile.runtime import gen_ai
from turnstile.runtime.gen_ai import Attribute, Attributes
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import StepId
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

SpanKind = Literal["internal", "server", "client", "producer", "consumer"]


class Metric(StrEnum):
    """Every metric; `turnstile.telemetry.metrics` says what each means."""

    CLAIMS = "claims"
    CLAIMS_RELEASED = "claims_released"
    REPAIRS = "repairs"
    PUSHES = "push_notifications"
    SCHEDULE_FIRINGS = "schedule_firings"
    SCHEDULE_LATE_SECONDS = "schedule_late_seconds"
    TURNS = "turns"
    QUEUE_DELAY = "turn_queue_delay_seconds"
    TURN_SECONDS = "turn_seconds"
    STEP_SECONDS = "step_seconds"
    SUSPENDED_SECONDS = "turn_suspended_seconds"
    DISPATCHED_SECONDS = "turn_dispatched_seconds"
    MODEL_ATTEMPTS = "model_attempts"
    MODEL_SECONDS = "model_attempt_seconds"
    FIRST_TOKEN = "model_first_token_seconds"  # noqa: S105 -- a token of text
    MODEL_TOKENS = "model_tokens"
    MODEL_COST = "model_cost_dollars"
    MODEL_PAUSES = "model_pauses"
    MODEL_WAIT = "model_wait_seconds"
    MODEL_WAITING = "model_requests_waiting"
    BUDGET_RESERVATIONS = "budget_reservations"
    BUDGET_WARNINGS = "budget_warnings"
    VERBS = "verbs"
    VERB_SECONDS = "verb_seconds"
    LIMITED = "limited"
    THREAD_MESSAGES = "thread_messages"
    THREAD_MESSAGE_DELAY = "thread_message_delay_seconds"
    HANDLER_SECONDS = "handler_seconds"
    THREAD_REPLIES = "thread_replies"
    THREAD_REQUEST_SECONDS = "thread_request_seconds"
    TOOL_CALLS = "tool_calls"
    TOOL_REPORTS = "tool_reports"
    TOOL_RUNS = "tool_runs"
    TOOL_RUN_SECONDS = "tool_run_seconds"
    HTTP_REQUESTS = "http_requests"
    HTTP_SECONDS = "http_seconds"
    HTTP_BYTES = "http_bytes"
    HTTP_STREAMS = "http_streams"
    HTTP_STREAMS_CUT = "http_streams_cut"
    HTTP_OPEN_STREAMS = "http_open_streams"
    HTTP_CONNECTIONS = "http_connections"
    HTTP_FEEDS = "http_feeds"


@dataclass(frozen=True, slots=True)
class Span:
    """A finished piece of work. Times are in nanoseconds since 1970."""

    name: str
    traceparent: str
    """Trace id, span id and flags of this span."""
    parent: str
    """The span id of the parent; empty for none."""
    started: int
    ended: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    error_code: str | None = None
    kind: SpanKind = "internal"


class Tracer(Protocol):
    """Takes finished spans."""

    @property
    def enabled(self) -> bool:
        """False if spans are discarded: callers then need not make them."""
        ...

    @property
    def clear(self) -> Callable[[str], str] | None:
        """What takes secrets out of what was said; None if spans shall not hold it."""
        ...

    def record(self, span: Span) -> None:
        """Queue the span for export; one with a malformed or unsampled `traceparent` is dropped."""
        ...


class Meter(Protocol):
    """Takes metrics."""

    @property
    def enabled(self) -> bool:
        """False if metrics are discarded."""
        ...

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        ...

    def watch(self, metric: Metric, read: Callable[[], float]) -> None:
        """Have a gauge say what `read` returns whenever it is asked for, from another thread."""
        ...


class _Discard:
    """Discards everything."""

    @property
    def enabled(self) -> bool:
        return False

    @property
    def clear(self) -> Callable[[str], str] | None:
        return None

    def record(self, span: Span) -> None:
        """Do nothing."""

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Do nothing."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Do nothing."""

    def watch(self, metric: Metric, read: Callable[[], float]) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The tracer and the meter of a process."""

    tracer: Tracer = field(default_factory=_Discard)
    meter: Meter = field(default_factory=_Discard)

    def turn_ended(
        self,
        turn: TurnRef,
        context: Mapping[str, str],
        status: TurnStatus,
        error_code: str | None,
        stats: JsonObject,
        ended_at: datetime,
        agent_name: str = "",
    ) -> None:
        """Record the end of a turn. Only the process whose statement ended it calls this, so it is recorded once.

        `stats` are those of its `task` event (§5). Whoever ends a turn outside of its steps knows no `agent_name`.
        """
        if self.meter.enabled:
            project, agent = turn.project_id, turn.agent_id
            code = error_code or "none"
            self.meter.count(Metric.TURNS, status=status.value, error_code=code, project=project, agent=agent)
            for metric, name in ((Metric.QUEUE_DELAY, "queue_delay_ms"), (Metric.TURN_SECONDS, "e2e_ms")):
                if isinstance(millis := stats.get(name), int | float):
                    self.meter.observe(metric, millis / 1000, project=project, agent=agent)
        if self.tracer.enabled and (traceparent := context.get(headers.TRACEPARENT)):
            lasted = stats.get("e2e_ms")
            began = ended_at - timedelta(milliseconds=lasted if isinstance(lasted, int | float) else 0)
            times = nanoseconds(began), nanoseconds(ended_at)
            span, attributes = _invoked(turn, context, status, stats, agent_name)
            self.tracer.record(Span(span, traceparent, headers.parent_span(context), *times, attributes, error_code))


SILENT = Telemetry()
"""Records nothing."""


def _invoked(
    turn: TurnRef, context: Mapping[str, str], status: TurnStatus, stats: JsonObject, agent_name: str
) -> tuple[str, Attributes]:
    """The name and the attributes of a turn's span."""
    name, attributes = gen_ai.operation("invoke_agent", agent_name)
    attributes |= turn_attributes(turn, context, agent_name) | {"turnstile.turn.status": status.value}
    attributes["gen_ai.provider.name"] = gen_ai.KERNEL
    if isinstance(model := stats.get("model"), str):
        attributes["gen_ai.provider.name"], attributes["gen_ai.request.model"] = gen_ai.model_names(model)
    for number in ("steps", "queue_delay_ms", "e2e_ms"):
        if isinstance(value := stats.get(number), int | float):
            attributes[f"turnstile.{number}"] = value
    return name, attributes


def turn_attributes(turn: TurnRef, context: Mapping[str, str], agent_name: str = "") -> Attributes:
    """The span attributes that identify a turn, its agent and its conversation."""
    return {
        "turnstile.project_id": turn.project_id,
        "turnstile.channel_id": turn.channel_id,
        "turnstile.agent_turn_id": turn.agent_turn_id,
        "turnstile.turn_epoch": turn.turn_epoch,
        **gen_ai.agent(turn.agent_id, agent_name),
        **gen_ai.conversation(context, turn.output_box_id),
    }


def step_traceparent(context: Mapping[str, str], step: StepId) -> str | None:
    """The `traceparent` of a step's span in its turn's trace; None if the turn has no valid trace."""
    return headers.derived_span(context.get(headers.TRACEPARENT, ""), step)


def nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970, to the microsecond."""
    return round(moment.timestamp() * 1_000_000) * 1000
