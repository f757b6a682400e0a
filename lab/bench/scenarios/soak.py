"""`soak`: one worker reads many streams of a real wire form for minutes, while turns are stopped one after the other.

Each turn streams for a minute. Every chunk has the moment at which it was sent, and the turn's deliverable must have
all of them. A step's time is compared with the time that the provider takes at its pace.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile, ratio
from lab.bench.proc import resident_mb
from lab.bench.providers.forms import Asked
from lab.bench.scenarios.providers import RATE, provider, provider_system
from lab.bench.scenarios.stop import start_one, stop_one
from lab.bench.system import System
from lab.bench.yardsticks.measure import count_stamps, list_step_timings
from turnstile.schema.ids import AgentId

_TURN_SECONDS = 60.0
_STOPPED = 5
"""Agents whose turns are stopped, one after the other, beside the others."""


async def run_soak(environment: Environment, bars: Bars) -> Result:
    """Stream in waves of a turn of each agent."""
    environment = replace(environment, plan=replace(environment.plan, split=True, workers=1))
    plan = environment.plan
    seconds = min(_TURN_SECONDS, plan.soak_minutes * 60)
    waves = max(1, round(plan.soak_minutes * 60 / seconds))
    what, form = Asked(round(seconds * RATE), RATE), plan.provider_forms[0]
    resident, took = list[float](), list[float]()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(provider(environment.directory))
        opening = provider_system(environment, url, form, "bytes", plan.soak_streams + _STOPPED)
        system = await stack.enter_async_context(opening)
        agents, stopped = system.agents[:-_STOPPED], system.agents[-_STOPPED:]
        workers = [process.pid for role, process, _ in system.children if role == "worker"]
        over = asyncio.Event()
        stopping = asyncio.create_task(_stop_turns(system, stopped, what, over, took))
        with bars.bar(f"soak: waves of {len(agents)} streams of {seconds:g} s", waves) as advance:
            for _ in range(waves):
                await system.load.at_once(agents, what.prompt())
                resident.append(resident_mb(workers))
                advance(1)
        over.set()
        await stopping
        counted = await environment.pool.run(lambda conn: count_stamps(conn, system.project, what.chunks))
        steps = await environment.pool.run(lambda conn: list_step_timings(conn, system.project))
    early = resident[min(1, len(resident) - 1)]
    own_ms = what.chunks * 1000 / RATE
    figures = (
        Figure(name="streams at once", value=len(agents)),
        Figure(name="turns that streamed to their end", value=counted.whole),
        Figure(name="turns whose deliverable lacks chunks", value=waves * len(agents) - counted.whole, goal=at_most(0)),
        Figure(
            name="worker's memory: after the last wave ÷ the second",
            value=ratio(resident[-1], early),
            goal=at_most(1.05),
        ),
        Figure(name="worker's memory after the last wave", value=resident[-1], unit="MB"),
        Figure(name="turns stopped meanwhile", value=len(took)),
        Figure(name="stop p99", value=percentile(took, 0.99), unit="ms", goal=at_most(250)),
        Figure(
            name="step p99 ÷ the provider's own time",
            value=ratio(percentile([step.step_ms for step in steps], 0.99), own_ms),
            goal=at_most(1.1),
        ),
    )
    return Result(scenario="soak", figures=figures, details={"resident_mb": [round(mb, 1) for mb in resident]})


async def _stop_turns(
    system: System, agents: Sequence[AgentId], what: Asked, over: asyncio.Event, took: list[float]
) -> None:
    """Start and stop a turn of each agent in turns until `over`."""
    number = 0
    while not over.is_set() or not took:
        turn = await start_one(system, agents[number % len(agents)], what.prompt())
        took.append(await stop_one(system, turn))
        number += 1
