"""What one client reads of a turn's feed, or of the turns of a conversation one after the other.

Yields pieces of whole events. A client's place is all that is kept of it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from turnstile.gateway.events.ends import Seen
from turnstile.gateway.events.feed import TurnFeed
from turnstile.gateway.events.frames import COME_BACK, HEARTBEAT
from turnstile.gateway.events.positions import BEGIN, END, Position
from turnstile.gateway.events.step_log import Event
from turnstile.gateway.events.timers import IdleTimer
from turnstile.gateway.http.bearers import Access
from turnstile.schema.access import Secret
from turnstile.schema.api import Turn

_PIECE = 32 * 1024


class Change(NamedTuple):
    """What is new of a turn: first its events, in order, then how it stands with them."""

    events: list[Event]
    seen: Seen
    """Never ahead of the events: the turn is over if the last event is its outcome, and else it is not."""
    looked: bool
    """Whether `seen` is of a moment after the client came."""

    @property
    def outcome(self) -> Turn | None:
        """The turn, if it is over: then there is no other change."""
        last = self.events[-1].data if self.events else None
        return last if isinstance(last, Turn) else None


@dataclass(slots=True)
class Reader:
    """How a client reads."""

    heartbeat_seconds: float
    allowed: Callable[[], Awaitable[None]]
    """Raises if the client may read no more."""

    async def turn(self, feed: TurnFeed, cursor: Position = BEGIN) -> AsyncGenerator[bytes]:
        """The events of a turn after a place, until its outcome, as `/v1` sends them."""
        status, progress = "", 0
        async with contextlib.aclosing(self.changes(feed, cursor)) as changes:
            async for change in changes:
                if change is None:
                    yield HEARTBEAT
                    continue
                if change.seen.view.status != status:
                    status = change.seen.view.status
                    yield feed.state()
                for piece in pieces(change.events):
                    yield piece
                if change.outcome is None:
                    progress, events = feed.progress_after(progress)
                    for event in events:
                        yield event
        if feed.failed:
            yield COME_BACK

    async def changes(
        self, feed: TurnFeed, cursor: Position = BEGIN, *, looks: bool = False
    ) -> AsyncGenerator[Change | None]:
        """The events of a turn after a place, as they come; None after `heartbeat_seconds` without any.

        Ends after the outcome, which is the last event, or without it if the feed has failed. `looks`: the ledger is
        read once more for this client, which wants to know of questions that may have been answered before it came.
        """
        loop, wakes = asyncio.get_running_loop(), _Wakes(self.heartbeat_seconds)
        forget, checked = feed.listen(wakes.wake), loop.time()
        number = feed.look_again() if looks else 1
        try:
            while True:
                events = feed.after(cursor)
                yield Change(events, feed.seen, feed.looked >= number)
                if events:
                    cursor = events[-1].position
                if cursor == END:
                    return
                if loop.time() - checked > self.heartbeat_seconds:
                    checked = loop.time()
                    await self.allowed()
                if feed.failed:
                    return
                while not await wakes.wait():
                    checked = loop.time()
                    await self.allowed()
                    yield None
        finally:
            forget()
            wakes.close()

    async def pause(self, hint: asyncio.Event, seconds: float) -> None:
        """Wait for a hint, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await hint.wait()
        hint.clear()


def reader_of(access: Access, secret: Secret, heartbeat_seconds: float) -> Reader:
    """A reader for whoever has this token: it reads on as long as the token may."""

    async def allowed() -> None:
        await access.still(secret)

    return Reader(heartbeat_seconds, allowed)


class _Wakes:
    """Wakes one client: when its feed has changed, and when nothing was sent for so long."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = IdleTimer(seconds, self._silence, self._loop.time())
        self._waiting: asyncio.Future[None] | None = None
        self._changed = False

    def wake(self) -> None:
        """The feed has changed."""
        self._changed = True
        self._silence()

    async def wait(self) -> bool:
        """Returns whether the feed has changed since the last time; if not, it was silent for long enough."""
        if not self._changed:
            self._waiting = self._loop.create_future()
            await self._waiting
            self._waiting = None
        changed, self._changed = self._changed, False
        self._timer.begin()
        return changed

    def close(self) -> None:
        """Wake it no more."""
        self._timer.close()

    def _silence(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def pieces(events: Iterable[Event]) -> Iterator[bytes]:
    """The events joined to pieces of some size; a large one is not copied."""
    frames: list[bytes] = []
    size = 0
    for event in events:
        if frames and size + len(event.frame) > _PIECE:
            yield b"".join(frames)
            frames, size = [], 0
        frames.append(event.frame)
        size += len(event.frame)
    if frames:
        yield b"".join(frames)
