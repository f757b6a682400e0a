"""A gateway with little patience and room, asked over bare connections."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.support.conditions import until
from tests.support.gateway import gauges

CONNECTIONS = 30


@dataclass(frozen=True)
class Guarded:
    """A gateway with little patience and room, and its metrics."""

    url: str
    metrics: int
    token: str

    @property
    def place(self) -> tuple[str, int]:
        """Host and port."""
        split = urlsplit(self.url)
        assert split.hostname is not None
        assert split.port is not None
        return split.hostname, split.port

    def head(self, request: str, *more: str) -> bytes:
        """The head of a request with its token, without the empty line."""
        lines = (request, f"host: {urlsplit(self.url).netloc}", f"authorization: Bearer {self.token}", *more)
        return "".join(f"{line}\r\n" for line in lines).encode()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A bare connection."""
        reader, writer = await asyncio.open_connection(*self.place)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def quiet(self) -> None:
        """Wait until nothing is held."""

        async def nothing() -> bool:
            return set((await gauges(self.metrics)).values()) == {0.0}

        await until(nothing, 25, "connections, streams and feeds are gone", pause=0.2)


async def ended(reader: asyncio.StreamReader) -> tuple[float, bytes]:
    """What comes until the connection is over, and the seconds until then."""
    began, found = time.monotonic(), b""
    async with asyncio.timeout(25):
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(65_536):
                found += part
    return time.monotonic() - began, found
