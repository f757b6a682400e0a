"""`start`: how long a start takes: the client's import, `turnstile --help`, `turnstile up`, a worker's first turn.

And what `up` takes, which README states: disk, and memory by program after three turns, once more with litellm loaded.

Each is measured from the start of a new process; the medians of the rounds count. `up` begins in an empty directory,
then again in one that has data. For the worker a turn waits, and a profile names a model of a provider, so that the
worker loads litellm beside its first turns; the turn's own model is scripted.
"""

import asyncio
import os
import statistics
import sys
import time
import uuid
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path

from lab.bench.agents import add_agents
from lab.bench.bars import Bars
from lab.bench.children import TURNSTILE, BenchError, Child, child
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result
from lab.bench.load_client import open_load_client
from lab.bench.proc import memory_mb
from turnstile.ledger.roster import put_profile
from turnstile.schema.ids import ProjectId
from turnstile.schema.profiles import LlmConfig, Profile

_COMMAND = str(Path(sys.executable).with_name("turnstile"))
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
_IMPORT = "import time; t = time.perf_counter(); import turnstile.sdk.turns; print(time.perf_counter() - t)"
_LIBRARY = "_tiktoken"
"""A library that litellm loads."""
_LOADED_SECONDS = 60.0


async def run_start(environment: Environment, bars: Bars) -> Result:
    """Measure each start once in each round."""
    rounds = environment.plan.rounds
    took: defaultdict[str, list[float]] = defaultdict(list)
    with bars.bar("start: rounds", 3 * rounds) as advance:
        for _ in range(rounds):
            took["python alone"].append((await _run(sys.executable, "-c", "pass"))[0])
            process, imported = await _run(sys.executable, "-c", _IMPORT)
            took["a process that imports turnstile.sdk.turns"].append(process)
            took["the import in it"].append(float(imported))
            took["turnstile --help"].append((await _run(_COMMAND, "--help"))[0])
            advance(1)
        for number in range(rounds):
            home = environment.directory / f"up-{number}"
            home.mkdir()
            took["turnstile up, in an empty directory"].append(await _up(home))
            took["turnstile up, again"].append(await _up(home))
            advance(1)
        for number in range(rounds):
            ended, loaded = await _first_turn(environment, number)
            took["a worker's first turn, ended"].append(ended)
            took["a worker's litellm, loading"].append(loaded)
            advance(1)
    figures = (
        *(Figure(name=name, value=statistics.median(values), unit="s") for name, values in took.items()),
        *await _sizes(environment.directory / "sizes"),
    )
    return Result(scenario="start", figures=figures, details={"seconds": {name: [*took[name]] for name in took}})


async def _run(*words: str) -> tuple[float, str]:
    """Seconds until a process with these words has ended, and what it printed."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env={**os.environ, **_PLAIN})
    output, _ = await process.communicate()
    if process.returncode:
        raise BenchError(f"{' '.join(words)} ended with code {process.returncode}")
    return time.perf_counter() - began, output.decode()


async def _up(directory: Path) -> float:
    """Seconds until `turnstile up` prints that it is up; it is stopped then."""
    began = time.perf_counter()
    async with child("up", (*TURNSTILE, "up", "--data", str(directory)), directory.with_suffix(".log")) as process:
        await process.wait_for_log("turnstile is up")
        return time.perf_counter() - began


async def _sizes(home: Path) -> list[Figure]:
    """Disk and memory of an `up` after three turns, and of its own process in one that has loaded litellm."""
    words = (*TURNSTILE, "up", "--data", str(home))
    profile = home.with_suffix(".yaml")

    async def put(model: str) -> None:
        profile.write_text(f"name: p\nllm_config: {{model: {model}}}\n", encoding="utf-8")
        await _run(_COMMAND, "profile", "put", str(profile), "--data", str(home))

    async with child("up", words, home.with_suffix(".log")) as process:
        await process.wait_for_log("turnstile is up")
        disk = await asyncio.to_thread(_disk_mb, home)
        await put("scripted/echo")
        await _run(_COMMAND, "agent", "add", "a", "--profile", "p", "--data", str(home))
        for _ in range(3):
            await _run(_COMMAND, "enqueue", "a", "hello", "--wait", "--data", str(home))
        memory = await asyncio.to_thread(memory_mb, process.pid)
        environment = await asyncio.to_thread(_disk_mb, Path(sys.prefix))
        await put("openai/gpt-5")
    async with child("up", words, home.with_suffix(".litellm.log")) as process:
        await _mapped(process.pid)
        with_litellm = await _settled(process.pid)
    programs = [Figure(name=f"memory of up, {name}", value=value, unit="MB") for name, value in sorted(memory.items())]
    python = max(memory, key=lambda name: memory[name])
    return [
        Figure(name="memory of up, after three turns", value=sum(memory.values()), unit="MB"),
        *programs,
        Figure(name="memory that litellm adds", value=with_litellm[python] - memory[python], unit="MB"),
        Figure(name="disk, a fresh data directory", value=disk, unit="MB"),
        Figure(name="disk, this virtual environment", value=environment, unit="MB"),
    ]


def _disk_mb(directory: Path) -> float:
    """What the files of a directory take on the disk."""
    files = (path.lstat() for path in directory.rglob("*") if not path.is_dir())
    return sum(file.st_blocks * 512 for file in files) / 1_000_000


async def _settled(pid: int) -> dict[str, float]:
    """The memory of a process that loads something, once it has not grown for three seconds."""
    memory = await asyncio.to_thread(memory_mb, pid)
    while True:
        await asyncio.sleep(3)
        before, memory = memory, await asyncio.to_thread(memory_mb, pid)
        if sum(memory.values()) - sum(before.values()) < 1:
            return memory


async def _mapped(pid: int) -> None:
    """Wait until a process has loaded litellm."""
    async with asyncio.timeout(_LOADED_SECONDS):
        while _LIBRARY not in await asyncio.to_thread(Path(f"/proc/{pid}/maps").read_text, "utf-8"):  # noqa: ASYNC110 -- in another process
            await asyncio.sleep(0.02)


async def _first_turn(environment: Environment, number: int) -> tuple[float, float]:
    """Seconds until a new worker has ended the turn that waits for it, and until it has loaded litellm as well."""
    project = ProjectId(f"bench-start-{uuid.uuid4().hex[:8]}")
    [agent] = await add_agents(environment.pool, project, environment.target, "instant", 1)
    elsewhere = Profile(name="elsewhere", worker_target=environment.target, llm_config=LlmConfig(model="openai/gpt-5"))
    await put_profile(environment.pool, project, elsewhere)
    async with AsyncExitStack() as stack:

        async def start(role: str) -> Child:
            config, _ = environment.config(f"start-{role}-{number}", {})
            words = (*TURNSTILE, role, "--config", str(config))
            return await stack.enter_async_context(child(role, words, config.with_suffix(".log")))

        await (await start("bridge")).wait_for_log("bridge serves")
        load = await stack.enter_async_context(open_load_client(environment.conn, project))
        turn = await load.enqueue(agent)
        began = time.perf_counter()
        worker = await start("worker")
        await load.wait(turn)
        ended = time.perf_counter() - began
        await _mapped(worker.pid)
        return ended, time.perf_counter() - began
