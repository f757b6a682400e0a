"""A bridge that is killed after each commit of a fork and of a batch's deadline: it is decided once, and answered."""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.delegation import CHIEF, fork, result, says, staff, steps, task
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.faults import HASTY
from tests.support.processes.process import Processes
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant
from turnstile.runtime.faults import Fault

NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)
POINTS = {Fault.BATCH_OPENED: "success", Fault.CHILDREN_ENQUEUED: "success", Fault.BATCH_EXPIRED: "timeout"}
"""Where the bridge dies, and what its batch comes to."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One that mends soon what was broken."""
    async with stacks.open(HASTY) as opened:
        yield opened


async def test_a_batch_is_decided_once_wherever_its_bridge_dies(
    apart: Tenant, processes: Processes, tmp_path: Path
) -> None:
    await staff(apart)
    bridge = processes.bridge
    for number, (point, status) in enumerate(POINTS.items(), 1):
        await bridge.stop()
        bridge.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(tmp_path)}
        await bridge.start()
        second = task(instruction=NEVER if status == "timeout" else says("done"))
        asked = fork([task(), second], **({"deadline_seconds": 2} if status == "timeout" else {}))
        reply = await apart.enqueue(CHIEF, steps(asked))
        assert await bridge.died() == -signal.SIGKILL, point
        assert (tmp_path / point).exists()
        bridge.env = {}
        await bridge.start()
        assert reply.agent_turn_id is not None
        told = result(await apart.ended(reply.agent_turn_id, timeout=60))
        assert (told["status"], [each["status"] for each in told["results"]]) == (status, ["success", status])
        assert await apart.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == 2 * number, point
        assert await apart.count("state.pmo_batches", "decided_at IS NOT NULL") == number, point
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)
