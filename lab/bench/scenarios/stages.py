"""`stages`: where the time of one plain turn goes, alone on the machine, stage by stage.

Everything runs on one machine, so all moments are of one clock: the client's, the ledger's rows, Temporal's history.
The model says when it is asked, and answers at once. What the client hears, reply and `task` event, includes the way
over NATS. The moments of rows are those within their statements, so a commit counts to the stage after it.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError

from lab.bench.bars import Bars
from lab.bench.environment import Environment
from lab.bench.figures import Figure, Result, spread
from lab.bench.load_client import CHANNEL
from lab.bench.stages import HEARD, REQUESTED, stages_of
from lab.bench.streaming.timed_model import AT_ONCE, stamp_of
from lab.bench.system import System, open_system
from lab.bench.yardsticks.measure import TurnMoments, list_turn_moments
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import ChunkType
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import Chunk
from turnstile.workflows.options import turn_workflow_id

_AGENTS = 20
_PAUSE_SECONDS = 0.005
"""Between two turns: what follows a turn's event, for which no client waits, shall not lie in the next turn."""
_SETTLED_SECONDS = 5.0
"""How long what follows the last event is waited for."""
_ENGINE_SECONDS = 0.3
"""How long Temporal has to close the last workflow."""
_EVENTS: Mapping[int, str] = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED: "workflow_started",
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED: "task_started",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "workflow_completed",
}
Moments = dict[str, float]
"""Seconds since 1970, by name."""


async def run_stages(environment: Environment, bars: Bars) -> Result:
    """Run the plan's turns one after the other; the figures are the p50 of each stage."""
    count = environment.plan.stage_turns
    async with open_system(environment, "stages", AT_ONCE, _AGENTS) as system, _chunks(system) as chunks:
        requested: dict[AgentTurnId, Moments] = {}
        with bars.bar("stages: turns alone", count) as advance:
            for number in range(count):
                requested |= await _one(system, system.agents[number % _AGENTS])
                advance(1)
        rows = await _settled(system, list(requested))
        moments = [
            requested[row.agent_turn_id] | chunks[row.agent_turn_id] | _of_row(row) | await _of_history(system, row)
            for row in rows
        ]
    offsets = [{name: (at - moment[REQUESTED]) * 1000 for name, at in moment.items()} for moment in moments]
    stages = stages_of(offsets)
    figures = [
        *spread("a turn alone, request to event", [offset[HEARD] for offset in offsets]),
        *(
            Figure(name=f"{'beside it' if stage.beside else 'of it'}: {stage.text}", value=stage.took, unit="ms")
            for stage in stages
        ),
    ]
    details: JsonObject = {
        "took_ms": [round(offset[HEARD], 2) for offset in offsets],
        "stages": [stage.model_dump(mode="json") for stage in stages],
    }
    return Result(scenario="stages", figures=tuple(figures), details=details)


@asynccontextmanager
async def _chunks(system: System) -> AsyncGenerator[Mapping[AgentTurnId, Moments]]:
    """When the model of a turn was asked, as it said itself."""
    heard: defaultdict[AgentTurnId, Moments] = defaultdict(dict)
    conn = system.environment.conn

    async def on_chunk(_: str, data: bytes) -> None:
        chunk = Chunk.model_validate_json(data)
        if chunk.chunk_type == ChunkType.CONTENT:
            heard[chunk.agent_turn_id]["asked"] = stamp_of(chunk.content).requested

    filters = [subjects.agent_chunk(system.project, CHANNEL, agent) for agent in system.agents]
    subscriptions = [await conn.hear(f, on_chunk) for f in filters]
    await conn.verify()
    try:
        yield heard
    finally:
        for subscription in subscriptions:
            await conn.unsubscribe(subscription)


async def _one(system: System, agent: AgentId) -> dict[AgentTurnId, Moments]:
    """Run a turn; what its client saw of it."""
    requested, began = time.time(), time.perf_counter()
    turn = await system.load.enqueue(agent)
    reply = time.time()
    event = requested + await system.load.wait(turn) - began
    await asyncio.sleep(_PAUSE_SECONDS)
    return {turn: {REQUESTED: requested, "reply": reply, HEARD: event}}


async def _settled(system: System, turns: Sequence[AgentTurnId]) -> list[TurnMoments]:
    """The moments that the ledger has of the turns, once all ends are announced or after some seconds."""
    until = time.monotonic() + _SETTLED_SECONDS
    while True:
        await asyncio.sleep(_ENGINE_SECONDS)
        rows = await system.environment.pool.run(lambda conn: list_turn_moments(conn, turns))
        if time.monotonic() > until or all(row.announced is not None for row in rows):
            return rows


def _of_row(row: TurnMoments) -> Moments:
    moments = row.model_dump(exclude={"agent_turn_id"})
    return {name: at.timestamp() for name, at in moments.items() if isinstance(at, datetime)}


async def _of_history(system: System, row: TurnMoments) -> Moments:
    """The first event of each kind in the workflow's history; empty if Temporal has none."""
    handle = system.environment.temporal.get_workflow_handle(turn_workflow_id(row.agent_turn_id))
    moments: Moments = {}
    try:
        async for event in handle.fetch_history_events():
            if name := _EVENTS.get(event.event_type):
                moments.setdefault(name, event.event_time.ToDatetime(UTC).timestamp())
    except RPCError:
        return {}
    return moments
