"""A short run of `make chaos`: everything is killed, stopped, cut off, deleted or wiped once, and no turn is lost."""

import gc
import io
from pathlib import Path
from typing import TypedDict

import pytest
from rich.console import Console

from lab.chaos.environment import Size
from lab.chaos.run import RunOptions, run_chaos
from lab.chaos.schedule import make_schedule
from lab.support.power_failure import STRACE


class _Small(TypedDict):
    size: Size
    wipes: int
    deletions: int
    tails: int
    quiet_seconds: float


SMALL = _Small(
    size=Size(workers=2, bridges=2, tools=1), wipes=1, deletions=1, tails=int(STRACE is not None), quiet_seconds=120
)


async def survived(options: RunOptions) -> None:
    """The run passes."""
    told = io.StringIO()
    passed = await run_chaos(options, Console(file=told, width=150))
    gc.collect()  # nats-py leaves a socket behind where a connection breaks while it is being made
    assert passed, told.getvalue()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_no_turn_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    """Trees of turns among them, and schedules that fire."""
    options = RunOptions(turns=45, trees=4, schedules=5, seed=7, seconds=11, kills=4, **SMALL, directory=tmp_path)
    await survived(options)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_each_batch_is_decided_and_answered_once_whatever_breaks(tmp_path: Path) -> None:
    await survived(RunOptions(turns=0, trees=40, seed=8, seconds=40, kills=10, **SMALL, directory=tmp_path))


def test_a_seed_is_a_schedule() -> None:
    first, again, other = (make_schedule(seed, 60, 300, Size(), wipes=1, deletions=3, tails=2) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(fault.action == "kill" for fault in first) == 60
    struck = {"kill", "pause", "late", "cut", "stall", "refuse", "delete", "wipe", "tail"}
    assert {fault.action for fault in first} == struck
    assert {fault.target for fault in first if fault.action == "kill"} >= {"postgres", "nats", "temporal", "worker-1"}
