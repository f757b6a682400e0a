"""A TCP proxy between one process and one server, which can cut, stall, delay and refuse connections.

It forwards bytes without parsing them, so it works for PostgreSQL, NATS and gRPC. It buffers no more than asyncio's
transports do: if one side does not read, the other is not read either. Costs one callback per piece of data.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import cast

HOST = "127.0.0.1"


class _Side(asyncio.Protocol):
    """One end of a connection; what it reads is written by its peer."""

    def __init__(self, proxy: "Proxy", peer: "_Side | None" = None) -> None:
        self.proxy = proxy
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.choked = False
        """Whether the peer's buffer is full."""
        self._answers = peer is not None
        self._late: deque[bytes] = deque()
        """Data that was read and is passed on later, in order."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.proxy.sides.add(self)
        self.flow()
        if self.peer is None:
            self.proxy.open(self)

    def data_received(self, data: bytes) -> None:
        lag = random.uniform(*self.proxy.lag) if self._answers else 0.0  # noqa: S311 -- a delay, not a secret
        self._late.append(data)
        if lag or len(self._late) > 1:
            asyncio.get_running_loop().call_later(lag, self._pass_on)
        else:
            self._pass_on()

    def pause_writing(self) -> None:
        self._choke_peer(choked=True)

    def resume_writing(self) -> None:
        self._choke_peer(choked=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.proxy.sides.discard(self)
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def flow(self) -> None:
        """Pause reading while the proxy is stalled or the peer's buffer is full; else resume."""
        if self.transport is None or self.transport.is_closing():
            return
        if self.choked or self.proxy.stalled or self.peer is None or self.peer.transport is None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def abort(self) -> None:
        """Reset the connection."""
        if self.transport is not None:
            self.transport.abort()

    def _pass_on(self) -> None:
        data = self._late.popleft()
        if self.peer is not None and self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.write(data)

    def _choke_peer(self, *, choked: bool) -> None:
        if self.peer is not None:
            self.peer.choked = choked
            self.peer.flow()


class Proxy:
    """Forwards connections on `port` to the port that `target` returns at each connection."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = 0
        self.stalled = False
        self.lag = (0.0, 0.0)
        """Bounds in seconds of the random delay of the server's data."""
        self.sides: set[_Side] = set()
        self._target = target
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, always on the same port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Side(self), HOST, self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop listening, and reset open connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()
        for task in tuple(self._opening):
            task.cancel()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Reset every connection."""
        for side in tuple(self.sides):
            side.abort()

    async def stall(self, seconds: float) -> None:
        """Pass nothing on for `seconds`; connections stay open."""
        self._hold(stalled=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._hold(stalled=False)

    async def refuse(self, seconds: float) -> None:
        """Reset open connections, and refuse new ones for `seconds`."""
        await self.close()
        try:
            await asyncio.sleep(seconds)
        finally:
            await self.start()

    def open(self, client: _Side) -> None:
        """Connect an accepted connection to the server."""
        task = asyncio.create_task(self._connect(client))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _connect(self, client: _Side) -> None:
        server = _Side(self, client)
        try:
            async with asyncio.timeout(10):
                await asyncio.get_running_loop().create_connection(lambda: server, HOST, self._target())
        except (OSError, TimeoutError):
            client.abort()
            return
        client.peer = server
        if client.transport is None or client.transport.is_closing():
            server.abort()
        client.flow()
        server.flow()

    def _hold(self, *, stalled: bool) -> None:
        self.stalled = stalled
        for side in tuple(self.sides):
            with contextlib.suppress(RuntimeError):  # closing
                side.flow()
