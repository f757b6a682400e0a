"""The long-running processes: worker and bridge, alone or together.

Both are stateless and replicable. A server that is away is waited for, and both run turns without NATS, which is only
the bell; a process ends when it is told to, or when something it cannot mend has happened, never half.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.local_doorbells import LocalDoorbells
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.embedded import Endpoints
from turnstile.processes.bridge import Bridge
from turnstile.processes.connections import (
    Servers,
    check_engine,
    instance_name,
    open_client,
    open_nats,
    open_pool,
    watch_nats,
)
from turnstile.processes.exclusive_targets import ExclusiveTarget
from turnstile.processes.pump import pump_registry
from turnstile.processes.worker import NotBegun, Worker, open_activities
from turnstile.runtime.waiting import unless_told
from turnstile.schema.ids import split_targets
from turnstile.schema.pump.listeners import Registry
from turnstile.settings import Settings
from turnstile.telemetry.health import Health
from turnstile.telemetry.loop_watch import watching_loop
from turnstile.telemetry.setup import open_telemetry, sdk_metrics_address
from turnstile.temporal.plugin import turnstile_plugin

log = logging.getLogger(__name__)
Ready = Callable[[], None]


async def run_worker(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    *,
    ready: Ready | None = None,
    standby: bool = True,
    health: Health | None = None,
) -> None:
    """Run turns of `[worker].worker_targets` until `stop`.

    Raises `TargetHeld` if one that belongs to one process is another's and this is no `standby` (protocol §8).
    """
    process = _Process(settings, endpoints, health or Health(), ready, standby, worker=True, bridge=False)
    await process.run(stop)


async def run_bridge(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    *,
    ready: Ready | None = None,
    standby: bool = True,
    health: Health | None = None,
) -> None:
    """Serve doorbells, verbs and the safety net until `stop`; raises `TargetHeld` as `run_worker` does."""
    process = _Process(settings, endpoints, health or Health(), ready, standby, worker=False, bridge=True)
    await process.run(stop)


async def run_both(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    *,
    ready: Ready | None = None,
    health: Health | None = None,
) -> None:
    """Worker and bridge in one process on one Temporal client, so that turns start eagerly here."""
    process = _Process(settings, endpoints, health or Health(), ready, standby=True, worker=True, bridge=True)
    await process.run(stop)


@dataclass(frozen=True, slots=True)
class _Process:
    """A worker, a bridge, or both, before anything is opened."""

    settings: Settings
    endpoints: Endpoints
    health: Health
    ready: Ready | None
    """Called once it serves."""
    standby: bool
    worker: bool
    bridge: bool

    async def run(self, stop: asyncio.Event) -> None:
        """Open all servers and serve until `stop`; once more, if Temporal went away as a worker began."""
        # Listeners that do not fit together are an error before any server is waited for.
        registry = pump_registry(self.settings) if self.worker else None
        while not stop.is_set():
            try:
                await self._run_once(registry, stop)
            except* NotBegun as error:
                log.warning("all servers are opened again: %s", error.exceptions[0])
            else:
                return

    async def _run_once(self, registry: Registry | None, stop: asyncio.Event) -> None:
        shared, _ = split_targets(self.settings.worker.worker_targets)
        served, claims = ServedTargets(shared), ClaimQueue()
        async with AsyncExitStack() as stack:
            servers = await unless_told(stop, self._open(stack, registry, served, claims))
            if servers is None:
                return
            exclusive = ExclusiveTarget(self.endpoints.database_url, servers.client.identity, self.standby)
            async with asyncio.TaskGroup() as group:
                # First: making workers holds the loop for seconds on a busy machine, and NATS would seem silent.
                if self.bridge:
                    await Bridge(servers, exclusive, served, claims).start(group, stop)
                if self.worker:
                    await stack.enter_async_context(watching_loop())
                    Worker(servers, exclusive, registry).start(group, stop)
                group.create_task(watch_nats(servers.conn, stop))
                self.health.serves()
                if self.ready is not None:
                    self.ready()

    async def _open(
        self, stack: AsyncExitStack, registry: Registry | None, served: ServedTargets, claims: ClaimQueue
    ) -> Servers:
        """The three servers, each waited for; `stack` closes what is open."""
        settings, worker, bridge = self.settings, self.worker, self.bridge
        name = instance_name("" if worker and bridge else "worker" if worker else "bridge")
        size = settings.worker.database_pool_size * worker + settings.bridge.database_pool_size * bridge
        pool = await stack.enter_async_context(open_pool(settings, self.endpoints.database_url, size, name))
        conn = await stack.enter_async_context(open_nats(self.endpoints.nats_url, name, needed=False))
        if not conn.connected.is_set():
            log.warning("going on without NATS at %s: turns run, and what they publish waits for it", conn.shown)
        telemetry = await stack.enter_async_context(
            open_telemetry(settings, pool, conn, self.health, worker=worker, bridge=bridge)
        )
        plugin = turnstile_plugin()
        if worker:
            # A task event that is not acknowledged soon is left to the safety net, so a step never waits long for NATS.
            publisher = LocalDoorbells(NatsPublisher(conn, give_up_seconds=2), claims, served)
            activities = open_activities(settings, pool, publisher, registry, telemetry)
            plugin = await stack.enter_async_context(activities)
        client = await open_client(
            *(settings, self.endpoints, plugin),
            metrics_address=sdk_metrics_address(settings),
            check=partial(check_engine, settings),
        )
        return Servers(settings, pool, conn, client, telemetry)
