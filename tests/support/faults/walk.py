"""One play of a kind of turn for each fault point that it passes, and what must hold when all of them are over."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from tests.support.conditions import until
from tests.support.faults.kinds import PATIENCE_SECONDS, PLAYS, Scene, open_scene
from tests.support.faults.table import PASSED
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.stack import Stack
from tests.support.pump.pump import assert_threads
from turnstile.runtime.faults import Fault

log = logging.getLogger(__name__)
ARMED = ",".join(f"{point}={{}}" for point in Fault)
_LEFT = {
    "a head in hand": "SELECT 1 FROM state.agent_state_head WHERE project_id = $1 AND status <> 'idle'",
    "an inbox row": "SELECT 1 FROM state.agent_inbox WHERE project_id = $1 AND archived_at IS NULL",
    "an end that was not announced": "SELECT 1 FROM state.turn_outcomes WHERE project_id = $1 AND announced_at IS NULL",
    "a turn without an end": "SELECT 1 FROM state.agent_inbox i WHERE i.project_id = $1 AND i.message_type IN"
    " ('turn', 'ui_action') AND NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = i.agent_turn_id)",
}


def unstruck(stack: Stack) -> Path:
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
    events, turns = await tenant.task_events(), {row["agent_turn_id"] for row in ended}
    assert set(events.values()) <= {1}
    assert turns == events.keys() or (turns < events.keys() and await tenant.count("state.deletions") > 0)


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
