"""What one client reads of a turn's feed, or of the turns of a conversation one after the other.

Yields pieces of whole events. A client's place is all that is kept of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from turnstile.gateway.events.feed import TurnFeed
from turnstile.gateway.events.frames import COME_BACK, HEARTBEAT
from turnstile.gateway.events.positions import BEGIN, END, Position
from turnstile.gateway.events.step_log import Event
from turnstile.gateway.http.bearers import Access, secret_in

_PIECE = 32 * 1024


@dataclass(slots=True)
class Reader:
    """How a client reads."""

    heartbeat_seconds: float
    allowed: Callable[[], Awaitable[None]]
    """Raises if the client may read no more."""

    async def turn(self, feed: TurnFeed, cursor: Position = BEGIN) -> AsyncGenerator[bytes]:
        """The events of a turn after a place, until its outcome, as `/v1` tells them."""
        told = ""
        async with contextlib.aclosing(self.changes(feed, cursor)) as changes:
            async for events in changes:
                if feed.view.status != told:
                    told = feed.view.status
                    yield feed.state()
                for piece in [HEARTBEAT] if events is None else pieces(events):
                    yield piece
        if feed.failed:
            yield COME_BACK

    async def changes(self, feed: TurnFeed, cursor: Position = BEGIN) -> AsyncGenerator[list[Event] | None]:
        """The events of a turn after a place, as they come; None after `heartbeat_seconds` without any.

        Ends after the outcome, or without it if the feed has failed.
        """
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while cursor < END:
            changed = feed.changed
            events = feed.after(cursor)
            yield events
            if events:
                cursor = events[-1].position
            if loop.time() - checked > self.heartbeat_seconds:
                checked = loop.time()
                await self.allowed()
            if events:
                continue
            if feed.failed:
                return
            try:
                async with asyncio.timeout(self.heartbeat_seconds):
                    await changed.wait()
            except TimeoutError:
                yield None

    async def pause(self, hint: asyncio.Event, seconds: float) -> None:
        """Wait for a hint, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hint.wait()
        hint.clear()


def reader_of(access: Access, headers: Headers, heartbeat_seconds: float) -> Reader:
    """A reader for whoever sent these headers: it reads on as long as the token may."""
    secret = secret_in(headers)

    async def allowed() -> None:
        await access.principal(secret)

    return Reader(heartbeat_seconds, allowed)


def pieces(events: Sequence[Event]) -> list[bytes]:
    """The events joined to pieces of some size."""
    found: list[bytes] = []
    frames: list[bytes] = []
    size = 0
    for event in events:
        frames.append(event.frame)
        size += len(event.frame)
        if size >= _PIECE:
            found.append(b"".join(frames))
            frames, size = [], 0
    if frames:
        found.append(b"".join(frames))
    return found
