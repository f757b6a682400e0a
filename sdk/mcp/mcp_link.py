"""Keeps an MCP server connected: begun again, with growing pauses, whenever it goes away (protocol §17.1)."""

import asyncio
import logging
import os
from collections.abc import Mapping

from turnstile.runtime.waiting import unless_stopped
from turnstile.schema.errors import TurnstileError
from turnstile.sdk.mcp.mcp_connection import Listing, McpConnection, McpUnavailable, connected
from turnstile.sdk.mcp.mcp_server import McpServer

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 60.0
_STABLE_SECONDS = 60.0
"""A connection that lasted so long is begun again without a pause."""
_LIST_SECONDS = 0.5
"""A list of tools older than that is asked for anew before a call."""

logger = logging.getLogger(__name__)


class McpLink:
    """The connection to one server, while `run` runs."""

    def __init__(self, name: str, entry: McpServer, environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self._entry = entry
        self._environ = environ
        self._connection: McpConnection | None = None
        self._changed = asyncio.Condition()
        self._listing = asyncio.Lock()

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected until `stop`."""
        loop, pause = asyncio.get_running_loop(), _FIRST_PAUSE
        while not stop.is_set():
            began = loop.time()
            try:
                async with connected(self.name, self._entry, self._environ) as connection:
                    logger.info("MCP server %s is connected, protocol %s", self.name, connection.protocol)
                    await self._set(connection)
                    await unless_stopped(stop, connection.closed.wait())
            except TurnstileError as error:
                logger.warning("%s; tried again in %.1f s", error, pause)
            finally:
                await self._set(None)
            if stop.is_set():
                return
            pause = _FIRST_PAUSE if loop.time() - began > _STABLE_SECONDS else min(pause * 2, _LONGEST_PAUSE)
            await unless_stopped(stop, asyncio.sleep(pause))

    async def ready(self) -> tuple[McpConnection, Listing]:
        """The connection and its tools as they are; waits for it, so bound the time."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._connection is not None)
                connection = self._connection
            assert connection is not None  # noqa: S101 -- just waited for
            try:
                async with self._listing:
                    return connection, await connection.listing(_LIST_SECONDS)
            except McpUnavailable as error:
                logger.warning("%s; it is connected anew", error)
                connection.closed.set()
                await self._replaced(connection)

    async def _replaced(self, connection: McpConnection) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self._connection is not connection)

    async def _set(self, connection: McpConnection | None) -> None:
        async with self._changed:
            self._connection = connection
            self._changed.notify_all()
