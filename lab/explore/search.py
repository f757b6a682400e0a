"""The search: breadth first over all states, then the net from each of them."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from lab.explore.crew import Crew
from lab.explore.expansion import Expanded, Round
from lab.explore.graph import Graph, Violation

_SLICE = 500
_LONGEST = 100
"""Rounds of the net after which it is taken to go on for ever."""


@dataclass
class Report:
    """What an exploration found."""

    world: str
    graph: Graph
    violations: list[Violation] = field(default_factory=list[Violation])
    whole: bool = False
    """Whether every state was expanded."""
    seconds: float = 0.0
    net_seconds: float = 0.0
    alone: tuple[int, tuple[str, ...]] = (0, ())
    """The most rounds that the net takes from any state to the end of all, alone; and the path to such a state."""
    healthy: tuple[int, tuple[str, ...]] = (0, ())
    """The same with a worker that lives and no reap."""
    moves_made: int = 0
    """Moves that ran on the database; the other transitions were spared (`lab.explore.expansion`)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How far to go."""

    states: int = 1_000_000
    seed: int | None = None
    """The order within a depth; by default that in which the states were met."""
    first_only: bool = False
    """Stop at the first violation."""
    net: bool = True
    """Whether the net is followed from every state to the end."""
    seconds: float = float("inf")
    """When to stop expanding; the states of the depth in hand stay met."""
    on_line: Callable[[str], None] = lambda _: None


async def explore(world: str, crew: Crew, options: Options) -> Report:
    """Explore a world; the paths of the violations are as short as any."""
    report = Report(world, Graph())
    began = time.monotonic()
    await _search(crew, options, report)
    report.seconds = time.monotonic() - began
    if options.net and not (report.violations and options.first_only):
        began = time.monotonic()
        report.alone = await _walk(crew, options, report, "alone")
        report.healthy = await _walk(crew, options, report, "healthy")
        report.net_seconds = time.monotonic() - began
    report.moves_made = (await crew.counts()).get("made", 0)
    return report


async def _search(crew: Crew, options: Options, report: Report) -> None:
    graph = report.graph
    graph.add(await crew.start(), 0, "")
    dice = random.Random(options.seed)  # noqa: S311 -- an order
    until = time.monotonic() + options.seconds
    while graph.expanded < min(len(graph.digests), options.states):
        level = graph.digests[graph.expanded : options.states]
        if options.seed is not None:
            dice.shuffle(level)
        for first in range(0, len(level), _SLICE):
            async for expanded in crew.work("expand", level[first : first + _SLICE]):
                _take(expanded, report)
            options.on_line(f"depth {graph.depth}: {graph.expanded} states expanded, {len(graph.digests)} met")
            if (report.violations and options.first_only) or time.monotonic() > until:
                return
        graph.depth += 1
    report.whole = graph.expanded == len(graph.digests)
    report.violations += list(graph.unrepeatable())[:20]


def _take(expanded: Expanded, report: Report) -> None:
    graph = report.graph
    number = graph.numbers[expanded.digest]
    report.violations += [Violation(what, graph.path(number)) for what in expanded.broken]
    for state in expanded.made:
        report.violations += [Violation(what, (*graph.path(number), state.move)) for what in state.broken]
        graph.add(state.digest, number, state.move)
    graph.record(expanded)


async def _walk(
    crew: Crew, options: Options, report: Report, how: Literal["alone", "healthy"]
) -> tuple[int, tuple[str, ...]]:
    """Rounds from every state to the end of all; a state from which there is none is a violation."""
    graph = report.graph
    rounds: dict[bytes, Round] = {}
    started = [digest for digest in graph.digests if graph.is_expanded(digest)]
    digests = list(started)
    while digests:
        reached: dict[bytes, None] = {}
        async for finished in crew.work(how, digests):
            rounds[finished.digest] = finished
            reached[finished.reached] = None
        digests = [digest for digest in reached if digest not in rounds]
        options.on_line(f"net {how}: rounds from {len(rounds)} states")
    lengths: dict[bytes, int] = {}
    longest = (0, ())
    for digest in started:
        number = graph.numbers[digest]
        length = _length(digest, rounds, lengths)
        if length >= _LONGEST:
            left = rounds[digest].left
            report.violations.append(Violation(f"the net, {how}, never ends: {', '.join(left)}", graph.path(number)))
            if len(report.violations) > 20:
                break
        elif length > longest[0]:
            longest = (length, graph.path(number))
    report.violations += [
        Violation(f"in a round of the net, {how}: {what}", graph.path(graph.numbers[r.digest]))
        for r in rounds.values()
        for what in r.broken
        if r.digest in graph.numbers
    ][:20]
    return longest


def _length(digest: bytes, rounds: dict[bytes, Round], lengths: dict[bytes, int]) -> int:
    """Rounds until nothing is left; `_LONGEST` if something always is."""
    path: list[bytes] = []
    here = digest
    while here not in lengths:
        step = rounds[here]
        if here in path or (step.reached == here and step.left):
            lengths[here] = _LONGEST
        elif step.reached == here:
            lengths[here] = 0
        else:
            path.append(here)
            here = step.reached
    for digest_met in reversed(path):
        lengths[digest_met] = min(_LONGEST, lengths[rounds[digest_met].reached] + 1)
    return lengths[digest]
