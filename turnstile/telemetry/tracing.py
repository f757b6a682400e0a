"""Sends spans by OTLP over HTTP; needs the extra `turnstile-kernel[otel]` (docs/observability.md).

The kernel computes each span's ids itself, from `traceparent` headers and derived ids; the SDK batches and sends. The
caller decides on sampling: the flag of its `traceparent` holds for all spans below. Recording a span never blocks. A
span is sent once; while the collector is away spans are dropped, and the SDK logs it. With `content` spans also hold
what was said, without the values of secrets that this process has.
"""

import asyncio
import logging
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from turnstile.rules.text import cleared
from turnstile.runtime.gen_ai import SCHEMA_URL
from turnstile.runtime.telemetry import Span, SpanKind, Tracer
from turnstile.schema.errors import ConfigError

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")
_LAST_SECONDS = 5.0
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values are secrets."""
_SHORTEST_SECRET = 8


@asynccontextmanager
async def otlp_tracer(
    endpoint: str, service: str, *, content: bool = False, secrets: Iterable[str] = ()
) -> AsyncGenerator[Tracer]:
    """A tracer to the collector at `endpoint` (`http://host:4318`); queued spans are sent when the block ends.

    With `content` spans hold messages, arguments and results, without these secrets and without those of the
    environment. Raises `ConfigError` if the extra is not installed.
    """
    hidden = frozenset({*secrets, *_environment()} if content else ())
    try:
        tracer = _tracer(endpoint, service, partial(cleared, secrets=hidden) if content else None)
    except ImportError:
        raise ConfigError(
            "[observability].otlp_endpoint needs the extra: pip install 'turnstile-kernel[otel]'"
        ) from None
    try:
        yield tracer
    finally:
        await asyncio.to_thread(tracer.close)


class _OtlpTracer:
    """Passes spans to the SDK's batch processor."""

    def __init__(
        self, take: Callable[[Span], None], close: Callable[[], None], clear: Callable[[str], str] | None
    ) -> None:
        self._take = take
        self._clear = clear
        self.close = close

    @property
    def enabled(self) -> bool:
        return True

    @property
    def clear(self) -> Callable[[str], str] | None:
        return self._clear

    def record(self, span: Span) -> None:
        """Queue the span."""
        self._take(span)


def _environment() -> Iterable[str]:
    """The secrets in this process's environment, by the names of their variables."""
    return (value for name, value in os.environ.items() if _SECRET.search(name) and len(value) >= _SHORTEST_SECRET)


def _tracer(endpoint: str, service: str, clear: Callable[[str], str] | None) -> _OtlpTracer:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 -- an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- as above
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 -- as above
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 -- as above
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 -- as above
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 -- as above
    from opentelemetry.trace import SpanKind as Kind  # noqa: PLC0415 -- as above
    from opentelemetry.trace.status import Status, StatusCode  # noqa: PLC0415 -- as above

    for name in ("opentelemetry", "urllib3", "requests"):
        logging.getLogger(name).setLevel(logging.WARNING)
    resource = Resource.create({"service.name": service})
    scope = InstrumentationScope("turnstile", schema_url=SCHEMA_URL)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=_LAST_SECONDS)
    processor = BatchSpanProcessor(exporter, schedule_delay_millis=1000)
    kinds: dict[SpanKind, Kind] = {
        "internal": Kind.INTERNAL,
        "server": Kind.SERVER,
        "client": Kind.CLIENT,
        "producer": Kind.PRODUCER,
        "consumer": Kind.CONSUMER,
    }

    def take(span: Span) -> None:
        if (parts := _TRACEPARENT.match(span.traceparent)) is None:
            return
        trace, span_id, flags = int(parts[1], 16), int(parts[2], 16), TraceFlags(int(parts[3], 16) & 1)
        parent = SpanContext(trace, int(span.parent, 16), is_remote=True, trace_flags=flags) if span.parent else None
        failed = span.error_code is not None
        attributes = dict(span.attributes) | ({"error.type": span.error_code} if span.error_code else {})
        processor.on_end(
            ReadableSpan(
                name=span.name,
                context=SpanContext(trace, span_id, is_remote=False, trace_flags=flags),
                parent=parent,
                resource=resource,
                attributes=attributes,
                kind=kinds[span.kind],
                instrumentation_scope=scope,
                status=Status(StatusCode.ERROR, span.error_code) if failed else Status(StatusCode.UNSET),
                start_time=span.started,
                end_time=max(span.started, span.ended),
            )
        )

    return _OtlpTracer(take, processor.shutdown, clear)
