"""Every fault point walked in every kind of turn that passes it (`tests/support/processes/fault_table.py`).

For each pair of a kind and a point one play of the kind meets an error, or the death of worker or bridge, at this
point, while the play before it recovers. In the end each turn has one outcome and one `task` event, no row waits, and
the audit finds nothing. The plays of `test_faults.py` are not repeated: it walks their points, and compares their rows.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.paths import ROOT
from tests.support.processes import faults
from tests.support.processes.fault_kinds import CONFIG, PATIENCE_SECONDS, PLAYS, Scene, open_scene
from tests.support.processes.fault_table import PASSED, shown
from tests.support.processes.faults import noted
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import ROLES, MortalProcess
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from tests.support.pump.pump import assert_threads
from tests.support.pump.troupe import ACTORS
from turnstile.runtime.faults import Fault

log = logging.getLogger(__name__)
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
ARMED = ",".join(f"{point}={{}}" for point in Fault)
_LEFT = {
    "a head in hand": "SELECT 1 FROM state.agent_state_head WHERE project_id = $1 AND status <> 'idle'",
    "an inbox row": "SELECT 1 FROM state.agent_inbox WHERE project_id = $1 AND archived_at IS NULL",
    "an end that was not announced": "SELECT 1 FROM state.turn_outcomes WHERE project_id = $1 AND announced_at IS NULL",
    "a turn without an end": "SELECT 1 FROM state.agent_inbox i WHERE i.project_id = $1 AND i.message_type IN"
    " ('turn', 'ui_action') AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id)",
}


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One that serves every kind, and mends soon what was broken."""
    async with stacks.open(CONFIG, ACTORS) as opened:
        yield opened


@pytest.fixture
def struck(stack: Stack) -> Path:
    """The directory of the points: one whose file is there does not strike, and at first none does."""
    directory = stack.directory / "faults"
    directory.mkdir(exist_ok=True)
    for point in Fault:
        (directory / point).touch()
    return directory


async def settled(scene: Scene) -> None:
    """Nothing of the play is left to do, and each of its turns has ended and was announced once."""
    tenant = scene.tenant

    async def left() -> list[str]:
        return [name for name, statement in _LEFT.items() if await tenant.rows(statement, tenant.project)]

    async def none() -> bool:
        return not await left()

    try:
        await until(none, PATIENCE_SECONDS, "nothing is left", pause=0.1)
    except AssertionError:
        raise AssertionError(await left()) from None
    ended = await tenant.rows("SELECT agent_turn_id FROM state.turn_outcomes WHERE project_id = $1", tenant.project)
    assert await tenant.task_events() == {row["agent_turn_id"]: 1 for row in ended}


async def walk(stack: Stack, kind: str, struck: Path, serves: Callable[[int], Awaitable[object]]) -> None:
    """One play of the kind for each of its points; the next one begins when the one before has met its point.

    `serves` waits until all is served again after so many strikes.
    """
    scenes: list[Scene] = []
    async with AsyncExitStack() as opened:
        async with asyncio.TaskGroup() as plays:
            for point in PASSED[kind]:
                await serves(len(scenes))
                scene = await open_scene(stack, opened)
                plays.create_task(_play(kind, scene, point))
                await scene.ready.wait()
                (struck / point).unlink()
                scene.go.set()
                await until(partial(_exists, struck / point), PATIENCE_SECONDS, f"{kind} meets {point}")
                scenes.append(scene)
        for scene in scenes:
            await settled(scene)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
        await assert_threads(conn)


async def _exists(file: Path) -> bool:
    return file.exists()  # noqa: ASYNC240 -- one look


async def _play(kind: str, scene: Scene, point: Fault) -> None:
    began = time.monotonic()
    await PLAYS[kind](scene)
    log.info("%s ended, %.1f s after it began to go to %s", kind, time.monotonic() - began, point)


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
                await until(partial(_announced, passed), 10, "the last turn has passed its last point")
    assert " ".join(sorted(passed)) == " ".join(sorted(PASSED[kind]))


async def _announced(passed: set[Fault]) -> bool:
    return Fault.TURN_ANNOUNCED in passed


def test_every_point_is_in_the_table() -> None:
    assert set(PASSED) == set(PLAYS)
    walked = {point for points in (*PASSED.values(), *faults.PASSED.values()) for point in points}
    assert walked == set(Fault)
    log.info("the table:\n%s", shown())


@pytest.mark.parametrize("kind", PLAYS)
async def test_an_error_at_every_point_of_a_kind(
    here: Stack, struck: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_FAULTS", ARMED.format(*["throw"] * len(Fault)))
    monkeypatch.setenv("TURNSTILE_FAULTS_DIR", str(struck))
    await walk(here, kind, struck, lambda _: asyncio.sleep(0))


@pytest.mark.parametrize("kind", PLAYS)
async def test_a_death_at_every_point_of_a_kind(stack: Stack, hatching: Hatchery, struck: Path, kind: str) -> None:
    began = time.monotonic()
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
