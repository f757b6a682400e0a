"""The process `turnstile gateway`: HTTP for applications and people. Stateless; any number of them may run.

It reads the ledger in transactions that refuse to write, needs no Temporal, and waits for NATS in the background:
without it turns can be read, and not asked for.
"""

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import quote, urlsplit

from turnstile.embedded import Endpoints
from turnstile.embedded.files import write_private
from turnstile.gateway.app import Gateway
from turnstile.gateway.bounds import About, Doors, GatewayLimits
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.gateway.console.page import Links
from turnstile.gateway.server import Connections, HttpServer, bind, quiet
from turnstile.ledger.access.tokens import add_token, authenticate
from turnstile.ledger.migrate import check_schema
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool
from turnstile.processes import addresses
from turnstile.processes.connections import instance_name, open_nats, open_store, watch_nats
from turnstile.runtime.event_loop import spare_collector
from turnstile.runtime.telemetry import Metric
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema.access import GatewayRole, read_secret
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.settings import TRACE_ID, ArtifactSettings, GatewaySettings, Settings
from turnstile.telemetry.health import Health
from turnstile.telemetry.setup import Telemetry, open_telemetry
from turnstile.transport.chunk_replay import declare_chunk_stream
from turnstile.transport.connection import NatsConnection

log = logging.getLogger(__name__)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_OTHER_FILES = 500
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 -- compared with, not listened on


async def run_gateway(
    settings: Settings,
    database_url: str,
    nats_url: str,
    stop: asyncio.Event,
    *,
    ready: Callable[[str], None] | None = None,
    health: Health | None = None,
    links: Links | None = None,
) -> None:
    """Serve until `stop`; `ready` is called with the address once it does. Raises `ConfigError`, `MigrationError`."""
    name, own_health = instance_name("gateway"), health or Health()
    async with AsyncExitStack() as stack:
        conn = await stack.enter_async_context(open_nats(settings.nats, nats_url, name, needed=False))
        opening = open_telemetry(settings, None, conn, own_health, worker=False, bridge=False)
        telemetry = await stack.enter_async_context(opening)

        def serves(url: str) -> None:
            own_health.serves()
            if ready is not None:
                ready(url)

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch_nats(conn, stop))
            await serve_gateway(settings, database_url, conn, telemetry, stop, serves, links=links)
            watching.cancel()


async def serve_gateway(
    settings: Settings,
    database_url: str,
    conn: NatsConnection,
    telemetry: Telemetry,
    stop: asyncio.Event,
    ready: Callable[[str], None],
    *,
    port: int = 0,
    links: Links | None = None,
    once: OneTimeLinks | None = None,
) -> None:
    """Serve on this connection to NATS until `stop`, on `port` if the settings name none; raises as `run_gateway`.

    `links` lead from the console to other programs, and `once` are the links that sign in to it.
    """
    section, size = settings.gateway, settings.gateway.database_pool_size
    quiet()
    patience = settings.database.patience_seconds
    pool = Pool(
        database_url,
        size=size,
        name=instance_name("gateway"),
        patience=patience,
        read_only=True,
        statement_seconds=section.statement_timeout_seconds,
        share=max(1, size // 2),
    )
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(bind(section.host, section.port or port)))
        stack.push_async_callback(pool.close)
        await unless_stopped(stop, await_server("PostgreSQL", lambda: _look(pool)))
        if stop.is_set():
            return
        connections, url = Connections(section.max_connections), url_of(section, listener)
        _raise_file_limit(section.max_connections)
        gateway = Gateway(
            pool,
            conn,
            limits_of(section, settings.artifacts),
            doors_of(section, url, listener),
            default_channel=ChannelId(settings.protocol.default_channel),
            abort=connections.abort,
            crowded=lambda: connections.crowded,
            meter=telemetry.meter,
            audit_bounds=Bounds(
                claim_seconds=settings.bridge.inbox_processing_timeout_seconds,
                depth_limit=settings.protocol.max_recursion_depth,
            ),
            about=About(
                url,
                section.organization,
                section.organization_url,
                section.default_agent,
                private_receivers=section.push_to_private_addresses,
            ),
            store=open_store(settings.artifacts),
            links=links or Links(),
            once=once,
        )
        await asyncio.to_thread(gateway.console.templates.compile)
        spare_collector(again=True)
        for address in gateway.missing:
            log.info("/%s is off: it needs the extra turnstile-kernel[%s]", address, address)
        telemetry.meter.watch(Metric.HTTP_CONNECTIONS, lambda: len(connections))
        stack.push_async_callback(gateway.feeds.close)
        server = HttpServer(gateway.app, gateway.limits, connections)
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep_stream(conn))
            serving = group.create_task(server.serve(sockets=[listener]))
            await server.ready.wait()
            ready(url)
            await stop.wait()
            gateway.closing.set()
            server.should_exit = True
            await serving
            keeping.cancel()


def _raise_file_limit(connections: int) -> None:
    """Let this process open a file for each connection, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < needed:
            log.warning("[gateway].max_connections is %d, and this process may open %d files", connections, most)


async def _look(pool: Pool) -> None:
    await pool.open()
    await check_schema(pool)


async def _keep_stream(conn: NatsConnection) -> None:
    """Declare the stream of text after each connect: it is in memory, and NATS forgets it when it restarts."""
    changed = asyncio.Event()
    forget = conn.listen(changed.set)
    try:
        while True:
            changed.clear()
            if conn.connected.is_set():
                try:
                    await declare_chunk_stream(conn)
                except (ServerUnavailable, ConfigError) as error:
                    log.warning("streams cannot go on in the middle of a step: %s", error)
            await changed.wait()
    finally:
        forget()


def links_of(settings: Settings, endpoints: Endpoints | None) -> Links:
    """Where the Temporal Web UI and the store of traces show what the console shows, as far as that is known."""
    web_ui, traces = addresses.web_ui_url(settings, endpoints), settings.observability.trace_url
    namespace = settings.temporal.namespace or (endpoints.temporal_namespace if endpoints else addresses.NAMESPACE)
    return Links(
        workflow=partial(addresses.turn_link, web_ui, namespace) if web_ui else None,
        trace=partial(_trace_link, traces) if traces else None,
    )


def _trace_link(pattern: str, trace: str) -> str:
    return pattern.replace(TRACE_ID, quote(trace, safe=""))


def limits_of(section: GatewaySettings, files: ArtifactSettings) -> GatewayLimits:
    """The limits that the settings name."""
    return GatewayLimits(
        body_bytes=section.max_body_kb * 1024,
        connections=section.max_connections,
        token_streams=section.max_streams_per_token,
        rate=section.requests_per_second,
        burst=section.request_burst,
        request_seconds=section.request_timeout_seconds,
        idle_seconds=section.idle_timeout_seconds,
        slow_reader_seconds=section.slow_reader_seconds,
        heartbeat_seconds=section.heartbeat_seconds,
        stream_bytes=section.stream_buffer_kb * 1024,
        file_bytes=files.max_file_mb * 1_000_000,
    )


def url_of(section: GatewaySettings, listener: socket.socket) -> str:
    """Where people reach it: the address of the settings, else the socket's."""
    if section.url:
        return section.url.rstrip("/")
    host = "127.0.0.1" if section.host in _EVERYWHERE else section.host
    return f"http://{_bracketed(host)}:{listener.getsockname()[1]}"


def doors_of(section: GatewaySettings, url: str, listener: socket.socket) -> Doors:
    """The names that requests may call it by: this machine's own with its port, its address's, and those listed."""
    port = listener.getsockname()[1]
    named = {f"{name}:{port}" for name in (*_LOOPBACK, _bracketed(section.host))}
    named |= {urlsplit(url).netloc.lower(), *(name.lower() for name in section.allowed_hosts)}
    origins = {allowed_origin.rstrip("/").lower() for allowed_origin in section.allowed_origins}
    proxies = tuple(ip_network(trusted_proxy, strict=False) for trusted_proxy in section.trusted_proxies)
    any_address = section.host not in ("127.0.0.1", "::1")
    return Doors(frozenset(named), frozenset(origins), any_address=any_address, proxies=proxies)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def own_token(data: Path, database_url: str, project: ProjectId) -> None:
    """Make sure that the data directory's file `token` has a valid token of an operator; only its owner may read it."""
    path = data / "token"
    pool = Pool(database_url, size=1, name="turnstile-token")
    try:
        held = read_secret(path.read_bytes().decode(errors="replace").strip()) if path.exists() else None
        if held is not None:
            caller = (await pool.run(lambda conn: authenticate(conn, [held]))).get(held)
            kept = project, None, GatewayRole.OPERATOR
            if caller is not None and (caller.project_id, caller.channel_id, caller.role) == kept:
                path.chmod(0o600)
                return
        secret, _ = await pool.run(lambda conn: add_token(conn, project, GatewayRole.OPERATOR, label="turnstile up"))
        write_private(path, secret.text + "\n")
    finally:
        await pool.close()
