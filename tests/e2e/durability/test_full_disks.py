"""Full disks under `turnstile up`, under load: refusals say so, nothing is lost, and all goes on when there is room."""

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.piped import Piped
from tests.support.processes.small_disks import SmallDisk, small_disk
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, open_stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import calling
from tests.turnstile.support import launch, turnstile, until_gone
from turnstile.embedded import EmbeddedServers, ServerName, read_endpoints
from turnstile.ledger.roster import put_tool
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ReplyStatus
from turnstile.sdk.tools.service import ToolService

log = logging.getLogger(__name__)
TARGET = "worker_generic"
HASTY: Config = {
    **QUICK,
    "bridge": {
        **QUICK["bridge"],
        "dispatched_timeout_seconds": 2.0,
        "dispatched_retry_seconds": 1.0,
        "active_reap_seconds": 6.0,
        "command_retry_seconds": 3.0,
    },
    "model": {**QUICK["model"], "scripts": [str(path) for path in SCRIPTS]},
}
"""Turns that stand still are ended soon, so that a full disk which made one look so would end it."""
SIZES: dict[ServerName, int] = {"postgres": 230, "nats": 64, "temporal": 64}
AGENTS = 4
FULL_SECONDS = 12.0
DONE = {"text": "All is done."}


@dataclass
class Up:
    """A running `turnstile up` on a directory, what it printed, and a stack on its servers."""

    process: Piped
    directory: Path
    stack: Stack
    said: list[str] = field(default_factory=list[str])

    async def listen(self) -> None:
        """Collect its lines."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.said.append(line.decode())

    async def says(self, words: str, timeout: float = 60.0) -> str:
        """Wait for a line with the words; returns it."""

        async def there() -> str | None:
            assert self.process.returncode is None, "".join(self.said)[-4000:]
            return next((line for line in self.said if words in line), None)

        return await until(there, timeout, f"up says {words!r}")


@asynccontextmanager
async def up_on(directory: Path) -> AsyncGenerator[Up]:
    """`turnstile up` as a process; it must end without an error afterwards."""
    lines = [
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in section.items())
        for name, section in HASTY.items()
    ]
    (directory / "config.toml").write_text("\n".join(lines))
    process = await launch("up", "--json", cwd=directory)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline()
    endpoints = read_endpoints(directory / ".turnstile")
    assert endpoints is not None
    own = directory / "stack"
    own.mkdir()
    async with open_stack(endpoints, own, HASTY, target=TARGET) as stack:
        up = Up(process, directory, stack)
        listening = asyncio.create_task(up.listen())
        yield up
        process.terminate()
        async with asyncio.timeout(40):
            assert await process.wait() == 0
            await listening
    await until_gone(directory)


@dataclass
class Load:
    """Clients that ask over NATS all the time, half of them for turns that call a tool, and insist on an answer."""

    tenant: Tenant
    turns: list[AgentTurnId] = field(default_factory=list[AgentTurnId])
    refusals: set[tuple[str | None, str]] = field(default_factory=set[tuple[str | None, str]])
    """Codes and texts of the answers that were no acceptance."""
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def client(self, agent: AgentId, instruction: str) -> None:
        """Ask until it is enough; each request is repeated under its id until it is accepted."""
        number = 0
        while not self.enough.is_set():
            number += 1
            asked = {"agent_id": agent, "instruction": instruction, "correlation_id": f"{agent}-{number}"}
            while True:
                with contextlib.suppress(ServerUnavailable):
                    reply = await self.tenant.ask({**asked}, timeout=5)
                    if reply.status is ReplyStatus.ACCEPTED:
                        self.turns.append(turn_of(reply))
                        break
                    self.refusals.add((reply.error_code, reply.error or ""))
                await asyncio.sleep(0.3)
            await asyncio.sleep(0.5)

    async def over(self) -> int:
        """How many turns have ended; 0 while the ledger does not say."""
        with contextlib.suppress(ServerUnavailable):
            return await self.tenant.count("state.turn_outcomes")
        return 0

    async def more_than(self, count: int, timeout: float = 60.0) -> int:
        """Wait until more turns have ended; returns how many."""

        async def more() -> int:
            over = await self.over()
            return over if over > count else 0

        return await until(more, timeout, f"more than {count} turns ended")


@asynccontextmanager
async def counting(tenant: Tenant) -> AsyncGenerator[list[str]]:
    """A tool that runs in this process; yields what it was asked."""
    service, stop, ready, runs = ToolService(tenant.project), asyncio.Event(), asyncio.Event(), list[str]()

    @service.tool(target="words", suffix="count")
    async def count_words(text: str) -> int:
        """Count the words of a text."""
        runs.append(text)
        return len(text.split())

    await put_tool(tenant.pool, tenant.project, service.definitions()[0])
    running = asyncio.create_task(service.run(tenant.stack.endpoints.nats_url, stop=stop, ready=ready.set))
    await ready.wait()
    yield runs
    stop.set()
    await running


async def suffer(up: Up, disk: SmallDisk, meanwhile: Callable[[Load], Awaitable[None]]) -> Load:
    """Fill the disk under load for some seconds; afterwards nothing is lost, and nobody started anything again."""
    tenant = new_tenant(up.stack).named(up.stack.settings.protocol.default_project)
    load = Load(tenant)
    async with counting(tenant):
        agents = await tenant.agents("slow", AGENTS // 2)
        callers = [
            await tenant.agent("player", AgentId(f"c-{n}"), allowed_tools=["count_words"]) for n in range(AGENTS // 2)
        ]
        call = json.dumps({"steps": [calling(("count_words", {"text": "one two"})), DONE]})
        clients = [asyncio.create_task(load.client(agent, "hello")) for agent in agents]
        clients += [asyncio.create_task(load.client(caller, call)) for caller in callers]
        before = await load.more_than(2 * AGENTS)
        disk.fill()
        went = time.monotonic()
        await meanwhile(load)
        await asyncio.sleep(max(0.0, went + FULL_SECONDS - time.monotonic()))
        disk.free()
        back = time.monotonic()
        during = await until(load.over, 60, "the ledger answers")
        answered = time.monotonic()
        await load.more_than(during)
        first = time.monotonic()
        load.enough.set()
        await asyncio.gather(*clients)
        await tenant.all_ended(load.turns, 120)
        last = time.monotonic()
    log.info(
        "%s was full for %.1f s of %d turns' load: %d ended meanwhile; the ledger answered %.1f s after, the next turn "
        "ended %.1f s after, the last %.1f s after; refusals %s",
        *(disk.path.name, back - went, len(load.turns), during - before),
        *(answered - back, first - back, last - back, sorted(load.refusals, key=str)),
    )
    found = "SELECT agent_turn_id::text AS turn, status FROM state.turn_outcomes WHERE project_id = $1"
    rows = await tenant.rows(found, tenant.project)
    assert {row["turn"] for row in rows} >= set(load.turns)
    assert {row["status"] for row in rows} == {"success"}
    assert await tenant.task_events() == {row["turn"]: 1 for row in rows}
    async with tenant.pool.connection() as conn:
        await assert_invariants(conn)
    assert up.process.returncode is None
    return load


async def examined(up: Up) -> dict[str, Any]:
    """The lines of `turnstile doctor` by name."""
    ran = await turnstile("doctor", "--json", cwd=up.directory)
    return {each["name"]: each for each in ran.json()}


async def nothing_more(_: Load) -> None:
    """The load alone."""


@pytest.mark.long
@pytest.mark.parametrize("name", ["nats", "temporal"])
async def test_what_the_disk_of_a_server_kept_from_being_done_is_done_later(tmp_path: Path, name: ServerName) -> None:
    async with EmbeddedServers(tmp_path / ".turnstile"):
        pass
    with small_disk(tmp_path / ".turnstile" / name, SIZES[name]) as disk:
        async with up_on(tmp_path) as up:

            async def told(_: Load) -> None:
                line = (await examined(up))[f"disk of {disk.path}"]
                assert (line["status"], line["says"].partition(":")[0]) == ("fail", "the disk is full")

            load = await suffer(up, disk, told)
            assert load.refusals == set()
            assert (await examined(up))[f"disk of {disk.path}"]["status"] == "warn"


@pytest.mark.long
async def test_a_full_disk_of_postgresql_is_told_to_all_who_ask_and_ends_it_only_until_there_is_room(
    tmp_path: Path,
) -> None:
    async with EmbeddedServers(tmp_path / ".turnstile"):
        pass
    with small_disk(tmp_path / ".turnstile" / "postgres", SIZES["postgres"]) as disk:
        async with up_on(tmp_path) as up:

            async def refuse_and_end(load: Load) -> None:
                async def refused() -> bool:
                    return bool(load.refusals)

                await until(refused, 30, "a client is refused")
                await ask_all_ways(up)
                with contextlib.suppress(ServerUnavailable):
                    await load.tenant.rows("SELECT pg_switch_wal()")  # its log needs a file, which it does not get
                await up.says("postgres died: it exited with code 1. It cannot run: the disk is full: ")

            load = await suffer(up, disk, refuse_and_end)
            codes, texts = {code for code, _ in load.refusals}, " ".join(text for _, text in load.refusals)
            assert codes == {"server_unavailable"}
            assert "the database's disk is full (53100)" in texts
            await up.says("postgres answers again")
            assert (await examined(up))[f"disk of {disk.path}"]["status"] == "warn"


async def ask_all_ways(up: Up) -> None:
    """The command line and `doctor` name the full disk; HTTP says to try again."""
    full = "the database's disk is full (53100)"
    large = os.urandom(20_000).hex()  # it finds no place in a page that is there
    ran = await turnstile("enqueue", "c-0", large, cwd=up.directory)
    assert (ran.code, full in ran.err) == (3, True), ran.err
    endpoints = read_endpoints(up.directory / ".turnstile")
    assert endpoints is not None
    token = (up.directory / ".turnstile" / "token").read_text().strip()
    async with httpx.AsyncClient(base_url=endpoints.gateway_url or "", timeout=30, trust_env=False) as client:
        body = {"agent_id": "c-0", "instruction": large}
        answer = await client.post("/v1/turns", json=body, headers={"authorization": f"Bearer {token}"})
    problem = answer.json()
    assert (answer.status_code, problem["code"], answer.headers["retry-after"]) == (503, "server_unavailable", "1")
    assert "cannot handle this request now; try again" in problem["detail"]  # strangers are told no more
    lines = await examined(up)
    assert (lines["PostgreSQL"]["status"], full in lines["PostgreSQL"]["says"]) == ("fail", True)


@pytest.mark.long
async def test_one_full_disk_of_all_servers_loses_nothing(tmp_path: Path) -> None:
    async with EmbeddedServers(tmp_path / ".turnstile"):
        pass
    with small_disk(tmp_path / ".turnstile", 400) as disk:
        async with up_on(tmp_path) as up:
            await suffer(up, disk, nothing_more)
