"""Opens the traces and metrics that `[observability]` configures; none by default."""

import contextlib
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

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
    settings: Settings, pool: Pool | None, conn: NatsConnection, health: Health, *, worker: bool, bridge: bool
) -> AsyncGenerator[Telemetry]:
    """Open traces and metrics as configured; raises `ConfigError` for a port that is taken or an extra that is missing.

    Only a bridge serves the metrics of inbox and threads. What is neither worker nor bridge is a gateway, and may
    have no pool of its own.
    """
    section, targets, pump = settings.observability, settings.worker.worker_targets, settings.pump.worker_target
    tracer, meter = SILENT.tracer, SILENT.meter
    async with AsyncExitStack() as stack:
        if section.otlp_endpoint:
            names = {(True, True): "turnstile", (True, False): "turnstile-worker", (False, True): "turnstile-bridge"}
            role = names.get((worker, bridge), "turnstile-gateway")
            hidden = _secrets(settings) if section.capture_content else ()
            opened = otlp_tracer(section.otlp_endpoint, role, content=section.capture_content, secrets=hidden)
            tracer = await stack.enter_async_context(opened)
        if section.metrics_port:
            serving = serving_metrics(
                section.metrics_host,
                section.metrics_port,
                wide_labels=section.metrics_labels,
                query=(lambda: pool.run(lambda conn: measure_backlog(conn, targets, [pump])))
                if bridge and pool is not None
                else None,
                health=health,
                traffic=lambda: Traffic(0 if pool is None else pool.round_trips, conn.messages_out, conn.messages_in),
            )
            meter = await stack.enter_async_context(serving)
        yield Telemetry(tracer, meter)


def _secrets(settings: Settings) -> Iterable[str]:
    """The passwords of the servers' addresses, and the keys of models; those of files as they are now."""
    addresses = (settings.database.url, *settings.nats.servers)
    yield from filter(None, (urlsplit(address).password for address in addresses))
    for file in settings.model.api_key_files.values():
        with contextlib.suppress(OSError, UnicodeDecodeError):
            yield file.read_text(encoding="utf-8").strip()


def sdk_metrics_address(settings: Settings) -> str | None:
    """The address where the Temporal SDK serves its own metrics; None if it does not."""
    section = settings.observability
    if not section.temporal_metrics_port:
        return None
    host = f"[{section.metrics_host}]" if ":" in section.metrics_host else section.metrics_host
    return f"{host}:{section.temporal_metrics_port}"
