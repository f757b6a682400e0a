"""Turns asked for over NATS: a request each, and while one is followed two subscriptions and a look a second."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from pydantic import ValidationError

from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import parts_of, value_of
from turnstile.schema.errors import ConfigError, Limited, Refused, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId
from turnstile.schema.ledger_reads import ReadReply
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.states import TurnStatus
from turnstile.schema.verbs import Verb
from turnstile.schema.wire.descriptions import DescribeReply, TreeTurn, TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest
from turnstile.sdk.chunk_order import ChunkOrder
from turnstile.sdk.client import BridgeClient, TaskWaiter, WatchEvent
from turnstile.sdk.turn import Answer, Backend, Request, Turn, TurnResult
from turnstile.transport.connection import NatsConnection
from turnstile.transport.connection import connect as connect_nats
from turnstile.transport.local_servers import DEFAULT_NATS, find_nats

_LOOK_SECONDS = 1.0
_LONGEST_LOOK_SECONDS = 60.0
"""A wait hears its end, and looks for it more and more seldom."""
_LINGER_SECONDS = 0.1
"""How long after a turn's end the rest of its text may come: subscriptions are delivered side by side."""


class NatsTurn(Turn):
    """A turn over NATS."""

    def __init__(
        self, bridge: BridgeClient, agent_id: AgentId, request: EnqueueRequest | RerunRequest | AgentTurnId
    ) -> None:
        self._bridge = bridge
        self._agent = agent_id
        self._request = request

    async def start(self) -> AgentTurnId:
        if isinstance(self._request, EnqueueRequest):
            self.reply = await self._bridge.call(verbs.ENQUEUE, self._request)
            self._request = turn_of(self.reply)
        elif isinstance(self._request, RerunRequest):
            self.reply = await self._bridge.call(verbs.RERUN, self._request)
            self._request = turn_of(self.reply)
        return self._request

    @asynccontextmanager
    async def streamed(self) -> AsyncGenerator[AsyncGenerator[Chunk]]:
        watching = self._bridge.watching(self._agent, include_chunks=True)
        async with watching as events, aclosing(self._chunks(events)) as chunks:
            yield chunks

    async def describe(self) -> TurnView:
        return turn_in(await describe(self._bridge, {"agent_turn_id": await self.start()}))

    async def ended(self, timeout: float | None = None) -> TurnResult:
        async with asyncio.timeout(timeout), self._bridge.wait_task(self._agent) as waiter:
            view = await self._ended(await self.start(), waiter)
            described = await self._describe({"card_id": view.deliverable_card_id})
        return TurnResult(
            agent_turn_id=view.agent_turn_id,
            status=TurnStatus(view.status),
            value=None if described.card is None else value_of(described.card),
            card_id=view.deliverable_card_id,
            partial=described.card is not None and bool(described.card.metadata.partial),
            error_code=view.error_code,
            error=view.error,
            stats=view.stats or {},
            files=() if described.card is None else parts_of(described.card),
        )

    async def call(self, verb: Verb[Request, Answer], request: Request) -> Answer:
        return await self._bridge.call(verb, request)

    @asynccontextmanager
    async def hints(self) -> AsyncGenerator[asyncio.Event]:
        async with self._bridge.hearing_interrupts(self._agent) as hint:
            yield hint

    @property
    def closed(self) -> bool:
        return self._bridge.closed

    def again(self, request: RerunRequest) -> Turn:
        return NatsTurn(self._bridge, self._agent, request)

    async def tree(self) -> Sequence[TreeTurn]:
        return (await self._describe({"agent_turn_id": await self.start(), "tree": True})).tree or []

    async def _ended(self, turn: AgentTurnId, waiter: TaskWaiter) -> TurnView:
        pause = _LOOK_SECONDS
        while (view := turn_in(await self._describe({"agent_turn_id": turn}))).ended_at is None:
            with suppress(TimeoutError):  # its event may have been lost: look again
                await waiter.wait(turn, pause)
            pause = min(pause * 2, _LONGEST_LOOK_SECONDS)
        return view

    async def _chunks(self, events: AsyncIterator[WatchEvent]) -> AsyncGenerator[Chunk]:
        turn, order = await self.start(), ChunkOrder()
        async with aclosing(self._until_ended(events, turn)) as heard:
            async for event in heard:
                chunk = _chunk_of(event, turn)
                if chunk is not None and order.take(chunk):
                    yield chunk

    async def _describe(self, request: JsonObject) -> DescribeReply:
        """What the ledger has, once a bridge answers; raises `ServerUnavailable` once the connection is closed."""
        while True:
            pause = _LOOK_SECONDS
            try:
                async with self._bridge.looks:
                    return await describe(self._bridge, request)
            except Limited as error:  # the project asks too much: this is asked again, not given up
                pause = error.retry_after or pause
            except ServerUnavailable:
                if self._bridge.closed:
                    raise
            await asyncio.sleep(pause)

    async def _until_ended(self, events: AsyncIterator[WatchEvent], turn: AgentTurnId) -> AsyncGenerator[WatchEvent]:
        """Events until the turn's `task` event, and what comes shortly after it; a look makes up for a lost one."""
        now = asyncio.get_running_loop().time
        ends_at, look_at = math.inf, now() + _LOOK_SECONDS
        waiting: asyncio.Future[WatchEvent] = asyncio.ensure_future(anext(events))
        try:
            while now() < ends_at:
                await asyncio.wait({waiting}, timeout=min(ends_at, look_at) - now())
                ended = False
                if waiting.done():
                    event = waiting.result()
                    waiting = asyncio.ensure_future(anext(events))
                    ended = event.suffix == "task" and event.payload.get("agent_turn_id") == turn
                    yield event
                elif now() >= look_at:
                    ended = turn_in(await self._describe({"agent_turn_id": turn})).ended_at is not None
                    look_at = now() + _LOOK_SECONDS
                if ended:
                    ends_at = min(ends_at, now() + _LINGER_SECONDS)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class NatsBackend(Backend):
    """A connection to NATS."""

    conn: NatsConnection
    bridge: BridgeClient

    def ask(self, request: EnqueueRequest) -> Turn:
        return NatsTurn(self.bridge, self.bridge.agent_of(request), request)

    def known(self, agent_id: AgentId, agent_turn_id: AgentTurnId) -> Turn:
        return NatsTurn(self.bridge, agent_id, agent_turn_id)

    async def find(self, agent_turn_id: AgentTurnId) -> Turn:
        view = turn_in(await describe(self.bridge, {"agent_turn_id": agent_turn_id}))
        return NatsTurn(self.bridge.in_channel(view.channel_id), view.agent_id, view.agent_turn_id)

    async def call(self, verb: Verb[Request, Answer], request: Request, channel: ChannelId | None = None) -> Answer:
        return await (self.bridge if channel is None else self.bridge.in_channel(channel)).call(verb, request)

    async def close(self) -> None:
        await self.conn.close()


async def open_nats(address: str | None, project: str, channel: str) -> NatsBackend:
    """Connect; without an address to the NATS of a `turnstile up`, else to port 4222 here.

    Raises `ConfigError`, also where no address is given and nothing runs there.
    """
    if address is None and find_nats() is None and not await _answers(DEFAULT_NATS):
        raise ConfigError(
            "nothing is running here (no .turnstile with servers in this directory or above): start `turnstile up`, or"
            " give the address: `Client(address)`, TURNSTILE_URL of a gateway with TURNSTILE_TOKEN, or NATS_URL"
        )
    conn = await connect_nats(address, name="turnstile client")
    return NatsBackend(conn, BridgeClient(conn, ProjectId(project), ChannelId(channel)))


async def _answers(address: str) -> bool:
    """Whether anything listens at this address within a second."""
    split = urlsplit(address)
    try:
        async with asyncio.timeout(1.0):
            _, writer = await asyncio.open_connection(split.hostname, split.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True


async def describe(bridge: BridgeClient, request: JsonObject) -> DescribeReply:
    """What the ledger has of a turn or a card; raises `Refused` (`unknown_turn`), or `ServerUnavailable`."""
    return await bridge.call(verbs.DESCRIBE, request)


def turn_in(reply: DescribeReply | ReadReply) -> TurnView:
    """The turn that was asked for."""
    if reply.turn is None:
        raise Refused("internal_error", "the bridge described no turn")
    return reply.turn


def turn_of(reply: EnqueueReply) -> AgentTurnId:
    """The turn that an accepted request made, or that hears it."""
    if (turn := reply.agent_turn_id or reply.steered_turn_id) is None:
        raise Refused("internal_error", "the bridge accepted the request and named no turn")
    return turn


def _chunk_of(event: WatchEvent, turn: AgentTurnId) -> Chunk | None:
    if event.suffix != "chunk" or event.payload.get("agent_turn_id") != turn:
        return None
    try:
        return Chunk.model_validate(event.payload)
    except ValidationError:  # a stranger's; nothing depends on it
        return None
