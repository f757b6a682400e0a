"""A run: load and faults side by side, then the end of both, and the verdict."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from lab.chaos.load import Load, open_load
from lab.chaos.observer import Observer
from lab.chaos.report import Run, faults_of, table_of, write_json
from lab.chaos.schedule import make_schedule
from lab.chaos.stage import SERVERS, Size, Stage, open_stage
from lab.chaos.strikes import Strikes
from lab.chaos.verdict import Verdict, judge, wait_quiet

PROGRESS_SECONDS = 5.0
QUIET_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for."""

    turns: int
    seed: int
    seconds: float
    kills: int
    wipes: int
    deletions: int
    directory: Path
    json: Path | None = None
    size: Size = field(default_factory=Size)
    quiet_seconds: float = QUIET_SECONDS


@dataclass(frozen=True, slots=True)
class Play:
    """Everything of a run that is up."""

    order: Order
    stage: Stage
    observer: Observer
    load: Load
    strikes: Strikes
    console: Console


@asynccontextmanager
async def open_play(order: Order, console: Console) -> AsyncGenerator[Play]:
    """Stage, observer, clients."""
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(open_stage(order.directory, order.size))
        observer = await Observer.start(stage.direct.nats_url)
        stack.push_async_callback(observer.close)
        load = await stack.enter_async_context(open_load(stage, observer, order.seed))
        yield Play(order, stage, observer, load, Strikes(stage, observer), console)


async def run_chaos(order: Order, console: Console) -> bool:
    """The seeded schedule under load; True if nothing is wrong."""
    faults = make_schedule(
        order.seed, order.kills, order.seconds, order.size, wipes=order.wipes, deletions=order.deletions
    )
    console.print(f"schedule of seed {order.seed}: {len(faults)} faults in {order.seconds:.0f} s")
    for fault in faults:
        console.print(f"  {fault}", highlight=False)
    console.print(f"logs, data and notes: {order.directory}")
    began = time.monotonic()
    async with open_play(order, console) as play:
        async with watching(play, began):
            async with asyncio.TaskGroup() as group:
                group.create_task(play.load.run(order.turns, order.seconds))
                group.create_task(play.strikes.run(faults))
            verdict = await conclude(play)
        return report(play, verdict, "chaos", time.monotonic() - began)


async def conclude(play: Play) -> Verdict:
    """Everything up again, quiet, and judged."""
    await bring_up(play.stage)
    quiet, hanging = await wait_quiet(play.stage, play.order.quiet_seconds)
    return await judge(play.stage, play.load, play.strikes, Verdict(quiet_after=quiet, hanging=hanging))


async def bring_up(stage: Stage) -> None:
    """Nothing is stopped or dead any more."""
    for name in SERVERS:
        stage.signal_server(name, signal.SIGCONT)
    for program in stage.programs.values():
        program.send(signal.SIGCONT)
        if not program.alive:
            await program.launch()


def report(play: Play, verdict: Verdict, name: str, seconds: float, notes: tuple[tuple[str, str], ...] = ()) -> bool:
    """Print and write; True if nothing is wrong."""
    order = play.order
    run = Run(name, order.turns, order.seed, seconds, notes)
    play.console.print(table_of(run, verdict, play.strikes))
    for line in faults_of(verdict, play.strikes):
        play.console.print(line, highlight=False, markup=False)
    if order.json is not None:
        write_json(order.json, run, verdict, play.strikes)
    return not verdict.failed


@asynccontextmanager
async def watching(play: Play, began: float) -> AsyncGenerator[None]:
    """Say now and then how it goes."""

    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            load, strikes = play.load, play.strikes
            done = sum(count for (action, _), count in strikes.counts.items() if action == "kill")
            now = ", ".join(f"{action} {target}" for target, action in strikes.now.items())
            play.console.print(
                f"{time.monotonic() - began:5.0f} s: {load.begun} asked, {load.accepted} accepted, {load.open} open, "
                f"{done} kills, {sum(strikes.counts.values())} faults; {now or 'calm'}",
                highlight=False,
            )

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def until(condition: Callable[[], Awaitable[bool]], seconds: float, what: str) -> float:
    """How long it took; raises `TimeoutError` naming `what`."""
    began = time.monotonic()
    while not await condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"after {seconds:g} s still not: {what}")
        await asyncio.sleep(0.1)
    return time.monotonic() - began
