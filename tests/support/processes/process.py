"""`turnstile worker`, `turnstile bridge` and others as separate processes that tests may kill and restart."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.conditions import until
from tests.support.processes.hatchery import Hatched, Hatchery

Role = Literal["worker", "bridge", "gateway"]
ROLES: tuple[Role, Role] = ("worker", "bridge")


class TurnstileProcess:
    """One such process; all of its runs append their output to one file."""

    def __init__(self, role: Role, config: Path, hatchery: Hatchery | None = None) -> None:
        self.role: Role = role
        self.log = config.with_name(f"{role}.log")
        self.env: dict[str, str] = {}
        """Environment variables of the next run, in addition to the test's own."""
        self.options: tuple[str, ...] = ()
        """Further arguments of the next run."""
        self._config = config
        self._hatchery = hatchery
        self._process: asyncio.subprocess.Process | Hatched | None = None
        self._read = 0

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    async def launch(self) -> None:
        """Start it and return at once."""
        assert self._process is None
        self.log.touch()
        self._read = self.log.stat().st_size
        words, environment = (self.role, "--config", self._config, *self.options), {**os.environ, **self.env}
        if self._hatchery is not None:
            self._process = await self._hatchery.spawn(words, environment, self.log)
            return
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                Path(sys.executable).with_name("turnstile"),
                *words,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start(self) -> None:
        """Start it and wait until it serves."""
        await self.launch()
        await self.until_it_says(f"{self.role} serves")

    async def until_it_says(self, words: str, timeout: float = 60.0) -> None:
        """Wait until the log of this run contains the words."""

        async def said() -> bool:
            assert self._process is not None
            assert self._process.returncode is None, f"{self.role} ended: {self.says()[-2000:]}"
            return words in self.says()

        await until(said, timeout, f"{self.role} says {words!r}")

    def says(self) -> str:
        """The log of this run so far, with line breaks as blanks."""
        return " ".join(self.log.read_bytes()[self._read :].decode().split())

    async def kill(self) -> None:
        """SIGKILL."""
        await self._end(signal.SIGKILL)

    async def died(self) -> int:
        """Wait until it ends by itself; returns the exit code."""
        process, self._process = self._process, None
        assert process is not None
        return await asyncio.wait_for(process.wait(), 30)

    async def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None
        if process.returncode is None:
            process.send_signal(number)
        try:
            return await asyncio.wait_for(process.wait(), 25)
        except TimeoutError:
            process.kill()
            raise

    async def ensure(self) -> None:
        """Start it unless it runs, with the defaults of a first run."""
        if self._process is None or self._process.returncode is not None:
            self._process = None
            await self.start()

    async def remove(self) -> None:
        """Gone."""
        if self._process is not None:
            await self.kill()


class MortalProcess(TurnstileProcess):
    """One that is started again whenever it dies."""

    deaths = 0

    @asynccontextmanager
    async def reviving(self) -> AsyncGenerator[None]:
        """Start it, and start it again whenever it dies during the block; it is killed at the end."""
        await self.start()
        over = asyncio.Event()
        reviving = asyncio.create_task(self._revive(over))
        try:
            yield
        finally:
            over.set()
            while not reviving.done():
                if self._process is not None and self._process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):  # it dies just now
                        self._process.kill()
                await asyncio.wait([reviving], timeout=0.1)
            await reviving

    async def _revive(self, over: asyncio.Event) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            self._process = None
            if over.is_set():
                return
            await self.launch()
            self.deaths += 1


@dataclass(frozen=True)
class Processes:
    """A worker and a bridge."""

    worker: TurnstileProcess
    bridge: TurnstileProcess

    async def ensure(self) -> None:
        """Start each of them unless it runs."""
        await asyncio.gather(self.worker.ensure(), self.bridge.ensure())


@asynccontextmanager
async def processes_of(config: Path, hatchery: Hatchery | None = None) -> AsyncGenerator[Processes]:
    """Worker and bridge with this configuration, forked by a hatchery if given; not started yet, killed at the end."""
    both = Processes(*(TurnstileProcess(role, config, hatchery) for role in ROLES))
    try:
        yield both
    finally:
        await both.worker.remove()
        await both.bridge.remove()
