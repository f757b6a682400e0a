"""A run: load and faults concurrently, then recovery, then the verdict, as a table and as a JSON object."""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lab.chaos.environment import SERVERS, Environment, Size, open_environment
from lab.chaos.injector import Injector
from lab.chaos.load import Load, open_load
from lab.chaos.observer import Observer
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
    schedules: int = 0
    """Schedules that fire beside them."""
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
                group.create_task(state.load.put_schedules(options.schedules))
                group.create_task(state.injector.run(faults))
            verdict = await conclude(state, verdict)
        return report(state, verdict, "chaos", time.monotonic() - began)


async def conclude(state: RunState, verdict: Verdict | None = None) -> Verdict:
    """Bring everything up, wait until the ledger is quiet, and judge the run."""
    verdict = verdict or Verdict()
    await bring_up(state.environment)
    await state.load.pause_schedules()
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


_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Run:
    """Name, options and duration of a run."""

    name: str
    turns: int
    seed: int
    seconds: float
    notes: tuple[tuple[str, str], ...] = ()
    """Further lines of the table."""


def table_of(run: Run, verdict: Verdict, injector: Injector) -> Table:
    """The table of results."""
    table = Table(title=f"{run.name}, seed {run.seed}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    calls = verdict.calls
    rows = [
        ("turns accepted", f"{verdict.accepted} of {run.turns}"),
        ("outcomes", _counts(verdict.outcomes)),
        ("codes", _counts(verdict.codes)),
        ("task events stored", f"{verdict.events}, {verdict.repeated_after_deletion} again after a deletion"),
        ("duplicates", str(sum(verdict.duplicates.values()))),
        ("lost", str(len(verdict.lost))),
        ("doubled", str(len(verdict.doubled))),
        ("results applied twice", str(len(verdict.applied_twice))),
        ("unexpected ends", str(len(verdict.unexpected))),
        ("hanging", str(len(verdict.hanging))),
        ("children", str(verdict.children)),
        ("batches", _counts(verdict.batches)),
        ("budgets, tokens", f"{_counts(Counter(verdict.budgets))}; audited {verdict.looks} times meanwhile"),
        ("wrong in trees", str(len(verdict.trees))),
        ("firings of schedules", _counts(verdict.firings)),
        ("wrong in schedules", str(len(verdict.schedules))),
        ("calls", _counts(Counter({name: count for name, count in calls.items() if name != "calls"}))),
        (
            "tool executions",
            f"{verdict.executions} of {verdict.executed_calls} calls, {verdict.repeated_calls} run again",
        ),
        *((f"{action}s", _counts(strikes)) for action, strikes in _fault_counts(injector).items()),
        *([("bytes cut from NATS", ", ".join(map(str, injector.cut_bytes)))] if injector.cut_bytes else []),
        ("woken late", _counts(verdict.lates)),
        ("repairs", _counts(Counter(verdict.repairs))),
        ("ended by themselves", str(len(verdict.deaths))),
        ("slowest recovery", f"{verdict.slowest_recovery[0]:.1f} s, {verdict.slowest_recovery[1]}"),
        ("slowest turn", f"{verdict.slowest_turn[0]:.1f} s from its begin, {verdict.slowest_turn[1]}"),
        ("quiet after", "never" if verdict.quiet_after is None else f"{verdict.quiet_after:.1f} s"),
        *run.notes,
        ("audit", "clean" if verdict.audit_clean else "VIOLATED"),
        ("duration", f"{run.seconds:.0f} s"),
        ("verdict", "FAILED" if verdict.failed else "passed"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def faults_of(verdict: Verdict, injector: Injector) -> list[str]:
    """One line for each thing that is wrong."""
    kinds = {
        "hanging": verdict.hanging,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "applied twice": verdict.applied_twice,
        "unexpected": verdict.unexpected,
        "tree": verdict.trees,
        "schedule": verdict.schedules,
        "ended by itself": verdict.deaths,
        "fault failed": injector.errors,
        "audit": [] if verdict.audit_clean else [verdict.audit],
    }
    return [
        line
        for kind, faults in kinds.items()
        for line in (
            *(f"{kind}: {fault}" for fault in faults[:_SHOWN]),
            *([f"{kind}: and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []),
        )
    ]


def write_json(path: Path, run: Run, verdict: Verdict, injector: Injector) -> None:
    """Write the results as a JSON file."""
    strikes = {action: dict(counts) for action, counts in _fault_counts(injector).items()}
    document = {"run": asdict(run), "verdict": {**vars(verdict), "failed": verdict.failed}, "strikes": strikes}
    path.write_text(json.dumps(document, indent=2, default=str) + "\n")


def _fault_counts(injector: Injector) -> dict[str, Counter[str]]:
    faults: dict[str, Counter[str]] = {}
    for (action, target), count in sorted(injector.counts.items()):
        faults.setdefault(action, Counter())[_kind(target)] += count
    return faults


def _kind(target: str) -> str:
    process, colon, server = target.rpartition(":")
    return f"{process.partition('-')[0]}{colon}{server.partition('-')[0]}"


def _counts(strikes: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in strikes.most_common()) or "none"
