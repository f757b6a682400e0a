"""The kernel's metrics for Prometheus (docs/observability.md), served over HTTP on their own port.

The number of label values is bounded: a label that others can fill (models, codes, tools) keeps its first `LABEL_LIMIT`
values, and further values count as `other`. Project and agent are labels only if the operator configures them. Counters
are kept in memory; the size of the inbox is queried on a scrape, at most once in `_QUERY_SECONDS`.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, cast
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from turnstile.embedded.ports import LOOPBACK
from turnstile.ledger.operations.monitor import Backlog
from turnstile.runtime.telemetry import Metric
from turnstile.schema.budgets.limits import MICRO
from turnstile.schema.errors import ConfigError, TurnstileError
from turnstile.telemetry.health import Group, Health

LABEL_LIMIT = 100
WIDE_LIMIT = 2000
"""The limit for the labels project and agent."""
OTHER = "other"
_PARTS = ("max", "spent", "reserved", "unsettled")
_QUERY_SECONDS = 5.0
_QUERY_TIMEOUT = 3.0

WideLabel = Literal["project", "agent"]
_WIDE: tuple[WideLabel, ...] = ("project", "agent")
_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """The help text and labels of a metric; with `buckets` it is a histogram of seconds, else a counter or a gauge."""

    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    gauge: bool = False
    wide: bool = False
    """Whether it has the labels project and agent if the operator configures them."""


MEANINGS: dict[Metric, MetricInfo] = {
    Metric.CLAIMS: MetricInfo("Inbox rows claimed by a bridge, by verdict", ("verdict",)),
    Metric.CLAIMS_RELEASED: MetricInfo("Claimed rows released because Temporal did not answer"),
    Metric.PUSHES: MetricInfo("Notifications sent to receivers, by what came of it", ("outcome",)),
    Metric.SCHEDULE_FIRINGS: MetricInfo("Firings of schedules, by what came of them", ("outcome",)),
    Metric.SCHEDULE_LATE_SECONDS: MetricInfo("Time from when a schedule was to fire until it did", buckets=_LONG),
    Metric.REPAIRS: MetricInfo("Repairs of the safety net, by rule", ("rule",)),
    Metric.TURNS: MetricInfo("Turns that ended", ("status", "error_code"), wide=True),
    Metric.QUEUE_DELAY: MetricInfo("Time from a turn's enqueue to its begin", buckets=_LONG, wide=True),
    Metric.TURN_SECONDS: MetricInfo("Time from a turn's enqueue to its end", buckets=_LONG, wide=True),
    Metric.STEP_SECONDS: MetricInfo("Time from a step's begin to its commit", ("status",), buckets=_LONG),
    Metric.DISPATCHED_SECONDS: MetricInfo("Time from a turn's lease to its begin", buckets=_LONG, wide=True),
    Metric.SUSPENDED_SECONDS: MetricInfo(
        "Time that a turn sleeps while it waits for its tools", buckets=_LONG, wide=True
    ),
    Metric.MODEL_ATTEMPTS: MetricInfo("Model calls; error_code is none if the model answered", ("model", "error_code")),
    Metric.MODEL_SECONDS: MetricInfo("Duration of a model call", ("model",), buckets=_LONG),
    Metric.FIRST_TOKEN: MetricInfo("Time from a model's request to its first chunk", ("model",), buckets=_LONG),
    Metric.MODEL_TOKENS: MetricInfo("Tokens as counted by the provider", ("model", "direction")),
    Metric.MODEL_COST: MetricInfo("Cost of model calls in US dollars", ("model",)),
    Metric.MODEL_PAUSES: MetricInfo("Pauses that providers asked for, as this process heard first", ("model",)),
    Metric.MODEL_WAIT: MetricInfo(
        "Time that a request waited for its turn at a limited model", ("model", "outcome"), buckets=_LONG
    ),
    Metric.MODEL_WAITING: MetricInfo("Requests of this process that wait for their turn at a model", gauge=True),
    Metric.BUDGET_RESERVATIONS: MetricInfo(
        "Model calls that asked for budget: reserved, exhausted, unpriced", ("verdict", "dimension")
    ),
    Metric.BUDGET_WARNINGS: MetricInfo("Budgets whose soft limit was passed", ("dimension",)),
    Metric.VERBS: MetricInfo("Requests and commands to the bridge", ("verb", "status")),
    Metric.LIMITED: MetricInfo("Requests refused because of a limit, by limit", ("limit",)),
    Metric.VERB_SECONDS: MetricInfo("Time from a verb's request to its reply", ("verb",), buckets=_SHORT),
    Metric.THREAD_MESSAGES: MetricInfo(
        "Messages of the pump that ended; by: the listener, or the pump in its place", ("listener", "effect", "by")
    ),
    Metric.THREAD_MESSAGE_DELAY: MetricInfo("Time from a message's arrival to its begin", ("listener",), buckets=_LONG),
    Metric.HANDLER_SECONDS: MetricInfo("Duration of one handler run", ("listener", "outcome"), buckets=_LONG),
    Metric.THREAD_REPLIES: MetricInfo("Published replies to messages from outside", ("kind", "reason")),
    Metric.THREAD_REQUEST_SECONDS: MetricInfo(
        "Time from a message from outside to its reply", ("kind",), buckets=_LONG
    ),
    Metric.TOOL_CALLS: MetricInfo("Calls sent to tools"),
    Metric.TOOL_REPORTS: MetricInfo("Results that tools reported, by status", ("status",)),
    Metric.TOOL_RUNS: MetricInfo("Calls run by tools of this process", ("tool", "status")),
    Metric.TOOL_RUN_SECONDS: MetricInfo("Time from a call's command to its result", ("tool",), buckets=_LONG),
    Metric.HTTP_REQUESTS: MetricInfo("Requests to the gateway; 499: the client went away", ("route", "status")),
    Metric.HTTP_SECONDS: MetricInfo("Time from a request to the begin of its answer", ("route",), buckets=_SHORT),
    Metric.HTTP_BYTES: MetricInfo("Bytes of answers of the gateway, without headers"),
    Metric.HTTP_STREAMS: MetricInfo("Streams that were opened; resumed: with a Last-Event-ID", ("resumed",)),
    Metric.HTTP_STREAMS_CUT: MetricInfo("Streams that ended before their turn; slow or gone clients", ("reason",)),
    Metric.HTTP_OPEN_STREAMS: MetricInfo("Open streams of the gateway, and requests that wait", gauge=True),
    Metric.HTTP_CONNECTIONS: MetricInfo("Open connections of the gateway", gauge=True),
    Metric.HTTP_FEEDS: MetricInfo("Turns that the gateway follows for its streams", gauge=True),
}

BacklogQuery = Callable[[], Awaitable[Backlog]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Counts of a process's exchanges with PostgreSQL and NATS since it began."""

    round_trips: int
    messages_out: int
    messages_in: int


class PrometheusMeter:
    """A meter that keeps its metrics in `registry`."""

    def __init__(self, wide_labels: Sequence[WideLabel] = ()) -> None:
        self.registry = CollectorRegistry()
        self._wide = tuple(name for name in _WIDE if name in wide_labels)
        self._seen: dict[tuple[Metric, str], set[str]] = {}
        self._counters: dict[Metric, Counter] = {}
        self._histograms: dict[Metric, Histogram] = {}
        self._gauges: dict[Metric, Gauge] = {}
        for metric, meaning in MEANINGS.items():
            name, labels = f"turnstile_{metric}", self._labels(meaning)
            if meaning.buckets:
                self._histograms[metric] = Histogram(
                    name, meaning.text, labels, buckets=meaning.buckets, registry=self.registry
                )
            elif meaning.gauge:
                self._gauges[metric] = Gauge(name, meaning.text, registry=self.registry)
            else:
                self._counters[metric] = Counter(name, meaning.text, labels, registry=self.registry)

    @property
    def enabled(self) -> bool:
        """Always True: metrics are recorded."""
        return True

    def count(self, metric: Metric, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[metric]
        values = self._values(metric, labels)
        (counter.labels(*values) if values else counter).inc(amount)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add to a histogram."""
        histogram = self._histograms[metric]
        values = self._values(metric, labels)
        (histogram.labels(*values) if values else histogram).observe(max(0.0, value))

    def watch(self, metric: Metric, read: Callable[[], float]) -> None:
        """Have a gauge say what `read` returns."""
        self._gauges[metric].set_function(read)

    def _labels(self, meaning: MetricInfo) -> tuple[str, ...]:
        return (*meaning.labels, *(self._wide if meaning.wide else ()))

    def _values(self, metric: Metric, labels: dict[str, str]) -> list[str]:
        return [self._bounded(metric, name, labels.get(name, "")) for name in self._labels(MEANINGS[metric])]

    def _bounded(self, metric: Metric, name: str, value: str) -> str:
        seen = self._seen.setdefault((metric, name), set())
        if value in seen:
            return value
        if len(seen) >= (WIDE_LIMIT if name in _WIDE else LABEL_LIMIT) or len(value) > 128:
            return OTHER
        seen.add(value)
        return value


class BacklogCollector(Collector):
    """Inbox and threads of the served targets, and what projects spent: queried on a scrape, absent if that fails."""

    def __init__(self, query: BacklogQuery, loop: asyncio.AbstractEventLoop) -> None:
        self._query = query
        self._loop = loop
        self._found: Backlog | None = None
        self._queried_at = float("-inf")

    def describe(self) -> Iterable[Family]:
        """The metrics without values; queries nothing."""
        return self._families()

    def collect(self) -> Iterator[Family]:
        """The metrics with their values; called in a thread of the HTTP server."""
        if time.monotonic() - self._queried_at >= _QUERY_SECONDS:
            self._queried_at, self._found = time.monotonic(), None
            future = asyncio.run_coroutine_threadsafe(self._query_with_timeout(), self._loop)
            with contextlib.suppress(TimeoutError, TurnstileError, asyncio.CancelledError):
                self._found = future.result(_QUERY_TIMEOUT)
        families = rows, lag, threads, tokens, dollars = self._families()
        if self._found is not None:
            for status, count in self._found.inbox.rows.items():
                rows.add_metric([status], count)
            lag.add_metric([], self._found.inbox.oldest_due_seconds)
            threads.add_metric([], self._found.open_threads)
            for spending in self._found.spending:
                for part in _PARTS:
                    tokens.add_metric([spending.period, part], getattr(spending, f"{part}_tokens"))
                    dollars.add_metric([spending.period, part], getattr(spending, f"{part}_cost") / MICRO)
        yield from families

    async def _query_with_timeout(self) -> Backlog:
        async with asyncio.timeout(_QUERY_TIMEOUT):
            return await self._query()

    def _families(self) -> Sequence[GaugeMetricFamily]:
        rows = GaugeMetricFamily(
            "turnstile_inbox_rows", "Live inbox rows of the served targets, at most 10,000", labels=["status"]
        )
        lag = GaugeMetricFamily("turnstile_inbox_lag_seconds", "Time for which the oldest due inbox row has been due")
        threads = GaugeMetricFamily("turnstile_threads_open", "Threads with messages in flight, at most 10,000")
        which = " of all projects with limits of this day or month (UTC): max, spent, reserved, unsettled"
        tokens = GaugeMetricFamily("turnstile_project_tokens", f"Tokens{which}", labels=["period", "part"])
        dollars = GaugeMetricFamily("turnstile_project_dollars", f"US dollars{which}", labels=["period", "part"])
        return rows, lag, threads, tokens, dollars


class TrafficCollector(Collector):
    """Database round trips and NATS messages of this process, read from the counters of pool and connection."""

    def __init__(self, read: Callable[[], Traffic]) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        """Two counters."""
        traffic = self._read()
        trips = CounterMetricFamily(
            "turnstile_database_round_trips", "Statements sent to PostgreSQL, each a round trip"
        )
        trips.add_metric([], traffic.round_trips)
        messages = CounterMetricFamily("turnstile_nats_messages", "Messages to and from NATS", labels=["direction"])
        messages.add_metric(["out"], traffic.messages_out)
        messages.add_metric(["in"], traffic.messages_in)
        return trips, messages


class GroupCollector(Collector):
    """The metrics of a group of processes with the label `process`; one that does not answer is left out.

    They are fetched on a scrape. `own` are those of this process if it is one of them: the first.
    """

    def __init__(self, group: Group, own: CollectorRegistry | None = None) -> None:
        self._group = group
        self._own = own

    def describe(self) -> Iterable[Family]:
        """Nothing: it fetches nothing before the first scrape."""
        return []

    def collect(self) -> Iterable[Family]:
        """The families of all of them."""
        families: dict[str, Family] = {}
        if self._own is not None:
            _add(families, self._own.collect(), "1")
        for process, port in self._group.metrics_ports().items():
            with contextlib.suppress(OSError):
                _add(families, text_string_to_metric_families(_fetch_metrics(port)), process)
        return families.values()


def _add(families: dict[str, Family], more: Iterable[Family], process: str) -> None:
    for family in more:
        empty = Family(family.name, family.documentation, family.type, family.unit)
        into = families.setdefault(family.name, empty)
        into.samples += [sample._replace(labels={**sample.labels, "process": process}) for sample in family.samples]


def _fetch_metrics(port: int) -> str:
    with urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=_QUERY_TIMEOUT) as answer:
        return cast("bytes", answer.read()).decode()


@asynccontextmanager
async def serving_metrics(
    host: str,
    port: int,
    *,
    wide_labels: Sequence[WideLabel] = (),
    query: BacklogQuery | None = None,
    traffic: Callable[[], Traffic] | None = None,
    health: Health | None = None,
) -> AsyncGenerator[PrometheusMeter]:
    """A meter served at `http://host:port/metrics` until the block ends, with `health` at `/health`.

    Raises `ConfigError` if the port is taken.
    """
    meter = PrometheusMeter(wide_labels)
    if traffic is not None:
        meter.registry.register(TrafficCollector(traffic))
    if query is not None:
        meter.registry.register(BacklogCollector(query, asyncio.get_running_loop()))
    registry = meter.registry
    if health is not None and health.group is not None:
        registry = CollectorRegistry()
        registry.register(GroupCollector(health.group, meter.registry))
    async with _serving(host, port, registry, health):
        yield meter


@asynccontextmanager
async def serving_group_metrics(host: str, port: int, group: Group, health: Health) -> AsyncGenerator[None]:
    """The metrics of these processes, each with the label `process`, and `health` at `/health`.

    Raises `ConfigError` if the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(GroupCollector(group))
    async with _serving(host, port, registry, health):
        yield


@asynccontextmanager
async def _serving(host: str, port: int, registry: CollectorRegistry, health: Health | None) -> AsyncGenerator[None]:
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        problem = f"[observability].metrics_port: {host}:{port} cannot be served ({error.strerror}): choose another"
        raise ConfigError(problem) from None
    if health is not None and (metrics := server.get_app()) is not None:
        server.set_app(health.beside(metrics))
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(timeout=1)
