"""Temporal loses its data while turns are live: the ledger starts them again, and each ends as if nothing had been."""

import asyncio
import json
import logging
import os
import shutil
import signal
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import repairs
from tests.support.processes.piped import Piped
from tests.support.processes.process import Processes
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, open_stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, new_tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from tests.turnstile.support import launch, read_until, until_gone
from turnstile.embedded import EmbeddedServers, read_endpoints
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.profiles import DEFAULT_WORKER_TARGET
from turnstile.sdk.client import BridgeClient

log = logging.getLogger(__name__)
LOOKS_OFTEN = {**QUICK["bridge"], "engine_interval_seconds": 1.0}
TOOLS = [definition(options={"suspend_timeout_seconds": 600}), definition("silent")]
TEXT: JsonObject = {"text": "done"}
STEPS = {"running": 2, "waiting": 2, "reported": 2, "silent": 2, "dispatched": 1, "queued": 1}
RESULTS = {"running": ["failed"], "waiting": ["success"], "reported": ["success"] * 2, "silent": ["timeout"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of servers that may be robbed of it."""
    return tmp_path_factory.mktemp("own") / ".turnstile"


@pytest.fixture(scope="module")
async def own_servers(data: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers on it."""
    async with EmbeddedServers(data) as running:
        yield running


@pytest.fixture(scope="module")
def turns(request: pytest.FixtureRequest) -> int:
    """What `--turns` says."""
    return int(str(request.config.getoption("--turns")))


@pytest.fixture(scope="module")
async def stack(
    own_servers: EmbeddedServers, turns: int, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """A stack on them that compares ledger and engine often, and waits for tools until the data is lost."""
    config: Config = {**QUICK, "bridge": LOOKS_OFTEN, "tools": {"suspend_timeout_seconds": 10.0 + turns / 20}}
    async with open_stack(own_servers.endpoints, tmp_path_factory.mktemp("stack"), config) as opened:
        yield opened


@dataclass
class Crowd:
    """Turns in every state that a turn can be in, so many of each kind."""

    tenant: Tenant
    hand: Hand
    directory: Path
    each: int
    turns: dict[str, list[AgentTurnId]] = field(default_factory=dict[str, list[AgentTurnId]])

    @property
    def all(self) -> list[AgentTurnId]:
        """The turns of all kinds."""
        return [turn for turns in self.turns.values() for turn in turns]

    async def enqueue(self, kind: str, script: str, *lines: JsonObject, of: str | None = None) -> list[AgentTurnId]:
        """A turn for each agent of this kind, or queued behind those of another."""
        tools = [tool.tool_name for tool in TOOLS] if lines else []
        for number in range(self.each):
            name = AgentId(f"{of or kind}-{number}")
            if of is None:
                await self.tenant.agent(script, name, allowed_tools=tools)
            told = json.dumps({"steps": lines}) if lines else str(self._gate(number))
            self.turns.setdefault(kind, []).append(turn_of(await self.tenant.enqueue(name, told)))
        return self.turns[kind]

    def _gate(self, number: int) -> Path:
        path = self.directory / str(number)
        path.mkdir()
        return path

    def open(self, step: int) -> None:
        """The models that wait in this step may answer."""
        for number in range(self.each):
            (self.directory / str(number) / str(step)).touch()

    async def asked(self, step: int) -> None:
        """All the models that wait were asked for this step."""

        async def there() -> bool:
            return all((self.directory / str(number) / f"asked-{step}-1").exists() for number in range(self.each))

        await until(there, 30, f"the models are asked for step {step}")

    async def counted(self, wanted: int, table: str, condition: str, timeout: float = 30) -> None:
        """So many rows of the project are as they should be."""

        async def there() -> bool:
            return await self.tenant.count(table, condition) == wanted

        await until(there, timeout, f"{wanted} rows of {table} where {condition}")

    async def fall_asleep(self) -> None:
        """Those who run, then those who sleep: without a report, with one of two applied, and with a deadline soon."""
        await self.enqueue("running", "gated")
        self.open(1)
        await self.asked(2)
        await self.enqueue("waiting", "player", calling("search"), TEXT)
        for turn in await self.enqueue("reported", "player", calling("search", "search"), TEXT):
            await self.hand.called(call_of(turn, 1))
            await self.hand.report(call_of(turn, 0))
        await self.enqueue("silent", "player", calling("silent"), TEXT)
        await self.counted(3 * self.each, "state.agent_state_head", "status = 'suspended' AND waiting_tool_count = 1")

    async def pile_up(self) -> None:
        """While no worker moves: reports that are claimed and not applied, leases not begun, turns behind others."""
        for turn in self.turns["reported"]:
            await self.hand.report(call_of(turn, 1))
        await self.enqueue("dispatched", "player", TEXT)
        await self.enqueue("queued", "player", TEXT, of="waiting")
        claimed = "status = 'processing' AND message_type = "
        await self.counted(self.each, "state.agent_inbox", f"{claimed}'tool_result'")
        await self.counted(self.each, "state.agent_inbox", f"{claimed}'turn'")


async def wipe(servers: EmbeddedServers, data: Path) -> None:
    """Temporal is killed and starts again without a memory."""
    await servers.kill("temporal")
    shutil.rmtree(data / "temporal")
    await servers.restart("temporal")


async def deadlines(tenant: Tenant) -> dict[str, datetime]:
    """Until when each sleeping agent waits."""
    found = await tenant.rows(
        "SELECT agent_id, resume_deadline FROM state.agent_state_head WHERE project_id = $1 AND status = 'suspended'",
        tenant.project,
    )
    return {row["agent_id"]: row["resume_deadline"] for row in found}


async def lateness(tenant: Tenant, before: dict[str, datetime]) -> list[timedelta]:
    """How long after its old deadline each silent agent's timeout was injected."""
    found = await tenant.rows(
        "SELECT agent_id, created_at FROM state.agent_inbox WHERE project_id = $1 AND message_type = 'timeout'",
        tenant.project,
    )
    return [row["created_at"] - before[row["agent_id"]] for row in found]


@pytest.mark.long
async def test_all_live_turns_survive_the_loss_of_temporals_data(
    own_servers: EmbeddedServers,
    data: Path,
    processes: Processes,
    stack: Stack,
    tmp_path: Path,
    turns: int,
) -> None:
    each = turns // len(STEPS)
    tenant, pids = new_tenant(stack), (processes.worker.pid, processes.bridge.pid)
    async with hand_of(tenant, *TOOLS) as hand:
        crowd = Crowd(tenant, hand, tmp_path, each)
        await crowd.fall_asleep()
        os.kill(processes.worker.pid, signal.SIGSTOP)
        await crowd.pile_up()
        before = await deadlines(tenant)
        await wipe(own_servers, data)
        back = time.monotonic()
        os.kill(processes.worker.pid, signal.SIGCONT)
        begun = each * 4
        await until(lambda: all_restarted(stack, begun), 60, "the turns that had begun are started again")
        log.info("%d turns that had begun were started again after %.1f s", begun, time.monotonic() - back)
        assert {**before, **await deadlines(tenant)} == before
        crowd.open(2)
        for turn in crowd.turns["waiting"]:
            await hand.report(call_of(turn))
        await tenant.all_ended(crowd.all, 120)
    log.info("the last of %d turns ended after %.1f s", len(crowd.all), time.monotonic() - back)
    await check(crowd, before)
    assert (await repairs(stack.pool))["engine"] == begun
    assert (processes.worker.pid, processes.bridge.pid) == pids


async def all_restarted(stack: Stack, begun: int) -> bool:
    """Whether so many turns were started again."""
    return (await repairs(stack.pool)).get("engine", 0) >= begun


async def check(crowd: Crowd, before: dict[str, datetime]) -> None:
    """Each turn ended once and well, did no committed step again, and slept no longer than it should."""
    tenant = crowd.tenant
    assert await tenant.task_events() == dict.fromkeys(crowd.all, 1)
    for kind, turns in crowd.turns.items():
        for turn in turns:
            ended = await tenant.ended(turn)
            assert (ended.view.status, len(ended.steps)) == ("success", STEPS[kind]), kind
            results = [result[0] for result in ended.results()]
            assert results == RESULTS.get(kind, []), kind
    assert not list(crowd.directory.glob("*/asked-1-2"))
    late = await lateness(tenant, before)
    assert len(late) == crowd.each
    assert timedelta() <= min(late) <= max(late) < timedelta(seconds=10)
    log.info("the last timeout was injected %.1f s after its old deadline", max(late).total_seconds())
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)


async def up(home: Path) -> Piped:
    """`turnstile up` in this directory, once it serves."""
    scripts = ",".join(str(path) for path in SCRIPTS)
    process = await launch(
        "up", cwd=home, TURNSTILE__MODEL__SCRIPTS=scripts, TURNSTILE__BRIDGE__ENGINE_INTERVAL_SECONDS="1"
    )
    await read_until(process.stdout, "serves")
    return process


async def end(process: Piped, home: Path) -> None:
    """It is told to stop, and ends with its servers."""
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        await process.communicate()
    assert process.returncode == 0
    await until_gone(home)


@asynccontextmanager
async def stack_of(home: Path) -> AsyncGenerator[Stack]:
    """A client of the servers that are up there."""
    endpoints = read_endpoints(home / ".turnstile")
    assert endpoints is not None
    elsewhere = home / "client"  # `up` would read the configuration that is written there
    elsewhere.mkdir(exist_ok=True)
    async with open_stack(endpoints, elsewhere, target=DEFAULT_WORKER_TARGET) as opened:
        yield opened


@pytest.mark.long
async def test_live_turns_come_back_when_an_up_finds_temporals_data_deleted(tmp_path: Path) -> None:
    process = await up(tmp_path)
    async with stack_of(tmp_path) as before, hand_of(new_tenant(before)) as hand:
        tenant, commands = hand.tenant, hand.commands
        turn = await hand.suspended(calling("search"), TEXT)
        queued = turn_of(await tenant.enqueue(ALICE, json.dumps({"steps": [TEXT]})))
    await end(process, tmp_path)
    shutil.rmtree(tmp_path / ".turnstile" / "temporal")
    process = await up(tmp_path)
    back = time.monotonic()
    async with stack_of(tmp_path) as after:
        tenant = Tenant(after, tenant.project, BridgeClient(after.conn, tenant.project, CHANNEL))
        await until(lambda: all_restarted(after, 1), 30, "the turn that had begun is started again")
        log.info("it was started again %.1f s after `up` served", time.monotonic() - back)
        await Hand(tenant, ALICE, commands).report(call_of(turn))
        for each, steps in ((turn, 2), (queued, 1)):
            ended = await tenant.ended(each)
            assert (ended.view.status, len(ended.steps)) == ("success", steps)
        assert await tenant.task_events() == {turn: 1, queued: 1}
        async with after.pool.connection() as conn:
            await assert_invariants(conn)
    await end(process, tmp_path)
