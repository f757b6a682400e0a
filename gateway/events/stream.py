"""A response of server-sent events that bounds what its client can hold (protocol §14.2).

At most one piece is on its way to a client; one that takes nothing for `slow_reader_seconds` is cut, and can go on
where it was. When the gateway stops, each stream is told to come back and ends whole. A client that goes away ends its
stream and nothing else, unless it asked for more.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.events.frames import COME_BACK
from turnstile.runtime.telemetry import SILENT, Meter, Metric

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
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._streaming = streaming
        self._counted = counted
        self._on_gone = on_gone
        self._on_cut = on_cut
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pumping = asyncio.create_task(self._pump(send))
            try:
                ending = await attend(pumping, receive, self._streaming.closing)
            finally:
                await self._events.aclose()
            match ending:
                case "done":
                    try:
                        pumping.result()
                    except TimeoutError:
                        self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="slow")
                        self._streaming.abort(scope.get("client"))
                        await _done(self._on_cut)
                        return
                case "gone":
                    self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="gone")
                    await _done(self._on_gone)
                    return
                case "closing":
                    try:
                        await self._send(send, self._farewell)
                    finally:
                        await _done(self._on_cut)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        async for piece in self._events:
            await self._send(send, piece)

    async def _send(self, send: Send, piece: bytes) -> None:
        """Send a piece; raises `TimeoutError` if the client takes none for too long."""
        async with asyncio.timeout(self._streaming.slow_reader_seconds):
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def attend(
    working: asyncio.Task[Any], receive: Receive, closing: asyncio.Event
) -> Literal["done", "gone", "closing"]:
    """Wait until a task is done, its client has gone away or the gateway stops, and cancel the task if it is not done.

    The body of the request must have been read.
    """
    gone, closed = asyncio.create_task(_gone(receive)), asyncio.create_task(closing.wait())
    tasks: set[asyncio.Task[Any]] = {working, gone, closed}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return "done" if working.done() else "gone" if gone.done() else "closing"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _done(what: Callable[[], Awaitable[None]] | None) -> None:
    if what is not None:
        await what()
