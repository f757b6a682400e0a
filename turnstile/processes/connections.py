"""Opens connections to the three servers: waits for each, checks it, and closes it at the end."""

import asyncio
import socket
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import NamedTuple

from temporalio.client import Client
from temporalio.plugin import SimplePlugin

from turnstile.bridge.engine import await_client, declare_search_attributes, ensure_readable
from turnstile.bridge.safety.rules import WatchdogTimes
from turnstile.embedded import Endpoints
from turnstile.ledger.migrate import check_schema
from turnstile.ledger.pool import Pool
from turnstile.processes.pump import served_targets
from turnstile.runtime.object_store import ObjectStore
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema.amounts import amount
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.settings import ArtifactSettings, BridgeSettings, NatsSettings, Settings
from turnstile.temporal.connect import connect_engine
from turnstile.temporal.plugin import turnstile_plugin, turnstile_runtime
from turnstile.transport.connection import NatsConnection, StreamStorage, start_connecting

_NATS_SECONDS = 2.0
"""Seconds that a process which does not need NATS waits for it."""


class Servers(NamedTuple):
    """A process's settings, its connections to the three servers, and its telemetry."""

    settings: Settings
    pool: Pool
    conn: NatsConnection
    client: Client
    telemetry: Telemetry = SILENT


def open_store(section: ArtifactSettings) -> ObjectStore | None:
    """The store of files; None if the settings name none. Raises `ConfigError`."""
    return ObjectStore.at(section.store) if section.store else None


@asynccontextmanager
async def open_pool(
    settings: Settings, url: str, size: int, name: str, *, migrated: bool = True
) -> AsyncGenerator[Pool]:
    """A pool on a writable server of a supported version; with `migrated` its tables must be up to date."""
    pool = Pool(url, size=size, name=name, patience=settings.database.patience_seconds)

    async def look() -> None:
        await pool.open(writable=True)
        if migrated:
            await check_schema(pool)

    try:
        await await_server("PostgreSQL", look)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def open_nats(
    settings: NatsSettings, url: str, name: str, *, needed: bool = True
) -> AsyncGenerator[NatsConnection]:
    """A connection that is drained at the end.

    If it is not `needed`, this waits a moment only; the connection is then opened in the background.
    """
    conn = start_connecting(url, name=name)
    conn.storage = StreamStorage(
        settings.replicas, settings.storage, settings.max_commands_mb << 20, settings.max_events_mb << 20
    )
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if needed else _NATS_SECONDS):
                await conn.opened()
        yield conn
    finally:
        await conn.drain()


async def watch_nats(conn: NatsConnection, stop: asyncio.Event) -> None:
    """Wait until `stop`; raises `ConfigError` if NATS refuses the login, `ServerUnavailable` once it is closed."""

    async def until_closed() -> None:
        await conn.opened()
        await conn.closed.wait()

    await unless_stopped(stop, until_closed())
    if not stop.is_set():
        raise ServerUnavailable(f"the connection to NATS at {conn.shown} was closed for good: start this process again")


async def open_client(
    settings: Settings,
    endpoints: Endpoints,
    plugin: SimplePlugin,
    *,
    metrics_address: str | None = None,
    check: Callable[[Client], Awaitable[object]] | None = None,
) -> Client:
    """A client with a runtime of its own, once the server answers and `check` has passed.

    Raises `ConfigError` if the SDK's metrics cannot be served at `metrics_address`, and what `check` raises.
    """
    try:
        runtime = turnstile_runtime(metrics_address)
    except ValueError as error:
        message = f"[observability].temporal_metrics_port: {metrics_address} cannot be served ({error})"
        raise ConfigError(message) from None

    async def connect_client() -> Client:
        identity = instance_name("")
        return await connect_engine(settings.temporal, endpoints, plugins=[plugin], runtime=runtime, identity=identity)

    return await await_client(endpoints.temporal_address, connect_client, check)


async def check_engine(settings: Settings, client: Client) -> None:
    """Declare the search attributes; raises `ConfigError` if Temporal holds turns that this process cannot read."""
    await declare_search_attributes(client)
    await ensure_readable(client, served_targets(settings))


@asynccontextmanager
async def open_servers(
    settings: Settings, endpoints: Endpoints, name: str
) -> AsyncGenerator[tuple[Pool, NatsConnection, Client]]:
    """All three servers, for a command that needs them.

    Raises `ServerUnavailable` if not all answer within `[database].patience_seconds`.
    """
    patience = settings.database.patience_seconds
    async with AsyncExitStack() as stack:
        silent = "PostgreSQL"
        try:
            async with asyncio.timeout(patience):
                pool = await stack.enter_async_context(open_pool(settings, endpoints.database_url, 4, name))
                silent = "NATS"
                conn = await stack.enter_async_context(open_nats(settings.nats, endpoints.nats_url, name))
                silent = f"Temporal at {endpoints.temporal_address}"
                check = partial(check_engine, settings)
                client = await open_client(settings, endpoints, turnstile_plugin(), check=check)
        except TimeoutError:
            raise ServerUnavailable(f"{silent} did not answer within {amount(patience)} s") from None
        yield pool, conn, client


def instance_name(role: str) -> str:
    """The name of a process: its role, its host, and a random part."""
    return f"turnstile{role and '-'}{role}@{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


def watchdog_times(bridge: BridgeSettings) -> WatchdogTimes:
    """The time limits of the safety net's rules from the settings."""
    return WatchdogTimes(
        poll_interval=bridge.poll_interval_seconds,
        inbox_processing_timeout=bridge.inbox_processing_timeout_seconds,
        pending_wakeup=bridge.pending_wakeup_seconds,
        dispatched_retry=bridge.dispatched_retry_seconds,
        dispatched_timeout=bridge.dispatched_timeout_seconds,
        active_reap=bridge.active_reap_seconds,
        engine_interval=bridge.engine_interval_seconds,
        stop_grace=bridge.stop_grace_seconds,
        command_retry=bridge.command_retry_seconds,
    )
