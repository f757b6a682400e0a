"""Asking agents from Python, over NATS alone (docs/python.md).

    async with turnstile.connect() as client:
        turn = client.ask("helper", "Say hello")
        async for piece in turn:
            print(piece, end="")
        print((await turn.result()).status)

Every request carries a correlation id, so repeating it never makes a second turn. Streamed text may be lost while NATS
is away; the result is not, because it is read from the ledger. Leaving a turn does not stop it: `Client.turn` finds it
again. A turn costs one request, and while it is followed two subscriptions and one look a second.
"""

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import SubmittedField, value_of
from turnstile.schema.errors import Refused, ServerUnavailable
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, token, uuid7
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.descriptions import DescribeReply, TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest, StopReply
from turnstile.sdk.chunk_order import ChunkOrder
from turnstile.sdk.client import BridgeClient, TaskWaiter, WatchEvent
from turnstile.sdk.requests import parse_request
from turnstile.transport.connection import connect as connect_nats

_LOOK_SECONDS = 1.0
_LINGER_SECONDS = 0.1
"""How long after a turn's end the rest of its text may come: subscriptions are delivered side by side."""
_FIELDS = TypeAdapter(dict[str, list[SubmittedField]])


class TurnResult(Tolerant):
    """What a turn came to: its outcome and its one deliverable (protocol §2.4, §4)."""

    agent_turn_id: AgentTurnId
    status: TurnStatus
    value: JsonValue
    """The deliverable: a text, the fields that were asked for, or what the kernel made in place of one."""
    error_code: str | None = None
    """What went wrong, as a stable word; None if nothing did."""
    error: str | None = None
    """What went wrong, for people."""
    stats: JsonObject = Field(default_factory=dict)
    """Steps, times in ms, tokens, model."""

    @property
    def ok(self) -> bool:
        """Whether the turn succeeded."""
        return self.status is TurnStatus.SUCCESS

    @property
    def fields(self) -> dict[str, JsonValue]:
        """The fields that were asked for, by name; empty if the deliverable is something else."""
        try:
            found = _FIELDS.validate_python(self.value)
        except ValidationError:
            return {}
        return {field.name: field.value for field in found.get("fields", ())}


class Turn:
    """A turn of an agent: iterate it for its text, await `result`, or `stop` it. `Client` makes them."""

    def __init__(self, bridge: BridgeClient, agent_id: AgentId, asked: EnqueueRequest | AgentTurnId) -> None:
        self._bridge = bridge
        self._agent = agent_id
        self._asked = asked

    async def start(self) -> AgentTurnId:
        """Enqueue the turn unless that was done, and return its id. Raises `Refused` with the code of the refusal,
        or `ServerUnavailable`; the same call may then be repeated."""
        if isinstance(self._asked, EnqueueRequest):
            self._asked = turn_of(await self._bridge.request_as("enqueue", self._asked, EnqueueReply))
        return self._asked

    async def __aiter__(self) -> AsyncGenerator[str]:
        """Pieces of the answer's text as the model writes it, until the turn has ended.

        Where an attempt fails in the middle, the next one's pieces follow those of the first: `result` is exact.
        """
        async with self._bridge.watching(self._agent, include_chunks=True) as events:
            turn, order = await self.start(), ChunkOrder()
            async with aclosing(self._until_ended(events, turn)) as heard:
                async for event in heard:
                    chunk = _chunk_of(event, turn)
                    if chunk is not None and order.take(chunk) and chunk.chunk_type is ChunkType.CONTENT:
                        yield chunk.content

    async def result(self, timeout: float | None = None) -> TurnResult:
        """What the turn came to, whatever its status; while a server is away it waits.

        Raises `TimeoutError` after `timeout` seconds: the turn then goes on. `ServerUnavailable` once the connection is
        closed.
        """
        async with asyncio.timeout(timeout), self._bridge.wait_task(self._agent) as waiter:
            view = await self._ended(await self.start(), waiter)
            found = await self._describe({"card_id": view.deliverable_card_id})
        return TurnResult(
            agent_turn_id=view.agent_turn_id,
            status=TurnStatus(view.status),
            value=None if found.card is None else value_of(found.card),
            error_code=view.error_code,
            error=view.error,
            stats=view.stats or {},
        )

    async def stop(self, reason: str = "") -> bool:
        """End the turn: it keeps what it has and ends as `canceled`. False if it was over already.

        Raises `Refused` or `ServerUnavailable`.
        """
        asked: JsonObject = {"agent_turn_id": await self.start(), "reason": reason}
        return not (await self._bridge.request_as("stop", asked, StopReply)).already_final

    async def _ended(self, turn: AgentTurnId, waiter: TaskWaiter) -> TurnView:
        while (view := turn_in(await self._describe({"agent_turn_id": turn}))).ended_at is None:
            with suppress(TimeoutError):  # its event may have been lost: look again
                await waiter.wait(turn, _LOOK_SECONDS)
        return view

    async def _describe(self, asked: JsonObject) -> DescribeReply:
        """What the ledger has, once a bridge answers; raises `ServerUnavailable` once the connection is closed."""
        while True:
            try:
                return await describe(self._bridge, asked)
            except ServerUnavailable:
                if self._bridge.closed:
                    raise
            await asyncio.sleep(_LOOK_SECONDS)

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
            await asyncio.wait({waiting})


class Client:
    """Asks the agents of one channel of one project. Made by `connect`."""

    def __init__(self, bridge: BridgeClient) -> None:
        self.bridge = bridge
        """Every verb by name, messages to listeners and UI actions: what has no method here (protocol §6)."""

    def ask(
        self,
        agent_id: str | None,
        instruction: str | None = None,
        *,
        conversation: str | None = None,
        result_fields: Sequence[str] | Mapping[str, str] = (),
        context_box_id: str | None = None,
        profile_name: str | None = None,
        model: str | None = None,
        correlation_id: str | None = None,
    ) -> Turn:
        """A turn of `agent_id` that is enqueued when it is first iterated, awaited or started.

        The turns of a `conversation` follow each other and remember what was said. With a `profile_name` and None for
        the agent, an instance of the profile runs the turn: one for each conversation, else one for the request.
        `result_fields` are names of fields that the deliverable must have, or names with descriptions. With a
        `correlation_id` of yours, the same request made again answers the same turn. Raises `BadRequest`.
        """
        described = result_fields if isinstance(result_fields, Mapping) else dict.fromkeys(result_fields, "")
        given: dict[str, JsonValue] = {
            "agent_id": agent_id,
            "instruction": instruction,
            "conversation_id": conversation,
            "context_box_id": context_box_id,
            "profile_name": profile_name,
            "correlation_id": correlation_id or uuid7(),
            "runtime_config": {"model": model} if model else None,
            "result_fields": [{"name": name, "description": text} for name, text in described.items()] or None,
        }
        request = parse_request(EnqueueRequest, {name: value for name, value in given.items() if value is not None})
        return Turn(self.bridge, self.bridge.agent_of(request), request)

    async def turn(self, agent_turn_id: str) -> Turn:
        """A turn that was asked for earlier, by anybody; raises `Refused` (`unknown_turn`) if the project has none."""
        view = turn_in(await describe(self.bridge, {"agent_turn_id": agent_turn_id}))
        return Turn(self.bridge.in_channel(view.channel_id), view.agent_id, view.agent_turn_id)


@asynccontextmanager
async def connect(
    nats_url: str | None = None, *, project: str = "demo", channel: str = "public"
) -> AsyncGenerator[Client]:
    """A client of one channel of a project, connected while inside.

    Without an address it takes `NATS_URL`, else the NATS of a `turnstile up` in this directory or one above, else port
    4222 here. Waits for a server that is down. Raises `BadRequest` for a name that is no token, `ConfigError` if the
    server refuses the login.
    """
    where = ProjectId(token(project, "project")), ChannelId(token(channel, "channel"))
    conn = await connect_nats(nats_url or os.environ.get("NATS_URL") or None, name="turnstile client")
    try:
        yield Client(BridgeClient(conn, *where))
    finally:
        await conn.close()


async def describe(bridge: BridgeClient, asked: JsonObject) -> DescribeReply:
    """What the ledger has of a turn or a card; raises `Refused` (`unknown_turn`), or `ServerUnavailable`."""
    return await bridge.request_as("describe", asked, DescribeReply)


def turn_in(reply: DescribeReply) -> TurnView:
    """The turn that was asked for."""
    if reply.turn is None:
        raise Refused("internal_error", "the bridge described no turn")
    return reply.turn


def turn_of(reply: EnqueueReply) -> AgentTurnId:
    """The turn that an accepted request made."""
    if reply.agent_turn_id is None:
        raise Refused("internal_error", "the bridge accepted the request and named no turn")
    return reply.agent_turn_id


def _chunk_of(event: WatchEvent, turn: AgentTurnId) -> Chunk | None:
    if event.suffix != "chunk" or event.payload.get("agent_turn_id") != turn:
        return None
    try:
        return Chunk.model_validate(event.payload)
    except ValidationError:  # a stranger's; nothing depends on it
        return None
