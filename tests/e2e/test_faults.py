"""A process killed at every fault point (`schema.faults`): the turn ends all the same, with the same rows.

One point a life: the turn that was hit recovers while the next one meets the next point.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schema.faults import Fault
from tests.conftest import Databases
from tests.support.faults import HASTY, KINDS, played, unharmed
from tests.support.invariants import assert_invariants
from tests.support.process import Processes, Role, TurnstileProcess
from tests.support.stack import Stack, open_stack
from turnstile.embedded import Endpoints

log = logging.getLogger(__name__)
IN_BRIDGE = {
    *(Fault.ENQUEUE_COMMITTED, Fault.ENQUEUE_PUBLISHED, Fault.CLAIM_TAKEN, Fault.WORKFLOW_STARTED),
    *(Fault.WORKFLOW_SIGNALLED, Fault.REPORT_COMMITTED, Fault.REPORT_PUBLISHED, Fault.STOP_COMMITTED),
    Fault.STOP_PUBLISHED,
}
POINTS: dict[Role, list[Fault]] = {
    "bridge": [point for point in Fault if point in IN_BRIDGE],
    "worker": [point for point in Fault if point not in IN_BRIDGE],
}


@pytest.fixture(scope="module")
async def stack(
    servers: Endpoints, databases: Databases, migrated: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Stack]:
    """One that mends soon what was broken."""
    name = await databases.create(migrated)
    endpoints = servers.model_copy(update={"database_url": databases.url(name)})
    async with open_stack(endpoints, tmp_path_factory.mktemp("stack"), HASTY) as opened:
        yield opened
    await databases.drop(name)


async def test_a_kill_at_every_point_leaves_the_same_rows(processes: Processes, stack: Stack, tmp_path: Path) -> None:
    """Bridge and worker walk through their points side by side, so that the one recovers while the other dies."""
    expected = await unharmed(stack)
    async with asyncio.TaskGroup() as turns:

        async def walk(process: TurnstileProcess) -> dict[Fault, asyncio.Task[dict[str, Any]]]:
            await process.stop()
            playing: dict[Fault, asyncio.Task[dict[str, Any]]] = {}
            for point in POINTS[process.role]:
                process.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
                await process.start()
                playing[point] = turns.create_task(played(stack, KINDS.get(point, "answered")))
                began = time.monotonic()
                assert await process.died() == -signal.SIGKILL
                assert tmp_path.joinpath(point).exists(), point
                log.info("%s was killed at %s after %.1f s", process.role, point, time.monotonic() - began)
            process.env = {}
            await process.start()
            return playing

        walked = await asyncio.gather(walk(processes.bridge), walk(processes.worker))
    ended = {point: task.result() for playing in walked for point, task in playing.items()}
    assert set(ended) == set(Fault)
    for point, rows in ended.items():
        assert rows == expected[KINDS.get(point, "answered")], point
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
