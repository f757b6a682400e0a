"""Measures how long a start takes: the client's import, `turnstile --help`, `turnstile up`, a worker's first turn.

`python -m lab.benchmarks start [--rounds 5]`: prints the medians of the rounds in seconds, each from the start of a new
process. `up` begins in an empty directory, then again in one that has data. For the worker a turn waits, and a profile
names a model of a provider, so that the worker loads litellm beside its first turns; the turn's own model is scripted.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.support.conditions import until
from tests.support.processes.process import processes_of
from tests.support.processes.stack import Stack, open_stack
from tests.support.tenants import new_tenant, turn_of
from turnstile.embedded import EmbeddedServers

_COMMAND = str(Path(sys.executable).with_name("turnstile"))
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "100"}
_IMPORT = "import time; t = time.perf_counter(); import turnstile.sdk.turns; print(time.perf_counter() - t)"


async def _runs(*words: str) -> tuple[float, str]:
    """Seconds until a process with these words has ended, and what it printed."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, env={**os.environ, **_PLAIN})
    out, _ = await process.communicate()
    assert process.returncode == 0, words
    return time.perf_counter() - began, out.decode()


async def _up(directory: Path) -> float:
    """Seconds until `turnstile up` says that it is up; it is stopped then."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        _COMMAND, "up", cwd=directory, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    async for line in process.stdout:
        if b"turnstile is up" in line:
            break
    took = time.perf_counter() - began
    process.terminate()
    await process.communicate()
    assert process.returncode == 0
    return took


async def _first_turn(stack: Stack) -> tuple[float, float]:
    """Seconds until a new worker has ended the turn that waits for it, and until it has loaded litellm as well."""
    tenant = new_tenant(stack)
    await tenant.profile("elsewhere", "", llm={"model": "openai/gpt-5"})
    agent = await tenant.agent("plain")
    async with processes_of(stack.config) as processes:
        await processes.bridge.start()
        turn = turn_of(await tenant.enqueue(agent))
        began = time.perf_counter()
        await processes.worker.launch()
        await tenant.ended(turn, timeout=60)
        ended = time.perf_counter() - began
        maps = Path(f"/proc/{processes.worker.pid}/maps")

        async def loaded() -> bool:
            return "_tiktoken" in await asyncio.to_thread(maps.read_text, "utf-8")  # a library that litellm loads

        await until(loaded, 60, "the worker has loaded litellm", pause=0.02)
        return ended, time.perf_counter() - began


async def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    took: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        took.setdefault(name, []).append(seconds)

    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for _ in range(rounds):
            note("python alone", (await _runs(sys.executable, "-c", "pass"))[0])
            process, imported = await _runs(sys.executable, "-c", _IMPORT)
            note("a process that imports turnstile.sdk.turns", process)
            note("the import in it", float(imported))
            note("turnstile --help", (await _runs(_COMMAND, "--help"))[0])
        for number in range(rounds):
            home = directory / f"up-{number}"
            home.mkdir()
            note("turnstile up, in an empty directory", await _up(home))
            note("turnstile up, again", await _up(home))
        async with (
            EmbeddedServers(directory / ".turnstile") as servers,
            open_stack(servers.endpoints, directory, {}) as stack,
        ):
            for _ in range(rounds):
                ended, loaded = await _first_turn(stack)
                note("a worker's first turn, ended", ended)
                note("a worker's litellm, loading", loaded)
    for name, seconds in took.items():
        print(f"{name:42} {statistics.median(seconds):6.3f} s   {min(seconds):.3f} to {max(seconds):.3f}")  # noqa: T201
