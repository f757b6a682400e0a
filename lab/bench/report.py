"""The report of a run as a table: a row for each figure, with its goal and whether it is met; and its files.

These are a JSON file with everything, and pictures of latency against load and of one turn.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue
from rich.table import Table
from rich.text import Text

from lab.bench.drawings.load import draw_load
from lab.bench.drawings.turn import draw_turn
from lab.bench.figures import Figure
from lab.bench.run import Report

_TITLES = {
    "turn": "turn: plain turns on an instant model",
    "stages": "stages: where the time of one plain turn goes",
    "tool": "tool: two steps and one tool call",
    "fanout": "fanout: one queue, many agents",
    "stream": "stream: many models that stream",
    "usual": "usual: models of 300 ms, and tools of 10 ms",
    "providers": "providers: streams of real wire forms",
    "soak": "soak: streams of a real wire form for minutes",
    "stop": "stop: while models stream",
    "fork": "fork: turns that fork children and wait for all",
    "load": "load: turns that arrive at random, enqueue to task event",
    "budget": "budget: turns without, with a budget each, and of one project's day",
    "conversations": "conversations: two turns each, in instances of one profile",
    "gateway": "gateway: streams that are cut, streams that are timed, turns over HTTP and NATS",
    "growth": "growth: statements on a ledger with a past",
    "suspended": "suspended: turns asleep",
    "fairness": "fairness: turns of one project while another floods",
    "sync": "sync: NATS that syncs each message, next to its default",
    "start": "start: imports, commands, `turnstile up`, a worker's first turn",
    "audit": "audit: a ledger of ended turns, by all rules",
    "retention": "retention: what is older than 30 days, of 90",
}


def table(report: Report) -> Table:
    """The table of all figures of all scenarios."""
    figures_table = Table(title=headline(report), title_justify="left", title_style="bold", header_style="dim")
    figures_table.add_column("figure", overflow="fold")
    figures_table.add_column("measured", justify="right", no_wrap=True)
    figures_table.add_column("goal", justify="right", no_wrap=True)
    figures_table.add_column("", no_wrap=True)
    for result in report.results:
        figures_table.add_section()
        figures_table.add_row(Text(_TITLES[result.scenario], style="bold"))
        for stem, figures in rows(result.figures):
            *_, last = figures
            measured = " / ".join([*(number(figure.value) for figure in figures[:-1]), shown(last)])
            figures_table.add_row(f"  {stem}", measured, _goal(last), _verdict(last))
    return figures_table


def headline(report: Report) -> str:
    """The table's title: the machine, and its load before and after."""
    facts = report.machine
    servers = "embedded servers" if len(report.embedded) == len(_SERVERS) else "servers of yours"
    return (
        f"{facts['cpus']} CPUs, load {report.load_before:.2f} before and {report.load_after:.2f} after, {servers}, "
        f"{report.seconds:.0f} s"
    )


_SERVERS = ("postgres", "nats", "temporal")


def summary(report: Report) -> str:
    """The number of goals that are met, and the names of those that are missed."""
    goals = [(result.scenario, figure) for result in report.results for figure in result.figures if figure.goal]
    missed = [f"{scenario}: {figure.name}" for scenario, figure in goals if not figure.met]
    met = f"{len(goals) - len(missed)} of {len(goals)} goals met"
    return f"{met}; missed: {', '.join(missed)}" if missed else met


def rows(figures: Sequence[Figure]) -> list[tuple[str, list[Figure]]]:
    """The figures grouped by row: the percentiles of one name share a row, but for one with a goal."""
    lines: list[tuple[str, list[Figure]]] = []
    for figure in figures:
        stem, mark, rank = figure.name.rpartition(" p")
        is_rank = bool(mark) and rank.isdigit() and figure.goal is None
        joins = is_rank and lines and lines[-1][0].startswith(f"{stem} p") and lines[-1][1][-1].goal is None
        if joins and lines[-1][1][0].name != figure.name:
            name, row = lines[-1]
            lines[-1] = f"{name} / p{rank}", [*row, figure]
        else:
            lines.append((figure.name, [figure]))
    return lines


def shown(figure: Figure) -> str:
    """The figure's value with three significant digits, and its unit."""
    return f"{number(figure.value)} {figure.unit}".rstrip()


def number(value: float) -> str:
    """A number with three significant digits; digits before the point are never dropped."""
    if math.isnan(value):
        return "unknown"
    if not value:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def _goal(figure: Figure) -> str:
    if figure.goal is None:
        return ""
    return f"{'≤' if figure.goal.relation == '<=' else '≥'} {figure.goal.bound:g} {figure.unit}".rstrip()


def _verdict(figure: Figure) -> Text:
    if figure.met is None:
        return Text("")
    return Text("met", style="green") if figure.met else Text("missed", style="bold red")


def save(report: Report, directory: Path) -> list[Path]:
    """Write the files, named by the time at which the run began; a picture only if its scenario ran.

    Without matplotlib (`turnstile-kernel[bench]`) there are no pictures.
    """
    directory.mkdir(parents=True, exist_ok=True)
    name = report.began_at.strftime("%Y%m%d-%H%M%S")
    written = [directory / f"{name}.json"]
    written[0].write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    load, stages = report.result("load"), report.result("stages")
    if load is not None and draw_load(load, directory / f"{name}.png"):
        written.append(directory / f"{name}.png")
    if stages is not None and draw_turn(stages, report.result("turn"), directory / f"{name}-turn.png"):
        written.append(directory / f"{name}-turn.png")
    return written


def plain(report: Report) -> JsonValue:
    """The report as JSON, as in the file; unknown values (NaN) are null."""
    return json.loads(report.model_dump_json())
