"""Workers killed after they reserved, and after a model has answered: `test_spending_crashes.py`, in earnest."""

import signal
from pathlib import Path

import pytest

from tests.e2e.budgets.test_spending import LLM
from tests.e2e.budgets.test_spending_crashes import POINTS, spender, spent_once
from tests.support.faults.points import HASTY
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import TurnstileProcess, processes_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import hand_of
from turnstile.runtime.faults import Fault

pytestmark = pytest.mark.stack(HASTY)


@pytest.mark.long
async def test_a_worker_may_die_in_one(stack: Stack, hatching: Hatchery, tmp_path: Path) -> None:
    async with processes_of(stack.config, hatching) as both:
        await both.bridge.start()
        for point in POINTS:
            tenant = new_tenant(stack)
            async with hand_of(tenant, llm=LLM):
                await _dies(point, tenant, both.worker, tmp_path)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


async def _dies(point: Fault, tenant: Tenant, worker: TurnstileProcess, struck: Path) -> None:
    (pause := struck / point).touch()
    worker.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
    await worker.start()
    pause.unlink()
    turn = await spender(tenant)
    assert await worker.died() == -signal.SIGKILL
    worker.env = {}
    await worker.start()
    await tenant.ended(turn, timeout=60)
    await spent_once(tenant, turn)
    await worker.stop()
