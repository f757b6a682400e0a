"""The samples of examples/temporal: what they say, that the workflow replays, that the demo leaves nothing running."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from temporalio.worker import Replayer, Worker

from examples.temporal.review import SIDES, Review
from tests.e2e.temporal.conftest import Theirs
from tests.support.conditions import until
from tests.support.paths import ROOT
from turnstile.temporal import TurnstileAgents

SAMPLES = ROOT / "examples" / "temporal"


async def test_the_sample_workflow_asks_four_agents_and_its_history_replays(theirs: Theirs) -> None:
    for name in ("critic", "editor"):
        await theirs.tenant.profile(name, "echo", instances=True)
    agents = TurnstileAgents(theirs.tenant.stack.endpoints.nats_url, project=theirs.tenant.project)
    async with Worker(theirs.client, task_queue=theirs.queue, workflows=[Review], plugins=[agents]):
        handle = await theirs.start(Review.run, "It rains")
        said: dict[str, str] = await handle.result()
    assert set(said) == {*SIDES, "editor"}
    assert all(said[side] == f"You said: As {side}: It rains" for side in SIDES)
    assert await theirs.tenant.count("state.turn_outcomes", "status = 'success'") == 4
    await Replayer(workflows=[Review]).replay_workflow(await handle.fetch_history())


def test_the_file_of_the_sample_tool_is_what_its_program_prints() -> None:
    words = (sys.executable, SAMPLES / "order.py", "--yaml")
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert printed == (SAMPLES / "order.yaml").read_text()


def of_the_demo(directory: Path) -> list[str]:
    """Processes that work in its directory."""
    found: Sequence[Path] = list(Path("/proc").glob("[0-9]*/cmdline"))
    return [each for each in map(words_of, found) if str(directory) in each]


def words_of(path: Path) -> str:
    """The command line of a process; nothing if it has ended."""
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


@pytest.mark.long
@pytest.mark.parametrize("ends", ["by itself", "by Ctrl-C"])
async def test_the_demo_shows_both_and_leaves_nothing_running(ends: str, tmp_path: Path) -> None:
    demo = await asyncio.create_subprocess_exec(
        *(sys.executable, SAMPLES / "demo.py"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert demo.stdout is not None
    if ends == "by Ctrl-C":

        async def serves() -> bool:
            return len(of_the_demo(tmp_path)) > 2

        await until(serves, 60, "servers run")
        demo.send_signal(signal.SIGINT)
    async with asyncio.timeout(200):
        told = (await demo.stdout.read()).decode()
        code = await demo.wait()
    assert "nothing runs any more" in told
    assert of_the_demo(tmp_path) == []
    assert os.listdir(tmp_path) == []  # noqa: PTH208 -- in a coroutine
    if ends == "by itself":
        assert code == 0, told
        assert "a poet: You said: As a poet: We ship on Friday" in told
        assert '"sent":"2 × tea"' in told
    else:
        assert code == 130, told
