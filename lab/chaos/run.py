"""A run: load and faults concurrently, then recovery, then the verdict."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lab.chaos.environment import SERVERS, Environment, Size, open_environment
from lab.chaos.injector import Injector
from lab.chaos.load import Load, open_load
from lab.chaos.observer import Observer
from lab.chaos.report import Run, faults_of, table_of, write_json
from lab.chaos.schedule import make_schedule
from lab.chaos.verdict import Verdict, judge, open_witness, wait_quiet, watch_budgets

PROGRESS_SECONDS = 5.0
QUIET_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run."""

    turns: int
    seed: int
    seconds: float
    kills: int
    wipes: int
    deletions: int
    directory: Path
    tails: int = 0
    """Power failures of NATS."""
    json: Path | None = None
    trees: int = 0
    """Roots of trees, beside the turns."""
    size: Size = field(default_factory=Size)
    quiet_seconds: float = QUIET_SECONDS


@dataclass(frozen=True, slots=True)
class RunState:
    """The parts of an open run."""

    options: RunOptions
    environment: Environment
    observer: Observer
    load: Load
    injector: Injector
    console: Console


@asynccontextmanager
async def open_run(options: RunOptions, console: Console) -> AsyncGenerator[RunState]:
    """Open environment, observer and clients; close them when the block ends."""
    async with AsyncExitStack() as stack:
        environment = await stack.enter_async_context(open_environment(options.directory, options.size))
        observer = await Observer.start(environment.direct.nats_url)
        stack.push_async_callback(observer.close)
        await open_witness(environment.direct.database_url)
        load = await stack.enter_async_context(open_load(environment, observer, options.seed))
        yield RunState(options, environment, observer, load, Injector(environment, observer), console)


async def run_chaos(options: RunOptions, console: Console) -> bool:
    """Run the schedule of the seed under load; True if nothing is wrong."""
    faults = make_schedule(
        options.seed,
        options.kills,
        options.seconds,
        options.size,
        wipes=options.wipes,
        deletions=options.deletions,
        tails=options.tails,
    )
    console.print(f"schedule of seed {options.seed}: {len(faults)} faults in {options.seconds:.0f} s")
    for fault in faults:
        console.print(f"  {fault}", highlight=False)
    console.print(f"logs, data and notes: {options.directory}")
    began = time.monotonic()
    async with open_run(options, console) as state:
        verdict = Verdict()
        async with printing_progress(state, began), watching_budgets(state, verdict):
            async with asyncio.TaskGroup() as group:
                group.create_task(state.load.run(options.turns, options.seconds))
                group.create_task(state.load.grow(options.trees, options.seconds))
                group.create_task(state.injector.run(faults))
            verdict = await conclude(state, verdict)
        return report(state, verdict, "chaos", time.monotonic() - began)


async def conclude(state: RunState, verdict: Verdict | None = None) -> Verdict:
    """Bring everything up, wait until the ledger is quiet, and judge the run."""
    verdict = verdict or Verdict()
    await bring_up(state.environment)
    verdict.quiet_after, verdict.hanging = await wait_quiet(state.environment, state.options.quiet_seconds)
    return await judge(state.environment, state.load, state.injector, verdict)


async def bring_up(environment: Environment) -> None:
    """Continue stopped servers and programs, and start dead programs."""
    for name in SERVERS:
        environment.signal_server(name, signal.SIGCONT)
    for program in environment.programs.values():
        program.send(signal.SIGCONT)
        if not program.alive:
            await program.launch()


def report(
    state: RunState, verdict: Verdict, name: str, seconds: float, notes: tuple[tuple[str, str], ...] = ()
) -> bool:
    """Print the results and write the JSON file; True if nothing is wrong."""
    options = state.options
    run = Run(name, options.turns + options.trees, options.seed, seconds, notes)
    state.console.print(table_of(run, verdict, state.injector))
    for line in faults_of(verdict, state.injector):
        state.console.print(line, highlight=False, markup=False)
    if options.json is not None:
        write_json(options.json, run, verdict, state.injector)
    return not verdict.failed


@asynccontextmanager
async def printing_progress(state: RunState, began: float) -> AsyncGenerator[None]:
    """Print the progress at an interval while the block runs."""

    async def print_progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            load, injector = state.load, state.injector
            kills = sum(count for (action, _), count in injector.counts.items() if action == "kill")
            now = ", ".join(f"{action} {target}" for target, action in injector.now.items())
            state.console.print(
                f"{time.monotonic() - began:5.0f} s: {load.begun} begun, {load.accepted} accepted, {load.open} open, "
                f"{kills} kills, {sum(injector.counts.values())} faults; {now or 'calm'}",
                highlight=False,
            )

    task = asyncio.create_task(print_progress())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def watching_budgets(state: RunState, verdict: Verdict) -> AsyncGenerator[None]:
    """Audit the budgets while the block runs."""
    task = asyncio.create_task(watch_budgets(state.environment, verdict))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """Wait for the condition; returns the seconds it took, raises `TimeoutError` naming `what`."""
    began = time.monotonic()
    while not await condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"after {seconds:g} s still not: {what}")
        await asyncio.sleep(0.1)
    return time.monotonic() - began
