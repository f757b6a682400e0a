"""The embedded servers of one data directory, as an async context manager.

Inside the block all servers answer. After the block, and also after a SIGKILL of this process, no server process is
left. One process at a time uses a data directory. The next start has the same data and, if they are free, the same
ports. A server that died is not restarted; `wait_failed` returns it. Costs one small process beside the servers.

The lock on the directory is an flock, which the kernel releases when the holder dies, so it is never stale; the text in
the file only names the holder. The file is never removed: with a replaced file two processes could each hold a lock.
"""

import asyncio
import fcntl
import os
import shlex
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from turnstile.embedded.account import check_owner, postgres_account
from turnstile.embedded.endpoints import DEFAULT_DATA, Endpoints, remove_endpoints, write_endpoints
from turnstile.embedded.files import Disk, disks_of, private_directory, tail
from turnstile.embedded.nats_server import NatsServer
from turnstile.embedded.ports import Moved, choose_ports
from turnstile.embedded.postgres_server import PostgresServer
from turnstile.embedded.server import EmbeddedServer, ServerName, describe_exit, log_path, start_server
from turnstile.embedded.server_errors import DataDirectoryHeld, DataDirectoryUnusable, EmbeddedError, ServerNotRunning
from turnstile.embedded.supervisor import Supervisor
from turnstile.embedded.temporal_server import TemporalServer
from turnstile.transport.local_servers import LOCK

_LOCK_TRIES = 15
"""Attempts, 20 ms apart: a process that checks the lock (`is_held`) holds it for a moment."""


class Holder(BaseModel):
    """The process that holds the data directory."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    started_at: datetime
    command: str


def _lock_path(data: Path) -> Path:
    return data / LOCK


def read_holder(data: Path) -> Holder | None:
    """The process that took the lock last, or None; it may have ended."""
    try:
        return Holder.model_validate_json(_lock_path(data).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class DataLock:
    """Holds the data directory from `acquire` to `release`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._descriptor: int | None = None

    async def acquire(self) -> None:
        """Takes the lock; raises `DataDirectoryHeld` if another process holds it."""
        descriptor = os.open(_lock_path(self._data), os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(0.02)
            else:
                self._sign(descriptor)
                self._descriptor = descriptor
                return
        os.close(descriptor)
        holder = read_holder(self._data)
        if holder is None:
            raise DataDirectoryHeld(self._data, None, None, None)
        raise DataDirectoryHeld(self._data, holder.pid, holder.started_at, holder.command)

    @staticmethod
    def _sign(descriptor: int) -> None:
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200]
        holder = Holder(pid=os.getpid(), started_at=datetime.now(UTC), command=command)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.model_dump_json().encode(), 0)

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


START_TIMEOUT = timedelta(seconds=90)


@dataclass(frozen=True)
class ServerFailure:
    """A server that ended although nobody stopped it."""

    server: ServerName
    reason: str
    log: Path
    tail: str


class EmbeddedServers:
    """Starts each of the three servers whose address is not given. One start and one stop per object."""

    def __init__(
        self,
        data: Path = DEFAULT_DATA,
        *,
        database_url: str | None = None,
        nats_url: str | None = None,
        temporal_address: str | None = None,
        temporal_namespace: str = "default",
        start_timeout: timedelta = START_TIMEOUT,
    ) -> None:
        self._data = data.absolute()
        self._database_url = database_url
        self._nats_url = nats_url
        self._temporal_address = temporal_address
        self._namespace = temporal_namespace
        self._start_timeout = start_timeout
        self._resources = AsyncExitStack()
        self._supervisor: Supervisor | None = None
        self._servers: dict[str, EmbeddedServer] = {}
        self._endpoints: Endpoints | None = None
        self.gateway_port = 0
        """The port that this directory keeps for a gateway."""
        self.moved: list[Moved] = []
        """Listeners whose port in this run differs from the directory's usual one."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def endpoints(self) -> Endpoints:
        """The addresses of all servers; raises `EmbeddedError` before the start and after the stop."""
        if self._endpoints is None:
            raise EmbeddedError("The servers are not started.")
        return self._endpoints

    @property
    def embedded(self) -> tuple[ServerName, ...]:
        """The servers that run embedded, not at a given address."""
        return tuple(server.name for server in self._servers.values())

    async def start(self) -> Endpoints:
        """Returns when all servers answer. After any error no server runs.

        Raises `DataDirectoryHeld`, `DataDirectoryUnusable`, `StillStopping`, `BinaryMissing`, `NoUnprivilegedUser` or
        `ServerStartFailed`.
        """
        async with AsyncExitStack() as resources:
            self._open_data()
            lock = DataLock(self._data)
            await lock.acquire()
            resources.callback(lock.release)
            resources.callback(self._forget)
            remove_endpoints(self._data)
            endpoints = await self._start_servers(resources)
            resources.callback(remove_endpoints, self._data)
            write_endpoints(self._data, endpoints)
            self._endpoints = endpoints
            self._resources = resources.pop_all()
        return endpoints

    def announce_gateway(self, url: str) -> Endpoints:
        """Adds the address of a gateway to the endpoints file; returns all addresses."""
        self._endpoints = self.endpoints.model_copy(update={"gateway_url": url})
        write_endpoints(self._data, self._endpoints)
        return self._endpoints

    async def stop(self) -> None:
        """Removes the endpoints file, stops the servers, releases the data directory. A second call does nothing."""
        self._endpoints = None
        await self._resources.aclose()

    def running(self) -> list[str]:
        """The servers whose processes have not ended."""
        return [] if self._supervisor is None else self._supervisor.running()

    def home(self, name: ServerName) -> tuple[Path, Path]:
        """The data directory and the log of an embedded server."""
        return self._data / name, log_path(self._data, name)

    def disks(self, *names: ServerName) -> list[Disk]:
        """The file systems that these servers, or all embedded ones, write to."""
        return disks_of(*(self._data / name for name in names or self.embedded))

    def disk_trouble(self, name: ServerName) -> str:
        """Why an embedded server cannot write its data, in words; empty if it can."""
        return next((disk.trouble for disk in self.disks(name) if disk.trouble), "")

    def pid(self, name: ServerName) -> int:
        """The pid of an embedded server; raises `ServerNotRunning`."""
        return self._running().pid(name)

    async def kill(self, name: ServerName) -> None:
        """Sends SIGKILL, for tests; returns when the server is dead. `wait_failed` does not report it."""
        supervisor = self._running()
        supervisor.pid(name)
        await supervisor.kill(name)

    async def restart(self, name: ServerName) -> None:
        """Stops the server if it runs and starts it on the same port and data; returns when it answers."""
        supervisor = self._running()
        if (server := self._servers.get(name)) is None:
            raise ServerNotRunning(name)
        await supervisor.stop(name)
        await start_server(supervisor, server, self._start_timeout)

    async def wait_failed(self) -> ServerFailure:
        """Waits until a server dies that nobody stopped, and returns each such end once.

        Waits for ever if no server is embedded.
        """
        if self._supervisor is None:
            await asyncio.Event().wait()
        failure = await self._running().wait_failed()
        self._running().forget(failure.name)
        server = self._servers[failure.name]
        return ServerFailure(server.name, describe_exit(failure.code), server.log, tail(server.log))

    def _forget(self) -> None:
        self._endpoints = None
        self._supervisor = None
        self._servers = {}

    def _running(self) -> Supervisor:
        if self._supervisor is None:
            raise EmbeddedError("No embedded server runs.")
        return self._supervisor

    def _open_data(self) -> None:
        try:
            if not self._data.exists():
                private_directory(self._data)
            self._data = self._data.resolve()
            check_owner(self._data)
            # of root's the user of PostgreSQL must be able to enter it, not to list it
            self._data.chmod(0o711 if os.geteuid() == 0 else 0o700)
            private_directory(self._data / "logs")
            private_directory(self._data / "run")
        except OSError as error:
            raise DataDirectoryUnusable(f"{self._data} cannot be used: {error}. Choose another directory.") from error

    async def _start_servers(self, resources: AsyncExitStack) -> Endpoints:
        if self._database_url is None or self._nats_url is None or self._temporal_address is None:
            self._supervisor = await Supervisor.launch(self._data)
            resources.push_async_callback(self._supervisor.close)
        ports, moved = choose_ports(self._data)
        self.gateway_port = ports.gateway
        postgres = PostgresServer(self._data, ports.postgres, postgres_account(self._data / "postgres"))
        nats = NatsServer(self._data, ports.nats, ports.nats_monitoring)
        temporal = TemporalServer(self._data, ports, self._namespace)
        servers: list[tuple[str | None, EmbeddedServer]] = [
            (self._database_url, postgres),
            (self._nats_url, nats),
            (self._temporal_address, temporal),
        ]
        self._servers = {server.name: server for address, server in servers if address is None}
        self.moved = [move for move in moved if move.name.split("_")[0] in (*self._servers, "gateway")]
        await self._start_together()
        return Endpoints(
            database_url=self._database_url or postgres.url(),
            nats_url=self._nats_url or nats.url(),
            nats_monitoring_url=nats.monitoring_url() if self._nats_url is None else None,
            temporal_address=self._temporal_address or temporal.address(),
            temporal_namespace=self._namespace,
            web_ui_url=temporal.web_ui_url() if self._temporal_address is None else None,
        )

    async def _start_together(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._servers.values():
                    group.create_task(start_server(self._running(), server, self._start_timeout))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
