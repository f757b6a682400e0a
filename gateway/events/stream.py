"""A response of server-sent events that bounds what its client can hold (protocol §14.2).

At most one piece is on its way to a client; one that takes nothing for `slow_reader_seconds` is cut, and can go on
where it was. When the gateway stops, each stream is told to come back and ends whole. A client that goes away ends its
stream and nothing else, unless it asked for more.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

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
    """Sends what `events` yields until it ends, the client goes away or the gateway stops."""

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        streaming: Streaming,
        counted: AbstractContextManager[None],
        on_gone: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._streaming = streaming
        self._counted = counted
        self._on_gone = on_gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            pumping = asyncio.create_task(self._pump(send))
            leaving = asyncio.create_task(gone(receive))
            closing = asyncio.create_task(self._streaming.closing.wait())
            tasks: set[asyncio.Task[object]] = {pumping, leaving, closing}  # pyright: ignore[reportAssignmentType] -- a set of tasks of anything
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                ended = pumping.done()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._events.aclose()
            if ended:
                try:
                    pumping.result()
                except TimeoutError:
                    self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="slow")
                    self._streaming.abort(scope.get("client"))
                    return
            elif leaving.done() and not leaving.cancelled():
                self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="gone")
                if self._on_gone is not None:
                    await self._on_gone()
                return
            else:
                await self._send(send, COME_BACK)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, send: Send) -> None:
        async for piece in self._events:
            await self._send(send, piece)

    async def _send(self, send: Send, piece: bytes) -> None:
        """Send a piece; raises `TimeoutError` if the client takes none for too long."""
        async with asyncio.timeout(self._streaming.slow_reader_seconds):
            await send({"type": "http.response.body", "body": piece, "more_body": True})


async def gone(receive: Receive) -> None:
    """Returns when the client has gone away; the rest of its request is thrown away."""
    while (await receive())["type"] != "http.disconnect":
        pass
