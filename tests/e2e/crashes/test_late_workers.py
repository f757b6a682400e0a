"""A worker stopped in mid-step (SIGSTOP) that wakes late: it finds itself fenced, changes nothing, and serves on."""

import logging
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY, rows_of
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import TurnstileProcess
from tests.support.processes.stack import Config, Stack
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.schema.ids import AgentId, AgentTurnId

log = logging.getLogger(__name__)
CONFIG: Config = {
    **HASTY,
    # A worker that is not stopped misses none on a busy machine: the SDK sends them every 2 s at most.
    "worker": {**HASTY["worker"], "activity_heartbeat_timeout_seconds": 4.0},
    "bridge": {**HASTY["bridge"], "stop_grace_seconds": 1.0},
}
# A stack that notices soon, and fences soon.
pytestmark = pytest.mark.stack(CONFIG)
POLLS = 25
"""More steps than a worker polls for at once: what is handed to the polls that a stopped one left open is lost."""


@pytest.fixture(scope="module")
async def bridge(stack: Stack, hatching: Hatchery) -> AsyncIterator[TurnstileProcess]:
    """A bridge."""
    process = TurnstileProcess("bridge", stack.config, hatching)
    await process.start()
    yield process
    await process.remove()


@pytest.fixture
async def workers(
    stack: Stack, bridge: TurnstileProcess, hatching: Hatchery, tmp_path: Path
) -> AsyncIterator[list[TurnstileProcess]]:
    """Two workers with logs of their own; the first one runs."""
    assert bridge.pid
    made: list[TurnstileProcess] = []
    for name in ("one", "two"):
        config = tmp_path / name / "config.toml"
        config.parent.mkdir()
        config.write_text(stack.config.read_text())
        made.append(TurnstileProcess("worker", config, hatching))
    await made[0].start()
    yield made
    for each in made:
        await each.remove()


@dataclass(frozen=True)
class Crowd:
    """Turns of many agents, whose models answer when they are let through."""

    tenant: Tenant
    directory: Path
    turns: dict[AgentTurnId, Path]

    async def in_mid_step(self, count: int) -> list[AgentTurnId]:
        """So many turns, the models of all of which are being asked."""
        made: list[AgentTurnId] = []
        for number in range(count):
            agent = AgentId(f"agent-{number}")
            await self.tenant.agent("gated", agent)
            made.append(await self.enqueue(agent))
        await self.until("asked-1-1", made)
        return made

    async def enqueue(self, agent: AgentId) -> AgentTurnId:
        """A turn that waits at its own gate."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        turn = turn_of(await self.tenant.enqueue(agent, str(directory)))
        self.turns[turn] = directory
        return turn

    def open(self, turns: Sequence[AgentTurnId]) -> None:
        """Their models may answer, now and later."""
        for turn in turns:
            for step in ("1", "2"):
                (self.turns[turn] / step).touch()

    async def until(self, mark: str, turns: Sequence[AgentTurnId]) -> None:
        """Returns when all their models were `asked`, or have `answered`: `asked-{step}-{attempt}`."""

        async def there() -> bool:
            return all((self.turns[turn] / mark).exists() for turn in turns)

        await until(there, 60, f"{mark} of {len(turns)} turns")

    async def rows(self, turns: Sequence[AgentTurnId]) -> list[dict[str, Any]]:
        """What they left, but for what later turns of their agents change."""
        found = [await rows_of(self.tenant, turn) for turn in turns]
        return [{name: rows for name, rows in each.items() if name not in {"head", "events"}} for each in found]


@pytest.fixture
async def crowd(stack: Stack, tmp_path: Path) -> AsyncIterator[Crowd]:
    """A project of this test alone; what protocol §2 says holds when it ends."""
    yield Crowd(new_tenant(stack), tmp_path, {})
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


async def wakes_late(one: TurnstileProcess, crowd: Crowd, turns: Sequence[AgentTurnId]) -> None:
    """It goes on in mid-step, changes nothing of what is over, serves on as the same process, and ends well."""
    tenant, pid, before = crowd.tenant, one.pid, await crowd.rows(turns)
    assert not any((crowd.turns[turn] / "answered-1-1").exists() for turn in turns)
    os.kill(pid, signal.SIGCONT)
    await crowd.until("answered-1-1", turns)
    more = await crowd.enqueue(AgentId("agent-0"))
    crowd.open([more])
    ended = await tenant.ended(more, timeout=60)
    assert (ended.view.status, one.pid) == ("success", pid)
    assert await one.stop() == 0  # nothing of it is under way any more
    assert await crowd.rows(turns) == before
    events = await tenant.task_events()
    assert [events[turn] for turn in turns] == [1] * len(turns)


@pytest.mark.long
async def test_steps_that_were_taken_over_are_not_done_twice(crowd: Crowd, workers: list[TurnstileProcess]) -> None:
    one, two = workers
    turns = await crowd.in_mid_step(POLLS)
    os.kill(one.pid, signal.SIGSTOP)
    stopped = time.monotonic()
    await two.start()
    await crowd.until("asked-1-2", turns)
    log.info("%d steps of a stopped worker were taken over after %.1f s", len(turns), time.monotonic() - stopped)
    crowd.open(turns)
    for turn in turns:
        ended = await crowd.tenant.ended(turn, timeout=60)
        assert (ended.view.status, len(ended.steps)) == ("success", 2)
    await two.kill()
    await wakes_late(one, crowd, turns)
    told = one.says()
    assert "its heartbeat came later than" in told
    assert "Completing activity as failed" not in told, "a heartbeat that was lost is a line, not a traceback"


async def test_a_turn_that_was_fenced_stays_as_it_was_ended(crowd: Crowd, workers: list[TurnstileProcess]) -> None:
    one, _ = workers
    [turn] = await crowd.in_mid_step(1)
    os.kill(one.pid, signal.SIGSTOP)
    queued = await crowd.enqueue(AgentId("agent-0"))
    await crowd.tenant.client.request("stop", {"agent_turn_id": turn})
    ended = await crowd.tenant.ended(turn)
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    crowd.open([turn, queued])
    await wakes_late(one, crowd, [turn])
    assert (await crowd.tenant.ended(queued)).view.status == "success"
