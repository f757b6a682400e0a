"""How fast an MCP server is read: a server that floods is slowed down, and costs the others nothing.

Reading costs bytes, and each message some more. While a server is out of credit nothing is read from it: its pipe or
connection fills up, and it waits.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Self, TypeAlias

import anyio
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

from turnstile.sdk.mcp.lenient import Lenient

_RATE, _BURST = 2_000_000, 8_000_000
_MESSAGE_BYTES = 4096
"""What a message costs beside its bytes: to be parsed and handled."""

Message: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[ReadStream[Message], WriteStream[SessionMessage]]


class Pace:
    """Credit of one connection, in bytes: `_BURST`, and `_RATE` more a second."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._seen = asyncio.get_running_loop().time()

    async def spend(self, size: int) -> None:
        """Take `size` from the credit, and return once there is some left."""
        now = asyncio.get_running_loop().time()
        self._left = min(_BURST, self._left + (now - self._seen) * _RATE) - size
        self._seen = now
        if self._left < 0:
            await asyncio.sleep(-self._left / _RATE)


class PacedStream:
    """The messages of a server, mended, no faster than its pace; sets `closed` when there will be no more."""

    def __init__(self, inner: ReadStream[Message], pace: Pace, closed: asyncio.Event, lenient: Lenient) -> None:
        self._inner = inner
        self._lenient = lenient
        self._pace = pace
        self._closed = closed

    @property
    def last_context(self) -> Context | None:
        """The context of the request that the last message belongs to, as far as the transport knows it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Message:
        """The next message; raises `anyio.EndOfStream` after the last one."""
        try:
            message = await self._inner.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._closed.set()
            raise anyio.EndOfStream from None
        await self._pace.spend(_MESSAGE_BYTES)
        return self._lenient.heard(message) if isinstance(message, SessionMessage) else message

    async def aclose(self) -> None:
        """Close the stream."""
        self._closed.set()
        await self._inner.aclose()

    def __aiter__(self) -> "PacedStream":
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


@asynccontextmanager
async def paced(
    transport: AbstractAsyncContextManager[Streams], pace: Pace, closed: asyncio.Event, lenient: Lenient
) -> AsyncGenerator[Streams]:
    """The transport, read no faster than `pace`; `closed` is set when the server says no more."""
    try:
        async with transport as (read, write):
            yield PacedStream(read, pace, closed, lenient), write
    finally:
        closed.set()
