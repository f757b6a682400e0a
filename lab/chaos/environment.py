"""The environment of a run: embedded servers, Turnstile processes, and a proxy for each pair of process and server.

All files are in one directory. Servers and programs end with this process.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psutil

from lab.chaos.program import Program
from lab.chaos.script import ASKED
from lab.chaos.tools import NATS_URL
from lab.support.proxy import HOST, Proxy
from turnstile.embedded import EmbeddedServers, Endpoints, ServerName
from turnstile.processes.migration import migrate_all
from turnstile.settings import Settings, load_settings

TARGET = "chaos"
CLIENT = "client"
TURNSTILE = (sys.executable, "-c", "from turnstile.cli import main; main()")
"""The program `turnstile` of this working tree, not of an installed package."""
SERVERS: tuple[ServerName, ...] = ("postgres", "nats", "temporal")
SECTIONS: dict[str, dict[str, object]] = {
    "worker": {"worker_targets": [TARGET], "activity_heartbeat_timeout_seconds": 3.0, "database_pool_size": 8},
    "bridge": {
        "poll_interval_seconds": 0.3,
        "pending_wakeup_seconds": 1.0,
        "dispatched_retry_seconds": 3.0,
        "inbox_processing_timeout_seconds": 6.0,
        "engine_interval_seconds": 3.0,
        "active_reap_seconds": 60.0,
        "stop_grace_seconds": 4.0,
        "command_retry_seconds": 4.0,
        "database_pool_size": 8,
    },
    "model": {
        "retry_initial_seconds": 0.1,
        "retry_max_seconds": 0.5,
        "scripts": [str(Path(__file__).with_name("script.py"))],
    },
    'model.prices."scripted/chaos"': {"input_per_million": 1.0, "output_per_million": 5.0},
    "tools": {"suspend_timeout_seconds": 2.0},
}
"""Settings with shorter times than usual, so that a run takes less time."""


@dataclass(frozen=True)
class Size:
    """The number of processes of each kind."""

    workers: int = 2
    bridges: int = 2
    tools: int = 2


@dataclass
class Death:
    """The end of a Turnstile process that nobody ended."""

    name: str
    code: int
    at: float
    last_lines: str


@dataclass
class Environment:
    """Servers, programs and proxies of a run. `proxies` are keyed by process and server."""

    directory: Path
    servers: EmbeddedServers
    proxies: dict[tuple[str, ServerName], Proxy] = field(default_factory=dict[tuple[str, ServerName], Proxy])
    programs: dict[str, Program] = field(default_factory=dict[str, Program])
    deaths: list[Death] = field(default_factory=list[Death])
    closing: bool = False
    _restarts: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    @property
    def executions(self) -> Path:
        """The file with one line for each execution of a tool."""
        return self.directory / "executions.jsonl"

    @property
    def asked(self) -> Path:
        """The file with one line for the begin, and one for the end, of each model call."""
        return self.directory / "asked.jsonl"

    @property
    def direct(self) -> Endpoints:
        """The addresses of the servers, without proxies."""
        return self.servers.endpoints

    @property
    def settings(self) -> Settings:
        """Settings of a process that reaches the servers without proxies."""
        return load_settings(self.config("direct", self.direct))

    def seen_by(self, name: str) -> Endpoints:
        """The addresses of the proxies of one process."""
        direct = self.direct
        port = {server: self.proxies[name, server].port for server in SERVERS}
        return direct.model_copy(
            update={
                "database_url": _with_port(direct.database_url, port["postgres"]),
                "nats_url": _with_port(direct.nats_url, port["nats"]),
                "temporal_address": f"{HOST}:{port['temporal']}",
            }
        )

    def config(self, name: str, endpoints: Endpoints) -> Path:
        """Write the `config.toml` of one process; returns its path."""
        sections: dict[str, dict[str, object]] = {
            **SECTIONS,
            "database": {"url": endpoints.database_url, "patience_seconds": 10.0},
            "nats": {"servers": [endpoints.nats_url]},
            "temporal": {"address": endpoints.temporal_address, "namespace": endpoints.temporal_namespace},
        }
        lines = [
            line
            for title, section in sections.items()
            for line in (f"[{title}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items()), "")
        ]
        path = self.directory / f"{name}.toml"
        path.write_text("\n".join(lines))
        return path

    def named(self, kind: str) -> list[str]:
        """The names of the programs of a kind: `worker`, `bridge` or `tools`."""
        return [name for name in self.programs if name.startswith(kind)]

    def server_tree(self, name: ServerName) -> list[psutil.Process]:
        """The processes of a server, its children last."""
        with suppress(psutil.NoSuchProcess):
            head = psutil.Process(self.servers.pid(name))
            return [head, *head.children(recursive=True)]
        return []

    def signal_server(self, name: ServerName, number: signal.Signals) -> None:
        """Send SIGSTOP or SIGCONT to all processes of a server."""
        for process in self.server_tree(name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    async def wipe_engine(self) -> None:
        """Kill Temporal, remove its data, and start it again."""
        await self.servers.kill("temporal")
        shutil.rmtree(self.directory / "servers" / "temporal")
        await self.servers.restart("temporal")

    def on_death(self, program: Program, code: int) -> None:
        """Record the death, and restart the program as a supervisor would."""
        last = "\n".join(program.read_log().splitlines()[-12:])
        self.deaths.append(Death(program.name, code, time.time(), last))
        if not self.closing:
            task = asyncio.create_task(self._again(program))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _again(self, program: Program) -> None:
        await asyncio.sleep(1.0)
        if not self.closing and not program.alive:
            await program.launch()

    async def settle(self) -> None:
        """Cancel restarts that are under way."""
        self.closing = True
        for task in tuple(self._restarts):
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)


def _with_port(url: str, port: int) -> str:
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}{at}{HOST}:{port}"))


def _port_of(environment: Environment, server: ServerName) -> Callable[[], int]:
    direct = environment.direct
    address = {"postgres": direct.database_url, "nats": direct.nats_url, "temporal": f"//{direct.temporal_address}"}
    port = urlsplit(address[server]).port
    assert port is not None
    return lambda: port


def _programs(environment: Environment, size: Size) -> list[Program]:
    programs: list[Program] = []
    for role, count in (("worker", size.workers), ("bridge", size.bridges)):
        for number in range(1, count + 1):
            name = f"{role}-{number}"
            argv = (*TURNSTILE, role, "--config", str(environment.config(name, environment.seen_by(name))))
            programs.append(Program(name, argv, environment.directory / "logs" / f"{name}.log", f"{role} serves"))
    for number in range(1, size.tools + 1):
        name = f"tools-{number}"
        argv = (sys.executable, "-m", "lab.chaos.tools", "--executions", str(environment.executions))
        program = Program(name, argv, environment.directory / "logs" / f"{name}.log", "tools serve")
        program.env = {NATS_URL: environment.seen_by(name).nats_url}
        programs.append(program)
    for program in programs:
        program.env = {**program.env, ASKED: str(environment.asked)}
        program.on_death = environment.on_death
    return programs


@asynccontextmanager
async def open_environment(directory: Path, size: Size) -> AsyncGenerator[Environment]:
    """Start servers and proxies, migrate, and start the programs; stop everything when the block ends."""
    _open_directory(directory)
    async with AsyncExitStack() as stack:
        servers = EmbeddedServers(directory / "servers")
        await stack.enter_async_context(servers)
        environment = Environment(directory, servers)
        names = [
            *(f"worker-{number}" for number in range(1, size.workers + 1)),
            *(f"bridge-{number}" for number in range(1, size.bridges + 1)),
            *(f"tools-{number}" for number in range(1, size.tools + 1)),
            CLIENT,
        ]
        for name in names:
            for server in SERVERS:
                proxy = environment.proxies[name, server] = Proxy(_port_of(environment, server))
                await proxy.start()
                stack.push_async_callback(proxy.close)
        await migrate_all(environment.settings, environment.direct)
        environment.programs = {program.name: program for program in _programs(environment, size)}
        stack.push_async_callback(_stop_all, environment)
        for program in environment.programs.values():
            await program.launch()
        await asyncio.gather(*(program.serving() for program in environment.programs.values()))
        yield environment


def _open_directory(directory: Path) -> None:
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        directory.chmod(0o711)  # the user of PostgreSQL must be able to enter it


async def _stop_all(environment: Environment) -> None:
    for name in SERVERS:
        environment.signal_server(name, signal.SIGCONT)
    await environment.settle()
    await asyncio.gather(*(program.stop() for program in environment.programs.values()))
