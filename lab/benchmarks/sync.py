"""Measures what `sync_interval: always` costs: the same work on two NATS servers, one with it, in turns.

`python -m lab.benchmarks sync [--rounds 3] [--turns 100] [--messages 1000]`: starts PostgreSQL, Temporal and two NATS
servers, and worker and bridge for each of the two. In each round each of them stores messages of 512 bytes, one by one
and 16 at a time, takes requests for turns, one after the other, and many plain turns at once, after as many bare
workflows. Prints the medians of the rounds, and with ÷ without.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from lab.bench.environment import Environment, open_environment
from lab.bench.figures import medians, percentile, ratio
from lab.bench.plan import Plan
from lab.bench.system import System, open_system
from lab.bench.yardsticks.take import Bares, bare_workers
from tests.support.processes.nats_server import NatsServer
from turnstile.embedded import EmbeddedServers, Endpoints
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
            "stored, one by one": await _rate(conn, plan.nats_messages, 1),
            "stored, 16 at a time": await _rate(conn, 4 * plan.nats_messages, 16),
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


async def _open(stack: AsyncExitStack, shared: Endpoints, directory: Path, name: str, plan: Plan) -> Side:
    """A side whose NATS has `sync_interval: always`, or its default."""
    nats = NatsServer()
    nats.sync_interval = name if name == "always" else ""
    await asyncio.to_thread(nats.start)
    stack.callback(nats.remove)
    settings = Settings.model_validate(
        {
            "database": {"url": shared.database_url},
            "nats": {"servers": [nats.url]},
            "temporal": {"address": shared.temporal_address, "namespace": shared.temporal_namespace},
        }
    )
    (directory / name).mkdir()
    environment: Environment = await stack.enter_async_context(open_environment(settings, plan, directory / name))
    system = await stack.enter_async_context(open_system(environment, "sync", "instant", plan.turns))
    return Side(system, await stack.enter_async_context(bare_workers(environment)))


async def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--messages", type=int, default=1000)
    given = parser.parse_args()
    plan = Plan(rounds=given.rounds, turns=given.turns, nats_messages=given.messages)
    rounds: dict[str, list[dict[str, float]]] = {"always": [], "default": []}
    loads = [os.getloadavg()[0]]
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = EmbeddedServers(directory / ".turnstile", nats_url="nats://127.0.0.1:1")
        await stack.enter_async_context(servers)
        sides = {name: await _open(stack, servers.endpoints, directory, name, plan) for name in rounds}
        for number in range(given.rounds):
            for name in sorted(sides, reverse=bool(number % 2)):
                rounds[name].append(await sides[name].measure(plan))
    loads.append(os.getloadavg()[0])
    for line in _table(medians(rounds["always"]), medians(rounds["default"])):
        print(line)  # noqa: T201 -- what this program is for
    print(f"medians of {given.rounds} rounds; load {loads[0]:.1f} before, {loads[1]:.1f} after")  # noqa: T201


def _table(always: Mapping[str, float], default: Mapping[str, float]) -> list[str]:
    """A line for each figure: with `always`, with the default, and the first ÷ the second."""
    lines = [f"{'':<22}{'always':>14}{'every 2 min':>14}{'ratio':>8}"]
    for name, unit in _UNITS.items():
        values = "".join(f"{side[name]:>10.4g} {unit:<3}" for side in (always, default))
        lines.append(f"{name:<22}{values}{always[name] / default[name]:>8.2f}")
    return lines


if __name__ == "__main__":
    asyncio.run(main())
