"""What one client reads of a turn's feed, or of the turns of a conversation one after the other.

Yields pieces of whole events. A client's place is all that is kept of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from turnstile.gateway.events.feed import TurnFeed
from turnstile.gateway.events.frames import COME_BACK, HEARTBEAT
from turnstile.gateway.events.positions import BEGIN, END, Position
from turnstile.gateway.events.step_log import Event

_PIECE = 32 * 1024


@dataclass(slots=True)
class Reader:
    """How a client reads."""

    heartbeat_seconds: float
    allowed: Callable[[], Awaitable[None]]
    """Raises if the client may read no more."""

    async def turn(self, feed: TurnFeed, cursor: Position = BEGIN) -> AsyncGenerator[bytes]:
        """The events of a turn after a place, until its outcome."""
        loop = asyncio.get_running_loop()
        checked, told = loop.time(), ""
        while cursor < END:
            changed = feed.changed
            if feed.view.status != told:
                told = feed.view.status
                yield feed.state()
            events = feed.after(cursor)
            for piece, place in pieces(events):
                yield piece
                cursor = place
            if loop.time() - checked > self.heartbeat_seconds:
                checked = loop.time()
                await self.allowed()
            if events:
                continue
            if feed.failed:
                yield COME_BACK
                return
            try:
                async with asyncio.timeout(self.heartbeat_seconds):
                    await changed.wait()
            except TimeoutError:
                yield HEARTBEAT

    async def pause(self, hint: asyncio.Event, seconds: float) -> None:
        """Wait for a hint, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hint.wait()
        hint.clear()


def pieces(events: Sequence[Event]) -> list[tuple[bytes, Position]]:
    """The events joined to pieces of some size, each with the place after it."""
    found: list[tuple[bytes, Position]] = []
    frames: list[bytes] = []
    size = 0
    for position, frame in events:
        frames.append(frame)
        size += len(frame)
        if size >= _PIECE:
            found.append((b"".join(frames), position))
            frames, size = [], 0
    if frames:
        found.append((b"".join(frames), events[-1].position))
    return found
