"""The load of a measurement: requests turns over NATS, and learns of their ends by one subscription to `task` events.

Latency is measured from the request to the event. If a turn is refused or does not succeed, the measurement fails.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from lab.bench.children import BenchError
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import subjects
from turnstile.schema.wire.events import TaskEvent
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.client import BridgeClient
from turnstile.transport.connection import NatsConnection

CHANNEL = ChannelId("public")
TURN_TIMEOUT_SECONDS = 300.0
_REQUEST_TIMEOUT_SECONDS = 60.0


class Message(Protocol):
    """A message of NATS."""

    @property
    def data(self) -> bytes:
        """What it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A `task` event, and the time at which it arrived (`time.perf_counter`)."""

    event: TaskEvent
    at: float


@dataclass
class LoadClient:
    """A client of one project. Holds a future for each turn that has ended or is waited for."""

    client: BridgeClient
    _ends: "dict[AgentTurnId, asyncio.Future[Ended]]" = field(default_factory=dict)

    async def on_event(self, message: Message) -> None:
        """Record the end of a turn from its `task` event."""
        at = time.perf_counter()
        event = TaskEvent.model_validate_json(message.data)
        end = self._end(event.agent_turn_id)
        if not end.done():
            end.set_result(Ended(event, at))

    async def enqueue(self, agent: AgentId, instruction: str = "hello") -> AgentTurnId:
        """Request a turn; returns when it is accepted, raises `BenchError` if it is refused."""
        return await self.request({"agent_id": agent, "instruction": instruction})

    async def request(self, request: JsonObject) -> AgentTurnId:
        """As `enqueue`, with these arguments."""
        raw = await self.client.request("enqueue", request, timeout=_REQUEST_TIMEOUT_SECONDS)
        reply = EnqueueReply.model_validate(raw)
        if reply.agent_turn_id is None:
            raise BenchError(f"a turn was refused: {reply.error_code}: {reply.error}")
        return reply.agent_turn_id

    async def wait(self, turn: AgentTurnId, status: TurnStatus = TurnStatus.SUCCESS) -> float:
        """Wait for the turn's end; returns the time of its event. Raises `BenchError` for another status."""
        try:
            ended = await asyncio.wait_for(self._end(turn), TURN_TIMEOUT_SECONDS)
        except TimeoutError:
            raise BenchError(f"turn {turn} did not end within {TURN_TIMEOUT_SECONDS:g} s") from None
        del self._ends[turn]
        if ended.event.status != status:
            raise BenchError(f"turn {turn} ended as {ended.event.status}: {ended.event.error_code}")
        return ended.at

    async def turn(self, agent: AgentId, instruction: str = "hello", since: float | None = None) -> float:
        """Run one turn; returns ms from its request, or from `since`, to its `task` event."""
        began = time.perf_counter() if since is None else since
        return (await self.wait(await self.enqueue(agent, instruction)) - began) * 1000

    async def at_once(self, agents: Sequence[AgentId], instruction: str = "hello") -> float:
        """Run a turn of each agent concurrently; returns the seconds until the last has ended."""
        began = time.perf_counter()
        await asyncio.gather(*(self.turn(agent, instruction) for agent in agents))
        return time.perf_counter() - began

    async def alone(self, agents: Sequence[AgentId]) -> list[float]:
        """Run a turn of each agent, one after the other; returns the ms of each."""
        return [await self.turn(agent) for agent in agents]

    def _end(self, turn: AgentTurnId) -> "asyncio.Future[Ended]":
        return self._ends.setdefault(turn, asyncio.get_running_loop().create_future())


@asynccontextmanager
async def open_load_client(conn: NatsConnection, project: ProjectId) -> AsyncGenerator[LoadClient]:
    """A load client that is subscribed to the `task` events of the project's channel."""
    load = LoadClient(BridgeClient(conn, project, CHANNEL))
    subscription = await conn.subscribe(subjects.task_events_filter(project, CHANNEL), load.on_event)
    try:
        yield load
    finally:
        await conn.unsubscribe(subscription)
