"""The time from a model's first piece to the client that hears it, with some streams at once.

The scripted models say when they yield each piece (`timed_model`), so the time of a model, of its turn's start and of
all before it is not in the figure. What is in it: the worker's event loop, the chunk and its publish, NATS, and the
client's event loop; all of them on this machine. For orientation, the time from the client's request to the piece, less
the model's own from question to piece: what the kernel adds before and after the model.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, at_most, spread
from lab.bench.load_client import CHANNEL
from lab.bench.streaming.timed_model import PACED, PIECES_PER_SECOND, Stamp, stamp_of
from lab.bench.system import System, open_system
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ChunkType
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Chunk

_SECONDS = 2.0
"""How long a turn streams."""
_TURNS = 4
"""Turns of each stream, one after the other, in the part in which they begin one by one."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """The first piece of a turn: when it was heard, and its model's stamp."""

    heard: float
    stamp: Stamp

    @property
    def late_ms(self) -> float:
        """From the model to the client."""
        return (self.heard - self.stamp.yielded) * 1000

    def added_ms(self, requested: float) -> float:
        """From the request to the client, less what the model took."""
        return (self.heard - requested - (self.stamp.yielded - self.stamp.requested)) * 1000


Requests = dict[AgentTurnId, float]
"""When turns were asked for, in seconds since 1970."""


async def measure_first_pieces(environment: Environment, bars: Bars) -> list[Figure]:
    """Two parts: streams whose turns begin evenly, so that the others stream on, and streams that all begin at once."""
    plan = environment.plan
    async with (
        open_system(environment, "first", PACED, plan.first_streams, warm=False) as system,
        _heard(system) as heard,
    ):
        with bars.bar("stream: first pieces", 1 + plan.rounds) as advance:
            await _stream(system, system.agents[0])  # loads what the first turn loads
            gap = _SECONDS / len(system.agents)
            evenly = [_turns(system, agent, number * gap) for number, agent in enumerate(system.agents)]
            one_by_one = _joined(await asyncio.gather(*evenly))
            advance(1)
            together: Requests = {}
            for _ in range(plan.rounds):
                together |= _joined(await asyncio.gather(*(_stream(system, agent) for agent in system.agents)))
                advance(1)
    return [
        *_figures(f"{plan.first_streams} streams", one_by_one, heard),
        *_figures(f"{plan.first_streams} streams that begin together", together, heard),
    ]


def _figures(streams: str, requests: Requests, heard: Mapping[AgentTurnId, _Piece]) -> list[Figure]:
    pieces = [(heard[turn], at) for turn, at in requests.items() if turn in heard]
    late = [piece.late_ms for piece, _ in pieces]
    added = [piece.added_ms(at) for piece, at in pieces]
    p50, p95, p99 = spread(f"first piece from model to client, {streams}", late)
    return [
        p50.model_copy(update={"goal": at_most(10)}),
        p95,
        p99,
        *spread(f"request to first piece, less the model's time, {streams}", added),
    ]


@asynccontextmanager
async def _heard(system: System) -> AsyncGenerator[Mapping[AgentTurnId, _Piece]]:
    """The first pieces that the client hears."""
    pieces: dict[AgentTurnId, _Piece] = {}
    conn = system.environment.conn

    async def on_chunk(_: str, data: bytes) -> None:
        at, chunk = time.time(), Chunk.model_validate_json(data)
        if chunk.chunk_type == ChunkType.CONTENT and chunk.agent_turn_id not in pieces:
            pieces[chunk.agent_turn_id] = _Piece(at, stamp_of(chunk.content))

    filters = [subjects.agent_chunk(system.project, CHANNEL, agent) for agent in system.agents]
    subscriptions = [await conn.hear(f, on_chunk) for f in filters]
    await conn.verify()
    try:
        yield pieces
    finally:
        for subscription in subscriptions:
            await conn.unsubscribe(subscription)


async def _turns(system: System, agent: AgentId, delay: float) -> Requests:
    await asyncio.sleep(delay)
    return _joined([await _stream(system, agent) for _ in range(_TURNS)])


async def _stream(system: System, agent: AgentId) -> Requests:
    """Run a turn to its end."""
    requested = time.time()
    turn = await system.load.enqueue(agent, str(round(_SECONDS * PIECES_PER_SECOND)))
    await system.load.wait(turn)
    return {turn: requested}


def _joined(requests: Iterable[Requests]) -> Requests:
    return {turn: at for request in requests for turn, at in request.items()}
