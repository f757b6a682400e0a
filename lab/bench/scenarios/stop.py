"""`stop`: the time from the request to stop a turn to its `task` event, while models stream.

It begins at the request, not at its reply, since the event may arrive before the reply.
"""

import asyncio
import time
from collections.abc import Sequence

from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, at_most, percentile
from lab.bench.load_client import CHANNEL
from lab.bench.system import System, open_system, usage_figures
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import subjects

_CHUNK_TIMEOUT_SECONDS = 60.0


async def run_stop(environment: Environment, bars: Bars) -> Result:
    """Stop turns one after the other while their models stream; other models go on streaming."""
    plan = environment.plan
    async with open_system(environment, "stop", "bench_long", plan.stop_streams, warm=False) as system:
        running = dict(zip(system.agents, await _start(system, system.agents), strict=True))
        before, took = await system.read(), list[float]()
        with bars.bar("stop: turns stopped while models stream", plan.stops) as advance:
            for number in range(plan.stops):
                agent = system.agents[number % len(system.agents)]
                took.append(await stop_one(system, running[agent]))
                [running[agent]] = await _start(system, [agent])
                advance(1)
        values = system.used((await system.read()).since(before), plan.stops)
        await asyncio.gather(*(stop_one(system, turn) for turn in running.values()))
    figures = [
        Figure(name="stop p50", value=percentile(took, 0.5), unit="ms"),
        Figure(name="stop p99", value=percentile(took, 0.99), unit="ms", goal=at_most(250)),
        Figure(name="slowest stop", value=max(took), unit="ms"),
        *usage_figures(values),
        *await system.common(),
    ]
    return Result(scenario="stop", figures=tuple(figures), details={"took_ms": [round(t, 2) for t in took]})


async def _start(system: System, agents: Sequence[AgentId]) -> list[AgentTurnId]:
    """Start a turn of each agent; returns when all models stream."""
    return list(await asyncio.gather(*(start_one(system, agent) for agent in agents)))


async def start_one(system: System, agent: AgentId, instruction: str = "hello") -> AgentTurnId:
    """Start a turn; returns when its model streams."""
    streaming, pieces = asyncio.Event(), 0

    async def heard(_: object) -> None:
        nonlocal pieces
        pieces += 1
        if pieces > 1:  # the first chunk only announces the attempt
            streaming.set()

    subject = subjects.agent_chunk(system.project, CHANNEL, agent)
    subscription = await system.environment.conn.subscribe(subject, heard)
    turn = await system.load.enqueue(agent, instruction)
    try:
        await asyncio.wait_for(streaming.wait(), _CHUNK_TIMEOUT_SECONDS)
    except TimeoutError:
        raise BenchError(f"turn {turn} does not stream") from None
    finally:
        await system.environment.conn.unsubscribe(subscription)
    return turn


async def stop_one(system: System, turn: AgentTurnId) -> float:
    """Stop a turn; returns ms from the request to its `task` event."""
    request: JsonObject = {"agent_turn_id": turn, "reason": "measurement"}
    began = time.perf_counter()
    reply = await system.load.client.request("stop", request, timeout=30)
    if reply["status"] != "accepted":
        raise BenchError(f"a stop was not accepted: {reply}")
    return (await system.load.wait(turn, TurnStatus.CANCELED) - began) * 1000
