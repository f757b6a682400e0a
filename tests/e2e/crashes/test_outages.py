"""A server that is late, or dies in the middle: it is waited for, by name, and no turn is lost."""

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.js.errors import NotFoundError
from temporalio.worker import Worker

from tests.support.conditions import until
from tests.support.ledger import agents
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.net import claim, in_hand, net_of, unheard
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import QUICK, Config, Stack, Value, open_stack, running_here, write_config
from tests.support.tenants import CHANNEL, Tenant, new_tenant, turn_of
from turnstile.bridge import engine
from turnstile.bridge.engine import ensure_engine
from turnstile.bridge.inbox import workflow_starter
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.safety.reconciler import Reconciler, Workflow
from turnstile.embedded import EmbeddedServers, ServerName
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.intake import enqueue
from turnstile.processes import presence
from turnstile.processes import worker as worker_module
from turnstile.processes.presence import sign_on
from turnstile.processes.run import run_bridge, run_worker
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import DeferReason, ReplyStatus
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.subjects import CMD_STREAM, EVT_STREAM
from turnstile.temporal.plugin import turn_workers

log = logging.getLogger(__name__)
ALL: tuple[ServerName, ...] = ("postgres", "nats", "temporal")
AGENTS, EACH = 8, 3
HUNG = 60
"""Turns that are asked for while Temporal hangs."""
IMPATIENT: dict[str, Value] = {"dispatched_timeout_seconds": 1.0, "dispatched_retry_seconds": 1.0}
TURNS = AGENTS * EACH
PAUSE = 0.3
"""Between two requests of a client."""


@pytest.fixture(scope="module")
async def own_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    """Servers that these tests may kill."""
    async with EmbeddedServers(tmp_path_factory.mktemp("own") / ".turnstile") as running:
        yield running


@pytest.fixture(scope="module")
async def stack(own_servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack on them."""
    async with open_stack(own_servers.endpoints, tmp_path_factory.mktemp("stack")) as opened:
        yield opened


async def test_what_starts_before_the_servers_waits_for_each_but_nats(
    own_servers: EmbeddedServers, stack: Stack, hatching: Hatchery
) -> None:
    """Turns enqueued into the ledger end without NATS; their ends are published once it comes, without its streams."""
    for stream in (CMD_STREAM, EVT_STREAM):
        await stack.conn.js.delete_stream(stream)
    names: tuple[tuple[ServerName, str], ...] = (("postgres", "PostgreSQL"), ("temporal", "Temporal"))
    for name in ("postgres", "nats", "temporal"):
        await own_servers.kill(name)
    async with processes_of(stack.config, hatching) as both:
        await both.worker.launch()
        await both.bridge.launch()
        for name, shown in names:
            for process in (both.worker, both.bridge):
                await process.until_it_says(f"waiting for {shown}")
                assert "serves" not in process.says()
            await own_servers.restart(name)
            for process in (both.worker, both.bridge):
                await process.until_it_says(f"{shown} answers, after" if name == "postgres" else "answers, after")
        for process in (both.worker, both.bridge):
            await process.until_it_says("serves")
            assert "waiting for NATS" in process.says()
        load = Load(new_tenant(stack))
        turns = [await load.directly(agent, agent) for agent in await load.tenant.agents("plain", 3)]
        await load.ended(more_than=len(turns) - 1)
        await own_servers.restart("nats")

        async def announced() -> bool:
            with contextlib.suppress(NotFoundError):  # the streams are not there yet
                return set(await load.tenant.task_events()) == set(turns)
            return False

        await until(announced, 25, "the ends are published")
        ended = await new_tenant(stack).run("plain")
        assert ended.view.status == "success"
        assert await load.tenant.task_events() == dict.fromkeys(turns, 1)
        for process in (both.worker, both.bridge):
            assert "NATS at" in process.says()
            assert await process.stop() == 0


async def test_a_worker_whose_server_goes_as_it_begins_begins_when_it_is_back(
    own_servers: EmbeddedServers, stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Between the checks of the start and the worker's own question for its namespace."""

    def after_a_kill(*args: Any, **options: Any) -> list[Worker]:
        os.kill(own_servers.pid("temporal"), signal.SIGKILL)
        return turn_workers(*args, **options)

    monkeypatch.setattr(worker_module, "turn_workers", after_a_kill)
    stop = asyncio.Event()
    running = asyncio.create_task(run_worker(stack.settings, stack.endpoints, stop))
    while "waiting for Temporal" not in caplog.text:
        await asyncio.wait([running], timeout=0.1)
        assert not running.done(), running.exception()
    await own_servers.restart("temporal")
    async with running_here(stack, run_bridge):
        assert (await new_tenant(stack).run("plain")).view.status == "success"
    stop.set()
    await running


async def test_a_process_that_starts_on_a_standby_waits_for_one_that_takes_writes(
    own_servers: EmbeddedServers, stack: Stack, hatching: Hatchery
) -> None:
    admin = Pool(f"{stack.endpoints.database_url.rpartition('/')[0]}/postgres", size=1)
    database = stack.endpoints.database_url.rpartition("/")[2]

    async def alter(how: str) -> None:
        async with admin.connection() as conn:
            await conn.execute(f"ALTER DATABASE {database} {how}")

    await alter("SET default_transaction_read_only = on")
    async with processes_of(stack.config, hatching) as both:
        for process in (both.worker, both.bridge):
            await process.launch()
            await process.until_it_says("waiting for PostgreSQL")
            assert "is read-only" in process.says()
        await alter("RESET default_transaction_read_only")
        for process in (both.worker, both.bridge):
            await process.until_it_says("serves")
    await admin.close()


@pytest.mark.parametrize("name", ["postgres", "nats", "temporal"])
async def test_what_waits_for_a_server_can_be_stopped(
    own_servers: EmbeddedServers, stack: Stack, hatching: Hatchery, name: ServerName
) -> None:
    await own_servers.kill(name)
    async with processes_of(stack.config, hatching) as both:
        await both.bridge.launch()
        await both.bridge.until_it_says("waiting for ")
        assert await both.bridge.stop() == 0
    await own_servers.restart(name)


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(ALL, id="all-at-once"),
        *(pytest.param((name,), id=name, marks=pytest.mark.long) for name in ALL),
    ],
)
async def test_turns_in_hand_survive_servers_that_die(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack, names: Sequence[ServerName]
) -> None:
    assert processes.worker.role == "worker"
    tenant = new_tenant(stack)
    slow = await tenant.agents("slow", AGENTS)
    turns = [turn_of(await tenant.enqueue(agent, "hello")) for agent in slow for _ in range(EACH)]
    await until(lambda: some_run(tenant), 25, "some turns ended, and some run")
    for name in names:
        await own_servers.kill(name)
    down = time.monotonic()
    for name in names:
        await own_servers.restart(name)
    back = time.monotonic()
    ended = await tenant.count("state.turn_outcomes")
    await until(lambda: more_than(tenant, min(ended, TURNS - 1)), 60, "turns end again")
    first = time.monotonic()
    await tenant.all_ended(turns, 60)
    log.info(
        "%s was down for %.1f s; the next of %d turns ended %.1f s later, the last %.1f s later",
        *(", ".join(names), back - down, TURNS - ended, first - back, time.monotonic() - back),
    )
    rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert [row["status"] for row in rows] == ["success"] * TURNS
    assert await tenant.task_events() == dict.fromkeys(turns, 1)
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


@dataclass
class Load:
    """Clients that enqueue all the time, half of them over NATS and half into the ledger, and insist on an answer."""

    tenant: Tenant
    turns: list[AgentTurnId] = field(default_factory=list[AgentTurnId])
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, agents: Sequence[AgentId]) -> None:
        """Until it is enough, and every client has its answer."""
        async with asyncio.TaskGroup() as clients:
            for number, agent in enumerate(agents):
                ask = self._over_nats if number % 2 else self.directly
                clients.create_task(self._client(agent, ask))

    async def _client(self, agent: AgentId, ask: Callable[[AgentId, str], Awaitable[AgentTurnId]]) -> None:
        number = 0
        while not self.enough.is_set():
            number += 1
            self.turns.append(await ask(agent, f"{agent}-{number}"))
            await asyncio.sleep(PAUSE)

    async def _over_nats(self, agent: AgentId, correlation: str) -> AgentTurnId:
        payload: JsonObject = {"agent_id": agent, "instruction": "hello", "correlation_id": correlation}
        while True:
            with contextlib.suppress(ServerUnavailable):
                reply = await self.tenant.ask(payload, timeout=1)
                if reply.status is not ReplyStatus.ERROR:
                    return turn_of(reply)
            await asyncio.sleep(PAUSE)

    async def directly(self, agent: AgentId, correlation: str) -> AgentTurnId:
        request = EnqueueRequest(agent_id=agent, instruction="hello", correlation_id=correlation)
        tenant = self.tenant
        done = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
        return turn_of(done.reply)

    async def ended(self, more_than: int = 0) -> int:
        """How many have ended, once there are more than that."""

        async def enough() -> int:
            ended = await self.tenant.count("state.turn_outcomes")
            return ended if ended > more_than else 0

        return await until(enough, 60, f"more than {more_than} turns ended")


async def suffer(load: Load, processes: Processes, outage: Callable[[], Awaitable[None]], name: str) -> None:
    """The outage under load: afterwards everything goes on in the same processes, and nothing is lost."""
    tenant, pids = load.tenant, (processes.worker.pid, processes.bridge.pid)
    running = asyncio.create_task(load.run(await tenant.agents("slow", AGENTS)))
    before = await load.ended(more_than=AGENTS)
    went = time.monotonic()
    await outage()
    back = time.monotonic()
    meanwhile = await tenant.count("state.turn_outcomes")
    await load.ended(more_than=meanwhile)
    first = time.monotonic()
    load.enough.set()
    await running
    await tenant.all_ended(load.turns, 60)
    last = time.monotonic()
    log.info(
        "%s was away for %.1f s of %d turns' load: %d ended meanwhile, the next %.1f s after, the last %.1f s after",
        *(name, back - went, len(load.turns), meanwhile - before, first - back, last - back),
    )
    rows = await tenant.rows("SELECT status FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert [row["status"] for row in rows] == ["success"] * len(load.turns)
    assert await tenant.task_events() == dict.fromkeys(load.turns, 1)
    assert (processes.worker.pid, processes.bridge.pid) == pids
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.long
async def test_nats_may_be_away_under_load(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack, request: pytest.FixtureRequest
) -> None:
    seconds = float(str(request.config.getoption("--outage-seconds")))

    async def away() -> None:
        await own_servers.kill("nats")
        await asyncio.sleep(seconds)
        await own_servers.restart("nats")

    await suffer(Load(new_tenant(stack)), processes, away, "NATS")


@pytest.mark.long
async def test_postgres_may_be_restarted_under_load(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack
) -> None:
    await suffer(Load(new_tenant(stack)), processes, lambda: own_servers.restart("postgres"), "PostgreSQL")


async def test_rules_that_need_the_engine_leave_the_others_running_while_it_is_away(
    own_servers: EmbeddedServers, stack: Stack
) -> None:
    tenant = new_tenant(stack)
    await tenant.agent("plain")
    turn = await unheard(tenant)
    [claimed] = await claim(tenant)
    await agents.begin(tenant.pool, claimed.turn())
    await agents.finish(tenant.pool, claimed.turn())
    watchdog = net_of(stack).watchdog("engine", "engine_over", "unannounced")
    await own_servers.kill("temporal")
    away = time.monotonic()
    swept = {each.rule: each for each in await watchdog.once(dry_run=False)}
    log.info("without Temporal three rules looked in %.2f s", time.monotonic() - away)
    await own_servers.restart("temporal")
    failed = {name: each.failed for name, each in swept.items() if each.failed is not None}
    assert failed == dict.fromkeys(("engine", "engine_over"), "Temporal: tcp connect error")
    assert swept["unannounced"].mended == 1
    assert await tenant.task_events() == {turn: 1}


async def test_a_claim_that_the_engine_does_not_take_is_given_back_and_says_why(
    own_servers: EmbeddedServers, stack: Stack
) -> None:
    tenant = new_tenant(stack)
    agent = await tenant.agent("plain")
    turn = await unheard(tenant)
    starter = net_of(stack).rules.starter
    await own_servers.kill("temporal")
    try:
        await starter.claim([(tenant.project, agent)], "test")
        [row] = await tenant.rows("SELECT * FROM state.agent_inbox WHERE agent_turn_id = $1", turn)
        found = (row["status"], row["defer_reason"], row["archived_at"])
        assert found == ("deferred", DeferReason.ENGINE_UNREACHABLE, None)
        assert row["retry_count"] >= 1, "once for each time that the engine took too long to refuse"
        assert row["next_retry_at"] > row["processed_at"]
    finally:
        await own_servers.restart("temporal")

    async def claimed() -> bool:
        """The row is claimed as soon as the client has found Temporal again; until then it is given back."""
        await tenant.rows("UPDATE state.agent_inbox SET next_retry_at = now() WHERE agent_turn_id = $1", turn)
        await starter.claim([(tenant.project, agent)], "test")
        return await tenant.count("state.agent_inbox", "status IN ('processing', 'consumed')") == 1

    await until(claimed, 25, "the row is claimed")


async def test_ends_that_nats_does_not_take_are_told_once_and_published_when_it_does(
    own_servers: EmbeddedServers, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """The net looks every few seconds, and an outage may take hours."""
    tenant = new_tenant(stack)
    await tenant.agent("plain")
    turn = await unheard(tenant)
    [claimed] = await claim(tenant)
    await agents.begin(tenant.pool, claimed.turn())
    await agents.finish(tenant.pool, claimed.turn())
    net = net_of(stack)
    once = NatsPublisher(stack.conn, give_up_seconds=0)
    watchdog = replace(net, rules=replace(net.rules, publisher=once)).watchdog("unannounced")
    await own_servers.kill("nats")
    try:
        await until(lambda: is_away(stack), 25, "the connection to NATS is lost")
        for _ in range(3):
            [swept] = await watchdog.once(dry_run=False)
            assert (swept.mended, swept.failed is None) == (0, False)
    finally:
        await own_servers.restart("nats")
        await asyncio.wait_for(stack.conn.connected.wait(), 25)
    told = [record.getMessage() for record in caplog.records if "acknowledged no message" in record.getMessage()]
    assert len(told) == 1, told
    assert told[0].startswith("safety net: rule unannounced failed and is tried again at each tick: NATS at ")
    [swept] = await watchdog.once(dry_run=False)
    assert f"agent_turn_id={turn}" in swept.ids  # the ledger may hold another, which an outage before this one left
    assert swept.mended == len(swept.ids)
    assert await tenant.task_events() == {turn: 1}


async def is_away(stack: Stack) -> bool:
    """Whether the test's own connection to NATS is lost."""
    return not stack.conn.connected.is_set()


@contextmanager
def hanging(servers: EmbeddedServers) -> Generator[None]:
    """Temporal is stopped: connections stay open, and nothing is answered."""
    head = psutil.Process(servers.pid("temporal"))
    processes = [head, *head.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


async def test_a_worker_signs_on_while_the_engine_answers_and_counts_as_new_after_it_was_away(
    own_servers: EmbeddedServers, stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(presence, "_SIGN_ON_SECONDS", 0.05)
    monkeypatch.setattr(engine, "_HEALTH_TIMEOUT", timedelta(seconds=0.5))
    tenant, stop = new_tenant(stack), asyncio.Event()

    async def signed_on(after: datetime | None = None) -> dict[str, datetime] | None:
        found = await tenant.rows("SELECT started_at, last_seen_at FROM state.workers WHERE instance = 'w'")
        return next((row for row in found if after is None or row["last_seen_at"] > after), None)

    async def says_so() -> bool:
        return "not signed on: Temporal" in caplog.text

    signing = asyncio.create_task(sign_on(stack.pool, "w", ["w"], stop, reach=partial(ensure_engine, stack.temporal)))
    first = await until(signed_on, 25, "it signs on")
    with hanging(own_servers):
        await until(says_so, 25, "the engine does not answer")
        before = await signed_on()
        assert before is not None
        await asyncio.sleep(0.3)
        assert await signed_on() == before
    again = await until(lambda: signed_on(before["last_seen_at"]), 25, "it signs on again")
    stop.set()
    await signing
    assert before["started_at"] == first["started_at"] <= before["last_seen_at"] < again["started_at"]


async def test_a_start_that_the_engine_does_not_answer_ends_no_turn(
    own_servers: EmbeddedServers, stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = new_tenant(stack)
    await tenant.agent("plain")
    turn = await unheard(tenant)
    late, reconciler = [await in_hand(tenant, turn)], net_of(stack).rules.reconciler

    async def unknown(*_: object) -> Workflow:
        return Workflow()

    monkeypatch.setattr(Reconciler, "_describe", unknown)  # what it said before it hung
    monkeypatch.setattr(workflow_starter, "_RPC_TIMEOUT", timedelta(seconds=0.5))
    with hanging(own_servers), pytest.raises(ServerUnavailable, match="Timeout expired"):
        await reconciler.reap_undispatched(late)
    assert (await in_hand(tenant, turn)).status == "dispatched"


@pytest.mark.long
async def test_an_engine_that_hangs_ends_no_turn(
    own_servers: EmbeddedServers, stack: Stack, request: pytest.FixtureRequest, hatching: Hatchery, tmp_path: Path
) -> None:
    """Longer than turns may stay unbegun: as it wakes, the rules that start turns and that reap them race."""
    seconds = float(str(request.config.getoption("--outage-seconds")))
    config: Config = {**QUICK, "bridge": {**QUICK["bridge"], "engine_interval_seconds": 0.3, **IMPATIENT}}
    [target] = stack.settings.worker.worker_targets
    tenant = new_tenant(stack)
    hung = await tenant.agents("plain", HUNG)
    async with processes_of(write_config(tmp_path, own_servers.endpoints, target, config), hatching) as both:
        await both.ensure()
        first = turn_of(await tenant.enqueue(hung[0]))
        await tenant.ended(first)
        with hanging(own_servers):
            turns = [first, *[await unheard(tenant, agent) for agent in hung]]
            await asyncio.sleep(seconds)
        await tenant.all_ended(turns, 60)
    found = await tenant.rows(
        "SELECT status, error_code, count(*) AS n FROM state.turn_outcomes WHERE project_id = $1 GROUP BY 1, 2",
        tenant.project,
    )
    assert [tuple(row.values()) for row in found] == [("success", None, len(turns))]


async def some_run(tenant: Tenant) -> bool:
    """Whether the turns are under way."""
    ended = await tenant.count("state.turn_outcomes") >= AGENTS
    return ended and await tenant.count("state.agent_state_head", "status = 'running'") > 0


async def more_than(tenant: Tenant, count: int) -> bool:
    """Whether more turns ended."""
    return await tenant.count("state.turn_outcomes") > count


@pytest.mark.long
async def test_an_enqueue_into_the_ledger_while_nats_is_down_is_delivered(
    own_servers: EmbeddedServers, processes: Processes, stack: Stack
) -> None:
    assert processes.bridge.role == "bridge"
    tenant = new_tenant(stack)
    agent = await tenant.agent("plain")
    await own_servers.kill("nats")
    request = EnqueueRequest(agent_id=agent, instruction="hello")
    done = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
    assert done.reply.inbox_status == "pending"
    turn = turn_of(done.reply)

    async def ended_unannounced() -> bool:
        return await tenant.count("state.turn_outcomes", "announced_at IS NULL") == 1

    await until(ended_unannounced, 25, "the turn ends without NATS")  # the safety net's poll is a doorbell to itself
    await own_servers.restart("nats")
    back = time.monotonic()
    ended = await tenant.ended(turn)
    log.info("announced %.1f s after NATS was back", time.monotonic() - back)
    assert ended.deliverable() == "It is done."
    await asyncio.wait_for(stack.conn.connected.wait(), 25)
    assert await tenant.task_events() == {turn: 1}
