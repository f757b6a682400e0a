"""Every fault point walked in every kind of turn that passes it, by the death of worker or bridge at this point.

As `test_fault_points.py` walks them by errors. It has a module of its own: its worker and bridge serve alone.
"""

import logging
import time

import pytest

from tests.support.conditions import until
from tests.support.faults.kinds import CONFIG, PLAYS
from tests.support.faults.table import PASSED
from tests.support.faults.walk import ARMED, unstruck, walk
from tests.support.paths import ROOT
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import ROLES, MortalProcess
from tests.support.processes.stack import Stack
from tests.support.pump.troupe import ACTORS
from turnstile.runtime.faults import Fault

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.stack(CONFIG, ACTORS)]


@pytest.mark.parametrize("kind", PLAYS)
async def test_a_death_at_every_point_of_a_kind(stack: Stack, hatching: Hatchery, kind: str) -> None:
    began, struck = time.monotonic(), unstruck(stack)
    worker, bridge = (MortalProcess(role, stack.config, hatching) for role in ROLES)
    for each in (worker, bridge):
        each.env = {
            "TURNSTILE_FAULTS": ARMED.format(*["kill"] * len(Fault)),
            "TURNSTILE_FAULTS_DIR": str(struck),
            "PYTHONPATH": str(ROOT),
        }

    async def serve(deaths: int) -> None:
        async def alive() -> bool:
            serving = all(f"{each.role} serves" in each.says() for each in (worker, bridge))
            return serving and worker.deaths + bridge.deaths == deaths

        await until(alive, 60, f"both serve again after {deaths} deaths")

    async with worker.reviving(), bridge.reviving():
        await walk(stack, kind, struck, serve)
        assert worker.deaths + bridge.deaths == len(PASSED[kind])
    log.info("%s: %d deaths in %.1f s", kind, len(PASSED[kind]), time.monotonic() - began)
