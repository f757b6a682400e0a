"""A response of server-sent events that bounds what its client can hold (protocol §14.2).

At most 32 KiB are on their way to a client beyond what the system holds; one that takes nothing of them for
`slow_reader_seconds` is cut, and can go on where it was. When the gateway stops, each stream is told to come back and
ends whole. A client that goes away ends its stream and nothing else, unless it asked for more.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.events.frames import COME_BACK
from turnstile.gateway.events.timers import IdleTimer
from turnstile.runtime.telemetry import SILENT, Meter, Metric

_SLICE = 32 * 1024
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
        self._sending: IdleTimer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._counted:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            pumping = asyncio.create_task(self._pump(send))
            gone = asyncio.create_task(_gone(receive))
            closing = asyncio.create_task(self._streaming.closing.wait())
            tasks: set[asyncio.Task[object]] = {pumping, gone, closing}  # pyright: ignore[reportAssignmentType] -- a set of tasks of anything
            self._sending = IdleTimer(self._streaming.slow_reader_seconds, pumping.cancel)
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if closing.done() and self._sending.since is not None:  # what was begun is sent whole
                    await asyncio.wait({pumping, gone}, return_when=asyncio.FIRST_COMPLETED)
                slow, stopped = pumping.cancelled(), pumping.done()
            finally:
                self._sending.close()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._events.aclose()
            if slow:
                self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="slow")
                self._streaming.abort(scope.get("client"))
                return
            if not stopped and gone.done() and not gone.cancelled():
                self._streaming.meter.count(Metric.HTTP_STREAMS_CUT, reason="gone")
                if self._on_gone is not None:
                    await self._on_gone()
                return
            ended = stopped and pumping.result()
            last = b"" if ended else COME_BACK
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pump(self, send: Send) -> bool:
        """Send the events; returns whether they ended, and not the gateway."""
        async for piece in self._events:
            for begin in range(0, len(piece), _SLICE):
                part = piece[begin : begin + _SLICE]  # a piece that is no longer is not copied
                self._sending.begin()
                await send({"type": "http.response.body", "body": part, "more_body": True})
            self._sending.since = None
            if self._streaming.closing.is_set():
                return False
        return True


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
