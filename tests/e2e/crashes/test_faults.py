"""A process killed at fault points (`turnstile.runtime.faults`) that a turn passes: at each kind of commit, and in the
long run at every point, for every kind of turn that passes it.

The turn ends all the same, with the same rows. One point a life: the turn that was hit recovers while the next one
meets the next point. Bridge and worker are walked side by side, each on a stack of its own, where the other one stays.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Databases
from tests.support.faults.points import HASTY, KINDS, PASSED, POINTS, Kind, played, unharmed
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import ROLES, Role, TurnstileProcess, processes_of
from tests.support.processes.stack import SCRIPTS, Stack, open_stack, running_here
from turnstile.embedded import EmbeddedServers, Endpoints
from turnstile.runtime.faults import Fault

log = logging.getLogger(__name__)
IN_BRIDGE = {
    *(Fault.ENQUEUE_COMMITTED, Fault.ENQUEUE_PUBLISHED, Fault.CLAIM_TAKEN, Fault.WORKFLOW_STARTED),
    *(Fault.WORKFLOW_SIGNALLED, Fault.REPORT_COMMITTED, Fault.REPORT_PUBLISHED, Fault.TREE_MARKED),
    *(Fault.STOP_COMMITTED, Fault.STOP_PUBLISHED),
}
PLAYER = [path for path in SCRIPTS if path.suffix == ".py"]
"""All that is played; parsing the others takes longer than a life."""
Ended = dict[tuple[Kind, Fault], dict[str, Any]]


Deaths = dict[Kind, list[Fault]]
EVERY_PAIR: Deaths = {kind: list(passed) for kind, passed in PASSED.items()}
EVERY_POINT: Deaths = {
    kind: [point for point in passed if KINDS.get(point, "answered") == kind] for kind, passed in PASSED.items()
}
SOME: Deaths = {
    "answered": [
        *(Fault.ENQUEUE_COMMITTED, Fault.WORKFLOW_STARTED, Fault.REPORT_COMMITTED),
        *(Fault.STEP_COMMITTED, Fault.REPORTS_APPLIED, Fault.TURN_FINISHED),
    ],
    "stopped": [Fault.STOP_COMMITTED],
    "silent": [Fault.TIMEOUTS_INJECTED],
}
"""Each kind of commit; `tests/e2e/turns/test_errors.py` throws at all points in each run."""


@pytest.fixture(scope="module")
async def stacks(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[Role, Stack]]:
    """For each process one that mends soon what was broken, with a NATS of its own: verbs have one server there."""
    async with AsyncExitStack() as opened:
        made: dict[Role, Stack] = {}
        for role in ROLES:
            embedded = EmbeddedServers(
                tmp_path_factory.mktemp("nats") / ".turnstile",
                database_url=servers.database_url,
                temporal_address=servers.temporal_address,
                temporal_namespace=servers.temporal_namespace,
            )
            running = await opened.enter_async_context(embedded)
            name = await databases.create(migrated)
            opened.push_async_callback(databases.drop, name)
            endpoints = running.endpoints.model_copy(update={"database_url": databases.url(name)})
            stack = open_stack(endpoints, tmp_path_factory.mktemp(role), HASTY, PLAYER)
            made[role] = await opened.enter_async_context(stack)
        yield made


async def walk(stack: Stack, victim: Role, hatched: Hatchery, directory: Path, deaths: Deaths) -> Ended:
    """The rows of turns of every kind, for each of whose points one of them met the victim's death there."""
    ended: Ended = {}
    async with processes_of(stack.config, hatched) as both:
        dying, staying = (both.worker, both.bridge) if victim == "worker" else (both.bridge, both.worker)
        await staying.start()
        for kind, passed in deaths.items():
            met = [point for point in passed if (point in IN_BRIDGE) == (victim == "bridge")]
            if not met:
                continue
            struck = directory / f"{victim}-{kind}"
            struck.mkdir()
            ended |= await walk_kind(stack, dying, kind, struck, met)
            log.info("%s: all turns of kind %s ended", victim, kind)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
    return ended


async def walk_kind(stack: Stack, process: TurnstileProcess, kind: Kind, struck: Path, met: Sequence[Fault]) -> Ended:
    """One death after the other; then it lives until all the turns have ended."""
    playing: dict[Fault, asyncio.Task[dict[str, Any]]] = {}
    async with asyncio.TaskGroup() as turns:
        for point in met:
            process.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
            began = time.monotonic()
            await process.launch()  # what an earlier turn repeats may meet the point before it says that it serves
            playing[point] = turns.create_task(played(stack, kind))
            assert await process.died() == -signal.SIGKILL
            assert struck.joinpath(point).exists(), point
            log.info("%s: a %s turn met %s after %.1f s", process.role, kind, point, time.monotonic() - began)
        process.env = {}
        await process.start()
    await process.kill()
    return {(kind, point): task.result() for point, task in playing.items()}


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(SOME, id="some"),
        pytest.param(EVERY_POINT, id="every-point", marks=pytest.mark.long),
        pytest.param(EVERY_PAIR, id="every-pair", marks=pytest.mark.long),
    ],
)
async def test_a_kill_at_every_point_leaves_the_same_rows(
    deaths: Deaths, stacks: dict[Role, Stack], hatching: Hatchery, tmp_path: Path
) -> None:
    async with running_here(stacks["bridge"]):
        expected = await unharmed(stacks["bridge"])
    walks = await asyncio.gather(*(walk(stack, victim, hatching, tmp_path, deaths) for victim, stack in stacks.items()))
    ended = {met: rows for w in walks for met, rows in w.items()}
    assert set(ended) == {(kind, point) for kind, passed in deaths.items() for point in passed}
    if deaths is not SOME:
        assert {point for _, point in ended} == set(POINTS)
    for (kind, point), rows in ended.items():
        assert rows == expected[kind], (kind, point)
    log.info("%d deaths", len(ended))
