"""Watches the streams of the embedded NATS for `turnstile up`, and starts that server again where they go on refusing.

After a full disk nats-server goes on refusing a stream that it could once not write, also when there is space again: it
answers nothing, or `insufficient resources`, until it is started again. So a message is stored in each stream every few
seconds and removed again, while its disk has space. What refuses is told with the server's own words. It is restarted
not more often than the pauses say. Costs three small requests a stream and probe; never ends `up`.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from turnstile.embedded.files import last_error
from turnstile.embedded.server_errors import EmbeddedError
from turnstile.schema.errors import TurnstileError
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import NoStream, probe_streams
from turnstile.transport.streams import declare_streams

NEEDED_MB = 16
"""Free space below which the disk counts as full, and a restart would not help."""


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """In seconds. `failures` probes in a row must fail; after a restart the pause doubles up to `longest_pause`."""

    every: float = 5.0
    timeout: float = 5.0
    failures: int = 3
    pause: float = 30.0
    longest_pause: float = 600.0


class StreamWatch:
    """One NATS server: `home` is where its streams are, `log` its log, `restart` stops and starts it."""

    def __init__(
        self,
        url: str,
        home: Path,
        log: Path,
        *,
        restart: Callable[[], Awaitable[None]],
        say: Callable[[str], None],
        times: WatchTimes,
    ) -> None:
        self._url = url
        self._home = home
        self._log = log
        self._restart = restart
        self._say = say
        self._times = times
        self._failed = 0
        """Probes in a row."""
        self._told = ""
        """What was said last of a refusal that goes on."""
        self._pause = times.pause
        self._not_before = 0.0

    async def run(self) -> None:
        """Probe until cancelled."""
        conn = await connect(self._url, name="turnstile-up", on_wait=lambda _: None)
        try:
            while True:
                await asyncio.sleep(self._times.every)
                free = shutil.disk_usage(self._home).free // 1_000_000
                if not conn.connected.is_set():  # it died, or is being started: the guard of `up` sees to that
                    self._failed = 0
                elif free < NEEDED_MB:  # a probe that cannot be written would itself make the stream refuse
                    self._tell_full(free)
                elif why := await self._trouble(conn):
                    await self._mend(why)
                else:
                    self._recovered()
        finally:
            await conn.close()

    def _tell_full(self, free: int) -> None:
        logged = last_error(self._log)
        said = f" Its log says: {logged}." if logged else ""
        make_room = f"{free} MB are free at {self._home}: make room, it needs {NEEDED_MB}"
        self._tell("full", f"the disk of NATS is full, so events are not stored; no turn is lost. {make_room}.{said}")

    def _recovered(self) -> None:
        if self._told:
            self._say("the streams of NATS take messages again")
        if asyncio.get_running_loop().time() > self._not_before:
            self._pause = self._times.pause
        self._failed, self._told = 0, ""

    async def _mend(self, why: str) -> None:
        """Start the server again if that can help now."""
        self._failed += 1
        if self._failed < self._times.failures:
            return
        refuses, now = f"NATS refuses messages: {why}", asyncio.get_running_loop().time()
        if now < self._not_before:
            self._tell("later", f"{refuses}. It was started again {self._pause / 2:g} s ago or less; soon once more.")
        else:
            self._tell("restart", f"{refuses}. Starting it again on the same data; no turn is lost.")
            self._not_before, self._pause = now + self._pause, min(2 * self._pause, self._times.longest_pause)
            self._failed = 0
            try:
                await self._restart()
            except EmbeddedError as error:
                self._say(str(error))

    def _tell(self, kind: str, text: str) -> None:
        if self._told != kind:
            self._say(text)
            self._told = kind

    async def _trouble(self, conn: NatsConnection) -> str:
        """What is wrong, in the server's own words; empty if nothing is."""
        found = await probe_streams(conn, timeout=self._times.timeout, remove=True)
        wrong = {stream: error for stream, error in found.items() if error is not None}
        if not wrong or not conn.connected.is_set():
            return ""
        if all(isinstance(error, NoStream) for error in wrong.values()):
            try:
                await declare_streams(conn)
            except TurnstileError as error:
                return str(error)
            return ""
        told = "; ".join(f"{stream}: {error}" for stream, error in wrong.items())
        logged = last_error(self._log)
        return f"{told}; its log says: {logged}" if logged else told
