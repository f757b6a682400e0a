"""Runs the commands of a durable consumer, a bounded number at a time, and settles each after it was answered.

A command that is not settled is delivered again; while a server is down that happens after 2 to 30 s.
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
_BATCH = 64  # small: a command that waits here longer than the consumer's ack_wait is delivered twice

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """The command was answered: acknowledge it."""


@dataclass(frozen=True, slots=True)
class Defer:
    """A server is down: deliver the command again after `delay` seconds, at least 2 (a nak without delay spins)."""

    delay: int


@dataclass(frozen=True, slots=True)
class Reject:
    """The command can never be understood: do not deliver it again."""


Disposition: TypeAlias = Done | Defer | Reject


async def settle(msg: Msg, disposition: Disposition) -> None:
    """Acknowledge, delay or terminate the message."""
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
    """Defer by the number of deliveries so far: 2, 4, 8, 16, then 30 seconds."""
    shortest, longest = _DELAY_SECONDS
    return Defer(min(longest, shortest ** min(deliveries, longest)))


def command_id(msg: Msg) -> str:
    """An id that all deliveries of a command share and no other command has: its sequence and time in its stream."""
    place = msg.metadata
    return f"{place.sequence.stream}-{int(place.timestamp.timestamp() * 1_000_000)}"


class CommandQueue:
    """Takes the commands of a consumer and settles each as `dispose` returns; `dispose` must not raise."""

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
        """Start every command of a batch; waits while `concurrency` commands run, which pauses the pull."""
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
        except NATS_TROUBLE as error:  # not settled, it is delivered again after ack_wait
            self._log.warning("settle", "a command could not be settled: %s", error)
