"""The long-running processes: worker and bridge, alone or together, and the declarations they need (`migrate`).

Both are stateless and replicable. A server that is away is waited for, and both run turns without NATS, which is only
the bell; a process ends when it is told to, or when something it cannot mend has happened, never half.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from temporalio.client import Client

from turnstile.activities.prompt.model_attempts import StepLimits
from turnstile.activities.pump.advance import PumpActivities
from turnstile.activities.turn.fast_models import FastModels
from turnstile.activities.turn.settle import SettleActivities
from turnstile.activities.turn.steps import StepActivities
from turnstile.bridge.engine import declare_search_attributes, ensure_engine
from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.doorbells import Doorbells
from turnstile.bridge.inbox.local_doorbells import LocalDoorbells
from turnstile.bridge.inbox.workflow_starter import Starter
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.pump.sending import PumpVerbs
from turnstile.bridge.pump.thread_rules import ThreadRules
from turnstile.bridge.pump.thread_wakes import ThreadTurns
from turnstile.bridge.safety.reconciler import Reconciler
from turnstile.bridge.safety.rules import Rules
from turnstile.bridge.safety.watchdog import Watchdog
from turnstile.bridge.verbs.durable_commands import DurableCommands
from turnstile.bridge.verbs.handlers import Verbs
from turnstile.bridge.verbs.instrumented import observed
from turnstile.bridge.verbs.micro_service import VerbService
from turnstile.bridge.verbs.rate_limits import Throttle, throttled
from turnstile.bridge.verbs.ui_actions import UiActions
from turnstile.embedded import Endpoints
from turnstile.ledger.grants import grant
from turnstile.ledger.migrate import migrate
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import BoxCache
from turnstile.processes.connections import (
    check_engine,
    instance_name,
    open_client,
    open_nats,
    open_pool,
    open_servers,
    watch_nats,
    watchdog_times,
)
from turnstile.processes.exclusive_targets import ExclusiveTarget
from turnstile.processes.models import real_model, route_models, warm_up
from turnstile.processes.presence import sign_on
from turnstile.processes.pump import (
    pump_activities,
    pump_registry,
    served_targets,
    thread_limits,
    thread_starter,
)
from turnstile.processes.working import NotBegun, work
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT
from turnstile.runtime.waiting import await_server, unless_told
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import split_targets
from turnstile.schema.pump.listeners import Registry
from turnstile.schema.wire import subjects
from turnstile.settings import Settings
from turnstile.telemetry.health import Health
from turnstile.telemetry.loop_watch import watching_loop
from turnstile.telemetry.setup import Telemetry, open_telemetry, sdk_metrics_address
from turnstile.temporal.plugin import turn_workers, turnstile_plugin
from turnstile.temporal.versions import deployment_of
from turnstile.transport.connection import NatsConnection
from turnstile.transport.streams import (
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

log = logging.getLogger(__name__)
T = TypeVar("T")
_HEARD_SECONDS = 10.0
"""How long a bridge waits for NATS to answer before it goes on: turns need it less than they need the bridge."""
Ready = Callable[[], None]


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What `migrate` found or made: names only."""

    migrations: list[str]
    streams: list[str]
    consumers: list[str]
    search_attributes: list[str]
    roles: list[str]


async def migrate_all(settings: Settings, endpoints: Endpoints, *, needs_nats: bool = True) -> MigrationReport:
    """Bring database and roles up to date and declare streams, consumers and search attributes; idempotent.

    Waits for servers that are away; without `needs_nats` not for NATS, whose streams a bridge declares when it comes.
    """
    named = settings.database
    async with AsyncExitStack() as stack:
        opening = open_pool(settings, endpoints.database_url, 2, "turnstile-migrate", migrated=False)
        pool = await stack.enter_async_context(opening)

        async def in_ledger() -> tuple[list[str], list[str]]:
            applied = await migrate(pool)
            return applied, await grant(pool, bridge_role=named.bridge_role, worker_role=named.worker_role)

        applied, roles = await await_server("PostgreSQL", in_ledger)
        conn = await stack.enter_async_context(open_nats(endpoints.nats_url, "turnstile-migrate", needed=needs_nats))
        try:
            await _declare(settings, conn)
        except ServerUnavailable as error:
            if needs_nats:
                raise
            log.warning("streams are left to the bridge: %s", error)
        attributes: list[str] = []

        async def in_engine(client: Client) -> None:
            attributes[:] = await declare_search_attributes(client)

        await open_client(settings, endpoints, turnstile_plugin(), check=in_engine)
    consumers = [
        COMMANDS_CONSUMER,
        THREAD_TURNS_CONSUMER,
        *(wakeup_consumer(target) for target in settings.worker.worker_targets),
        *([UI_ACTIONS_CONSUMER] if settings.bridge.ui_actions else []),
    ]
    return MigrationReport(applied, [subjects.CMD_STREAM, subjects.EVT_STREAM], consumers, attributes, roles)


async def _declare(settings: Settings, conn: NatsConnection) -> None:
    await declare_streams(conn, gone_seconds=0)
    await declare_commands(conn)
    await declare_thread_turns(conn)
    for target in settings.worker.worker_targets:
        await declare_wakeups(conn, target)
    if settings.bridge.ui_actions:
        await declare_ui_actions(conn)


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
    await _run(settings, endpoints, stop, ready, worker=True, bridge=False, standby=standby, health=health)


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
    await _run(settings, endpoints, stop, ready, worker=False, bridge=True, standby=standby, health=health)


async def run_both(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    *,
    ready: Ready | None = None,
    health: Health | None = None,
) -> None:
    """Worker and bridge in one process on one Temporal client, so that turns start eagerly here."""
    await _run(settings, endpoints, stop, ready, worker=True, bridge=True, standby=True, health=health)


async def _run(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    ready: Ready | None,
    *,
    worker: bool,
    bridge: bool,
    standby: bool,
    health: Health | None,
) -> None:
    health = health or Health()
    registry = pump_registry(settings) if worker else None  # bad listeners are told of before any server is waited for
    while not stop.is_set():
        try:
            await _run_once(
                settings, endpoints, stop, ready, health, registry, worker=worker, bridge=bridge, standby=standby
            )
        except* NotBegun as error:
            log.warning("all servers are opened again: %s", error.exceptions[0])
        else:
            return


async def _run_once(
    settings: Settings,
    endpoints: Endpoints,
    stop: asyncio.Event,
    ready: Ready | None,
    health: Health,
    registry: Registry | None,
    *,
    worker: bool,
    bridge: bool,
    standby: bool,
) -> None:
    async with AsyncExitStack() as stack:
        opening = _open(settings, endpoints, stack, health, registry, worker=worker, bridge=bridge)
        opened = await unless_told(stop, opening)
        if opened is None:
            return
        pool, conn, client, telemetry, bells = opened
        alone = ExclusiveTarget(endpoints.database_url, client.identity, standby)
        async with asyncio.TaskGroup() as group:
            if bridge:  # first: making workers holds the loop for seconds on a busy machine, and NATS would seem silent
                await _start_bridge(settings, pool, conn, client, telemetry, bells, alone, stop, group)
            if worker:
                await stack.enter_async_context(watching_loop())
                _start_workers(settings, pool, client, alone, registry, stop, group)
            group.create_task(watch_nats(conn, stop))
            health.serves()
            if ready is not None:
                ready()


def _start_workers(
    settings: Settings,
    pool: Pool,
    client: Client,
    alone: ExclusiveTarget,
    registry: Registry | None,
    stop: asyncio.Event,
    group: asyncio.TaskGroup,
) -> None:
    """One Temporal worker per target; for those of one process, whenever they are ours.

    Each signs on before it takes its first message: others then know which listeners it has.
    """
    serves = None if registry is None else registry.serves(settings.pump.worker_target)

    async def serve(targets: Sequence[str], stop: asyncio.Event) -> None:
        workers = turn_workers(
            client,
            targets,
            max_concurrency=settings.worker.max_concurrency,
            max_cached_turns=settings.worker.max_cached_turns,
            handlers_target=settings.pump.worker_target,
            deployment=deployment_of(settings.worker),
        )
        signed = asyncio.Event()
        async with asyncio.TaskGroup() as working:
            reach = partial(ensure_engine, client)
            working.create_task(
                sign_on(pool, client.identity, targets, stop, serves=serves, signed=signed, reach=reach)
            )
            await unless_told(stop, signed.wait())
            if serves is not None and serves.worker_target in targets:
                log.info("this worker of %s has the listeners %s", serves.worker_target, ", ".join(serves.listeners))
            for each in workers:
                working.create_task(work(client, each, stop))

    shared, exclusive = split_targets(served_targets(settings))
    if shared:
        group.create_task(serve(shared, stop))
    for target in exclusive:
        group.create_task(alone.serve("worker", target, stop, partial(serve, [target])))


async def _open(
    settings: Settings,
    endpoints: Endpoints,
    stack: AsyncExitStack,
    health: Health,
    registry: Registry | None,
    *,
    worker: bool,
    bridge: bool,
) -> tuple[Pool, NatsConnection, Client, Telemetry, LocalDoorbells]:
    """The three servers, each waited for; `stack` closes what is open."""
    name = instance_name("" if worker and bridge else "worker" if worker else "bridge")
    size = settings.worker.database_pool_size * worker + settings.bridge.database_pool_size * bridge
    pool = await stack.enter_async_context(open_pool(settings, endpoints.database_url, size, name))
    conn = await stack.enter_async_context(open_nats(endpoints.nats_url, name, needed=False))
    if not conn.connected.is_set():
        log.warning("going on without NATS at %s: turns run, and what they publish waits for it", conn.shown)
    telemetry = await stack.enter_async_context(
        open_telemetry(settings, pool, conn, health, worker=worker, bridge=bridge)
    )
    # A task event that is not acknowledged soon is left to the safety net, so a step never waits long for NATS.
    bells = LocalDoorbells(NatsPublisher(conn, give_up_seconds=2))
    activities = _activities(settings, pool, bells, registry, stack, telemetry) if worker else (None, None, None)
    plugin = turnstile_plugin(*activities)
    client = await open_client(
        *(settings, endpoints, plugin),
        metrics_address=sdk_metrics_address(settings),
        check=partial(check_engine, settings),
    )
    return pool, conn, client, telemetry, bells


async def _start_bridge(
    settings: Settings,
    pool: Pool,
    conn: NatsConnection,
    client: Client,
    telemetry: Telemetry,
    bells: LocalDoorbells,
    alone: ExclusiveTarget,
    stop: asyncio.Event,
    group: asyncio.TaskGroup,
) -> None:
    shared, exclusive = split_targets(settings.worker.worker_targets)
    served = list(shared)  # and those of one process while they are ours: claims and rules look at it each time
    publisher = LocalDoorbells(NatsPublisher(conn))
    # What a rule cannot publish now, it publishes at a later tick: none waits for a NATS that is away.
    rules = safety_rules(settings, served, pool, NatsPublisher(conn, give_up_seconds=0), client, telemetry)
    threads = thread_starter(settings, client)
    pump_verbs = PumpVerbs(pool, threads, settings.pump.worker_target, thread_limits(settings)).handlers()
    depth, limits = settings.protocol.max_recursion_depth, settings.limits
    throttle = Throttle(limits.requests_per_second, limits.request_burst)
    turn_verbs = Verbs(pool, publisher, depth_limit=depth, admission=limits.admission, telemetry=telemetry)
    verbs = observed(throttled({**turn_verbs.handlers(), **pump_verbs}, throttle), telemetry)
    service = VerbService(conn, verbs, concurrency=settings.bridge.max_concurrency, meter=telemetry.meter)
    commands = DurableCommands(
        conn, verbs, publisher, unavailable=(ServerUnavailable,), ensure=lambda: declare_commands(conn)
    )
    claims = ClaimQueue(rules.starter)
    for each in (publisher, bells):
        each.heard_by(claims, served)
    actions = UiActions(
        *(conn, pool, publisher),
        depth_limit=depth,
        admission=limits.admission,
        throttle=throttle,
        telemetry=telemetry,
    )
    heard = asyncio.Event()
    group.create_task(_serve(service, conn, heard, stop))

    async def serve_alone(target: str, ending: asyncio.Event) -> None:
        served.append(target)
        async with asyncio.TaskGroup() as hearing:
            hearing.create_task(Doorbells(conn, claims, target).run(ending))
            try:
                await ending.wait()
            finally:
                served.remove(target)

    jobs = [
        commands.run(stop),
        claims.run(stop),
        Watchdog(pool, replace(rules, queue=claims)).run(stop),
        ThreadTurns(conn, pool, threads).run(stop),
        *([actions.run(stop)] if settings.bridge.ui_actions else []),
        *(Doorbells(conn, claims, each).run(stop) for each in shared),
        *(alone.serve("bridge", each, stop, partial(serve_alone, each)) for each in exclusive),
    ]
    for job in jobs:
        group.create_task(job)
    if conn.connected.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), _HEARD_SECONDS)


async def _serve(service: VerbService, conn: NatsConnection, heard: asyncio.Event, stop: asyncio.Event) -> None:
    """The verbs, from the moment that NATS is there until `stop`; `heard` is set once they and the streams are."""

    async def listen() -> None:
        await conn.opened()
        await service.start()
        await await_server(f"NATS at {conn.shown}", partial(conn.verify, about="subscription"))
        await await_server(f"JetStream at {conn.shown}", partial(declare_streams, conn))
        heard.set()

    await unless_told(stop, listen())
    await stop.wait()
    await service.stop(timeout=20)


def _activities(
    settings: Settings,
    pool: Pool,
    publisher: Publisher,
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
    cache = BoxCache(settings.worker.box_cache_mb * 1_000_000)
    paces = FastModels(settings.worker.quick_step_ms / 1000)
    steps = StepActivities(pool, model, publisher, limits, cache, paces, telemetry)
    settle = SettleActivities(pool, publisher, telemetry)
    pump = None if registry is None else pump_activities(settings, pool, publisher, registry, telemetry)
    return steps, settle, pump


def safety_rules(
    settings: Settings,
    targets: Sequence[str],
    pool: Pool,
    publisher: Publisher,
    client: Client,
    telemetry: Telemetry = SILENT,
) -> Rules:
    """The rules of the safety net, as they are set, for these targets, which may come and go."""
    starter = Starter(
        *(pool, client, publisher, targets),
        heartbeat_timeout_seconds=settings.worker.activity_heartbeat_timeout_seconds,
        quick_steps=settings.worker.quick_step_ms > 0,
        telemetry=telemetry,
    )
    times = watchdog_times(settings.bridge)
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
    return Rules(pool, starter, publisher, targets, times, telemetry, reconciler=reconciler, more=threads.all())


@asynccontextmanager
async def open_rules(settings: Settings, endpoints: Endpoints) -> AsyncGenerator[tuple[Pool, Rules]]:
    """The rules on connections of their own, for a command that runs them; raises as `open_servers` does.

    They leave targets that belong to one process to that process (protocol §8).
    """
    shared, _ = split_targets(settings.worker.worker_targets)
    async with open_servers(settings, endpoints, "turnstile-watchdog") as (pool, conn, client):
        yield pool, safety_rules(settings, shared, pool, NatsPublisher(conn), client)
