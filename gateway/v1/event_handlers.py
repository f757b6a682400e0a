"""`…/events`: what happens in a turn or a conversation, as server-sent events that resume (protocol §14.2)."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from turnstile.gateway.events.feeds import Feeds
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.positions import BEGIN, END, Position, read_id
from turnstile.gateway.events.reading import Reader, reader_of
from turnstile.gateway.events.stream import EventStream, Streaming
from turnstile.gateway.http.bearers import Access
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Forbidden
from turnstile.gateway.v1.conversation_handlers import Conversations
from turnstile.gateway.v1.turn_handlers import Turns
from turnstile.ledger.access.pages import (
    CONVERSATION_BEGIN,
    TurnAt,
    find_turn_place,
    list_last_turns,
    list_turns_after,
)
from turnstile.runtime.telemetry import Metric
from turnstile.schema.access import Principal, Right
from turnstile.schema.api import ConversationEventsQuery, EventsQuery
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.ledger_reads import ConversationLine
from turnstile.schema.wire import subjects
from turnstile.schema.wire.descriptions import TurnView
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection

_LOOK_ALONE_SECONDS = 5.0
"""How often the ledger is read while NATS is away; else an event says when, and each heartbeat is a safety net."""
_TURNS = 200
_DISPATCHED = b'"dispatched"'


@dataclass(frozen=True, slots=True)
class Events:
    """The handlers."""

    turns: Turns
    conversations: Conversations
    feeds: Feeds
    access: Access
    streaming: Streaming
    conn: NatsConnection
    heartbeat_seconds: float

    async def turn(self, call: Call[EventsQuery, object]) -> Answer:
        """The events of a turn."""
        principal, cancels = call.principal, call.query.on_disconnect == "cancel"
        if cancels and not principal.may(Right.ASK):
            raise Forbidden(f"a token of role {principal.role} may not stop a turn")
        view = await self._view(principal, AgentTurnId(call.path["turn_id"]))
        last = last_event_id(call.headers)
        cursor = BEGIN if last is None else _place_in(view.agent_turn_id, last)
        if cursor == END:
            return Answer(Response(status_code=204))  # after which an EventSource does not reconnect
        self._count(last)
        reader = reader_of(self.access, call.secret, self.heartbeat_seconds)

        async def events() -> AsyncGenerator[bytes]:
            async with self.feeds.following(view) as feed, contextlib.aclosing(reader.turn(feed, cursor)) as pieces:
                async for piece in pieces:
                    yield piece

        async def stop() -> None:
            await self.turns.abandon(principal, view)

        counted = self.access.streaming(principal)
        return Answer(EventStream(events(), self.streaming, counted, stop if cancels else None))

    async def _view(self, principal: Principal, turn: AgentTurnId) -> TurnView:
        """A turn that the token may see: a client that comes back costs no look into the ledger."""
        known = self.feeds.known(principal.project_id, turn)
        if known is not None and principal.sees(known.channel_id):
            return known
        return await self.turns.described(principal, turn)

    async def conversation(self, call: Call[ConversationEventsQuery, object]) -> Answer:
        """The events of the turns of a conversation, one after the other, and of those to come."""
        principal = call.principal
        line = await self.conversations.find(principal, call.path["conversation_id"], call.query)
        last = last_event_id(call.headers)
        begun: tuple[AgentTurnId, Position] | None = None if last is None else read_id(last)
        count = call.query.turns
        turns = [await self._named(principal, line, begun[0])] if begun else await self._last(principal, line, count)
        self._count(last)
        reader = reader_of(self.access, call.secret, self.heartbeat_seconds)
        events = self._conversation(principal, line, turns, begun, reader)
        return Answer(EventStream(events, self.streaming, self.access.streaming(principal)))

    async def _conversation(
        self,
        principal: Principal,
        line: ConversationLine,
        turns: list[TurnAt],
        begun: tuple[AgentTurnId, Position] | None,
        reader: Reader,
    ) -> AsyncGenerator[bytes]:
        """These turns, the first from where it begins, and then those after them."""
        hint = asyncio.Event()
        after = turns[-1] if turns else CONVERSATION_BEGIN
        if begun is not None and begun[1] == END:
            turns = []
        hint.set()  # what was enqueued before anybody listened
        async with self._hinted(principal, line, hint):
            while True:
                for turn in turns:
                    cursor = begun[1] if begun is not None and begun[0] == turn.agent_turn_id else BEGIN
                    view = await self.turns.described(principal, turn.agent_turn_id)
                    async with self.feeds.following(view) as feed:
                        async with contextlib.aclosing(reader.turn(feed, cursor)) as pieces:
                            async for piece in pieces:
                                yield piece
                        if feed.failed:
                            return
                turns = []
                while not turns:
                    seconds = reader.heartbeat_seconds
                    if not self.conn.connected.is_set():
                        seconds = min(seconds, _LOOK_ALONE_SECONDS)
                    await reader.pause(hint, seconds)
                    await reader.allowed()
                    turns = await self._after(principal, line, after)
                    if not turns:
                        yield HEARTBEAT
                after = turns[-1]

    async def _last(self, principal: Principal, line: ConversationLine, count: int) -> list[TurnAt]:
        """The last turns, in the conversation's order."""
        return await self.turns.pool.run(
            lambda conn: list_last_turns(conn, principal.project_id, line, row_limit=count)
        )

    async def _named(self, principal: Principal, line: ConversationLine, turn: AgentTurnId) -> TurnAt:
        """The place of this turn; raises `Refused` (wrong_event_id) if it is none of the conversation."""
        place = await self.turns.pool.run(lambda conn: find_turn_place(conn, principal.project_id, line, turn))
        if place is None:
            raise Refused("wrong_event_id", "Last-Event-ID: it belongs to no turn of this conversation; omit it")
        return place

    async def _after(self, principal: Principal, line: ConversationLine, place: TurnAt) -> list[TurnAt]:
        """The next turns: whoever knows a place in a conversation has missed nothing before it."""
        return await self.turns.pool.run(
            lambda conn: list_turns_after(conn, principal.project_id, line, place, row_limit=_TURNS)
        )

    @contextlib.asynccontextmanager
    async def _hinted(self, principal: Principal, line: ConversationLine, hint: asyncio.Event) -> AsyncGenerator[None]:
        async def on_event(_: str, data: bytes) -> None:
            if _DISPATCHED in data:  # it may be a turn of another conversation of the agent
                hint.set()

        subject = subjects.agent_event(principal.project_id, line.channel_id, line.agent_id, "state")
        async with contextlib.AsyncExitStack() as stack:
            with contextlib.suppress(*NATS_TROUBLE):
                subscription = await self.conn.hear(subject, on_event)
                stack.push_async_callback(self.conn.unsubscribe, subscription)
            yield

    def _count(self, last: str | None) -> None:
        self.streaming.meter.count(Metric.HTTP_STREAMS, resumed="no" if last is None else "yes")


def last_event_id(headers: Headers) -> str | None:
    """The `Last-Event-ID`; raises `BadRequest` if there are several."""
    ids = headers.getlist("last-event-id")
    if len(ids) > 1:
        raise BadRequest("Last-Event-ID was sent twice")
    return ids[0] if ids and ids[0] else None


def _place_in(turn: AgentTurnId, last: str) -> Position:
    named, position = read_id(last)
    if named != turn:
        raise Refused("wrong_event_id", "Last-Event-ID: it belongs to another turn")
    return position
