"""The parent's side of the warden: starts it, sends it commands, and receives events about the servers."""

import asyncio
import fcntl
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from turnstile.embedded.protocol import (
    EVENT,
    Command,
    Exited,
    KillProcess,
    NotStarted,
    Ready,
    Shutdown,
    Started,
    StartProcess,
    StillRunning,
    StopProcess,
)
from turnstile.embedded.server_errors import EmbeddedError, ServerNotRunning, StillStopping, WardenLost

logger = logging.getLogger(__name__)

WARDEN = Path(__file__).with_name("warden.py")
PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT", "GOGC")
_PIPE_BYTES = 1 << 20
"""What a pipe holds at most, without privileges (Linux)."""
CLOSE_TIMEOUT = 30.0
"""Seconds the warden has to stop everything; the grace periods of the servers are shorter."""


@dataclass
class _Run:
    """One run of one program."""

    started: asyncio.Future[int] = field(default_factory=asyncio.Future[int])
    exited: asyncio.Future[int | None] = field(default_factory=asyncio.Future[int | None])
    expected: bool = False
    """Whether it was asked to end."""
    private: int | None = None
    """The writing end of the FIFO with its variables."""

    def drop_private(self) -> None:
        """Forget variables that nobody has read."""
        if self.private is not None:
            os.close(self.private)
            self.private = None


@dataclass(frozen=True)
class UnexpectedExit:
    """A program that ended by itself."""

    name: str
    code: int | None
    """Exit code, negative for a signal; None if the warden was lost before it could report one."""


class Supervisor:
    """A running warden. Its methods raise `WardenLost` when it is gone."""

    def __init__(self, data: Path, process: Process, log: Path) -> None:
        self._data = data
        self._process = process
        self._log = log
        self._ready: asyncio.Future[None] = asyncio.Future()
        self._runs: dict[str, _Run] = {}
        self._failures: dict[str, UnexpectedExit] = {}
        self._failed = asyncio.Event()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def launch(cls, data: Path) -> "Supervisor":
        """Starts a warden; returns when no process of an earlier run is left, raises `StillStopping` if one stays."""
        log = data / "logs" / "warden.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(WARDEN),
                str(data),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env=clean_environment(),
                cwd="/",
                start_new_session=True,
            )
        supervisor = cls(data, process, log)
        try:
            await asyncio.shield(supervisor._ready)
        except BaseException:
            await supervisor.close()
            raise
        return supervisor

    def pid(self, name: str) -> int:
        """The pid of a running program; raises `ServerNotRunning`."""
        run = self._runs.get(name)
        if run is None or run.exited.done() or not run.started.done():
            raise ServerNotRunning(name)
        return run.started.result()

    def running(self) -> list[str]:
        """The names of programs that have started and not ended."""
        return [name for name, run in self._runs.items() if run.started.done() and not run.exited.done()]

    async def run(self, command: StartProcess) -> int | None:
        """Runs a program that ends by itself; returns its exit code."""
        await self._launch(command, _Run(expected=True))
        return await self.wait_exited(command.name)

    async def start(self, command: StartProcess, private: Mapping[str, str] | None = None) -> int:
        """Starts a program that runs until it is stopped; returns the pid.

        `private` is its environment instead of the command's, which the warden does not see. Raises `EmbeddedError` if
        it could not be executed.
        """
        run = _Run()
        if private is not None:
            path = self._data / "run" / f"{command.name}.env"
            run.private = _fill(path, private)
            command = command.model_copy(update={"private": path})
        try:
            return await self._launch(command, run)
        except BaseException:
            run.drop_private()
            raise

    async def _launch(self, command: StartProcess, run: _Run) -> int:
        self._runs[command.name] = run
        run.exited.add_done_callback(lambda _: run.drop_private())
        self._failures.pop(command.name, None)
        self._set_failed()
        await self._send(command)
        return await asyncio.shield(run.started)

    async def stop(self, name: str) -> None:
        """Stops a program, with SIGKILL after its grace; returns when it has ended, at once if it does not run."""
        await self._end(StopProcess(name=name))

    async def kill(self, name: str) -> None:
        """Sends SIGKILL; returns when the program has ended."""
        await self._end(KillProcess(name=name))

    async def wait_exited(self, name: str) -> int | None:
        """Waits until a started program has ended; returns the exit code of its current or last run."""
        return await asyncio.shield(self._runs[name].exited)

    async def wait_failed(self) -> UnexpectedExit:
        """Waits until a program ends that nobody stopped; returns the first one that was not started again."""
        await self._failed.wait()
        return next(iter(self._failures.values()))

    def forget(self, name: str) -> None:
        """`wait_failed` no longer returns the end of this program."""
        self._failures.pop(name, None)
        self._set_failed()

    async def close(self) -> None:
        """Stops all programs and the warden. A second call does nothing."""
        for run in self._runs.values():
            run.expected = True
        if self._process.returncode is None and not self._listener.done():
            await self._send(Shutdown())
            try:
                await asyncio.wait_for(self._process.wait(), CLOSE_TIMEOUT)
            except TimeoutError:
                self._process.kill()  # the kernel then signals the servers
        await self._process.wait()
        await self._listener
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def _end(self, command: StopProcess | KillProcess) -> None:
        run = self._runs.get(command.name)
        if run is None or run.exited.done():
            return
        run.expected = True
        await self._send(command)
        await asyncio.shield(run.exited)

    async def _send(self, command: Command) -> None:
        stdin = self._process.stdin
        if stdin is None or self._listener.done():
            raise WardenLost(self._log)
        stdin.write(command.model_dump_json().encode() + b"\n")
        try:
            await stdin.drain()
        except ConnectionError:
            logger.debug("the warden closed its input; its exit is reported by the listener")

    async def _listen(self) -> None:
        stdout = self._process.stdout
        if stdout is not None:
            async for line in stdout:
                self._handle(EVENT.validate_json(line))
        self._lose()

    def _handle(self, event: Ready | StillRunning | Started | NotStarted | Exited) -> None:
        match event:
            case Ready():
                self._ready.set_result(None)
            case StillRunning():
                self._ready.set_exception(StillStopping(self._data))
            case Started(name=name, pid=pid):
                self._runs[name].started.set_result(pid)
            case NotStarted(name=name, reason=reason):
                self._runs[name].started.set_exception(EmbeddedError(f"{name} could not be executed: {reason}"))
                self._runs[name].exited.set_result(None)
            case Exited(name=name, code=code):
                self._record_exit(name, code)
            case _:
                assert_never(event)

    def _record_exit(self, name: str, code: int | None) -> None:
        run = self._runs[name]
        run.exited.set_result(code)
        if not run.expected:
            self._failures[name] = UnexpectedExit(name, code)
            self._set_failed()

    def _lose(self) -> None:
        """Record that the warden ended, and with it every program that still ran."""
        if not self._ready.done():
            self._ready.set_exception(WardenLost(self._log))
        for name, run in self._runs.items():
            if not run.started.done():
                run.started.set_exception(WardenLost(self._log))
            if not run.exited.done():
                self._record_exit(name, None)

    def _set_failed(self) -> None:
        if self._failures:
            self._failed.set()
        else:
            self._failed.clear()


def clean_environment(**extra: str) -> dict[str, str]:
    """The environment of warden and servers: `PASSED_ON` and `extra`, so no provider keys and no hidden options."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {"TZ": "UTC", **extra}


def _fill(path: Path, variables: Mapping[str, str]) -> int:
    """Makes a FIFO that holds the variables as one line; returns the descriptor that keeps them in it.

    Nothing is written to a disk. Raises `EmbeddedError` if they are more than a pipe holds.
    """
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # with a reader of its own, opening does not wait for one
    line = json.dumps(dict(variables)).encode() + b"\n"
    if sys.platform == "linux" and len(line) < _PIPE_BYTES:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    try:
        whole = os.write(descriptor, line) == len(line)
    except BlockingIOError:
        whole = False
    if not whole:
        os.close(descriptor)
        raise EmbeddedError(f"the environment is too large to be passed on: {len(line)} bytes")
    return descriptor
