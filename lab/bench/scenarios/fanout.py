"""`fanout`: one agent with a long queue, whose turns must follow each other; then as many agents with a turn each."""

import asyncio
import time

from lab.bench.bars import Bars
from lab.bench.figures import Figure, Result
from lab.bench.place import Place
from lab.bench.stage import Stage, staged, usage_figures


async def run_fanout(place: Place, bars: Bars) -> Result:
    """Both, with the timings of each by the ledger's clock."""
    count = place.plan.queue
    figures: list[Figure] = []
    with bars.bar("fanout: one agent's queue, then many agents", 2 * count) as advance:
        for name, agents in (("one agent's queue", 1), (f"{count} agents", count)):
            async with staged(place, "fanout", "instant", agents) as stage:
                before, began = await stage.read(), time.perf_counter()

                async def one(number: int, stage: Stage = stage) -> None:
                    await stage.asker.turn(stage.agents[number % len(stage.agents)])
                    advance(1)

                await asyncio.gather(*map(one, range(count)))
                seconds = time.perf_counter() - began
                values = stage.used((await stage.read()).since(before), count)
            told = [
                Figure(name="turns", value=count / seconds, unit="/s"),
                *usage_figures(values),
                *await stage.common(),
            ]
            figures += [each.model_copy(update={"name": f"{name}: {each.name}"}) for each in told]
    return Result(scenario="fanout", figures=tuple(figures))
