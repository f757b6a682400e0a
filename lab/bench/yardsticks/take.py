"""Measures the yardsticks Temporal, PostgreSQL and NATS, in the same run and on the same servers as the turns."""

import asyncio
import math
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from lab.bench.children import BenchError, Child, child
from lab.bench.environment import Environment
from lab.bench.figures import percentile, ratio
from lab.bench.proc import cpu_seconds
from lab.bench.yardsticks.bare import Done, Kind, Order, Setting
from lab.bench.yardsticks.postgres import TpcB, scratch_database
from turnstile.schema.base import JsonObject
from turnstile.transport.connection import NatsConnection
from turnstile.transport.json_messages import encode

TPCB_CLIENTS = 8
_IN_FLIGHT = 64
_PAYLOAD = b"x" * 256
_WARM = 20
_STORED_SHARE = 0.2
"""The share of messages sent in the test with acknowledgements, which takes longer."""


@dataclass(frozen=True)
class Bares:
    """Processes that run bare workflows: as many as there are workers, with the workers' settings."""

    children: Sequence[Child]

    async def at_once(self, kind: Kind, count: int) -> dict[str, float]:
        """Start `count` workflows concurrently; returns workflows per second and CPU ms of each."""
        before = sum(cpu_seconds(c.pid) for c in self.children)
        began = time.perf_counter()
        await self._order(kind, count, at_once=True)
        seconds = time.perf_counter() - began
        cpu = sum(cpu_seconds(c.pid) for c in self.children) - before
        return {f"bare {kind} rate": count / seconds, f"bare {kind} cpu": ratio(cpu * 1000, count)}

    async def alone(self, kind: Kind, count: int) -> dict[str, float]:
        """Run `count` workflows one after the other; returns their p50 in ms."""
        finished = await self._one(self.children[0], Order(kind=kind, count=count, at_once=False))
        return {f"bare {kind} p50": percentile(finished.took_ms, 0.5)}

    async def woken(self, count: int) -> list[float]:
        """Put `count` workflows to sleep and signal them concurrently; returns ms from each signal to its activity."""
        return (await self._one(self.children[0], Order(kind="woken", count=count, at_once=True))).took_ms

    async def _order(self, kind: Kind, count: int, *, at_once: bool) -> None:
        share, rest = divmod(count, len(self.children))
        counts = [share + (number < rest) for number in range(len(self.children))]
        orders = [Order(kind=kind, count=c, at_once=at_once) for c in counts]
        await asyncio.gather(*(self._one(child, order) for child, order in zip(self.children, orders, strict=True)))

    @staticmethod
    async def _one(child: Child, order: Order) -> Done:
        stdin, stdout = child.process.stdin, child.process.stdout
        if stdin is None or stdout is None:
            raise BenchError("a bare worker has no pipes")
        stdin.write(order.model_dump_json().encode() + b"\n")
        line = await stdout.readline()
        if not line:
            await child.process.wait()
            child.check()
        return Done.model_validate_json(line)


@asynccontextmanager
async def bare_workers(environment: Environment) -> AsyncGenerator[Bares]:
    """Start the processes, each with its own task queue, and warm them up."""
    async with AsyncExitStack() as stack:
        children: list[Child] = []
        where = {
            "address": environment.endpoints.temporal_address,
            "namespace": environment.endpoints.temporal_namespace,
        }
        temporal = environment.settings.temporal.model_copy(update=where)
        for number in range(environment.plan.workers):
            setting = Setting(
                temporal=temporal,
                target=f"bare-{uuid.uuid4().hex[:12]}",
                max_concurrency=environment.settings.worker.max_concurrency,
                max_cached_turns=environment.settings.worker.max_cached_turns,
            )
            words = ("-m", "lab.bench.yardsticks.bare", setting.model_dump_json())
            log = environment.directory / f"bare-{number}.log"
            children.append(await stack.enter_async_context(child("bare worker", words, log, piped=True)))
        bares = Bares(children)
        for kind in ("one", "none"):
            await bares.at_once(kind, _WARM * len(children))
        yield bares


@asynccontextmanager
async def tpcb(environment: Environment) -> AsyncGenerator[TpcB]:
    """Create pgbench's tables in a new database."""
    async with scratch_database(environment.endpoints.database_url) as url:
        tpcb = TpcB(url, scale=environment.plan.tpcb_scale)
        await tpcb.prepare()
        yield tpcb


async def nats_rates(conn: NatsConnection, messages: int) -> dict[str, float]:
    """Messages of 256 bytes that this process publishes per second: on core NATS, and stored with acknowledgements."""
    name = f"turnstile_bench_{uuid.uuid4().hex[:12]}"
    stream: JsonObject = {"name": name, "subjects": [name], "storage": "file", "num_replicas": 1}
    await conn.request(f"$JS.API.STREAM.CREATE.{name}", encode(stream), timeout=10)
    try:
        stored = max(1, round(messages * _STORED_SHARE))
        return {
            "NATS core": messages / await _publish(conn, messages),
            "NATS stored": stored / await _store(conn, name, stored),
        }
    finally:
        await conn.request(f"$JS.API.STREAM.DELETE.{name}", b"", timeout=10)


async def _publish(conn: NatsConnection, messages: int) -> float:
    subject, began = f"lab.bench.{uuid.uuid4().hex}", time.perf_counter()
    for _ in range(messages):
        await conn.send(subject, _PAYLOAD)
    await conn.verify()
    return time.perf_counter() - began


async def _store(conn: NatsConnection, subject: str, messages: int) -> float:
    gate = asyncio.Semaphore(_IN_FLIGHT)

    async def one() -> None:
        async with gate:
            await conn.store(subject, _PAYLOAD, timeout=30)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(messages)))
    return time.perf_counter() - began if messages else math.nan
