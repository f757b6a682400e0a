"""`turnstile worker --processes N`: N real processes behind one signal, one health, one log; what each end comes to."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import Processes, processes_of
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import new_tenant, turn_of
from turnstile.embedded.ports import free_port
from turnstile.processes import worker_group
from turnstile.processes.worker_group import WorkerGroup
from turnstile.schema.ids import AgentId, uuid7
from turnstile.settings import load_settings
from turnstile.telemetry.health import fetch_status

HOST = "127.0.0.1"
TURNS = 6


@pytest.fixture
async def group(stack: Stack, hatching: Hatchery) -> AsyncIterator[Processes]:
    """A bridge and a group of two workers, which serve their health and metrics."""
    async with processes_of(stack.config, hatching) as both:
        both.worker.options = ("--processes", "2")
        both.worker.env["TURNSTILE__OBSERVABILITY__METRICS_PORT"] = str(free_port())
        await asyncio.gather(both.bridge.start(), both.worker.start())
        yield both


def members(group: int) -> set[int]:
    """The processes of the workers of this process."""
    pids = Path(f"/proc/{group}/task/{group}/children").read_text().split()
    return {int(pid) for pid in pids if b"--member" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def gone(pids: set[int]) -> None:
    """Wait until these processes have ended."""

    async def ended() -> bool:
        return not any(Path(f"/proc/{pid}").exists() for pid in pids)  # noqa: ASYNC240 -- no disk is read

    await until(ended, 25, f"{pids} have ended")


async def test_a_killed_worker_is_started_again_while_the_others_do_its_work(
    stack: Stack, group: Processes, tmp_path: Path
) -> None:
    worker, tenant = group.worker, new_tenant(stack)
    port = int(worker.env["TURNSTILE__OBSERVABILITY__METRICS_PORT"])
    assert "by 2 processes" in worker.says()
    agents = [await tenant.agent("gated", AgentId(f"a{number}")) for number in range(TURNS)]
    gates = [tmp_path / str(number) for number in range(TURNS)]
    for gate in gates:
        gate.mkdir()
    turns = [turn_of(await tenant.enqueue(agent, str(gate))) for agent, gate in zip(agents, gates, strict=True)]

    async def asked() -> bool:
        return all((gate / "asked-1-1").exists() for gate in gates)

    await until(asked, 25, "all models are asked")
    before = members(worker.pid)
    assert len(before) == 2
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    await worker.until_it_says("it was ended by SIGKILL: it is started again")
    assert await fetch_status(HOST, port) == "serving"
    for gate in gates:
        for step in ("1", "2"):
            (gate / step).touch()
    for turn in turns:
        assert (await tenant.ended(turn)).view.status == "success"
    assert await tenant.task_events() == dict.fromkeys(turns, 1)

    async def both_report() -> bool:
        with await asyncio.to_thread(urlopen, f"http://{HOST}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return all(f'turnstile_database_round_trips_total{{process="{number}"}}' in text for number in (1, 2))

    await until(both_report, 25, "the metrics of both")
    after = members(worker.pid)
    assert len(after) == 2
    assert victim not in after
    assert await worker.stop() == 0
    await gone(after)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.long
async def test_workers_end_with_their_group_however_it_ends(stack: Stack, group: Processes, tmp_path: Path) -> None:
    """By a second signal at once; by kill -9 too. The turn goes on where the next group serves."""
    worker, tenant = group.worker, new_tenant(stack)
    turn = turn_of(await tenant.enqueue(await tenant.agent("gated"), str(tmp_path)))
    first = members(worker.pid)
    os.kill(worker.pid, signal.SIGTERM)
    await worker.until_it_says("stopping")
    assert await worker.stop() == 130
    await gone(first)
    await worker.start()
    second = members(worker.pid)
    await worker.kill()
    await gone(second)
    for step in ("1", "2"):
        (tmp_path / step).touch()
    await worker.start()
    assert (await tenant.ended(turn)).view.status == "success"
    assert await worker.stop() == 0


@pytest.mark.long
async def test_workers_that_cannot_begin_end_the_group_with_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("")
    monkeypatch.setenv("TURNSTILE__PUMP__LISTENERS", "no_such_module")
    for server, address in (("DATABASE__URL", "postgres"), ("NATS__SERVERS", "nats"), ("TEMPORAL__ADDRESS", "")):
        monkeypatch.setenv(f"TURNSTILE__{server}", f"{address}://localhost" if address else "localhost:1")
    group = WorkerGroup(load_settings(config), 2, ("--config", str(config)))
    assert await group.run(asyncio.Event()) == 2
    assert "it exited with code 2, before all served" in caplog.text


@pytest.mark.long
async def test_workers_that_end_too_often_end_the_group_with_their_code(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "MOST_ENDS", 1)
    group = WorkerGroup(stack.settings, 2, ("--config", str(stack.config)))
    over = asyncio.create_task(group.run(asyncio.Event()))
    await asyncio.wait_for(group.serves.wait(), 60)
    assert group.status() == "serving"

    async def both() -> bool:
        return len(members(os.getpid())) == 2

    for _ in range(2):
        await until(both, 25, "both run")
        os.kill(min(members(os.getpid())), signal.SIGKILL)
    assert await asyncio.wait_for(over, 60) == 128 + signal.SIGKILL
    assert not members(os.getpid())


@pytest.mark.long
async def test_one_worker_of_a_group_has_an_exclusive_target(stacks: Stacks, hatching: Hatchery) -> None:
    async with (
        stacks.open(HASTY, target=f"svc1_group_{uuid7()}") as stack,
        processes_of(stack.config, hatching) as both,
    ):
        both.worker.options = ("--processes", "2")
        await asyncio.gather(both.bridge.start(), both.worker.start())
        await both.worker.until_it_says("served here")
        await both.worker.until_it_says("standing by")
        tenant = new_tenant(stack)
        agent = await tenant.agent("plain")
        first = await tenant.turn(agent)
        [holder] = re.findall(r"(\d+) worker of \S+ served here", both.worker.says())
        os.kill(int(holder), signal.SIGKILL)

        async def taken_over() -> bool:
            return both.worker.says().count("served here") == 2

        await until(taken_over, 60, "the other one serves it")
        second = await tenant.turn(agent)
        assert (first.view.status, second.view.status) == ("success", "success")
        assert set((await tenant.task_events()).values()) == {1}
        assert await both.worker.stop() == 0
        both.worker.options = ("--processes", "2", "--no-standby")
        await both.worker.launch()
        assert await both.worker.died() == 2
        assert "leave out --no-standby" in both.worker.says()
