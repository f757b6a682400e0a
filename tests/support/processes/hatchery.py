"""`turnstile` as processes that start fast: forked from a parent that has imported everything and started nothing.

Starting Python and importing takes three quarters of the time of a process that ends after a second. A forked process
is otherwise like any other: it has its own pid, environment, signals and connections. The parent is one thread without
connections or an event loop; it ends with its children when the test closes its end of the pipe.
"""

import asyncio
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.support.paths import ROOT
from tests.support.processes.loop_holds import watched_if_wanted

_EVERYTHING = (
    *("turnstile.cli.app", "turnstile.cli.run", "turnstile.cli.session", "turnstile.processes.run"),
    # What these import late, and most processes need:
    *("turnstile.doctor.examine", "turnstile.cli.turns.turn_report", "turnstile.telemetry.health"),
    *("anyio._backends._asyncio", "h2.connection", "httpcore", "importlib.readers", "typer._adapters", "uvloop"),
)
GARBAGE = 10_000
"""So many objects more than were freed, and the youngest are searched for garbage; Python's own figure is 700."""


class Hatched:
    """A forked process, with the interface of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.Future()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        """Wait for the end; returns the exit code."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if not self._ended.done():
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def end(self, code: int) -> None:
        """Record the process's end."""
        self._ended.set_result(code)


class Hatchery:
    """The test's side of the parent process that forks."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asked: list[asyncio.Future[Hatched]] = []
        self._living: dict[int, Hatched] = {}
        self._listener = asyncio.create_task(self._listen())

    async def spawn(
        self,
        words: Sequence[str | Path],
        environment: Mapping[str, str],
        log: Path,
        *,
        errors: Path | None = None,
        cwd: Path | None = None,
        given: Path | None = None,
    ) -> Hatched:
        """Fork `turnstile` with these arguments; what it prints is appended to the log, errors to their own.

        Its standard input is `given`, or empty. A path may be that of a pipe or a terminal.
        """
        assert self._process.stdin is not None
        asked: asyncio.Future[Hatched] = asyncio.Future()
        self._asked.append(asked)
        command = {
            "words": [str(word) for word in words],
            "environment": dict(environment),
            "given": str(given or os.devnull),
            "streams": [str(log), str(errors or log)],
            "cwd": str(cwd or Path.cwd()),
        }
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        return await asked

    async def close(self) -> None:
        """End the parent process and all forked processes."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._process.wait() == 0
        await self._listener

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            if "code" in event:
                self._living.pop(event["pid"]).end(event["code"])
            else:
                self._living[event["pid"]] = hatched = Hatched(event["pid"])
                self._asked.pop(0).set_result(hatched)


@asynccontextmanager
async def hatchery(**environment: str) -> AsyncGenerator[Hatchery]:
    """A parent process that is ready to fork; it has these variables beside the test's own."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", __name__)
    root = ROOT
    own = {**os.environ, **environment}
    process = await asyncio.create_subprocess_exec(*command, env=own, stdin=pipe, stdout=pipe, cwd=root)
    opened = Hatchery(process)
    try:
        yield opened
    finally:
        await opened.close()


class SharedHatchery:
    """One parent process for all commands of the session, started by the first."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()
        self._opened: Hatchery | None = None

    async def get(self) -> Hatchery:
        """The session's parent process."""
        async with self._starting:
            if self._opened is None:
                self._opened = await self._stack.enter_async_context(hatchery())
            return self._opened

    async def close(self) -> None:
        """End it, if it was started."""
        await self._stack.aclose()


shared_hatchery = SharedHatchery()


def _serve() -> None:
    gc.disable()  # what is imported stays: a fifth of the time would go to searching it for garbage
    for name in _EVERYTHING:
        importlib.import_module(name)
    gc.freeze()
    gc.set_threshold(GARBAGE)
    gc.enable()
    awake, waker = os.pipe()
    for descriptor in (awake, waker):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _only_wake)
    living: set[int] = set()
    received, open_pipe = b"", True
    while open_pipe or living:
        ready, _, _ = select.select([awake, *([0] if open_pipe else [])], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _reap(living)
        if 0 in ready:
            chunk = os.read(0, 1 << 16)
            open_pipe = bool(chunk)
            *lines, received = (received + chunk).split(b"\n")
            for line in lines:
                living.add(_fork(json.loads(line), awake, waker))
        if not open_pipe:
            for pid in living:
                os.kill(pid, signal.SIGKILL)


def _only_wake(_number: int, _frame: FrameType | None) -> None:
    """Signal handler that does nothing: the wake-up descriptor wakes the loop."""


def _reap(living: set[int]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        living.discard(pid)
        _send_event(pid=pid, code=os.waitstatus_to_exitcode(status))


def _fork(command: dict[str, Any], awake: int, waker: int) -> int:
    # Opened before anybody hears of the process: then its pipes need their names no more.
    append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    streams = [os.open(command["given"], os.O_RDONLY), *(os.open(path, append, 0o600) for path in command["streams"])]
    if (pid := os.fork()) == 0:
        _run_child(command, streams, awake, waker)
    for stream in streams:
        os.close(stream)
    _send_event(pid=pid)
    return pid


def _run_child(command: dict[str, Any], streams: Sequence[int], awake: int, waker: int) -> NoReturn:
    """In the child: run `turnstile` and end with its exit code."""
    from turnstile.cli import main  # noqa: PLC0415 -- imported above

    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(awake)
        os.close(waker)
        for descriptor, stream in enumerate(streams):
            os.dup2(stream, descriptor)
            os.close(stream)
        os.chdir(command["cwd"])
        os.environ.clear()
        os.environ.update(command["environment"])
        sys.argv = ["turnstile", *command["words"]]
        sys.modules["__main__"].__package__ = None  # it is run as a program, not by `python -m`
        with watched_if_wanted():
            main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 -- a child must never go on with the parent's code
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _send_event(**event: int) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    _serve()
