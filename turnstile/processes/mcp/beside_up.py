"""`turnstile mcp serve` beside a `turnstile up`: a process of its own, once the data directory has a file of servers.

A warden holds it, so it and the programs that it runs end with `up` however that ends. It is started again whenever it
ends, with growing pauses. Its log is `mcp/logs/serve.log` in the data directory.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from turnstile.embedded.files import private_directory, turn_over
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import describe_exit
from turnstile.embedded.server_errors import EmbeddedError
from turnstile.embedded.supervisor import Supervisor, clean_environment

FILE = "mcp.yaml"
"""The file of MCP servers in a data directory."""
_NAME = "serve"
_MAIN = "from turnstile.cli import main; main()"
_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 25.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0
_STABLE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class McpBeside:
    """The process that serves the MCP servers of a data directory."""

    def __init__(self, data: Path, nats_url: str, say: Callable[[str], None]) -> None:
        self._data = data.absolute()
        self._nats_url = nats_url
        self._say = say
        self._supervisor: Supervisor | None = None
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End it."""
        self._running.cancel()
        await asyncio.wait([self._running])
        if self._supervisor is not None:
            await self._supervisor.close()

    async def _run(self) -> None:
        while not (self._data / FILE).exists():  # noqa: ASYNC110 -- a file sets no event
            await asyncio.sleep(_LOOK_SECONDS)
        if find_spec("mcp") is None:
            self._say("WARNING: MCP servers are not served: pip install 'turnstile-kernel[mcp]'")
            return
        home = self._data / "mcp"
        for directory in (home, home / "logs", home / "run"):
            private_directory(directory)
        try:
            self._supervisor = await Supervisor.launch(home)
            await self._keep(self._supervisor, home / "logs" / f"{_NAME}.log")
        except EmbeddedError as error:
            self._say(f"WARNING: MCP servers are not served: {error}")

    async def _keep(self, supervisor: Supervisor, log: Path) -> None:
        pause = _FIRST_PAUSE
        command = StartProcess(
            name=_NAME,
            argv=(sys.executable, "-c", _MAIN, "mcp", "serve", "--data", str(self._data)),
            env=clean_environment(),
            log=log,
            stop_signal=signal.SIGTERM,
            death_signal=signal.SIGTERM,
            grace_seconds=_GRACE_SECONDS,
        )
        while True:
            turn_over(log)
            began = time.monotonic()
            await supervisor.start(command, private={**os.environ, "TURNSTILE__NATS__SERVERS": self._nats_url})
            code = await supervisor.wait_exited(_NAME)
            supervisor.forget(_NAME)
            pause = _FIRST_PAUSE if time.monotonic() - began > _STABLE_SECONDS else min(pause * 2, _LONGEST_PAUSE)
            logger.warning(
                "`turnstile mcp serve` died: %s; started again in %g s; see %s", describe_exit(code), pause, log
            )
            await asyncio.sleep(pause)
