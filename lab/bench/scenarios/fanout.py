"""`fanout`: one agent with a long queue, whose turns run one after the other; then as many agents with a turn each."""

import asyncio
import time

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_least, ratio
from lab.bench.system import System, open_system, usage_figures


async def run_fanout(environment: Environment, bars: Bars) -> Result:
    """Measure both; timings are by the ledger's clock."""
    count = environment.plan.queue
    figures, rates = list[Figure](), list[float]()
    with bars.bar("fanout: one agent's queue, then many agents", 2 * count) as advance:
        for name, agents in (("one agent's queue", 1), (f"{count} agents", count)):
            async with open_system(environment, "fanout", "instant", agents) as system:
                before, began = await system.read(), time.perf_counter()

                async def one(number: int, system: System = system) -> None:
                    await system.load.turn(system.agents[number % len(system.agents)])
                    advance(1)

                await asyncio.gather(*map(one, range(count)))
                seconds = time.perf_counter() - began
                values = system.used((await system.read()).since(before), count)
            rates.append(count / seconds)
            timed = [
                Figure(name="turns", value=rates[-1], unit="/s"),
                *usage_figures(values),
                *await system.common(),
            ]
            figures += [t.model_copy(update={"name": f"{name}: {t.name}"}) for t in timed]
    queue, many = rates
    share = Figure(name="one agent's queue ÷ many agents, turns/s", value=ratio(queue, many), goal=at_least(0.9))
    return Result(scenario="fanout", figures=(share, *figures))
