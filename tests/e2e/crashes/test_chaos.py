"""A short run of `make chaos`: everything is killed, stopped, cut off, deleted or wiped once, and no turn is lost."""

import gc
import io
from pathlib import Path

import pytest
from rich.console import Console

from lab.chaos.environment import Size
from lab.chaos.run import RunOptions, run_chaos
from lab.chaos.schedule import make_schedule

SIZE = Size(workers=2, bridges=2, tools=1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_no_turn_is_lost_or_doubled_whatever_breaks(tmp_path: Path) -> None:
    options = RunOptions(
        turns=60, seed=7, seconds=11, kills=4, wipes=1, deletions=1, directory=tmp_path, size=SIZE, quiet_seconds=60
    )
    told = io.StringIO()
    passed = await run_chaos(options, Console(file=told, width=150))
    gc.collect()  # nats-py leaves a socket behind where a connection breaks while it is being made
    assert passed, told.getvalue()


def test_a_seed_is_a_schedule() -> None:
    first, again, other = (make_schedule(seed, 60, 300, Size(), wipes=1, deletions=3) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(fault.action == "kill" for fault in first) == 60
    assert {fault.action for fault in first} == {"kill", "pause", "late", "cut", "stall", "refuse", "delete", "wipe"}
    assert {fault.target for fault in first if fault.action == "kill"} >= {"postgres", "nats", "temporal", "worker-1"}
