"""A response of server-sent events that bounds what its client can hold (protocol §14.2).

At most 32 KiB are on their way to a client beyond what the system holds; one that takes nothing of them for
`slow_reader_seconds` is cut, and can go on where it was. When the gateway stops, each stream ends whole, with an event
that asks the client to reconnect. A client that goes away ends its stream and nothing else, unless it asked for more.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.events.frames import COME_BACK
from turnstile.gateway.events.timers import IdleTimer
from turnstile.runtime.telemetry import SILENT, Meter, Metric

_SLICE = 32 * 1024
LOOK_SECONDS = 2.0
"""How often a request that waits looks whether its token still holds."""
_HEADERS: Mapping[str, str] = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Streaming:
    """What all streams of a gateway share."""

    closing: asyncio.Event
    """Set when the gateway stops."""
    slow_reader_seconds: float
    abort: Callable[[object], None]
    """Close the connection of this client at once."""
    meter: Meter = SILENT.meter


class EventStream(Response):
    """Sends what `events` yields until it ends, the client goes away or the gateway stops.

    `on_gone` is called if the client went away, and `on_cut` if the gateway ended the stream: of a client that takes
    nothing, or, with `farewell` as its last piece, because it stops.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        streaming: Streaming,
        counted: AbstractContextManager[object],
        on_gone: Callable[[], Awaitable[None]] | None = None,
        on_cut: Callable[[], Awaitable[None]] | None = None,
        farewell: bytes = COME_BACK,
        *,
        ends_itself: bool = False,
    ) -> None:
        """`ends_itself`: `events` come to their end soon after the gateway stops, and are sent to it."""
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._streaming = streaming
        self._counted = counted
        self._on_gone = on_gone
        self._on_cut = on_cut
        self._farewell = farewell
        self._ends_itself = ends_itself
        self._sending: IdleTimer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            pumping = asyncio.create_task(self._pump(send))
            self._sending = IdleTimer(self._streaming.slow_reader_seconds, pumping.cancel)
            try:
                ending = await attend(pumping, receive, self._streaming.closing, self._is_sending)
            finally:
                self._sending.close()
                await self._events.aclose()
            if pumping.cancelled() and ending == "done":
                self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="slow")
                self._streaming.abort(scope.get("client"))
                await _done(self._on_cut)
                return
            if ending == "gone":
                self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="gone")
                await _done(self._on_gone)
                return
            is_whole = ending == "done" and pumping.result()
            try:
                last = b"" if is_whole else self._farewell
                await send({"type": "http.response.body", "body": last, "more_body": False})
            finally:
                if not is_whole:
                    await _done(self._on_cut)

    def _is_sending(self) -> bool:
        """Whether a piece is on its way, which shall arrive whole, or all that is to come."""
        return self._ends_itself or self._sending.since is not None

    async def _pump(self, send: Send) -> bool:
        """Send the events; returns whether they ended, and not the gateway."""
        async for piece in self._events:
            for begin in range(0, len(piece), _SLICE):
                part = piece[begin : begin + _SLICE]  # a piece that is no longer is not copied
                self._sending.begin()
                await send({"type": "http.response.body", "body": part, "more_body": True})
            self._sending.since = None
            if self._streaming.closing.is_set() and not self._ends_itself:
                return False
        return True


async def attend(
    working: asyncio.Task[Any],
    receive: Receive,
    closing: asyncio.Event,
    finishes: Callable[[], bool] = lambda: False,
    *,
    holds: Callable[[], Awaitable[None]] | None = None,
) -> Literal["done", "gone", "closing"]:
    """Wait until a task is done, its client has gone away or the gateway stops, and cancel the task if it is not done.

    A task that `finishes` is done soon after the gateway stops, and waited for. The body of the request must have been
    read. `holds` is asked every `LOOK_SECONDS`, and when the task is done: it raises if the client may have no answer
    any more.
    """
    leaving, closed = asyncio.create_task(_gone(receive)), asyncio.create_task(closing.wait())
    tasks: set[asyncio.Task[Any]] = {working, leaving, closed}
    try:
        ended: set[asyncio.Task[Any]] = set()
        while not ended:
            look = None if holds is None else LOOK_SECONDS
            ended, _ = await asyncio.wait(tasks, timeout=look, return_when=asyncio.FIRST_COMPLETED)
            if holds is not None and not leaving.done():
                await holds()
        if closed.done() and finishes():
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return "done" if working.done() else "gone" if leaving.done() else "closing"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone away; the rest of its request is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _done(what: Callable[[], Awaitable[None]] | None) -> None:
    if what is not None:
        await what()
