"""The same turns asked for over HTTP and over NATS, in turns, by as many callers.

Over HTTP, and over NATS as the Python client asks, each waits for its turn's output. The third way reads none: a
request and an event, the least that a turn can cost its caller.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

import httpx

from lab.bench.bars import Bars
from lab.bench.children import BenchError
from lab.bench.figures import Figure, at_least, medians, percentile, ratio
from lab.bench.gateway.process import GatewayProcess
from lab.bench.load_client import CHANNEL
from lab.bench.system import System
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.nats_turns import NatsBackend

_WAIT_SECONDS = 120
_LEAST = "NATS without output"
Ask = Callable[[AgentId], Awaitable[None]]


async def measure_ratio(system: System, gateway: GatewayProcess, bars: Bars) -> list[Figure]:
    """Run the plan's rounds of turns, each over both."""
    plan, conn = system.environment.plan, system.environment.conn
    callers = system.agents[: plan.callers]
    nats = NatsBackend(conn, BridgeClient(conn, system.project, CHANNEL))

    async def by_nats(agent: AgentId) -> None:
        result = await nats.ask(EnqueueRequest(agent_id=agent, instruction="hello")).result()
        if result.status != "success" or not result.value:
            raise BenchError(f"a turn over NATS ended as {result.status}")

    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {gateway.token}", "prefer": f"wait={_WAIT_SECONDS}"}
    rounds: list[dict[str, float]] = []
    async with httpx.AsyncClient(
        base_url=gateway.url, headers=headers, timeout=_WAIT_SECONDS + 10, limits=limits
    ) as http:

        async def by_http(agent: AgentId) -> None:
            body: JsonObject = {"agent_id": agent, "instruction": "hello"}
            response = await http.post("/v1/turns", json=body)
            answer = response.json()
            if answer.get("status") != "success" or not answer["output"]["text"]:
                raise BenchError(f"a turn over HTTP ended as {response.status_code}, {answer.get('status')}")

        async def by_event(agent: AgentId) -> None:
            await system.load.turn(agent)

        ways: list[tuple[str, Ask]] = [("NATS", by_nats), ("HTTP", by_http), (_LEAST, by_event)]
        with bars.bar("gateway: turns over HTTP and NATS", 3 * plan.rounds) as advance:
            for number in range(plan.rounds):
                values: dict[str, float] = {}
                for name, ask in ways[number % 3 :] + ways[: number % 3]:
                    cpu = gateway.cpu()
                    values |= await _round(name, ask, callers, plan.turns)
                    if name == "HTTP":
                        values["gateway cpu"] = (gateway.cpu() - cpu) * 1000 / plan.turns
                    advance(1)
                rounds.append(values)
    values = medians(rounds)
    return [
        Figure(
            name="turns/s by HTTP ÷ by NATS", value=ratio(values["HTTP rate"], values["NATS rate"]), goal=at_least(0.9)
        ),
        Figure(
            name="turns/s by HTTP ÷ by NATS without output", value=ratio(values["HTTP rate"], values[f"{_LEAST} rate"])
        ),
        *(Figure(name=f"turns by {name}", value=values[f"{name} rate"], unit="/s") for name, _ in ways),
        *(Figure(name=f"a turn by {name}, p50", value=values[f"{name} p50"], unit="ms") for name, _ in ways),
        Figure(name="callers", value=len(callers)),
        Figure(name="gateway's CPU a turn by HTTP", value=values["gateway cpu"], unit="ms"),
    ]


async def _round(name: str, ask: Ask, callers: Sequence[AgentId], turns: int) -> dict[str, float]:
    """So many turns by these callers, each with one at a time."""
    took: list[float] = []
    left = iter(range(turns))

    async def call(agent: AgentId) -> None:
        for _ in left:
            began = time.perf_counter()
            await ask(agent)
            took.append((time.perf_counter() - began) * 1000)

    began = time.perf_counter()
    await asyncio.gather(*map(call, callers))
    return {f"{name} rate": turns / (time.perf_counter() - began), f"{name} p50": percentile(took, 0.5)}
