"""A small HTTP server on loopback that can also misbehave: cut a connection, close it early, stall.

It stands in for the providers in tests of the model adapter, so that what is tested is what litellm really sends and
really makes of what comes back.
"""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, cast
from urllib.parse import parse_qs, urlsplit

from turnstile.schema.base import JsonObject

Ending = Literal["end", "cut", "close", "stall"]
"""How a body ends: as it should, by a reset, by a tidy close in the middle, or not at all."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as it came; header names are in lower case."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    def json(self) -> JsonObject:
        """The body, which must be a JSON object."""
        value: Any = json.loads(self.body)
        assert isinstance(value, dict)
        return cast("JsonObject", value)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An answer; `pieces` are sent one by one."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: Sequence[bytes] = ()
    ending: Ending = "end"
    pause_seconds: float = 0.0


class HttpStub:
    """A server that answers by `reply`, which a subclass defines. An async context manager."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.stalled = asyncio.Event()
        """Set when a stalling answer has sent all it will send."""

    async def reply(self, request: HttpRequest) -> HttpReply:
        """The answer to a request."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while (request := await _read(reader)) is not None:
                    if not await self._answer(writer, await self.reply(request)):
                        break
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, reply: HttpReply) -> bool:
        """Send it; whether the connection may serve another request."""
        chunked = reply.ending != "close"
        headers = {"content-type": "application/json", **reply.headers}
        headers |= {"transfer-encoding": "chunked"} if chunked else {"connection": "close"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {reply.status} Stub\r\n{head}\r\n".encode())
        for piece in reply.pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
            await asyncio.sleep(reply.pause_seconds)
        if reply.ending == "cut":
            writer.transport.abort()
            return False
        if reply.ending == "stall":
            self.stalled.set()
            await asyncio.Event().wait()
        if chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        return chunked


async def _read(reader: asyncio.StreamReader) -> HttpRequest | None:
    line = await reader.readline()
    if not line:
        return None
    method, target, _ = line.decode().split(" ", 2)
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.strip().lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return HttpRequest(method, parts.path, parse_qs(parts.query), headers, body)
