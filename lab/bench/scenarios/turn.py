"""`turn` and `tool`: turns and bare workflows, measured alternately (A-B-A-B) on the same servers; medians count."""

from collections.abc import Mapping, Sequence

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Goal, Result, at_least, at_most, held, medians, percentile, ratio, slope
from lab.bench.system import System, open_system, usage_figures
from lab.bench.yardsticks.take import TPCB_CLIENTS, Bares, bare_workers, nats_rates, tpcb
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId

_SMALL_KB, _BIG_KB = 1, 500
_CONTEXTS = 5
_TRIES = 5
_RATED = {"turns": "turns", "bare one": "bare workflows, one activity", "bare none": "bare workflows, no activity"}
_MEASURES = {"rate": ("", "/s"), "p50": (", alone, p50", "ms"), "cpu": (", CPU each", "ms")}
_SERVERS = {"TPC-B": "/s", "NATS core": "/s", "NATS stored": "/s"}


async def run_turn(environment: Environment, bars: Bars) -> Result:
    """Measure plain turns on an instant model."""
    plan, rounds = environment.plan, list[dict[str, float]]()
    parts = 7
    async with (
        open_system(environment, "turn", "instant", plan.turns) as system,
        bare_workers(environment) as bares,
        tpcb(environment) as postgres,
    ):
        with bars.bar("turn: turns and yardsticks in turns", plan.rounds * parts) as advance:
            for _ in range(plan.rounds):
                values: dict[str, float] = {}
                for kind in ("one", "none"):
                    values |= await bares.at_once(kind, plan.turns)
                    advance(1)
                values |= await _bare_alone(bares, plan.alone)
                advance(1)
                values |= await _turns_at_once(system, plan.turns)
                advance(1)
                values |= await _turns_alone(system, plan.alone)
                advance(1)
                values["TPC-B"] = await postgres.run(TPCB_CLIENTS, plan.tpcb_seconds)
                advance(1)
                values |= await nats_rates(environment.conn, plan.nats_messages)
                advance(1)
                rounds.append(values)
        history = await _history(system)
    values = medians(rounds)
    figures = [
        *_rates(values),
        *_beside_bare(values),
        *_usage(values, at_most(5)),
        *history,
        *held(await system.common(), {"rows written a turn": at_most(17)}),
        *(Figure(name=name, value=values[name], unit=unit) for name, unit in _SERVERS.items()),
    ]
    return Result(scenario="turn", figures=tuple(figures), details=_details(rounds))


async def run_tool(environment: Environment, bars: Bars) -> Result:
    """Measure turns of two steps with one tool call, answered at once by a tool in a separate process."""
    plan, rounds = environment.plan, list[dict[str, float]]()
    parts = 4
    async with (
        open_system(environment, "tool", "bench_tool", plan.tool_turns, tool=True) as system,
        bare_workers(environment) as bares,
    ):
        with bars.bar("tool: turns and bare workflows in turns", plan.rounds * parts) as advance:
            for _ in range(plan.rounds):
                values = await bares.at_once("one", plan.tool_turns)
                advance(1)
                values |= await bares.alone("one", plan.alone)
                advance(1)
                values |= await _turns_at_once(system, plan.tool_turns)
                advance(1)
                values |= await _turns_alone(system, plan.alone)
                advance(1)
                rounds.append(values)
        grown = await _history_slope(system)
        history = await _history(system)
    values = medians(rounds)
    figures = [
        *_rates(values),
        Figure(
            name="turns/s ÷ bare workflows/s",
            value=ratio(values["turns rate"], values["bare one rate"]),
            goal=at_least(0.6),
        ),
        Figure(
            name="p50 alone ÷ the bare workflow's",
            value=ratio(values["turns p50"], values["bare one p50"]),
            goal=at_most(2.2),
        ),
        *_usage(values, at_most(10)),
        *history,
        Figure(
            name=f"history slope, {_SMALL_KB} to {_BIG_KB} kB of context", value=abs(grown), unit="B/kB", goal=SLOPE
        ),
        *await system.common(),
    ]
    return Result(scenario="tool", figures=tuple(figures), details=_details(rounds))


SLOPE = at_most(0.2)
"""Near zero: histories with the same events differ by up to 100 B, since times and counts have different lengths."""


def _beside_bare(values: Mapping[str, float]) -> list[Figure]:
    """What a plain turn takes, next to what Temporal alone takes for a workflow."""
    return [
        Figure(name="engine share", value=ratio(values["turns rate"], values["bare one rate"]), goal=at_least(0.95)),
        Figure(
            name="turns/s ÷ empty workflows/s",
            value=ratio(values["turns rate"], values["bare none rate"]),
            goal=at_least(0.7),
        ),
        Figure(name="CPU ratio", value=ratio(values["cpu kernel"], values["bare one cpu"]), goal=at_most(1.3)),
        Figure(
            name="p50 alone above the bare workflow's",
            value=values["turns p50"] - values["bare one p50"],
            unit="ms",
            goal=at_most(8),
        ),
        Figure(
            name="p50 alone ÷ the empty workflow's",
            value=ratio(values["turns p50"], values["bare none p50"]),
            goal=at_most(2),
        ),
    ]


def _rates(values: Mapping[str, float]) -> list[Figure]:
    return [
        Figure(name=f"{label}{suffix}", value=values[name], unit=unit)
        for what, label in _RATED.items()
        for measure, (suffix, unit) in _MEASURES.items()
        if (name := f"{what} {measure}") in values
    ]


def _usage(values: Mapping[str, float], round_trips: Goal) -> list[Figure]:
    return held(usage_figures(values), {"database round trips a turn": round_trips})


async def _bare_alone(bares: Bares, count: int) -> dict[str, float]:
    return await bares.alone("one", count) | await bares.alone("none", count)


async def _turns_at_once(system: System, count: int) -> dict[str, float]:
    before = await system.read()
    seconds = await system.load.at_once(system.agents[:count])
    spent = (await system.read()).since(before)
    return {"turns rate": count / seconds, **system.used(spent, count)}


async def _turns_alone(system: System, count: int) -> dict[str, float]:
    agents = [system.agents[number % len(system.agents)] for number in range(count)]
    return {"turns p50": percentile(await system.load.alone(agents), 0.5)}


async def _history(system: System) -> list[Figure]:
    turns = await _asked(system, "hello", _CONTEXTS)
    events, sizes = zip(*await system.histories(turns), strict=True)
    return [
        Figure(name="history events a turn", value=percentile(events, 0.5)),
        Figure(name="history bytes a turn", value=percentile(sizes, 0.5), unit="B"),
    ]


async def _history_slope(system: System) -> float:
    """Growth of a turn's history in bytes per kB of context.

    Compares histories with the same number of events: timing may add a workflow task, which is some hundred bytes.
    """
    small, big = dict[float, float](), dict[float, float]()
    for _ in range(_TRIES):
        for histories, kilobytes in ((small, _SMALL_KB), (big, _BIG_KB)):
            histories |= dict(await system.histories(await _asked(system, "x" * (kilobytes * 1000), _CONTEXTS)))
        if shared := small.keys() & big.keys():
            return slope((_SMALL_KB, small[min(shared)]), (_BIG_KB, big[min(shared)]))
    return slope((_SMALL_KB, min(small.values())), (_BIG_KB, min(big.values())))


async def _asked(system: System, instruction: str, count: int) -> Sequence[AgentTurnId]:
    turns = [await system.load.enqueue(system.agents[0], instruction) for _ in range(count)]
    for turn in turns:
        await system.load.wait(turn)
    return turns


def _details(rounds: Sequence[Mapping[str, float]]) -> JsonObject:
    return {"rounds": [dict(r) for r in rounds]}
