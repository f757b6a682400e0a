"""A target of one process (protocol §8): of two bridges and two workers one each serves it, whoever of them dies."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from tests.support.conditions import until
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import ROLES, TurnstileProcess
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.processes import exclusive_targets
from turnstile.schema.ids import AgentId, uuid7
from turnstile.workflows import options

log = logging.getLogger(__name__)
SERVED = "served here"
TAKEOVER_SECONDS = 12.0
"""The settling time and half a second; the rest is for busy cores."""


@pytest.fixture
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One whose target belongs to one process."""
    async with stacks.open(HASTY, target=f"svc1_counter_{uuid7()}") as opened:
        yield opened


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """A project; what protocol §2 says holds when the test ends."""
    yield new_tenant(stack)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.fixture
async def processes(stack: Stack, hatching: Hatchery, tmp_path: Path) -> AsyncIterator[list[TurnstileProcess]]:
    """Two bridges and two workers, started."""
    made = [another(role, stack, hatching, tmp_path / str(number)) for number in range(2) for role in ROLES]
    await asyncio.gather(*(each.start() for each in made))
    yield made
    for each in made:
        await each.remove()


def another(role: str, stack: Stack, hatching: Hatchery, directory: Path) -> TurnstileProcess:
    """One with a log of its own."""
    assert role in ROLES
    directory.mkdir(exist_ok=True)
    config = directory / "config.toml"
    [target] = stack.settings.worker.worker_targets
    config.write_text(stack.config.read_text().replace(f'["{target}"]', f'["{target}", "{shared_with(target)}"]'))
    return TurnstileProcess("worker" if role == "worker" else "bridge", config, hatching)


def shared_with(target: str) -> str:
    """The other target that all of them serve."""
    return target.replace("svc1_", "shared_")


def roles_of(processes: Sequence[TurnstileProcess], words: str) -> list[str]:
    """The roles of those whose log holds the words."""
    return sorted(process.role for process in processes if words in process.says())


async def holders(processes: Sequence[TurnstileProcess]) -> list[TurnstileProcess]:
    """The bridge and the worker that serve, once they do; the others stand by."""

    async def serving() -> bool:
        return roles_of(processes, SERVED) == ["bridge", "worker"]

    await until(serving, TAKEOVER_SECONDS, "a bridge and a worker serve")
    return [process for process in processes if SERVED in process.says()]


async def pollers(stack: Stack, target: str) -> set[str]:
    """Who has asked Temporal for steps of the target lately."""
    request = DescribeTaskQueueRequest(
        namespace=stack.temporal.namespace,
        task_queue=TaskQueue(name=options.task_queue(target)),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    return {poller.identity for poller in (await stack.temporal.workflow_service.describe_task_queue(request)).pollers}


async def test_a_standby_serves_once_the_holder_has_ended(
    stack: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In this process, with a short settling time."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(exclusive_targets, "LOCK_TIMES", replace(exclusive_targets.LOCK_TIMES, settle=0.1))

    def said(words: str) -> int:
        return caplog.text.count(words)

    async def says(words: str, times: int) -> bool:
        return said(words) == times

    agent = await tenant.agent("plain")
    async with running_here(stack):
        await until(lambda: says(SERVED, 2), 25, "a bridge and a worker serve")
        first = await tenant.turn(agent)
        standby = running_here(stack)
        await standby.__aenter__()
        await until(lambda: says("standing by", 2), 25, "the others stand by")
        assert said(SERVED) == 2
    try:
        await until(lambda: says(SERVED, 4), 25, "the others serve")
        second = await tenant.turn(agent)
    finally:
        await standby.__aexit__(None, None, None)
    assert (first.view.status, second.view.status) == ("success", "success")
    assert set((await tenant.task_events()).values()) == {1}


@pytest.mark.long
async def test_a_standby_takes_over_from_one_that_was_killed(
    stack: Stack, tenant: Tenant, processes: list[TurnstileProcess], tmp_path: Path
) -> None:
    first = await holders(processes)
    standbys = [process for process in processes if process not in first]
    assert roles_of(standbys, "standing by") == ["bridge", "worker"]
    gate = tmp_path / "gate"
    gate.mkdir()
    agent = await tenant.agent("gated")
    turn = turn_of(await tenant.enqueue(agent, str(gate)))
    await until(lambda: there(gate / "asked-1-1"), 25, "the model is asked")
    [target] = stack.settings.worker.worker_targets
    assert len(await pollers(stack, target)) == 1
    assert len(await pollers(stack, shared_with(target))) == 2
    signed_on = await tenant.rows(
        "SELECT worker_target, count(*) AS n FROM state.workers WHERE worker_target <> '_bridge' GROUP BY 1 ORDER BY 1"
    )
    assert [each["n"] for each in signed_on] == [2, 1], signed_on

    killed = time.monotonic()
    await asyncio.gather(*(each.kill() for each in first))
    second = await holders(standbys)
    took = time.monotonic() - killed
    log.info("the standbys served %.1f s after their kill -9", took)
    assert took < TAKEOVER_SECONDS
    for step in ("1", "2"):
        (gate / step).touch()
    queued = turn_of(await tenant.enqueue(await tenant.agent("plain", AgentId("bob"))))
    for each in (turn, queued):
        assert (await tenant.ended(each)).view.status == "success"
    assert await tenant.task_events() == {turn: 1, queued: 1}
    assert len(second) == 2


@pytest.mark.long
async def test_a_holder_that_lost_its_lock_serves_no_more(
    tenant: Tenant, processes: list[TurnstileProcess], stack: Stack, hatching: Hatchery, tmp_path: Path
) -> None:
    first = await holders(processes)
    agent = await tenant.agent("slow")
    turn = turn_of(await tenant.enqueue(agent))
    late = another("worker", stack, hatching, tmp_path / "late")
    late.options = ("--no-standby",)
    await late.launch()
    assert await late.died() == 1
    assert "target_held" in late.says()

    ended = await tenant.rows("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    assert len(ended) == 2
    for each in first:
        await each.until_it_says("no longer served here", 5)
    # One of the two of each role has it again: which, is the server's choice.

    async def served_again() -> bool:
        said = [sum(process.says().count(SERVED) for process in processes if process.role == role) for role in ROLES]
        return said == [2, 2]

    await until(served_again, TAKEOVER_SECONDS, "they are served again")
    more = turn_of(await tenant.enqueue(agent))
    for each in (turn, more):
        assert (await tenant.ended(each)).view.status == "success"
    assert await tenant.task_events() == {turn: 1, more: 1}


async def there(path: Path) -> bool:
    """Whether it was made."""
    return path.exists()  # noqa: ASYNC240 -- one look at a file
