"""`python -m lab.chaos [--turns 3000] [--trees 200] [--seed 1] [--kills 60]`: injects faults under load, and checks.

It ends only processes that it started, also on Ctrl-C. The exit code is 1 if a turn was lost or doubled, if something
hangs, if a Turnstile process ended by itself, or if the audit finds a violation.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from lab.chaos.load import CLOCKS
from lab.chaos.run import QUIET_SECONDS, RunOptions, run_chaos
from lab.chaos.scenarios import SCENARIOS
from lab.chaos.trees import TURNS_A_TREE
from lab.support.power_failure import STRACE

RATE = 12.0
"""Turns a second that two cores can run while processes are restarted."""


def read_options() -> tuple[str, RunOptions]:
    """The scenario and options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.chaos", description=__doc__)
    parser.add_argument("--turns", type=int, default=None, help="number of turns (default 3000, in a scenario 200)")
    parser.add_argument("--trees", type=int, default=None, help="trees of turns beside them (default: a 15th)")
    parser.add_argument("--schedules", type=int, default=0, help="schedules beside them, at most 50")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=None, help="default: one for every 50 turns, of trees too")
    parser.add_argument("--seconds", type=float, default=None, help=f"default: {RATE:g} turns a second")
    parser.add_argument("--quiet-seconds", type=float, default=QUIET_SECONDS, help="how long the last turns may take")
    parser.add_argument("--wipes", type=int, default=1, help="how often Temporal's data is deleted")
    parser.add_argument("--deletions", type=int, default=None, help="how often both streams are deleted")
    parser.add_argument("--tails", type=int, default=None, help="power failures of NATS (default: a 20th of the kills)")
    parser.add_argument("--scenario", choices=["chaos", *SCENARIOS], default="chaos")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument("--dir", type=Path, default=None, help="for logs, data and notes; kept")
    arguments = parser.parse_args()
    turns = arguments.turns if arguments.turns is not None else 3000 if arguments.scenario == "chaos" else 200
    trees = 0 if arguments.scenario != "chaos" else arguments.trees if arguments.trees is not None else turns // 15
    everyone = turns + trees * TURNS_A_TREE
    kills = arguments.kills if arguments.kills is not None else max(3, everyone // 50)
    options = RunOptions(
        turns=turns,
        trees=trees,
        schedules=min(arguments.schedules, CLOCKS),
        seed=arguments.seed,
        seconds=arguments.seconds or max(20.0, everyone / RATE),
        kills=kills,
        wipes=arguments.wipes,
        deletions=arguments.deletions if arguments.deletions is not None else max(1, kills // 20),
        tails=arguments.tails if arguments.tails is not None else max(1, kills // 20) if STRACE else 0,
        directory=arguments.dir or Path(tempfile.mkdtemp(prefix="turnstile-chaos-")),
        json=arguments.json,
        quiet_seconds=arguments.quiet_seconds,
    )
    return arguments.scenario, options


async def main() -> int:
    """Run the scenario; a signal cancels it, and it ends what it started. Returns the exit code."""
    scenario, options = read_options()
    console = Console(width=None if sys.stdout.isatty() else 150)
    logging.basicConfig(filename=str(_log_of(options)), level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    work = asyncio.ensure_future(
        run_chaos(options, console) if scenario == "chaos" else SCENARIOS[scenario](options, console)
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return 0 if await work else 1
    console.print("stopped")
    return 130


def _log_of(options: RunOptions) -> Path:
    options.directory.mkdir(parents=True, exist_ok=True)
    return options.directory / "chaos.log"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
