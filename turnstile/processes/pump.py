"""Composes the message pump's parts of worker and bridge from the settings (`[pump]`)."""

from temporalio.client import Client

from turnstile.activities.pump.advance import PumpActivities, PumpLimits
from turnstile.bridge.pump.thread_wakes import ThreadStarter
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.threads import ThreadLimits
from turnstile.processes.listener_files import load_registry
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import Telemetry
from turnstile.schema.pump.listeners import Registry
from turnstile.settings import Settings


def pump_registry(settings: Settings) -> Registry | None:
    """The worker's listeners, or None if the settings name none; raises `ConfigError` for invalid ones."""
    return load_registry(settings.pump.listeners) if settings.pump.listeners else None


def pump_activities(
    settings: Settings, pool: Pool, publisher: Publisher, registry: Registry, telemetry: Telemetry
) -> PumpActivities:
    """The activities of a worker with these listeners."""
    limits = PumpLimits(thread_limits(settings), settings.protocol.max_recursion_depth)
    return PumpActivities(pool, publisher, registry, limits, telemetry)


def thread_limits(settings: Settings) -> ThreadLimits:
    """The limits of threads."""
    pump = settings.pump
    return ThreadLimits(
        max_messages=pump.max_messages,
        max_hops=pump.max_hops,
        max_depth=pump.max_depth,
        max_open=pump.max_open,
        max_open_threads=settings.limits.max_open_threads,
    )


def thread_starter(settings: Settings, client: Client) -> ThreadStarter:
    """The starter of threads' workflows."""
    heartbeat = settings.worker.activity_heartbeat_timeout_seconds
    return ThreadStarter(client, heartbeat_timeout_seconds=heartbeat)


def served_targets(settings: Settings) -> list[str]:
    """The worker targets that a worker serves: those of the settings, and the pump's if it has listeners."""
    targets = list(settings.worker.worker_targets)
    if settings.pump.listeners and settings.pump.worker_target not in targets:
        targets.append(settings.pump.worker_target)
    return targets
