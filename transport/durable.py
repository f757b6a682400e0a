"""Commands of a durable consumer, each taken, answered and then settled, so many at a time.

A command that is not settled is delivered again; while a server is away that is so after 2 to 30 s.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from nats.aio.msg import Msg

from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.pull import ContinuousPull

_DELAY_SECONDS = (2, 30)
_BATCH = 64  # what waits here longer than the consumer's ack_wait is delivered twice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """Answered: acknowledge."""


@dataclass(frozen=True, slots=True)
class Defer:
    """A server is away: deliver again after `delay` seconds, at least 2 (an undelayed nak spins)."""

    delay: int


@dataclass(frozen=True, slots=True)
class Reject:
    """Can never be understood: never deliver again."""


Disposition: TypeAlias = Done | Defer | Reject


async def settle(msg: Msg, disposition: Disposition) -> None:
    """Tell JetStream what becomes of a message."""
    match disposition:
        case Done():
            await msg.ack()
        case Defer(delay):
            await msg.nak(delay=max(_DELAY_SECONDS[0], delay))
        case Reject():
            await msg.term()
        case _:
            assert_never(disposition)


def deferred(deliveries: int) -> Defer:
    """How long to wait after this many deliveries: 2, 4, 8, 16, then 30 seconds."""
    shortest, longest = _DELAY_SECONDS
    return Defer(min(longest, shortest ** min(deliveries, longest)))


def command_id(msg: Msg) -> str:
    """The same for every delivery of a command, and of no other: its place and time in its stream."""
    place = msg.metadata
    return f"{place.sequence.stream}-{int(place.timestamp.timestamp() * 1_000_000)}"


class CommandQueue:
    """Takes the commands of a consumer; each is settled as `dispose` says, which raises nothing."""

    def __init__(
        self,
        conn: NatsConnection,
        consumer: str,
        ensure: Callable[[], Awaitable[None]],
        dispose: Callable[[Msg], Awaitable[Disposition]],
        concurrency: int = 64,
    ) -> None:
        self.pull = ContinuousPull(conn, subjects.CMD_STREAM, consumer, ensure, batch=_BATCH)
        self._dispose = dispose
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every command taken is settled; raises as `ContinuousPull.run` does."""
        try:
            await self.pull.run(self._take, stop)
        finally:
            if self._tasks:
                await asyncio.wait(set(self._tasks))

    async def _take(self, batch: list[Msg]) -> None:
        """Start every command of a batch; a full house holds the pull back, a slow verb only itself."""
        for msg in batch:
            await self._slots.acquire()
            task = asyncio.create_task(self._serve(msg))
            self._tasks.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    async def _serve(self, msg: Msg) -> None:
        try:
            await settle(msg, await self._dispose(msg))
        except NATS_TROUBLE as error:  # unsettled, it is delivered again after ack_wait
            self._log.warning("settle", "a command could not be settled: %s", error)
