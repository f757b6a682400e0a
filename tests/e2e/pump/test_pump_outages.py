"""A server that is away, or comes back empty, in the middle of conversations: they go on, each answer comes once."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.databases import Databases
from tests.support.faults.points import HASTY
from tests.support.processes.stack import Config, Stack, open_stack, running_here
from tests.support.pump.organism import Errand, Order, Shout
from tests.support.pump.pump import Caller, assert_threads, calling_in, pump_config
from turnstile.embedded import EmbeddedServers, Endpoints
from turnstile.ledger.operations.recovery import list_repairs
from turnstile.schema.pump.primitives import TIMED_OUT

CONFIG: Config = {**HASTY, "bridge": {**HASTY["bridge"], "engine_interval_seconds": 0.5}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where these tests' own servers keep what they know."""
    return tmp_path_factory.mktemp("own") / ".turnstile"


@pytest.fixture(scope="module")
async def own_servers(data: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers that these tests may kill."""
    async with EmbeddedServers(data) as running:
        yield running


@pytest.fixture
async def own_nats(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path: Path
) -> AsyncIterator[EmbeddedServers]:
    """A NATS that a test may kill, beside the session's other servers and a new database."""
    name = await databases.create(migrated)
    async with EmbeddedServers(
        tmp_path / ".turnstile",
        database_url=databases.url(name),
        temporal_address=servers.temporal_address,
        temporal_namespace=servers.temporal_namespace,
    ) as running:
        yield running
    await databases.drop(name)


@pytest.fixture(scope="module")
async def stack(own_servers: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A stack on them that mends soon what was broken."""
    async with open_stack(own_servers.endpoints, tmp_path_factory.mktemp("stack"), pump_config(CONFIG)) as opened:
        yield opened


@asynccontextmanager
async def checked(here: Stack) -> AsyncGenerator[Caller]:
    """A client; when it ends, what protocol §9 says holds, and each answer is in the stream once."""
    async with calling_in(here) as caller:
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
        stored = await caller.stored()
        assert sorted(stored) == sorted(set(stored))


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client of the stack on servers of its own."""
    async with checked(here) as caller:
        yield caller


@pytest.fixture
async def beside(own_nats: EmbeddedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Caller]:
    """A client of a stack on a NATS of its own."""
    opening = open_stack(own_nats.endpoints, tmp_path_factory.mktemp("stack"), pump_config(CONFIG))
    async with opening as stack, running_here(stack), checked(stack) as caller:
        yield caller


async def begun(*gates: Path) -> None:
    """Returns when handlers wait for these files."""

    async def wait() -> bool:
        return all(gate.with_suffix(".begun").exists() for gate in gates)

    await until(wait, 25, "handlers wait")


@pytest.mark.long
async def test_conversations_go_on_though_the_engine_forgets_them(
    caller: Caller, own_servers: EmbeddedServers, data: Path, tmp_path: Path
) -> None:
    """What is settled stays, what was in a handler's hand is answered by it or by `SystemError`, the rest goes on."""
    settled, lost = tmp_path / "settled", tmp_path / "lost"
    through = await caller.send("worker", Order(do="ask", what=f"clerk/gate/{settled}"))
    lost_one = await caller.send("manager", f"<task><do>ask</do><what>clerk/gate/{lost}</what></task>")
    await begun(settled, lost)
    await own_servers.kill("temporal")
    shutil.rmtree(data / "temporal")
    settled.touch()

    async def is_settled() -> bool:
        lines = await caller.messages(through)
        return [line.status for line in lines] == ["handled", "handled", "pending"]

    await until(is_settled, 25, "the handler's response is kept without the engine")
    while_away = await caller.send("shouter", Shout(text="while it is away"))
    await own_servers.restart("temporal")
    assert (await caller.heard(through, timeout=30)).said.startswith("clerk said")
    assert "WHILE IT IS AWAY" in str((await caller.heard(while_away, timeout=30)).payload)
    assert (await caller.heard(lost_one, timeout=30)).said == f"clerk SystemError timeout False {TIMED_OUT}"
    lost.touch()
    await asyncio.sleep(0.3)  # time for what comes late, were it heard
    assert len(await caller.messages(lost_one)) == 3
    assert (await caller.ask("worker", Order(do="say", what="as ever"))).said == "as ever"


async def test_answers_are_announced_once_though_nats_is_away_at_the_end(
    beside: Caller, own_nats: EmbeddedServers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the safety net: the worker has given up by then."""
    gates = [tmp_path / f"gate-{number}" for number in range(3)]
    sent = [await beside.send("clerk", Errand(do="gate", what=str(gate))) for gate in gates]
    await begun(*gates)
    await own_nats.kill("nats")
    for gate in gates:
        gate.touch()

    async def settled() -> bool:
        condition = "thread_id IN (SELECT thread_id FROM state.threads WHERE project_id = $1 AND status = 'ended')"
        rows = await beside.tenant.rows(
            f"SELECT announced_at FROM state.thread_replies WHERE {condition}",  # noqa: S608 -- words of this test
            beside.tenant.project,
        )
        return [row["announced_at"] for row in rows] == [None] * 3

    async def given_up() -> bool:
        return caplog.text.count("left to the safety net") >= len(gates)

    await until(settled, 25, "all are answered, and no answer is announced")
    await until(given_up, 25, "the worker has left it to the safety net")
    await own_nats.restart("nats")

    async def announced() -> bool:
        return sorted(await beside.stored()) == sorted(str(each.message_id) for each in sent)

    await until(announced, 30, "the answers are in the stream", pause=0.2)

    async def repaired() -> bool:
        repairs = await beside.tenant.pool.run(list_repairs)
        return any(repair.rule == "thread_reply" for repair in repairs)

    await until(repaired, 25, "the rule has done it")
    assert (await beside.ask("worker", Order(do="say", what="as ever"))).said == "as ever"
