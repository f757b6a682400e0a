"""The long-running processes: worker and bridge, alone or together, and the declarations they need (`migrate`).

Both are stateless and replicable. A server that is away is waited for; a process ends when it is told to, or when
something it cannot mend has happened, never half.
"""

import asyncio
import contextlib
import logging
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.worker import Worker

from activities.asking import StepLimits
from activities.pump import PumpActivities
from activities.settle import SettleActivities
from activities.steps import StepActivities
from bridge.commands import DurableCommands
from bridge.connection import NatsConnection, connect
from bridge.doorbells import Doorbells
from bridge.engine import await_client, declare_search_attributes, ensure_readable
from bridge.observed import observed
from bridge.publisher import NatsPublisher
from bridge.reconciler import Reconciler
from bridge.rules import Rules, WatchdogTimes
from bridge.sending import PumpVerbs
from bridge.service import VerbService
from bridge.starter import Starter
from bridge.streams import (
    COMMANDS_CONSUMER,
    THREAD_TURNS_CONSUMER,
    UI_ACTIONS_CONSUMER,
    declare_commands,
    declare_streams,
    declare_thread_turns,
    declare_ui_actions,
    declare_wakeups,
    wakeup_consumer,
)
from bridge.threadrules import ThreadRules
from bridge.threads import ThreadTurns
from bridge.ui_actions import UiActions
from bridge.verbs import Verbs
from bridge.watchdog import Watchdog
from ledger.cards import BoxCache
from ledger.grants import grant
from ledger.migrate import MigrationError, migrate, pending
from ledger.pool import Pool
from ledger.sweep import touch_worker
from schema import subjects
from schema.errors import ConfigError, ServerUnavailable
from schema.listeners import Registry
from schema.ports import Publisher
from schema.telemetry import SILENT
from turnstile.conversations import pump_activities, pump_registry, served_targets, thread_limits, thread_starter
from turnstile.embedded import Endpoints
from turnstile.engine import connect_engine
from turnstile.health import Health
from turnstile.models import real_model, route_models, warm_up
from turnstile.plugin import turn_workers, turnstile_plugin, turnstile_runtime
from turnstile.settings import Settings
from turnstile.telemetry import Telemetry, sdk_metrics_address, telling

log = logging.getLogger(__name__)
T = TypeVar("T")
Ready = Callable[[], None]
_WAIT_SECONDS = 0.5
_SIGN_ON_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What `migrate` found or made: names only."""

    migrations: list[str]
    streams: list[str]
    consumers: list[str]
    search_attributes: list[str]
    roles: list[str]


async def migrate_all(settings: Settings, endpoints: Endpoints) -> MigrationReport:
    """Bring database and roles up to date and declare streams, consumers and search attributes; idempotent."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(_pool(settings, endpoints, 2, "turnstile-migrate", migrated=False))
        applied = await migrate(pool)
        named = settings.database
        roles = await grant(pool, bridge_role=named.bridge_role, worker_role=named.worker_role)
        conn = await stack.enter_async_context(_nats(endpoints, "turnstile-migrate"))
        await declare_streams(conn, gone_seconds=0)
        await declare_commands(conn)
        await declare_thread_turns(conn)
        for target in settings.worker.worker_targets:
            await declare_wakeups(conn, target)
        if settings.bridge.ui_actions:
            await declare_ui_actions(conn)
        client = await _client(settings, endpoints, turnstile_plugin())
        attributes = await declare_search_attributes(client)
    consumers = [
        COMMANDS_CONSUMER,
        THREAD_TURNS_CONSUMER,
        *(wakeup_consumer(target) for target in settings.worker.worker_targets),
        *([UI_ACTIONS_CONSUMER] if settings.bridge.ui_actions else []),
    ]
    return MigrationReport(applied, [subjects.CMD_STREAM, subjects.EVT_STREAM], consumers, attributes, roles)


async def run_worker(
    settings: Settings, endpoints: Endpoints, stop: asyncio.Event, *, ready: Ready | None = None
) -> None:
    """Run turns of `[worker].worker_targets` until `stop`."""
    await _run(settings, endpoints, stop, ready, worker=True, bridge=False)


async def run_bridge(
    settings: Settings, endpoints: Endpoints, stop: asyncio.Event, *, ready: Ready | None = None
) -> None:
    """Serve doorbells, verbs and the safety net until `stop`."""
    await _run(settings, endpoints, stop, ready, worker=False, bridge=True)


async def run_both(
    settings: Settings, endpoints: Endpoints, stop: asyncio.Event, *, ready: Ready | None = None
) -> None:
    """Worker and bridge in one process on one Temporal client, so that turns start eagerly here."""
    await _run(settings, endpoints, stop, ready, worker=True, bridge=True)


async def _run(
    settings: Settings, endpoints: Endpoints, stop: asyncio.Event, ready: Ready | None, *, worker: bool, bridge: bool
) -> None:
    health = Health()
    async with AsyncExitStack() as stack:
        opened = await _unless_told(stop, _open(settings, endpoints, stack, health, worker=worker, bridge=bridge))
        if opened is None:
            return
        pool, conn, client, telemetry = opened
        running: list[asyncio.Task[None]] = []
        async with asyncio.TaskGroup() as group:
            if worker:
                targets = served_targets(settings)
                workers = turn_workers(
                    client,
                    targets,
                    max_concurrency=settings.worker.max_concurrency,
                    max_cached_turns=settings.worker.max_cached_turns,
                    handlers_target=settings.pump.worker_target,
                )
                running += [group.create_task(_work(each, stop)) for each in workers]
                running.append(group.create_task(_sign_on(pool, client.identity, targets, stop)))
            if bridge:
                running += await _bridge(settings, pool, conn, client, telemetry, stop, group)
            running.append(group.create_task(_watch_connection(conn, stop)))
            health.serves()
            if ready is not None:
                ready()


async def _open(
    settings: Settings, endpoints: Endpoints, stack: AsyncExitStack, health: Health, *, worker: bool, bridge: bool
) -> tuple[Pool, NatsConnection, Client, Telemetry]:
    """The three servers, each waited for; `stack` closes what is open. Bad listeners are told of before that."""
    registry = pump_registry(settings) if worker else None
    name = _instance(worker=worker, bridge=bridge)
    size = settings.worker.database_pool_size * worker + settings.bridge.database_pool_size * bridge
    pool = await stack.enter_async_context(_pool(settings, endpoints, size, name))
    conn = await stack.enter_async_context(_nats(endpoints, name))
    telemetry = await stack.enter_async_context(telling(settings, pool, health, worker=worker, bridge=bridge))
    activities = _activities(settings, pool, conn, registry, stack, telemetry) if worker else (None, None, None)
    plugin = turnstile_plugin(*activities)
    client = await _client(settings, endpoints, plugin, metrics_address=sdk_metrics_address(settings))
    await declare_search_attributes(client)
    await ensure_readable(client, served_targets(settings))
    return pool, conn, client, telemetry


async def _unless_told(stop: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """What `opening` returns; None if `stop` comes while it still waits for a server."""
    task, told = asyncio.create_task(opening), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, told], return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def _bridge(
    settings: Settings,
    pool: Pool,
    conn: NatsConnection,
    client: Client,
    telemetry: Telemetry,
    stop: asyncio.Event,
    group: asyncio.TaskGroup,
) -> list[asyncio.Task[None]]:
    targets = settings.worker.worker_targets
    publisher = NatsPublisher(conn)
    # What a rule cannot publish now, it publishes at a later tick: none waits for a NATS that is away.
    rules = safety_rules(settings, pool, NatsPublisher(conn, give_up_seconds=0), client, telemetry)
    await declare_streams(conn)
    threads = thread_starter(settings, client)
    pump_verbs = PumpVerbs(pool, threads, settings.pump.worker_target, thread_limits(settings)).handlers()
    turn_verbs = Verbs(pool, publisher, depth_limit=settings.protocol.max_recursion_depth, telemetry=telemetry)
    verbs = observed({**turn_verbs.handlers(), **pump_verbs}, telemetry)
    service = VerbService(conn, verbs, concurrency=settings.bridge.max_concurrency)
    commands = DurableCommands(
        conn, verbs, publisher, unavailable=(ServerUnavailable,), ensure=lambda: declare_commands(conn)
    )
    watchdog = Watchdog(pool, rules)
    actions = UiActions(conn, pool, publisher, depth_limit=settings.protocol.max_recursion_depth, telemetry=telemetry)
    await service.start()
    await conn.verify()
    jobs = [
        commands.run(stop),
        watchdog.run(stop),
        ThreadTurns(conn, pool, threads).run(stop),
        *([actions.run(stop)] if settings.bridge.ui_actions else []),
        *(Doorbells(conn, rules.starter, each).run(stop) for each in targets),
    ]
    return [group.create_task(job) for job in jobs] + [group.create_task(_serve(service, stop))]


async def _serve(service: VerbService, stop: asyncio.Event) -> None:
    await stop.wait()
    await service.stop()


async def _work(worker: Worker, stop: asyncio.Event) -> None:
    async with worker:
        await stop.wait()


async def _sign_on(pool: Pool, instance: str, worker_targets: Sequence[str], stop: asyncio.Event) -> None:
    """Say in `state.workers`, now and then, that this worker serves its targets."""
    while not stop.is_set():
        try:
            await pool.run(lambda conn: touch_worker(conn, instance, worker_targets))
        except ServerUnavailable as error:
            log.warning("not signed on: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _SIGN_ON_SECONDS)


async def _watch_connection(conn: NatsConnection, stop: asyncio.Event) -> None:
    closed, told = asyncio.create_task(conn.closed.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait([closed, told], return_when=asyncio.FIRST_COMPLETED)
    closed.cancel()
    told.cancel()
    if not stop.is_set():
        raise ServerUnavailable(f"the connection to NATS at {conn.shown} was closed for good: start this process again")


def _activities(
    settings: Settings,
    pool: Pool,
    conn: NatsConnection,
    registry: Registry | None,
    stack: AsyncExitStack,
    telemetry: Telemetry,
) -> tuple[StepActivities, SettleActivities, PumpActivities | None]:
    real = real_model(settings.model)
    model = route_models(settings.model, real)
    stack.push_async_callback(model.close)
    stack.callback(asyncio.create_task(warm_up(pool, real), name="warm-up").cancel)
    limits = StepLimits(
        max_steps=settings.worker.max_steps,
        model_timeout_seconds=settings.model.timeout_seconds,
        model_attempts=settings.model.model_attempts,
        retry_initial_seconds=settings.model.retry_initial_seconds,
        retry_max_seconds=settings.model.retry_max_seconds,
        max_step_attempts=settings.worker.max_step_attempts,
        suspend_timeout_seconds=settings.tools.suspend_timeout_seconds,
    )
    # A task event that is not acknowledged soon is left to the safety net, so a step never waits long for NATS.
    publisher = NatsPublisher(conn, give_up_seconds=2)
    cache = BoxCache(settings.worker.box_cache_mb * 1_000_000)
    steps = StepActivities(pool, model, publisher, limits, cache, telemetry)
    settle = SettleActivities(pool, publisher, telemetry)
    pump = None if registry is None else pump_activities(settings, pool, publisher, registry, telemetry)
    return steps, settle, pump


def safety_rules(
    settings: Settings, pool: Pool, publisher: Publisher, client: Client, telemetry: Telemetry = SILENT
) -> Rules:
    """The rules of the safety net, as they are set, for the served targets."""
    targets, bridge = settings.worker.worker_targets, settings.bridge
    heartbeat = settings.worker.activity_heartbeat_timeout_seconds
    starter = Starter(pool, client, publisher, targets, heartbeat_timeout_seconds=heartbeat, telemetry=telemetry)
    times = WatchdogTimes(
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
    reconciler = Reconciler(pool, client, starter, publisher, targets, telemetry)
    threads = ThreadRules(
        pool,
        client,
        publisher,
        thread_starter(settings, client),
        [settings.pump.worker_target],
        times.pending_wakeup,
        times.engine_interval,
        telemetry,
    )
    return Rules(pool, starter, publisher, reconciler, targets, times, threads.all(), telemetry)


@asynccontextmanager
async def open_rules(settings: Settings, endpoints: Endpoints) -> AsyncGenerator[tuple[Pool, Rules]]:
    """The rules on connections of their own, for a command that runs them; raises as `open_servers` does."""
    async with open_servers(settings, endpoints, "turnstile-watchdog") as (pool, conn, client):
        yield pool, safety_rules(settings, pool, NatsPublisher(conn), client)


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
                pool = await stack.enter_async_context(_pool(settings, endpoints, 4, name))
                conn = await stack.enter_async_context(_nats(endpoints, name))
                client = await _client(settings, endpoints, turnstile_plugin())
                await declare_search_attributes(client)
                await ensure_readable(client, served_targets(settings))
        except TimeoutError:
            raise ServerUnavailable(f"not all servers answered within {patience:g} s") from None
        yield pool, conn, client


@asynccontextmanager
async def _pool(
    settings: Settings, endpoints: Endpoints, size: int, name: str, *, migrated: bool = True
) -> AsyncGenerator[Pool]:
    """A pool on a server that answers, is new enough and, unless this is `migrate`, has our tables."""
    pool = Pool(endpoints.database_url, size=size, name=name, patience=settings.database.patience_seconds)
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
async def _nats(endpoints: Endpoints, name: str) -> AsyncGenerator[NatsConnection]:
    conn = await connect(endpoints.nats_url, name=name)
    try:
        yield conn
    finally:
        await conn.drain()


async def _client(
    settings: Settings, endpoints: Endpoints, plugin: SimplePlugin, *, metrics_address: str | None = None
) -> Client:
    try:
        runtime = turnstile_runtime(metrics_address)
    except ValueError as error:
        told = f"[observability].temporal_metrics_port: {metrics_address} cannot be served ({error})"
        raise ConfigError(told) from None

    async def open_client() -> Client:
        identity = _instance(worker=True, bridge=True)
        return await connect_engine(settings.temporal, endpoints, plugins=[plugin], runtime=runtime, identity=identity)

    return await await_client(endpoints.temporal_address, open_client)


def _instance(*, worker: bool, bridge: bool) -> str:
    role = "turnstile" if worker and bridge else "turnstile-worker" if worker else "turnstile-bridge"
    return f"{role}@{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
