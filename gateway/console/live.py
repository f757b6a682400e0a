"""`/console/changes`: hints that what a page shows may have changed, as server-sent events (protocol §14.5).

A hint has no content: the script fetches the page again, and replaces what differs. At most one a second is sent to a
page, and one at each heartbeat though nothing was heard: an event may be lost. Pages that hear the same share one
subscription. The events of a turn and of a conversation are those of `/v1`, for a session instead of a bearer.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.people.conversations import OF_MEMORY
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.stream import EventStream
from turnstile.gateway.http.endpoints import Answer, Call, NoQuery
from turnstile.schema.api import ConversationEventsQuery, EventsQuery
from turnstile.schema.base import AgentToken, Strict
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire import subjects

_CHANGED: Final = b"event: changed\ndata: {}\n\n"
_CALM_SECONDS: Final = 1.0
"""The least time between two hints to one page."""
_LOOK_ALONE_SECONDS: Final = 5.0
"""How often a page looks while NATS is away."""


class ChangesQuery(Strict):
    """The changes that a page subscribes to; by default everything that its session sees."""

    turn: AgentTurnId | None = None
    """Events of this turn alone."""
    agent: AgentToken | None = None
    """Events of this agent alone."""


def pages(_: Console) -> tuple[Page, ...]:
    """The streams."""
    return (
        Page(name="changes", path=f"{CONSOLE}/changes", handler=_changes, query=ChangesQuery),
        Page(name="turn_events", path=f"{CONSOLE}/turns/{{turn_id}}/events", handler=_turn_events),
        Page(
            name="conversation_events",
            path=f"{CONSOLE}/conversations/{{agent_id}}/{{conversation_id}}/events",
            handler=_conversation_events,
            query=ConversationEventsQuery,
        ),
    )


async def _changes(visit: Visit[ChangesQuery, NoForm]) -> Response:
    access = visit.console.access
    return EventStream(_hints(visit), visit.console.streaming, access.streaming(visit.principal))


async def _hints(visit: Visit[ChangesQuery, NoForm]) -> AsyncGenerator[bytes]:
    console, query, principal = visit.console, visit.query, visit.principal
    subject = subjects.events_filter(principal.project_id, principal.channel_id, query.agent)
    heartbeat, checked = console.limits.heartbeat_seconds, time.monotonic()
    async with console.feeds.ends.hearing(subject, query.turn) as hint:
        yield HEARTBEAT
        while True:
            seconds = heartbeat if console.conn.connected.is_set() else min(heartbeat, _LOOK_ALONE_SECONDS)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hint.wait(), seconds)
            hint.clear()
            if time.monotonic() - checked >= heartbeat:
                await console.access.still(visit.secret)
                checked = time.monotonic()
            yield _CHANGED
            await asyncio.sleep(_CALM_SECONDS)


async def _turn_events(visit: Visit[NoQuery, NoForm]) -> Response:
    return _streamed(await visit.console.events.turn(_call(visit, EventsQuery())))


async def _conversation_events(visit: Visit[ConversationEventsQuery, NoForm]) -> Response:
    query, named = visit.query.model_copy(update={"agent_id": visit.path["agent_id"]}), visit.path["conversation_id"]
    visit = replace(visit, path={**visit.path, "conversation_id": "" if named == OF_MEMORY else named})
    return _streamed(await visit.console.events.conversation(_call(visit, query)))


def _call(visit: Visit[Any, NoForm], query: Any) -> Call[Any, Any]:
    """The request as `/v1` reads it."""
    return Call(visit.principal, visit.path, query, NoQuery(), visit.headers, visit.request, visit.secret)


def _streamed(answer: Answer) -> Response:
    if not isinstance(answer.content, Response):
        raise TypeError(answer)
    return answer.content
