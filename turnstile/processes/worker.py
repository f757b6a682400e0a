"""A worker: its activities, and one Temporal worker for each of its targets.

The SDK gives up after 30 s if Temporal is away when a worker starts; a running worker retries for ever. After such a
failure neither this worker nor another one on the same client can start.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker as TemporalWorker

from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.prompt.model_queues import ModelQueues
from turnstile.activities.turn.files import FileReader
from turnstile.activities.turn.settle import SettleActivities
from turnstile.activities.turn.steps import StepActivities
from turnstile.bridge.engine import ensure_engine
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import declare_listeners
from turnstile.ledger.turns.cards import BoxCache
from turnstile.processes.connections import Servers, open_store
from turnstile.processes.exclusive_targets import ExclusiveTarget
from turnstile.processes.models import LocalAddress, Models, bring_prices
from turnstile.processes.presence import sign_on
from turnstile.processes.pump import pump_activities, served_targets
from turnstile.rules.arguments import Patience
from turnstile.runtime.ports import Publisher, Signals
from turnstile.runtime.telemetry import Telemetry
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.ids import split_targets
from turnstile.schema.pump.listeners import Registry
from turnstile.settings import Settings
from turnstile.temporal.plugin import turn_workers, turnstile_plugin
from turnstile.temporal.versions import deployment_of

log = logging.getLogger(__name__)
_NOT_BEGUN = "Worker validation failed"


class NotBegun(ServerUnavailable):
    """Temporal went away while a worker started: a worker on a new client can start."""


@asynccontextmanager
async def open_activities(
    settings: Settings,
    pool: Pool,
    publisher: Publisher,
    registry: Registry | None,
    telemetry: Telemetry,
    local: LocalAddress,
    signals: Signals,
) -> AsyncGenerator[SimplePlugin]:
    """The Temporal plugin with a worker's activities; closes their models at the end."""
    models = Models(settings, local)
    warming = asyncio.create_task(models.warm_up(pool), name="warm-up")
    limits = StepLimits(
        max_steps=settings.worker.max_steps,
        inline_result_chars=settings.worker.inline_result_chars,
        output_repairs=settings.worker.output_repairs,
        model_timeout_seconds=settings.model.timeout_seconds,
        model_attempts=settings.model.model_attempts,
        retry_initial_seconds=settings.model.retry_initial_seconds,
        retry_max_seconds=settings.model.retry_max_seconds,
        fallback_patience_seconds=settings.model.fallback_patience_seconds,
        model_patience_seconds=settings.model.patience_seconds,
        max_step_attempts=settings.worker.max_step_attempts,
        patience=Patience(settings.tools.suspend_timeout_seconds, settings.pmo.accept_timeout_seconds),
        gather_seconds=settings.worker.stream_gather_ms / 1000,
        budget_max_tokens=settings.budget.max_tokens,
    )
    try:
        await bring_prices(settings, pool)
    except TurnstileError as error:
        log.warning("prices of models are left as they are: %s", error)
    cache = BoxCache(settings.worker.box_cache_mb * 1_000_000)
    queues = ModelQueues(
        pool,
        signals,
        models.access.account,
        settings.model.rates,
        retry_initial_seconds=settings.model.retry_initial_seconds,
        retry_max_seconds=settings.model.retry_max_seconds,
        telemetry=telemetry,
    )
    try:
        await queues.open()
    except TurnstileError as error:
        log.warning("pauses of models are learned from their refusals: %s", error)
    store = open_store(settings.artifacts)
    files = None if store is None else FileReader(pool, store, limits, settings.artifacts.inline_chars)
    steps = StepActivities(
        pool, publisher, models.router, limits, cache, queues=queues, files=files, telemetry=telemetry
    )
    settle = SettleActivities(pool, publisher, telemetry)
    pump = None if registry is None else pump_activities(settings, pool, publisher, registry, telemetry)
    try:
        yield turnstile_plugin(steps, settle, pump)
    finally:
        warming.cancel()
        await queues.close()
        await models.router.close()


@dataclass(frozen=True, slots=True)
class Worker:
    """Runs the turns of its shared targets, and of exclusive targets while this process holds their locks."""

    servers: Servers
    exclusive: ExclusiveTarget
    registry: Registry | None
    """The worker's listeners, if it has any."""

    def start(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Run in tasks of the group until `stop`."""
        shared, exclusive = split_targets(served_targets(self.servers.settings))
        if shared:
            group.create_task(self._serve(shared, stop))
        for target in exclusive:
            group.create_task(self.exclusive.serve("worker", target, stop, partial(self._serve, [target])))

    async def _serve(self, targets: Sequence[str], stop: asyncio.Event) -> None:
        """Run a Temporal worker for each target until `stop`.

        It first records its listeners in the ledger, so that other workers know which ones it has.
        """
        settings, client = self.servers.settings, self.servers.client
        serves = None if self.registry is None else self.registry.serves(settings.pump.worker_target)
        workers = turn_workers(
            client,
            targets,
            max_concurrency=settings.worker.max_concurrency,
            max_cached_turns=settings.worker.max_cached_turns,
            handlers_target=settings.pump.worker_target,
            deployment=deployment_of(settings.worker),
        )
        signed = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            reach = partial(ensure_engine, client)
            pool = self.servers.pool
            declare = self._declare if serves is not None and serves.worker_target in targets else None
            group.create_task(
                sign_on(
                    pool,
                    client.identity,
                    targets,
                    stop,
                    serves=serves,
                    signed=signed,
                    reach=reach,
                    declare=declare,
                )
            )
            await unless_stopped(stop, signed.wait())
            if serves is not None and serves.worker_target in targets:
                log.info("this worker of %s has the listeners %s", serves.worker_target, ", ".join(serves.listeners))
            for worker in workers:
                group.create_task(_work(client, worker, stop))

    async def _declare(self) -> None:
        """Say in `state.listeners` which listeners this worker has, for operators to list."""
        assert self.registry is not None  # noqa: S101 -- only a worker with listeners declares them
        listeners, target = self.registry.declared(), self.servers.settings.pump.worker_target
        await self.servers.pool.run(lambda conn: declare_listeners(conn, target, listeners))


async def _work(client: Client, worker: TemporalWorker, stop: asyncio.Event) -> None:
    """Run the worker until `stop`; its activities then have the worker's graceful timeout.

    Raises `NotBegun`, or what a running worker raises.
    """

    async def begin() -> None:
        await await_server("Temporal", lambda: ensure_engine(client))
        await worker.run()

    try:
        # A cancelled worker shuts down gracefully; one that has not started ends at once.
        await unless_stopped(stop, begin())
    except RuntimeError as error:
        if not str(error).startswith(_NOT_BEGUN):
            raise
        raise NotBegun(f"Temporal: {error!s:.300}") from None
