"""Serves MCP servers as tools: each has a connection to NATS, tasks and a pace of its own, so that none harms another.

The file of servers is looked at every second: what is added to it is served, what is removed or changed is ended and,
if it is still there, begun anew.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path

from turnstile.processes.mcp.server_file import ServerFile
from turnstile.runtime.waiting import unless_stopped
from turnstile.schema.errors import ConfigError, TurnstileError
from turnstile.schema.ids import ProjectId
from turnstile.sdk.mcp.mcp_link import McpLink
from turnstile.sdk.mcp.mcp_server import McpServer
from turnstile.sdk.mcp.mcp_tools import McpTools
from turnstile.sdk.tools.service import ToolService

_LOOK_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0

logger = logging.getLogger(__name__)


class McpProcess:
    """The servers of a file that this process serves; only those of `names`, if it is not empty."""

    def __init__(
        self, path: Path, nats_url: str, names: Collection[str] = (), project: ProjectId | None = None
    ) -> None:
        self._file = ServerFile(path)
        self._nats_url = nats_url
        self._names = frozenset(names)
        self._project = project
        self._serving: dict[str, tuple[McpServer, asyncio.Event, asyncio.Task[None]]] = {}

    async def run(self, stop: asyncio.Event, ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until `stop`; `ready` receives the name of each server whose calls are answered from now on."""
        trouble = ""
        try:
            while not stop.is_set():
                try:
                    self._follow(self._file.read(), ready)
                    trouble = ""
                except ConfigError as error:
                    if str(error) != trouble:
                        trouble = str(error)
                        logger.error("%s; what is served goes on as before", trouble)
                await unless_stopped(stop, asyncio.sleep(_LOOK_SECONDS))
        finally:
            ending = [task for _, ended, task in self._serving.values() if not ended.set()]
            if ending:
                await asyncio.wait(ending)

    def _follow(self, servers: dict[str, McpServer], ready: Callable[[str], None]) -> None:
        """Serve what the file says; a server that changes begins once its old connection has ended."""
        connections = {
            name: server.connection() for name, server in servers.items() if not self._names or name in self._names
        }
        for name, (entry, ended, task) in list(self._serving.items()):
            if connections.get(name) != entry:
                ended.set()
            if task.done():
                if (error := task.exception()) is not None:
                    logger.error("MCP server %s: %s: %s; served anew", name, type(error).__name__, error)
                del self._serving[name]
        for name, entry in connections.items():
            if name not in self._serving:
                ended = asyncio.Event()
                self._serving[name] = entry, ended, asyncio.create_task(self._serve(name, entry, ended, ready))

    async def _serve(self, name: str, entry: McpServer, stop: asyncio.Event, ready: Callable[[str], None]) -> None:
        """Serve one server until `stop`, again after whatever goes wrong."""
        pause = _FIRST_PAUSE
        while not stop.is_set():
            link = McpLink(name, entry)
            service = ToolService(self._project, concurrency=entry.concurrency)
            McpTools(link, lambda: self._file.read().get(name)).add_to(service, entry)
            try:
                async with asyncio.TaskGroup() as group:
                    ended = asyncio.Event()
                    linked = group.create_task(link.run(ended))
                    try:
                        await service.run(self._nats_url, stop=stop, ready=lambda: ready(name))
                    finally:
                        ended.set()  # after the service has drained: running calls need the connection
                        await asyncio.wait([linked])
            except* TurnstileError as errors:
                logger.error("MCP server %s is not served: %s", name, errors.exceptions[0])
                await unless_stopped(stop, asyncio.sleep(pause))
                pause = min(pause * 2, _LONGEST_PAUSE)
