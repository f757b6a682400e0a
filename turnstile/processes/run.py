"""The long-running processes: worker and bridge, alone or together.

Both are stateless and replicable. They wait for servers that are away, except for NATS, without which turns run, too. A
process ends as a whole: at `stop`, or after an error that it cannot handle.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.local_doorbells import LocalDoorbells
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.embedded import Endpoints
from turnstile.local.model_servers import served_elsewhere
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
from turnstile.processes.models import LocalAddress
from turnstile.processes.pump import pump_registry
from turnstile.processes.worker import NotBegun, Worker, open_activities
from turnstile.runtime.waiting import unless_stopped
from turnstile.schema.ids import split_targets
from turnstile.schema.pump.listeners import Registry
from turnstile.schema.wire.subjects import MODEL_QUEUES
from turnstile.settings import Settings
from turnstile.telemetry.health import Health
from turnstile.telemetry.loop_watch import watching_loop
from turnstile.telemetry.setup import open_telemetry, sdk_metrics_address
from turnstile.temporal.plugin import turnstile_plugin
from turnstile.transport.signals import SubjectSignals

log = logging.getLogger(__name__)
Ready = Callable[[], None]
Beside = Callable[[Servers], Coroutine[Any, Any, None]]
"""What else runs in the process, on its connections, until `stop`."""


async def _run(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    *,
    worker: bool,
    bridge: bool,
    ready: Ready | None = None,
    standby: bool = True,
    health: Health | None = None,
    local: LocalAddress = served_elsewhere,
    beside: Beside | None = None,
) -> None:
    status = health or Health()
    process = _Process(settings, endpoints, status, ready, standby, local, beside, worker=worker, bridge=bridge)
    await process.run(stop)


run_worker = partial(_run, worker=True, bridge=False)
"""Run turns of `[worker].worker_targets` until `stop`; `ready` is called once it serves.

Raises `TargetHeld` if another process serves one of its exclusive targets and this is no `standby` (protocol §8).
"""
run_bridge = partial(_run, worker=False, bridge=True)
"""Serve doorbells, verbs and the safety net until `stop`; raises `TargetHeld` as `run_worker` does."""
run_both = partial(_run, worker=True, bridge=True)
"""Worker and bridge in one process on one Temporal client, so that turns start eagerly here."""


@dataclass(frozen=True, slots=True)
class _Process:
    """A worker, a bridge, or both; it opens its servers when it runs."""

    settings: Settings
    endpoints: Endpoints
    health: Health
    ready: Ready | None
    """Called once the process serves."""
    standby: bool
    local: LocalAddress
    """Where the servers of local models are."""
    beside: Beside | None
    worker: bool
    bridge: bool

    async def run(self, stop: asyncio.Event) -> None:
        """Open all servers and serve until `stop`; starts again if Temporal went away while a worker began."""
        # Raises an error of the listeners before it waits for any server.
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
            servers = await unless_stopped(stop, self._open(stack, registry, served, claims))
            if servers is None:
                return
            exclusive = ExclusiveTarget(self.endpoints.database_url, servers.client.identity, self.standby)
            async with asyncio.TaskGroup() as group:
                # First, since creating workers may block the loop for seconds, and NATS would seem silent.
                if self.bridge:
                    await Bridge(servers, exclusive, served, claims).start(group, stop)
                if self.worker:
                    await stack.enter_async_context(watching_loop())
                    Worker(servers, exclusive, registry).start(group, stop)
                if self.beside is not None:
                    group.create_task(self.beside(servers))
                group.create_task(watch_nats(servers.conn, stop))
                self.health.serves()
                if self.ready is not None:
                    self.ready()

    async def _open(
        self, stack: AsyncExitStack, registry: Registry | None, served: ServedTargets, claims: ClaimQueue
    ) -> Servers:
        """Wait for the three servers and open them; `stack` closes them."""
        settings, worker, bridge = self.settings, self.worker, self.bridge
        name = instance_name("" if worker and bridge else "worker" if worker else "bridge")
        size = settings.worker.database_pool_size * worker + settings.bridge.database_pool_size * bridge
        pool = await stack.enter_async_context(open_pool(settings, self.endpoints.database_url, size, name))
        conn = await stack.enter_async_context(open_nats(settings.nats, self.endpoints.nats_url, name, needed=False))
        if not conn.connected.is_set():
            log.warning("going on without NATS at %s: turns run, and their messages wait for it", conn.shown)
        telemetry = await stack.enter_async_context(
            open_telemetry(settings, pool, conn, self.health, worker=worker, bridge=bridge)
        )
        plugin = turnstile_plugin()
        if worker:
            # A task event that is not acknowledged soon is left to the safety net, so a step never waits long for NATS.
            publisher = LocalDoorbells(NatsPublisher(conn, give_up_seconds=2), claims, served)
            signals = SubjectSignals(conn, MODEL_QUEUES)
            activities = open_activities(settings, pool, publisher, registry, telemetry, self.local, signals)
            plugin = await stack.enter_async_context(activities)
        client = await open_client(
            settings,
            self.endpoints,
            plugin,
            metrics_address=sdk_metrics_address(settings),
            check=partial(check_engine, settings),
        )
        return Servers(settings, pool, conn, client, telemetry)
