"""Quick steps of workers that die in them, and of workers that make none."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from tests.support.faults.points import DONE, HASTY, player_of
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.hatchery import Hatchery
from tests.support.processes.process import TurnstileProcess, processes_of
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.quick import learned, shape
from tests.support.tenants import new_tenant
from tests.support.tools import hand_of
from turnstile.runtime.faults import Fault

POINTS = (Fault.MODEL_ANSWERED, Fault.CALLS_COMMITTED, Fault.REPORTS_APPLIED, Fault.TURN_FINISHED)
"""Where a worker dies in a quick step."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One that mends soon what was broken."""
    async with stacks.open(HASTY) as opened:
        yield opened


async def test_none_is_tried_where_they_are_turned_off(stack: Stack) -> None:
    worker = stack.settings.worker.model_copy(update={"quick_step_ms": 0})
    settings = stack.settings.model_copy(update={"worker": worker})
    off = replace(stack, settings=settings)
    tenant = new_tenant(off)
    async with running_here(off), hand_of(tenant) as hand:
        await learned(hand)
        turn = await hand.start(DONE)
        await hand.ended(turn)
        assert await shape(tenant, turn) == ["run_step"]


@pytest.mark.long
async def test_a_worker_may_die_in_one(stack: Stack, hatching: Hatchery, tmp_path: Path) -> None:
    """The workflow's task is lost with it, which the engine notices after 3 s; then all goes on."""
    async with running_here(stack), player_of(stack, "answered") as player:
        await learned(player.hand)
        expected = await player.play()
    async with processes_of(stack.config, hatching) as both:
        await both.bridge.start()
        for point in POINTS:
            assert await _died_at(point, stack, both.worker, tmp_path) == expected, point
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


async def _died_at(point: Fault, stack: Stack, worker: TurnstileProcess, struck: Path) -> dict[str, Any]:
    """The rows of a turn at one of whose quick steps its worker died."""
    (pause := struck / point).touch()
    worker.env = {"TURNSTILE_FAULTS": f"{point}=kill", "TURNSTILE_FAULTS_DIR": str(struck)}
    await worker.start()
    async with player_of(stack, "answered") as player:
        await learned(player.hand)
        pause.unlink()
        playing = asyncio.create_task(player.play())
        assert await worker.died() == -signal.SIGKILL
        worker.env = {}
        await worker.start()
        rows = await playing
        [turn] = await player.tenant.rows(
            "SELECT agent_turn_id FROM state.turn_outcomes WHERE project_id = $1 ORDER BY ended_at DESC LIMIT 1",
            player.tenant.project,
        )
        history = await stack.history(turn["agent_turn_id"])
    await worker.stop()
    kinds = Counter(event.event_type for event in history.events)
    assert kinds[EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT] == 1, point
    assert not kinds[EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT], point
    return rows
