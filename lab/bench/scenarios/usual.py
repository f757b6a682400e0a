"""`usual`: turns whose models take 300 ms, some with a tool call of 10 ms; what they cost everything on the machine."""

import asyncio
from collections.abc import Mapping

from lab.bench.agents import USUAL, USUAL_CALLER
from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile, ratio
from lab.bench.system import System, open_system, usage_figures

_COUNTED = 5
"""Turns whose histories are read."""
_CALL_EVENTS = 14
_CALL_ROUND_TRIPS = 6.4
"""What a tool call added when this was first measured."""
_LESS = 0.75
_ROLES = ("cpu worker", "cpu bridge")
"""What `cpu kernel` is the sum of."""


async def run_usual(environment: Environment, bars: Bars) -> Result:
    """Measure plain turns, then turns with a tool call, in turns."""
    with bars.bar("usual: plain turns, then turns with a tool call", 2) as advance:
        plain = await _measure(environment, USUAL, tool=False)
        advance(1)
        tool = await _measure(environment, USUAL_CALLER, tool=True)
        advance(1)
    figures = [
        Figure(name=f"{kind}: {figure.name}", value=figure.value, unit=figure.unit)
        for kind, values in (("plain", plain), ("one tool call", tool))
        for figure in (
            *usage_figures(values),
            Figure(name="CPU of everything a turn", value=_cpu(values), unit="ms"),
            Figure(name="history events", value=values["events"]),
        )
    ]
    added = {name: tool[name] - plain[name] for name in ("events", "round trips")}
    figures += [
        Figure(name="a call adds: history events", value=added["events"], goal=at_most(_LESS * _CALL_EVENTS)),
        Figure(name="a call adds: round trips", value=added["round trips"], goal=at_most(_LESS * _CALL_ROUND_TRIPS)),
        Figure(
            name="a call adds: CPU of everything ÷ a plain turn's",
            value=ratio(_cpu(tool) - _cpu(plain), _cpu(plain)),
        ),
    ]
    return Result(scenario="usual", figures=tuple(figures))


async def _measure(environment: Environment, script: str, *, tool: bool) -> dict[str, float]:
    plan = environment.plan
    count = plan.usual_turns * plan.usual_rounds
    async with open_system(environment, script.replace("_", "-"), script, plan.usual_turns, tool=tool) as system:
        before = await system.read()
        await asyncio.gather(*(_several(system, number) for number in range(plan.usual_turns)))
        values = system.used((await system.read()).since(before), count)
        turns = [await system.load.enqueue(system.agents[0]) for _ in range(_COUNTED)]
        for turn in turns:
            await system.load.wait(turn)
        values["events"] = percentile([events for events, _ in await system.histories(turns)], 0.5)
    return values


async def _several(system: System, number: int) -> None:
    for _ in range(system.environment.plan.usual_rounds):
        await system.load.turn(system.agents[number])


def _cpu(values: Mapping[str, float]) -> float:
    """Milliseconds of CPU of worker, bridge and servers, a turn."""
    return sum(value for name, value in values.items() if name.startswith("cpu ") and name not in _ROLES)
