"""Watches the streams of the embedded NATS for `turnstile up`, and restarts that server if they keep refusing messages.

After a full disk nats-server keeps refusing a stream that it could not write once, even when there is space again,
until it is restarted. So, while the disk has space, a message is stored in each stream every few seconds and removed
again. A refusal is printed in the server's own words. Restarts are at least `pause` apart. Costs three small requests
per stream and probe; never ends `up`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from turnstile.embedded.files import disk_of, last_error
from turnstile.embedded.server_errors import EmbeddedError
from turnstile.schema.amounts import amount
from turnstile.schema.errors import TurnstileError
from turnstile.transport.connection import NatsConnection, connect
from turnstile.transport.stream_probe import NoStream, probe_streams
from turnstile.transport.streams import declare_streams


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """In seconds. `failures` consecutive probes must fail; a restart doubles the pause up to `longest_pause`."""

    every: float = 5.0
    timeout: float = 5.0
    failures: int = 3
    pause: float = 30.0
    longest_pause: float = 600.0


@dataclass
class StreamWatch:
    """One NATS server: `home` is where its streams are, `log` its log, `restart` stops and starts it."""

    url: str
    home: Path
    log: Path
    restart: Callable[[], Awaitable[None]]
    say: Callable[[str], None]
    times: WatchTimes
    _failed: int = 0
    """Consecutive failed probes."""
    _last_refusal: str = ""
    """The kind of refusal that was printed last and still lasts."""
    _not_before: float = 0.0

    def __post_init__(self) -> None:
        self._pause = self.times.pause

    async def run(self) -> None:
        """Probe until cancelled."""
        conn = await connect(self.url, name="turnstile-up", on_wait=lambda _: None)
        try:
            while True:
                await asyncio.sleep(self.times.every)
                disk = disk_of(self.home)
                if not conn.connected.is_set():  # it died or is starting: `up` restarts it
                    self._failed = 0
                elif disk.trouble:  # a probe that cannot be written would itself make the stream refuse
                    self._print_full(disk.trouble)
                elif why := await self._trouble(conn):
                    await self._mend(why)
                else:
                    self._recovered()
        finally:
            await conn.close()

    def _print_full(self, trouble: str) -> None:
        logged = last_error(self.log)
        logs = f" Its log says: {logged}." if logged else ""
        self._print("full", f"NATS cannot store events, and no turn is lost: {trouble}. Make room.{logs}")

    def _recovered(self) -> None:
        if self._last_refusal:
            self.say("the streams of NATS take messages again")
        if asyncio.get_running_loop().time() > self._not_before:
            self._pause = self.times.pause
        self._failed, self._last_refusal = 0, ""

    async def _mend(self, why: str) -> None:
        """Restart the server if enough probes have failed, or the disk was just full, and the pause is over."""
        self._failed += 1
        if self._failed < self.times.failures and self._last_refusal != "full":
            return
        refuses, now = f"NATS refuses messages: {why}", asyncio.get_running_loop().time()
        if now < self._not_before:
            self._print(
                "later",
                f"{refuses}. It was started less than {amount(self._pause / 2)} s ago; it is started again soon.",
            )
        else:
            self._print("restart", f"{refuses}. Starting it again on the same data; no turn is lost.")
            self._not_before, self._pause = now + self._pause, min(2 * self._pause, self.times.longest_pause)
            self._failed = 0
            try:
                await self.restart()
            except EmbeddedError as error:
                self.say(str(error))

    def _print(self, kind: str, text: str) -> None:
        if self._last_refusal != kind:
            self.say(text)
            self._last_refusal = kind

    async def _trouble(self, conn: NatsConnection) -> str:
        """The streams' errors in the server's own words; empty if there are none."""
        probe = await probe_streams(conn, timeout=self.times.timeout, remove=True)
        wrong = {stream: error for stream, error in probe.items() if error is not None}
        if not wrong or not conn.connected.is_set():
            return ""
        if all(isinstance(error, NoStream) for error in wrong.values()):
            try:
                await declare_streams(conn)
            except TurnstileError as error:
                return str(error)
            return ""
        refused = "; ".join(f"{stream}: {error}" for stream, error in wrong.items())
        logged = last_error(self.log)
        return f"{refused}; its log says: {logged}" if logged else refused
