"""The load: turns asked for over NATS, as any client asks, and heard of by one subscription to `task` events.

It measures from the request to the event. A turn that is refused, or does not end well, ends the measurement.
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


class _Message(Protocol):
    @property
    def data(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A `task` event, and when it was heard (`time.perf_counter`)."""

    event: TaskEvent
    at: float


@dataclass
class Asker:
    """One project's client. Holds a future for each turn that it has heard of, or waits for."""

    client: BridgeClient
    _ends: "dict[AgentTurnId, asyncio.Future[Ended]]" = field(default_factory=dict)

    async def on_event(self, message: _Message) -> None:
        """Take a `task` event."""
        at = time.perf_counter()
        event = TaskEvent.model_validate_json(message.data)
        end = self._end(event.agent_turn_id)
        if not end.done():
            end.set_result(Ended(event, at))

    async def enqueue(self, agent: AgentId, instruction: str = "hello") -> AgentTurnId:
        """Ask for a turn; returns once it is accepted."""
        asked: JsonObject = {"agent_id": agent, "instruction": instruction}
        raw = await self.client.request("enqueue", asked, timeout=_REQUEST_TIMEOUT_SECONDS)
        reply = EnqueueReply.model_validate(raw)
        if reply.agent_turn_id is None:
            raise BenchError(f"a turn was refused: {reply.error_code}: {reply.error}")
        return reply.agent_turn_id

    async def wait(self, turn: AgentTurnId, status: TurnStatus = TurnStatus.SUCCESS) -> float:
        """When the turn ended."""
        try:
            ended = await asyncio.wait_for(self._end(turn), TURN_TIMEOUT_SECONDS)
        except TimeoutError:
            raise BenchError(f"turn {turn} did not end within {TURN_TIMEOUT_SECONDS:g} s") from None
        del self._ends[turn]
        if ended.event.status != status:
            raise BenchError(f"turn {turn} ended as {ended.event.status}: {ended.event.error_code}")
        return ended.at

    async def turn(self, agent: AgentId, instruction: str = "hello", since: float | None = None) -> float:
        """One turn from its request, or from `since`, to its `task` event, in ms."""
        began = time.perf_counter() if since is None else since
        return (await self.wait(await self.enqueue(agent, instruction)) - began) * 1000

    async def at_once(self, agents: Sequence[AgentId]) -> float:
        """A turn of each agent, all asked for at once; the seconds until the last has ended."""
        began = time.perf_counter()
        await asyncio.gather(*(self.turn(agent) for agent in agents))
        return time.perf_counter() - began

    async def alone(self, agents: Sequence[AgentId]) -> list[float]:
        """A turn of each, one after the other, in ms."""
        return [await self.turn(agent) for agent in agents]

    def _end(self, turn: AgentTurnId) -> "asyncio.Future[Ended]":
        return self._ends.setdefault(turn, asyncio.get_running_loop().create_future())


@asynccontextmanager
async def asking(conn: NatsConnection, project: ProjectId) -> AsyncGenerator[Asker]:
    """An asker that hears every turn of the project's channel."""
    asker = Asker(BridgeClient(conn, project, CHANNEL))
    subscription = await conn.subscribe(subjects.task_events_filter(project, CHANNEL), asker.on_event)
    try:
        yield asker
    finally:
        await conn.unsubscribe(subscription)
