"""What a gateway adds to a chunk's way: from a subscriber of NATS that hears it to a client of the gateway that has it.

Both read one clock. Chunks that were published before a client's stream began came from the stream of text, and do not
count; those of the time in which all streams open at once are a figure of their own. The kernel's own gathering
(`[worker].stream_gather_ms`) lies before both, so it is not in the figure.
"""

import time
from math import inf

from lab.bench.agents import add_players
from lab.bench.bars import Bars
from lab.bench.figures import Figure, at_most, spread
from lab.bench.gateway.clients import Answer, Reader, Readers
from lab.bench.gateway.process import GatewayProcess, open_clients, read_all
from lab.bench.load_client import CHANNEL
from lab.bench.system import System
from turnstile.gateway.events.positions import EventPart, Position
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Chunk

SCRIPT = "bench_stream"
_OPENED = 0.1
"""The share of a turn after which the last stream that began has long been open."""


async def measure_latency(system: System, gateway: GatewayProcess, bars: Bars, label: str = "paced") -> list[Figure]:
    """Let one client follow each of the plan's paced turns."""
    plan, environment = system.environment.plan, system.environment
    agents = await add_players(environment.pool, system.project, environment.target, SCRIPT, label, plan.sse_paced)
    heard: list[tuple[float, bytes]] = []

    async def on_chunk(_: str, data: bytes) -> None:
        heard.append((time.perf_counter(), data))

    filters = [subjects.agent_chunk(system.project, CHANNEL, agent) for agent in agents]
    subscriptions = [await environment.conn.hear(f, on_chunk) for f in filters]
    cpu = gateway.cpu()
    async with open_clients(gateway, label) as clients:
        with bars.bar("gateway: latency", 1) as advance:
            turns = [await system.load.enqueue(agent) for agent in agents]
            readers = tuple(Reader(turn=turn) for turn in turns)
            share = Readers(urls=(gateway.url,), token=gateway.token, readers=readers, timed=True)
            [answers], _ = await read_all(gateway, clients, [share])
            for turn in turns:
                await system.load.wait(turn)
            advance(1)
    cpu = gateway.cpu() - cpu
    for subscription in subscriptions:
        await environment.conn.unsubscribe(subscription)
    open_at = max(answer.began for answer in answers.answers) + plan.stream_seconds * _OPENED
    added = _added(answers.answers, heard, open_at)
    while_opening = _added(answers.answers, heard, 0.0, open_at)
    p50, p95, p99 = spread(f"chunk from NATS to client, {plan.sse_paced} streams", added)
    return [
        p50,
        p95,
        p99.model_copy(update={"goal": at_most(25)}),
        Figure(name="chunks timed", value=len(added)),
        *spread("the same while they open, all at once", while_opening),
        Figure(name="chunks a second, all streams", value=len(heard) / plan.stream_seconds),
        Figure(
            name="gateway's CPU for a second of one paced stream",
            value=cpu * 1000 / len(turns) / plan.stream_seconds,
            unit="ms",
        ),
    ]


def _added(answers: list[Answer], heard: list[tuple[float, bytes]], since: float, until: float = inf) -> list[float]:
    """Milliseconds from the subscriber to the client, of chunks published since then and until then."""
    published = {_event_id(Chunk.model_validate_json(data)): at for at, data in heard}
    return [
        (at - published[event_id]) * 1000
        for answer in answers
        for event_id, at in answer.times
        if event_id in published and max(since, answer.began) < published[event_id] <= until
    ]


def _event_id(chunk: Chunk) -> str:
    step = int(chunk.step_id.rpartition("-s")[2])
    return Position(step, EventPart.CHUNKS, chunk.attempt, chunk.index).id(chunk.agent_turn_id)
