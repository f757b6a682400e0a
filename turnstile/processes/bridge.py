"""A bridge: doorbells and claims, verbs, the safety net.

It serves the verbs once NATS is there. Claims and the safety net do not wait for NATS, because turns run without it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from turnstile.bridge.budgets.budget_verbs import BudgetVerbs
from turnstile.bridge.delegation.commands import DelegatingCommands
from turnstile.bridge.delegation.handlers import Delegation, DelegationLimits
from turnstile.bridge.delegation.tool_requests import CallMemory, ToolProgress, ToolRequests
from turnstile.bridge.files.file_rules import file_rules
from turnstile.bridge.files.file_verbs import FileVerbs
from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.doorbells import Doorbells
from turnstile.bridge.inbox.local_doorbells import LocalDoorbells
from turnstile.bridge.inbox.prompt_claims import PromptClaims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.inbox.workflow_starter import Starter, signal_decision
from turnstile.bridge.people.decisions import PeopleVerbs
from turnstile.bridge.people.interrupt_reads import InterruptReads
from turnstile.bridge.people.tool_questions import ToolQuestions
from turnstile.bridge.people.unknown_outcomes import UnknownOutcomes
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.pump.sending import PumpVerbs
from turnstile.bridge.pump.thread_rules import ThreadRules
from turnstile.bridge.pump.thread_wakes import ThreadTurns
from turnstile.bridge.pushes.push_sender import PushSender, PushTimes
from turnstile.bridge.pushes.push_verbs import PushVerbs
from turnstile.bridge.safety.beyond_ledger import BeyondLedger
from turnstile.bridge.safety.deletions import Deletions
from turnstile.bridge.safety.eras import Eras
from turnstile.bridge.safety.reconciler import Reconciler
from turnstile.bridge.safety.rules import Rules
from turnstile.bridge.safety.watchdog import Watchdog
from turnstile.bridge.serving.durable_commands import DurableCommands
from turnstile.bridge.serving.instrumented import instrumented
from turnstile.bridge.serving.micro_service import VerbService, handlers_of
from turnstile.bridge.serving.rate_limits import throttled
from turnstile.bridge.verbs.handlers import Verbs
from turnstile.bridge.verbs.ledger_reads import LedgerReads
from turnstile.bridge.verbs.roster_verbs import RosterVerbs
from turnstile.bridge.verbs.scheduling import Schedules
from turnstile.bridge.verbs.ui_actions import UiActions
from turnstile.embedded import Endpoints
from turnstile.ledger.files.artifacts import FileLimits
from turnstile.ledger.pool import Pool
from turnstile.processes.connections import Servers, open_servers, open_store, watchdog_times
from turnstile.processes.exclusive_targets import ExclusiveTarget
from turnstile.processes.presence import sign_on_bridge
from turnstile.processes.pump import thread_limits, thread_starter
from turnstile.runtime.outbound import Names
from turnstile.runtime.ports import Publisher
from turnstile.runtime.throttle import Throttle
from turnstile.runtime.waiting import await_server, unless_stopped
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import split_targets
from turnstile.schema.verbs import VERBS
from turnstile.settings import ArtifactSettings, Settings
from turnstile.transport.connection import NatsConnection
from turnstile.transport.streams import declare_commands, declare_streams

_LISTENS_SECONDS = 10.0
"""Seconds that a bridge with a connection to NATS waits for the subscriptions of its verbs before it goes on."""


@dataclass(frozen=True, slots=True)
class Bridge:
    """Serves its shared targets, and exclusive targets while this process holds their locks."""

    servers: Servers
    exclusive: ExclusiveTarget
    served: ServedTargets
    claims: ClaimQueue

    async def start(self, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        """Run in tasks of the group until `stop`; returns when the verbs are subscribed, or NATS is away."""
        settings, pool, conn, client, telemetry = self.servers
        # A rule that cannot publish now does so at a later tick, so no rule waits for NATS.
        hasty = LocalDoorbells(NatsPublisher(conn, give_up_seconds=0), self.claims, self.served)
        rules = safety_rules(self.servers, self.served, hasty, self.claims)
        publisher = LocalDoorbells(NatsPublisher(conn), self.claims, self.served)
        depth, limits = settings.protocol.max_recursion_depth, settings.limits
        throttle, threads = Throttle(limits.requests_per_second, limits.request_burst), thread_starter(settings, client)
        delegation = Delegation(pool, publisher, limits=delegation_limits(settings))
        claims = PromptClaims(self.claims, rules.starter, self.served)
        schedules = Schedules(
            pool,
            publisher,
            depth_limit=depth,
            admission=limits.admission,
            claims=claims,
            telemetry=telemetry,
            poll=settings.bridge.poll_interval_seconds,
        )
        handlers = handlers_of(
            schedules,
            Verbs(
                pool,
                publisher,
                depth_limit=depth,
                admission=limits.admission,
                telemetry=telemetry,
                claims=claims,
            ),
            RosterVerbs(
                pool,
                publisher,
                limits.admission,
                targets=settings.worker.worker_targets,
                answer_tokens=settings.budget.max_tokens,
            ),
            LedgerReads(pool),
            InterruptReads(pool),
            PeopleVerbs(pool, publisher, partial(signal_decision, client)),
            Deletions(pool, publisher, telemetry),
            BudgetVerbs(pool),
            PushVerbs(
                pool,
                Names(),
                private=settings.gateway.push_to_private_addresses,
                admission=limits.admission,
            ),
            PumpVerbs(pool, threads, settings.pump.worker_target, thread_limits(settings)),
            ToolRequests(pool, delegation, ToolQuestions(pool, publisher)),
            ToolProgress(pool, publisher),
            CallMemory(pool, telemetry.meter),
            file_verbs(pool, settings.artifacts),
        )
        verbs = instrumented(throttled(handlers, throttle), telemetry)
        durable = {verb.name: verbs[verb.name] for verb in VERBS if verb.durable}
        service = VerbService(conn, verbs, concurrency=settings.bridge.max_concurrency, meter=telemetry.meter)
        commands = DurableCommands(
            conn, durable, publisher, unavailable=(ServerUnavailable,), ensure=lambda: declare_commands(conn)
        )
        actions = UiActions(
            conn,
            pool,
            publisher,
            depth_limit=depth,
            admission=limits.admission,
            throttle=throttle,
            telemetry=telemetry,
        )
        delegating = DelegatingCommands(conn, pool, publisher, delegation, telemetry=telemetry)
        listens = asyncio.Event()
        shared, exclusive = split_targets(settings.worker.worker_targets)
        jobs = [
            _serve(service, conn, listens, stop),
            commands.run(stop),
            delegating.run(stop),
            self.claims.run(rules.starter, stop),
            Watchdog(pool, rules).run(stop),
            sign_on_bridge(pool, client.identity, stop),
            ThreadTurns(conn, pool, threads).run(stop),
            push_sender(self.servers).run(stop),
            schedules.run(stop),
            *([actions.run(stop)] if settings.bridge.ui_actions else []),
            *(Doorbells(conn, self.claims, target).run(stop) for target in shared),
            *(
                self.exclusive.serve("bridge", target, stop, partial(self._serve_exclusive, target))
                for target in exclusive
            ),
        ]
        for job in jobs:
            group.create_task(job)
        if conn.connected.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(listens.wait(), _LISTENS_SECONDS)

    async def _serve_exclusive(self, target: str, ending: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(Doorbells(self.servers.conn, self.claims, target).run(ending))
            with self.served.serving(target):
                await ending.wait()


async def _serve(service: VerbService, conn: NatsConnection, listens: asyncio.Event, stop: asyncio.Event) -> None:
    """Serve the verbs once NATS is there, until `stop`; sets `listens` once they and the streams are ready."""

    async def listen() -> None:
        await conn.opened()
        await service.start()
        await await_server(f"NATS at {conn.shown}", partial(conn.verify, about="subscription"))
        await await_server(f"JetStream at {conn.shown}", partial(declare_streams, conn))
        listens.set()

    await unless_stopped(stop, listen())
    await stop.wait()
    await service.stop(timeout=20)


def file_verbs(pool: Pool, section: ArtifactSettings) -> FileVerbs:
    """The verbs of files, as the settings allow."""
    limits = FileLimits(bytes=section.project_mb * 1_000_000, uploads=section.max_uploads)
    return FileVerbs(pool, open_store(section), limits, section.max_file_mb * 1_000_000)


def push_sender(servers: Servers) -> PushSender:
    """Tells receivers of turns, as the settings allow."""
    settings, times = servers.settings, PushTimes(poll=servers.settings.bridge.poll_interval_seconds)
    private = settings.gateway.push_to_private_addresses
    return PushSender(servers.pool, times, private, servers.telemetry.meter)


def delegation_limits(settings: Settings) -> DelegationLimits:
    """What forks are held against, from the settings."""
    return DelegationLimits(
        depth_limit=settings.protocol.max_recursion_depth,
        max_tasks=settings.pmo.fork_join_max_tasks,
        deadline_seconds=settings.pmo.fork_join_default_deadline_seconds,
        summary_chars=settings.pmo.fork_join_summary_chars,
        admission=settings.limits.admission,
        max_wakes=settings.limits.max_wakes_per_agent,
    )


def safety_rules(
    servers: Servers,
    served: ServedTargets,
    publisher: Publisher,
    queue: ClaimQueue | None = None,
) -> Rules:
    """The safety net's rules with their settings. With a queue they leave claims to it, else wait for each."""
    settings, pool, conn, client, telemetry = servers
    starter = Starter(
        pool,
        client,
        publisher,
        served,
        heartbeat_timeout_seconds=settings.worker.activity_heartbeat_timeout_seconds,
        telemetry=telemetry,
    )
    times = watchdog_times(settings.bridge)
    reconciler = Reconciler(
        pool,
        client,
        starter,
        publisher,
        served,
        telemetry,
        list_seconds=settings.bridge.engine_list_seconds,
    )
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
    return Rules(
        pool,
        starter,
        publisher,
        served,
        times,
        telemetry,
        more=[
            *threads.all(),
            Deletions(pool, publisher, telemetry).rule(),
            *file_rules(pool, open_store(settings.artifacts), times.engine_interval),
        ],
        outcomes=UnknownOutcomes(pool, conn, publisher),
        queue=queue,
        reconciler=reconciler,
        eras=Eras(pool, starter, served),
        beyond=BeyondLedger(pool, conn),
    )


@asynccontextmanager
async def open_rules(settings: Settings, endpoints: Endpoints) -> AsyncGenerator[tuple[Pool, Rules]]:
    """The rules on connections of their own, for a command; raises as `open_servers` does.

    They skip exclusive targets (protocol §8).
    """
    shared, _ = split_targets(settings.worker.worker_targets)
    async with open_servers(settings, endpoints, "turnstile-watchdog") as (pool, conn, client):
        servers = Servers(settings, pool, conn, client)
        yield pool, safety_rules(servers, ServedTargets(shared), NatsPublisher(conn))
