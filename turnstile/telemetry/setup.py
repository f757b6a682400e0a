"""Whom a process tells, composed from `[observability]`: nobody, unless asked."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from turnstile.ledger.operations.monitor import measure_backlog
from turnstile.ledger.pool import Pool
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.settings import Settings
from turnstile.telemetry.health import Health
from turnstile.telemetry.metrics import Traffic, serving_metrics
from turnstile.telemetry.tracing import otlp_tracer
from turnstile.transport.connection import NatsConnection

__all__ = ["Telemetry", "open_telemetry", "sdk_metrics_address"]


@asynccontextmanager
async def open_telemetry(
    settings: Settings, pool: Pool, conn: NatsConnection, health: Health, *, worker: bool, bridge: bool
) -> AsyncGenerator[Telemetry]:
    """Traces and metrics as they are set; raises `ConfigError` for a port that is taken or an extra that is missing.

    The bridge tells of inbox and threads of its targets too.
    """
    told, targets, pump = settings.observability, settings.worker.worker_targets, settings.pump.worker_target
    tracer, meter = SILENT.tracer, SILENT.meter
    async with AsyncExitStack() as stack:
        if told.otlp_endpoint:
            role = "turnstile" if worker and bridge else "turnstile-worker" if worker else "turnstile-bridge"
            tracer = await stack.enter_async_context(otlp_tracer(told.otlp_endpoint, role))
        if told.metrics_port:
            serving = serving_metrics(
                told.metrics_host,
                told.metrics_port,
                wide_labels=told.metrics_labels,
                look=(lambda: pool.run(lambda conn: measure_backlog(conn, targets, [pump]))) if bridge else None,
                health=health,
                traffic=lambda: Traffic(pool.round_trips, conn.messages_out, conn.messages_in),
            )
            meter = await stack.enter_async_context(serving)
        yield Telemetry(tracer, meter)


def sdk_metrics_address(settings: Settings) -> str | None:
    """Where the Temporal SDK serves its own metrics; None if it does not."""
    told = settings.observability
    if not told.temporal_metrics_port:
        return None
    host = f"[{told.metrics_host}]" if ":" in told.metrics_host else told.metrics_host
    return f"{host}:{told.temporal_metrics_port}"
