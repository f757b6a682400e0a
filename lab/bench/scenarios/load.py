"""`load`: latency against offered load. Turns arrive at random moments and several rates; none waits for another.

A latency is measured from the moment at which the turn was due, so it includes any delay of the load generator.
"""

import asyncio
import random
import time
from itertools import accumulate

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, percentile
from lab.bench.system import System, open_system
from turnstile.schema.base import JsonObject

SHARES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
_AGENTS = 400
_SEED = 11


async def run_load(environment: Environment, bars: Bars) -> Result:
    """Measure the highest rate of turns, then the latencies at shares of that rate."""
    plan = environment.plan
    async with open_system(environment, "load", "instant", max(_AGENTS, plan.turns)) as system:
        most = plan.turns / await system.load.at_once(system.agents[: plan.turns])
        points: list[JsonObject] = []
        with bars.bar("load: rates of arrival", len(SHARES)) as advance:
            for share in SHARES:
                points.append(await _offer(system, most * share, plan.load_seconds) | {"share": share})
                advance(1)
    figures = [Figure(name="turns at once", value=most, unit="/s")]
    for point in points:
        name = f"{float(str(point['share'])):.0%} of that,"
        figures += [
            Figure(name=f"{name} {which}", value=float(str(point[which])), unit="ms") for which in ("p50", "p95", "p99")
        ]
    figures += await system.common()
    return Result(scenario="load", figures=tuple(figures), details={"most": most, "points": [*points]})


async def _offer(system: System, rate: float, seconds: float) -> JsonObject:
    """Request turns at this rate; returns percentiles of their latencies in ms."""
    drawn = random.Random(_SEED)  # noqa: S311 -- the same arrivals in every run
    count = max(1, round(rate * seconds))
    moments = list(accumulate(drawn.expovariate(rate) for _ in range(count)))
    began = time.perf_counter()

    async def one(number: int) -> float:
        due = began + moments[number]
        await asyncio.sleep(due - time.perf_counter())
        return await system.load.turn(system.agents[number % len(system.agents)], since=due)

    took = list(await asyncio.gather(*map(one, range(count))))
    return {
        "offered": rate,
        "turns": count,
        "carried": count / (time.perf_counter() - began),
        **{f"p{round(share * 100)}": percentile(took, share) for share in (0.5, 0.95, 0.99)},
    }
