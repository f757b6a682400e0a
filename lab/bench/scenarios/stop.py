"""`stop`: from the request to stop a turn to its `task` event, while models stream.

From the request, not from its acceptance: the event may well overtake the reply, so this is the longer of the two.
"""

import asyncio
import time
from collections.abc import Sequence

from lab.bench.asking import CHANNEL
from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.figures import Figure, Result, at_most, percentile
from lab.bench.place import Place
from lab.bench.stage import Stage, staged, usage_figures
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import subjects

_CHUNK_TIMEOUT_SECONDS = 60.0


async def run_stop(place: Place, bars: Bars) -> Result:
    """One stop after the other, each of a model that is streaming; the others go on streaming."""
    plan = place.plan
    async with staged(place, "stop", "bench_long", plan.stop_streams, warm=False) as stage:
        running = dict(zip(stage.agents, await _start(stage, stage.agents), strict=True))
        before, took = await stage.read(), list[float]()
        with bars.bar("stop: turns stopped while models stream", plan.stops) as advance:
            for number in range(plan.stops):
                agent = stage.agents[number % len(stage.agents)]
                took.append(await _stop(stage, running[agent]))
                [running[agent]] = await _start(stage, [agent])
                advance(1)
        values = stage.used((await stage.read()).since(before), plan.stops)
        await asyncio.gather(*(_stop(stage, turn) for turn in running.values()))
    figures = [
        Figure(name="stop p50", value=percentile(took, 0.5), unit="ms"),
        Figure(name="stop p99", value=percentile(took, 0.99), unit="ms", goal=at_most(250)),
        Figure(name="slowest stop", value=max(took), unit="ms"),
        *usage_figures(values),
        *await stage.common(),
    ]
    return Result(scenario="stop", figures=tuple(figures), details={"took_ms": [round(each, 2) for each in took]})


async def _start(stage: Stage, agents: Sequence[AgentId]) -> list[AgentTurnId]:
    """A turn of each agent, once its model streams."""
    return list(await asyncio.gather(*(_start_one(stage, agent) for agent in agents)))


async def _start_one(stage: Stage, agent: AgentId) -> AgentTurnId:
    streaming, pieces = asyncio.Event(), 0

    async def heard(_: object) -> None:
        nonlocal pieces
        pieces += 1
        if pieces > 1:  # the first says only that an attempt begins
            streaming.set()

    subject = subjects.agent_chunk(stage.project, CHANNEL, agent)
    subscription = await stage.place.conn.subscribe(subject, heard)
    turn = await stage.asker.enqueue(agent)
    try:
        await asyncio.wait_for(streaming.wait(), _CHUNK_TIMEOUT_SECONDS)
    except TimeoutError:
        raise BenchError(f"turn {turn} does not stream") from None
    finally:
        await stage.place.conn.unsubscribe(subscription)
    return turn


async def _stop(stage: Stage, turn: AgentTurnId) -> float:
    request: JsonObject = {"agent_turn_id": turn, "reason": "measurement"}
    began = time.perf_counter()
    reply = await stage.asker.client.request("stop", request, timeout=30)
    if reply["status"] != "accepted":
        raise BenchError(f"a stop was not accepted: {reply}")
    return (await stage.asker.wait(turn, TurnStatus.CANCELED) - began) * 1000
