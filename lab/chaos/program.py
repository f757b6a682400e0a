"""A Turnstile process that is killed, paused and restarted; all of its runs append their output to one file.

The kernel ends it when the harness ends. If it ends by itself, `on_death` is called: no Turnstile process
may need a restart because a server was away.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnstile.embedded import launch

LAUNCH = Path(launch.__file__)
ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0


@dataclass
class Program:
    """One program, through all of its runs."""

    name: str
    argv: Sequence[str]
    log: Path
    serves: str
    """Words in its log that mean that it serves."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    on_death: Callable[["Program", int], None] | None = None
    """Called with the exit code if the program ends by itself."""
    starts: int = 0
    process: Process | None = None
    _read: int = 0
    _watch: "asyncio.Task[None] | None" = None
    _expected: bool = False

    @property
    def pid(self) -> int:
        """The pid of the current or last run."""
        return self.process.pid if self.process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.process is not None and self.process.returncode is None

    async def launch(self) -> None:
        """Start it; returns at once."""
        self._read = self.log.stat().st_size if self.log.exists() else 0
        self._expected = False
        death: dict[str, object] = {"user": None, "death_signal": signal.SIGKILL, "warden": os.getpid()}
        with self.log.open("ab") as log:
            log.write(f"--- run {self.starts + 1} of {self.name}, {time.strftime('%H:%M:%S')}\n".encode())
            log.flush()
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(LAUNCH),
                json.dumps(death),
                *self.argv,
                env={**os.environ, **self.env},
                stdin=DEVNULL,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                start_new_session=True,
            )
        self.starts += 1
        self._watch = asyncio.create_task(self._watched(self.process))

    async def serving(self, timeout: float = START_SECONDS) -> None:
        """Wait until the log of this run read_log that it serves; raises `TimeoutError`."""
        async with asyncio.timeout(timeout):
            while self.serves not in self.read_log():  # noqa: ASYNC110 -- it sets no event here
                await asyncio.sleep(0.1)

    def read_log(self) -> str:
        """The log of this run so far."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            return file.read().decode(errors="replace")

    async def kill(self) -> None:
        """Send SIGKILL; returns when it is dead."""
        await self._end(signal.SIGKILL, 10)

    async def stop(self) -> None:
        """Send SIGTERM, then SIGKILL if it does not end soon."""
        self.send(signal.SIGCONT)
        await self._end(signal.SIGTERM, 15)

    def send(self, number: signal.Signals) -> None:
        """Send a signal such as SIGSTOP or SIGCONT if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    async def _end(self, number: signal.Signals, timeout: float) -> None:
        self._expected = True
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), timeout)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def _watched(self, process: Process) -> None:
        code = await process.wait()
        if not self._expected and self.on_death is not None:
            self.on_death(self, code)
