"""The three servers as a process of ours uses them: each waited for, checked when it answers, closed at the end."""

import asyncio
import logging
import socket
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from temporalio.client import Client
from temporalio.plugin import SimplePlugin

from bridge.connection import NatsConnection, connect
from bridge.engine import await_client, declare_search_attributes, ensure_readable
from bridge.rules import WatchdogTimes
from ledger.migrate import MigrationError, pending
from ledger.pool import Pool
from schema.errors import ConfigError, ServerUnavailable
from turnstile.conversations import served_targets
from turnstile.embedded import Endpoints
from turnstile.engine import connect_engine
from turnstile.plugin import turnstile_plugin, turnstile_runtime
from turnstile.settings import BridgeSettings, Settings

log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.5


@asynccontextmanager
async def open_pool(
    settings: Settings, url: str, size: int, name: str, *, migrated: bool = True
) -> AsyncGenerator[Pool]:
    """A pool on a server that answers, is new enough and, unless this is `migrate`, has our tables."""
    pool = Pool(url, size=size, name=name, patience=settings.database.patience_seconds)
    try:
        await _await_database(pool)
        if migrated and (missing := await pending(pool)):
            raise MigrationError(f"{pool.server} lacks {len(missing)} migrations: run `turnstile migrate`")
        yield pool
    finally:
        await pool.close()


async def _await_database(pool: Pool) -> None:
    waits = 0
    while True:
        try:
            await pool.open()
        except ServerUnavailable as error:
            if waits % 10 == 0:
                log.warning("waiting for PostgreSQL: %s", error)
            waits += 1
            await asyncio.sleep(_WAIT_SECONDS)
        else:
            return


@asynccontextmanager
async def open_nats(url: str, name: str) -> AsyncGenerator[NatsConnection]:
    """A connection that is drained at the end."""
    conn = await connect(url, name=name)
    try:
        yield conn
    finally:
        await conn.drain()


async def open_client(
    settings: Settings, endpoints: Endpoints, plugin: SimplePlugin, *, metrics_address: str | None = None
) -> Client:
    """A client with a runtime of its own; raises `ConfigError` if the SDK's metrics cannot be served there."""
    try:
        runtime = turnstile_runtime(metrics_address)
    except ValueError as error:
        told = f"[observability].temporal_metrics_port: {metrics_address} cannot be served ({error})"
        raise ConfigError(told) from None

    async def connect_client() -> Client:
        identity = instance_name("")
        return await connect_engine(settings.temporal, endpoints, plugins=[plugin], runtime=runtime, identity=identity)

    return await await_client(endpoints.temporal_address, connect_client)


@asynccontextmanager
async def open_servers(
    settings: Settings, endpoints: Endpoints, name: str
) -> AsyncGenerator[tuple[Pool, NatsConnection, Client]]:
    """All three servers, for a command that needs them.

    Raises `ServerUnavailable` if not all answer within `[database].patience_seconds`.
    """
    patience = settings.database.patience_seconds
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(patience):
                pool = await stack.enter_async_context(open_pool(settings, endpoints.database_url, 4, name))
                conn = await stack.enter_async_context(open_nats(endpoints.nats_url, name))
                client = await open_client(settings, endpoints, turnstile_plugin())
                await declare_search_attributes(client)
                await ensure_readable(client, served_targets(settings))
        except TimeoutError:
            raise ServerUnavailable(f"not all servers answered within {patience:g} s") from None
        yield pool, conn, client


def instance_name(role: str) -> str:
    """What a process calls itself: its role, its host, and a part of its own."""
    return f"turnstile{role and '-'}{role}@{socket.gethostname()}-{uuid.uuid4().hex[:8]}"


def watchdog_times(bridge: BridgeSettings) -> WatchdogTimes:
    """The ages of the safety net's rules as they are set."""
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
