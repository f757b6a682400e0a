"""What the kernel tells of itself, as ports: finished spans and figures (docs/observability.md).

Bridge, activities and tools tell; `turnstile` decides who hears it. Telling never waits and never raises, and with
`SILENT` it does nothing. Ids, codes, counts, tokens and cost only, never content. Nothing is told in workflows, so a
replay tells nothing twice; ids of spans are derived where a step or a call may be repeated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Literal, Protocol

from turnstile.schema.base import JsonObject
from turnstile.schema.ids import StepId
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

Attribute = str | int | float | bool
SpanKind = Literal["internal", "server", "client", "producer", "consumer"]


class Metric(StrEnum):
    """Every figure that is counted or observed; `turnstile.telemetry.metrics` says what each means."""

    CLAIMS = "claims"
    CLAIMS_RELEASED = "claims_released"
    REPAIRS = "repairs"
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


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work that is over. Times in nanoseconds since 1970."""

    name: str
    traceparent: str
    """Its own place: trace, span id and flags."""
    parent: str
    """The span id of what it is part of; empty for none."""
    started: int
    ended: int
    attributes: Mapping[str, Attribute] = field(default_factory=dict[str, Attribute])
    error_code: str | None = None
    kind: SpanKind = "internal"


class Tracer(Protocol):
    """Hears spans."""

    @property
    def enabled(self) -> bool:
        """Whether anybody listens: what makes a span may be left undone if not."""
        ...

    def record(self, span: Span) -> None:
        """Take it, soon or never; a malformed or unsampled place is left out."""
        ...


class Meter(Protocol):
    """Hears figures."""

    @property
    def enabled(self) -> bool:
        """Whether anybody listens."""
        ...

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        ...

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        ...


class _Nobody:
    """Hears nothing."""

    @property
    def enabled(self) -> bool:
        return False

    def record(self, span: Span) -> None:
        """Nothing."""

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Nothing."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Whom a process tells."""

    tracer: Tracer = field(default_factory=_Nobody)
    meter: Meter = field(default_factory=_Nobody)

    def turn_ended(
        self,
        turn: TurnRef,
        context: Mapping[str, str],
        status: TurnStatus,
        error_code: str | None,
        stats: JsonObject,
        ended_at: datetime,
    ) -> None:
        """Tell the end of a turn, once: by whoever's statement made it. `stats` are those of its `task` event (§5)."""
        if self.meter.enabled:
            project, agent = turn.project_id, turn.agent_id
            code = error_code or "none"
            self.meter.count(Metric.TURNS, status=status.value, error_code=code, project=project, agent=agent)
            for metric, name in ((Metric.QUEUE_DELAY, "queue_delay_ms"), (Metric.TURN_SECONDS, "e2e_ms")):
                if isinstance(millis := stats.get(name), int | float):
                    self.meter.observe(metric, millis / 1000, project=project, agent=agent)
        if self.tracer.enabled and (own := context.get(headers.TRACEPARENT)):
            lasted = stats.get("e2e_ms")
            began = ended_at - timedelta(milliseconds=lasted if isinstance(lasted, int | float) else 0)
            told = ("steps", "queue_delay_ms", "e2e_ms")
            figures = {f"turnstile.{name}": each for name in told if isinstance(each := stats.get(name), int | float)}
            attributes = turn_attributes(turn) | {"turnstile.turn.status": status.value} | figures
            parent = headers.parent_span(context)
            self.tracer.record(
                Span("turn", own, parent, nanoseconds(began), nanoseconds(ended_at), attributes, error_code)
            )


SILENT = Telemetry()
"""Tells nobody."""


def turn_attributes(turn: TurnRef) -> dict[str, Attribute]:
    """Which turn a span is about."""
    return {
        "turnstile.project_id": turn.project_id,
        "turnstile.channel_id": turn.channel_id,
        "turnstile.agent_id": turn.agent_id,
        "turnstile.agent_turn_id": turn.agent_turn_id,
        "turnstile.turn_epoch": turn.turn_epoch,
    }


def step_place(context: Mapping[str, str], step: StepId) -> str | None:
    """Where a step stands in its turn's trace, as a `traceparent`; None if the turn has no valid one."""
    return headers.derived_span(context.get(headers.TRACEPARENT, ""), step)


def nanoseconds(moment: datetime) -> int:
    """A moment as spans count it."""
    return round(moment.timestamp() * 1_000_000) * 1000
