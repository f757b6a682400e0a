"""Every fault point walked in every kind of turn that passes it (`tests/support/faults/table.py`), by an error.

For each pair of a kind and a point one play of the kind meets an error of worker or bridge at this point, while the
play before it recovers. In the end each turn has one outcome and one `task` event, no row waits, and the audit finds
nothing. `test_fault_deaths.py` walks them by deaths. The plays of `test_faults.py` are not repeated: it walks their
points, and compares their rows.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial

import pytest

from tests.e2e.durability.test_era import POINTS as OF_ERAS
from tests.support.conditions import until
from tests.support.faults import points
from tests.support.faults.kinds import CONFIG, PLAYS, open_scene
from tests.support.faults.points import noted
from tests.support.faults.table import PASSED, shown
from tests.support.faults.walk import ARMED, settled, unstruck, walk
from tests.support.processes.stack import Stack
from tests.support.pump.troupe import ACTORS
from turnstile.runtime.faults import Fault

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.stack(CONFIG, ACTORS)]


@pytest.mark.parametrize("kind", PLAYS)
async def test_the_table_has_every_point_that_a_kind_passes(here: Stack, kind: str) -> None:
    async with AsyncExitStack() as opened:
        scene = await open_scene(here, opened)
        playing = asyncio.create_task(PLAYS[kind](scene))
        await asyncio.wait([playing, ready := asyncio.create_task(scene.ready.wait())], return_when="FIRST_COMPLETED")
        ready.cancel()
        with noted() as passed:
            scene.go.set()
            await playing
            await settled(scene)
            if Fault.TURN_FINISHED in passed:
                await until(partial(_announced, passed), 25, "the last turn has passed its last point")
    assert " ".join(sorted(passed)) == " ".join(sorted(PASSED[kind]))


async def _announced(passed: set[Fault]) -> bool:
    return Fault.TURN_ANNOUNCED in passed


def test_every_point_is_in_the_table() -> None:
    assert set(PASSED) == set(PLAYS)
    walked = {point for points in (*PASSED.values(), *points.PASSED.values()) for point in points}
    assert walked.isdisjoint(OF_ERAS)
    assert walked.union(OF_ERAS) == set(Fault)
    log.info("the table:\n%s", shown())


@pytest.mark.parametrize("kind", PLAYS)
async def test_an_error_at_every_point_of_a_kind(here: Stack, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    struck = unstruck(here)
    monkeypatch.setenv("TURNSTILE_FAULTS", ARMED.format(*["throw"] * len(Fault)))
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(struck))
    await walk(here, kind, struck, lambda _: asyncio.sleep(0))
