"""`python -m lab.explore WORLD`: takes every order of a world's statements, and checks every state.

The exit code is 1 if anything is violated. `--mutations` has the explorer find statements with one thing wrong.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.explore.crew import LoneCrew, process_crew, silence_rules
from lab.explore.expansion import Explorer
from lab.explore.graph import Violation
from lab.explore.mutations import MUTATIONS, Mutation, mutate, mutated
from lab.explore.pairs import PairsReport, try_pairs
from lab.explore.search import Options, Report, explore
from lab.explore.states.place import Place
from lab.explore.states.places import MakeDatabase, databases
from lab.explore.worlds import all_worlds

_ALL = "all"


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.explore", description=__doc__)
    parser.add_argument("world", choices=[*all_worlds(), _ALL], nargs="?", default="small")
    parser.add_argument("--states", type=int, default=1_000_000, help="expand at most so many states")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop expanding states after that")
    parser.add_argument("--no-net", action="store_true", help="do not follow the net from every state")
    parser.add_argument("--seed", type=int, default=None, help="shuffles the states of each depth")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--first", action="store_true", help="stop at the first violation")
    parser.add_argument("--pairs", type=int, default=0, metavar="N", help="then run N pairs of moves truly at once")
    parser.add_argument(
        "--mutations", nargs="*", default=None, metavar="WORDS", help="explore wrong statements: each must be found"
    )
    parser.add_argument("--mutation", choices=[mutation.name for mutation in MUTATIONS], default=None)
    parser.add_argument(
        "--replay", type=Path, default=None, metavar="FILE", help="make the moves in a file, one a line"
    )
    parser.add_argument("--database-url", default=None, help="a server of one's own instead of an embedded one")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    return parser.parse_args()


async def main() -> int:
    """Explore; returns the exit code."""
    options = read_options()
    silence_rules()
    console = Console(width=None if sys.stdout.isatty() else 150)
    async with databases(options.database_url) as make:
        if options.replay is not None:
            return await _replay(make, options.world, options.replay.read_text("utf-8").splitlines(), options.mutation)
        if options.mutations is not None:
            return await _mutations(make, console, options.json, options.mutations)
        names = list(all_worlds()) if options.world == _ALL else [options.world]
        reports = [await _explore(make, console, name, options) for name in names]
        pairs = [await _pairs(make, console, name, options) for name in names] if options.pairs else []
    console.print(worlds_table(reports, pairs))
    bad = [violation for report in reports for violation in report.violations] + [
        violation for pair in pairs for violation in pair.violations
    ]
    for v in bad[:20]:
        console.print(shown(v))
    if options.json is not None:
        summaries: list[dict[str, Any]] = [_summary(report) for report in reports]
        options.json.write_text(json.dumps(summaries, indent=1), "utf-8")
    return 1 if bad else 0


async def _explore(make: MakeDatabase, console: Console, world: str, arguments: argparse.Namespace) -> Report:
    began = time.monotonic()

    def on_line(line: str) -> None:
        console.print(f"{world} {time.monotonic() - began:7.1f} s  {line}", highlight=False)

    options = Options(
        states=arguments.states,
        seed=arguments.seed,
        first_only=arguments.first,
        on_line=on_line,
        net=not arguments.no_net,
        seconds=arguments.seconds,
    )
    urls = [await mutate(await make(all_worlds()[world]), arguments.mutation) for _ in range(arguments.processes)]
    async with process_crew(urls, world, arguments.mutation) as crew:
        return await explore(world, crew, options)


async def _pairs(make: MakeDatabase, console: Console, world: str, arguments: argparse.Namespace) -> PairsReport:
    console.print(f"{world}: pairs at once")
    url = await mutate(await make(all_worlds()[world]), arguments.mutation)
    with mutated(arguments.mutation):
        return await try_pairs(url, all_worlds()[world], most=arguments.pairs)


async def _replay(make: MakeDatabase, world: str, moves: list[str], mutation: str | None) -> int:
    place = Place(await mutate(await make(all_worlds()[world]), mutation))
    await place.open()
    try:
        with mutated(mutation):
            broken = await Explorer(place, all_worlds()[world]).replay([move for move in moves if move.strip()])
    finally:
        await place.close()
    for line in broken:
        Console().print(line, highlight=False)
    return 1 if broken else 0


async def _mutations(make: MakeDatabase, console: Console, out: Path | None, words: list[str]) -> int:
    """Explore every mutation, or those whose names have one of the words."""
    results: list[tuple[Mutation, float, Violation | None]] = []
    for mutation in MUTATIONS:
        if words and not any(word in mutation.name for word in words):
            continue
        began = time.monotonic()
        violation = await find_mutation(make, mutation)
        results.append((mutation, time.monotonic() - began, violation))
        console.print(f"{mutation.name}: {'NOT FOUND' if violation is None else violation.what}", highlight=False)
    console.print(mutations_table(results))
    if out is not None:
        rows = [{"mutation": m.name, "seconds": s, "found": v and asdict(v)} for m, s, v in results]
        await asyncio.to_thread(out.write_text, json.dumps(rows, indent=1), "utf-8")
    return 0 if all(violation is not None for _, _, violation in results) else 1


async def find_mutation(make: MakeDatabase, mutation: Mutation) -> Violation | None:
    """The violation with the shortest path that the mutation leads to; None if it is not found."""
    world = all_worlds()[mutation.world]
    url = await mutate(await make(world), mutation.name)
    with ExitStack() as stack:
        stack.enter_context(mutated(mutation.name))
        if mutation.at_once:
            tried = await try_pairs(url, world, most=1_000, states=80, first_only=True)
            return _shortest(tried.violations)
        place = Place(url)
        await place.open()
        try:
            report = await explore(world.name, LoneCrew(Explorer(place, world)), Options(first_only=True))
        finally:
            await place.close()
        return _shortest(report.violations)


def _shortest(violations: Sequence[Violation]) -> Violation | None:
    return min(violations, key=lambda violation: len(violation.path), default=None)


def _summary(report: Report) -> dict[str, Any]:
    graph = report.graph
    return {
        "world": report.world,
        "states": graph.expanded,
        "transitions": graph.transitions,
        "moves_made": report.moves_made,
        "whole": report.whole,
        "depth": graph.depth,
        "seconds": round(report.seconds, 1),
        "net_seconds": round(report.net_seconds, 1),
        "rounds_alone": report.alone[0],
        "rounds_healthy": report.healthy[0],
        "answers": {f"{move}: {answer}": count for (move, answer), count in sorted(graph.answers.items())},
        "violations": [asdict(violation) for violation in report.violations],
    }


def worlds_table(reports: Sequence[Report], pairs: Sequence[PairsReport]) -> Table:
    """A line for each world."""
    table = Table(title="Worlds")
    for name in ("world", "states", "transitions", "made", "depth", "seconds", "net", "alone", "healthy", "violations"):
        table.add_column(name, justify="left" if name == "world" else "right")
    for report in reports:
        graph = report.graph
        table.add_row(
            report.world,
            f"{graph.expanded:,}{'' if report.whole else ' of more'}",
            f"{graph.transitions:,}",
            f"{report.moves_made:,}",
            str(graph.depth),
            f"{report.seconds:.0f}",
            f"{report.net_seconds:.0f}",
            f"{report.alone[0]} rounds",
            f"{report.healthy[0]} rounds",
            str(len(report.violations)),
        )
    for pair in pairs:
        table.caption = f"{table.caption or ''}{pair.world}: {pair.summary()}\n"
    return table


def mutations_table(results: Sequence[tuple[Mutation, float, Violation | None]]) -> Table:
    """A line for each mutation, with the shortest path that shows it."""
    table = Table(title="Mutations", show_lines=True)
    for name in ("mutation", "found as", "moves", "shortest path", "seconds"):
        table.add_column(name)
    for mutation, seconds, violation in results:
        what, path = ("not found", ()) if violation is None else (violation.what, violation.path)
        table.add_row(mutation.name, Text(what[:160]), str(len(path)), Text("; ".join(path)), f"{seconds:.0f}")
    return table


def shown(violation: Violation) -> Text:
    """A violation and its program."""
    return Text(f"\n{violation.what}\n  " + "\n  ".join(violation.path))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
