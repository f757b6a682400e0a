"""Conversations whose workers and bridge are killed (-9), at every hop and fault point: they end with the same reply.

Two workers, of which one is there while the other starts again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.paths import ROOT
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import MortalProcess, TurnstileProcess
from tests.support.processes.stack import Stack
from tests.support.pump.organism import DIRECTORY, Order, Relay
from tests.support.pump.pump import Caller, assert_threads, calling_in, pump_config
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.pump.primitives import TIMED_OUT
from turnstile.schema.wire.inbox import SendReply

pytestmark = pytest.mark.stack(pump_config(HASTY))

log = logging.getLogger(__name__)
HOPS = 10
SETTLED, TOLD, BEGUN = Fault.MESSAGE_SETTLED, Fault.MESSAGE_PUBLISHED, Fault.MESSAGE_BEGUN
FATES = [
    *(SETTLED, TOLD, f"{SETTLED}+{BEGUN}", "", "at once", SETTLED, TOLD),
    *(f"{SETTLED}+{BEGUN}", "", "at once", Fault.REPLY_ANNOUNCED),
]
"""How the worker dies at each message: behind a point, or before it does anything. What a handler arms is met by its
own message, but `message.begun` by the next one."""
KILLS = sum(len(fate.split("+")) for fate in FATES if fate)
POINTS = sorted({SETTLED, TOLD, BEGUN, Fault.REPLY_ANNOUNCED})


@pytest.fixture(scope="module")
def directory(stack: Stack) -> Path:
    """Where the listeners write their effects; below it, the points that do not strike."""
    faults = stack.directory / "organism" / "faults"
    faults.mkdir(parents=True)
    for point in (*POINTS, Fault.THREAD_SENT):
        (faults / point).touch()
    return faults.parent


@pytest.fixture(scope="module")
async def workers(stack: Stack, directory: Path, hatching: Hatchery) -> AsyncIterator[list[MortalProcess]]:
    """Two workers with the same configuration, each with a log of its own."""
    made: list[MortalProcess] = []
    for name in ("one", "two"):
        home = stack.directory / name
        home.mkdir()
        (home / "config.toml").write_text(stack.config.read_text())
        worker = MortalProcess("worker", home / "config.toml", hatching)
        armed = ",".join(f"{point}=kill" for point in POINTS)
        worker.env = {
            DIRECTORY: str(directory),
            "TURNSTILE_FAULTS": armed,
            "TURNSTILE_FAULTS_DIR": str(directory / "faults"),
            "PYTHONPATH": str(ROOT),
        }
        made.append(worker)
    async with made[0].reviving(), made[1].reviving():
        yield made


@pytest.fixture(scope="module")
async def bridge(stack: Stack, directory: Path, hatching: Hatchery) -> AsyncIterator[TurnstileProcess]:
    """A bridge that dies behind a `send` where it is told to."""
    process = TurnstileProcess("bridge", stack.config, hatching)
    process.env = {
        "TURNSTILE_FAULTS": f"{Fault.THREAD_SENT}=kill",
        "TURNSTILE_FAULTS_DIR": str(directory / "faults"),
    }
    await process.start()
    yield process
    await process.remove()


@pytest.fixture
async def caller(stack: Stack, workers: list[MortalProcess], bridge: TurnstileProcess) -> AsyncIterator[Caller]:
    """A client; when the test ends, what protocol §9 says holds, and each answer is in the stream once."""
    assert workers
    await bridge.ensure()
    async with calling_in(stack) as caller:
        yield caller
        async with stack.pool.connection() as conn:
            await assert_threads(conn)
        stored = await caller.stored()
        assert sorted(stored) == sorted(set(stored)) == sorted(caller.events)


def effects(directory: Path) -> Counter[str]:
    """What handlers did, and how often."""
    return Counter((directory / "effects").read_text().splitlines())


async def test_what_a_bridge_had_taken_when_it_died_is_answered_once(
    caller: Caller, bridge: TurnstileProcess, directory: Path
) -> None:
    (directory / "faults" / Fault.THREAD_SENT).unlink()
    asked: JsonObject = {"to": "shouter", "payload": "<shout><text>hi</text></shout>", "correlation_id": "insisted"}
    with suppress(ServerUnavailable):
        await caller.tenant.client.request("send", asked, timeout=1)
    assert await bridge.died() == -9
    await bridge.start()
    reply = SendReply.model_validate(await caller.tenant.client.request("send", asked))
    assert reply.duplicate
    assert (await caller.heard(reply)).payload == "<shouted><text>HI</text></shouted>"


@pytest.mark.long
async def test_a_thread_of_ten_hops_survives_a_kill_at_every_hop(
    caller: Caller, workers: list[MortalProcess], directory: Path
) -> None:
    """The reply is that of a thread without harm, and each handler ran once for its message."""
    (directory / "fates").write_text(",".join(FATES))
    began = time.monotonic()
    sent = await caller.send("relay", Relay(left=HOPS // 2))
    heard = await caller.heard(sent, timeout=120)
    took = time.monotonic() - began
    assert heard.payload == "<relayed><text>5&gt;4&gt;3&gt;2&gt;1&gt;|&lt;&lt;&lt;&lt;&lt;</text></relayed>"
    assert KILLS == HOPS + 1
    await until(lambda: died(workers, KILLS), 25, "the last one is dead")
    (directory / "fates").unlink()
    log.info("%d messages, %d kills, %.1f s", HOPS + 1, KILLS, took)
    assert len(await caller.messages(sent)) == HOPS + 1
    assert [*effects(directory).values()] == [1] * (HOPS + 1)
    assert {path.name for path in (directory / "faults").iterdir()} == {*POINTS, Fault.THREAD_SENT}


async def test_a_handler_that_dies_with_its_worker_does_not_run_again(caller: Caller, directory: Path) -> None:
    heard = await caller.ask("worker", Order(do="ask", what="clerk/die/"))
    assert heard.said == f"clerk SystemError timeout False {TIMED_OUT}"
    assert effects(directory)["die"] == 1


@pytest.mark.long
async def test_a_handler_that_blocks_its_process_is_a_timeout_for_its_caller(
    caller: Caller, workers: list[MortalProcess], directory: Path, tmp_path: Path
) -> None:
    """It is heard from the other worker while the first is held up still; what comes of it late changes nothing.

    The worker that is held up goes on taking tasks, which then have to time out once more: it may take a few rounds.
    """
    await asyncio.gather(*(worker.until_it_says("worker serves") for worker in workers))
    release = tmp_path / "release"
    sent = await caller.send("worker", Order(do="ask", what=f"clerk/block/{release}"))
    heard = await caller.heard(sent, timeout=120)
    assert heard.said == f"clerk SystemError timeout False {TIMED_OUT}"
    assert effects(directory)["block"] == 1
    assert not effects(directory)["unblocked"]
    release.touch()

    async def unblocked() -> bool:
        return effects(directory)["unblocked"] == 1

    await until(unblocked, 25, "the handler has come to its end")
    await asyncio.sleep(0.3)  # time to settle, were it heard
    lines = await caller.messages(sent)
    assert [(line.status, line.effect, line.attempt) for line in lines] == [
        ("handled", "forward", 1),
        ("handled", "respond", 2),
        ("handled", "respond", 1),
    ], lines
    assert (await caller.ask("shouter", "<shout><text>still there?</text></shout>")).reason == "responded"
    assert effects(directory)["block"] == 1


async def died(workers: list[MortalProcess], times: int) -> bool:
    """Whether the workers died so often in all."""
    return sum(worker.deaths for worker in workers) == times
