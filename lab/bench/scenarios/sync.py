"""`sync`: what `sync_interval: always` costs: the same work on two NATS servers, one with it, in turns.

It starts two NATS servers, and worker and bridge for each of the two, beside the run's PostgreSQL and Temporal. In each
round each of them stores messages of 512 bytes, one by one and 16 at a time, runs turns, one after the other, and many
plain turns at once, after as many bare workflows. The medians of the rounds count.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from lab.bench.bars import Bars
from lab.bench.environment import Environment, open_environment
from lab.bench.figures import Figure, Result, medians, percentile, ratio
from lab.bench.plan import Plan
from lab.bench.system import System, open_system
from lab.bench.yardsticks.take import Bares, bare_workers
from lab.support.nats_server import NatsServer
from turnstile.schema.base import JsonObject
from turnstile.settings import Settings
from turnstile.transport.connection import NatsConnection

_PAYLOAD = b"x" * 512
_SUBJECT = "cg.v1r4.bench.public.cmd.tool.bench.sync"
_UNITS = {
    "stored, one by one": "/s",
    "stored, 16 at a time": "/s",
    "enqueue p50": "ms",
    "enqueue p99": "ms",
    "plain turns": "/s",
    "bare workflows": "/s",
    "engine share": "",
}


@dataclass(frozen=True)
class Side:
    """Worker and bridge on one of the two servers."""

    system: System
    bares: Bares

    async def measure(self, plan: Plan) -> dict[str, float]:
        """One round; CPU and rates as they come."""
        conn, load = self.system.environment.conn, self.system.load
        values = {
            "stored, one by one": await _rate(conn, plan.nats_messages // 10, 1),
            "stored, 16 at a time": await _rate(conn, 4 * plan.nats_messages // 10, 16),
        }
        took: list[float] = []
        for agent in self.system.agents[: plan.alone]:
            began = time.perf_counter()
            turn = await load.enqueue(agent)
            took.append((time.perf_counter() - began) * 1000)
            await load.wait(turn)
        values |= {"enqueue p50": percentile(took, 0.5), "enqueue p99": percentile(took, 0.99)}
        values["bare workflows"] = (await self.bares.at_once("one", plan.turns))["bare one rate"]
        values["plain turns"] = plan.turns / await load.at_once(self.system.agents[: plan.turns])
        return values | {"engine share": ratio(values["plain turns"], values["bare workflows"])}


async def _rate(conn: NatsConnection, messages: int, at_once: int) -> float:
    """Messages stored in a second, each acknowledged."""

    async def lane(count: int) -> None:
        for _ in range(count):
            await conn.store(_SUBJECT, _PAYLOAD, timeout=30)

    began = time.perf_counter()
    await asyncio.gather(*(lane(messages // at_once) for _ in range(at_once)))
    return messages / (time.perf_counter() - began)


async def run_sync(environment: Environment, bars: Bars) -> Result:
    """Measure both sides, every other round in the opposite order."""
    plan, rounds = environment.plan, {name: list[dict[str, float]]() for name in ("always", "default")}
    async with AsyncExitStack() as stack:
        sides = {name: await _open(stack, environment, name) for name in rounds}
        with bars.bar("sync: two servers in turns", plan.rounds * len(sides)) as advance:
            for number in range(plan.rounds):
                for name in sorted(sides, reverse=bool(number % 2)):
                    rounds[name].append(await sides[name].measure(plan))
                    advance(1)
    always, default = medians(rounds["always"]), medians(rounds["default"])
    figures = [
        figure
        for name, unit in _UNITS.items()
        for figure in (
            Figure(name=f"{name}, always", value=always[name], unit=unit),
            Figure(name=f"{name}, every 2 min", value=default[name], unit=unit),
            Figure(name=f"{name}: always ÷ every 2 min", value=ratio(always[name], default[name])),
        )
    ]
    details: JsonObject = {name: [{**values} for values in measured] for name, measured in rounds.items()}
    return Result(scenario="sync", figures=tuple(figures), details=details)


async def _open(stack: AsyncExitStack, environment: Environment, name: str) -> Side:
    """A side whose NATS has `sync_interval: always`, or its default."""
    nats = NatsServer()
    nats.sync_interval = name if name == "always" else ""
    stack.callback(nats.remove)
    await asyncio.to_thread(nats.start)
    shared, plan, directory = environment.endpoints, environment.plan, environment.directory / f"sync-{name}"
    settings = Settings.model_validate(
        {
            "database": {"url": shared.database_url},
            "nats": {"servers": [nats.url]},
            "temporal": {"address": shared.temporal_address, "namespace": shared.temporal_namespace},
        }
    )
    directory.mkdir()
    side = await stack.enter_async_context(open_environment(settings, plan, directory))
    system = await stack.enter_async_context(open_system(side, "sync", "instant", plan.turns))
    return Side(system, await stack.enter_async_context(bare_workers(side)))
