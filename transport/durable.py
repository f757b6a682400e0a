"""Runs the commands of a durable consumer, a bounded number at a time, and settles each after it was answered.

A command that is not settled is delivered again; while a server is down that happens after 2 to 30 s.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from nats.aio.msg import Msg

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import TurnstileError
from turnstile.schema.wire import subjects
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import call_api

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
    """The command can never be understood, or is given up: do not deliver it again."""

    keeps: bool = False
    """Whether the stream keeps it, so that somebody can read what it was."""


Disposition: TypeAlias = Done | Defer | Reject


async def settle(msg: Msg, disposition: Disposition) -> None:
    """Acknowledge, delay or terminate the message."""
    match disposition:
        case Done():
            await msg.ack()
        case Defer(delay):
            await msg.nak(delay=max(_DELAY_SECONDS[0], delay))
        case Reject(_):
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
    """Takes the commands of a consumer and settles each as `dispose` returns; `dispose` must not raise.

    A settled command of clients leaves its stream, and makes room for the next. Where that fails, it leaves with its
    age.
    """

    def __init__(
        self,
        conn: NatsConnection,
        consumer: str,
        ensure: Callable[[], Awaitable[None]],
        dispose: Callable[[Msg], Awaitable[Disposition]],
        concurrency: int = 64,
        stream: str = subjects.ASK_STREAM,
    ) -> None:
        self.pull = ContinuousPull(conn, stream, consumer, ensure, batch=_BATCH)
        self._conn = conn
        self._stream = stream
        self._dispose = dispose
        self._slots = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[None]] = set()
        self._removals: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logger)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set and every command taken is settled; raises as `ContinuousPull.run` does."""
        try:
            await self.pull.run(self._take, stop)
        finally:
            for tasks in (self._tasks, self._removals):
                if tasks:
                    await asyncio.wait(set(tasks))

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
        disposition = await self._dispose(msg)
        try:
            await settle(msg, disposition)
        except NATS_TROUBLE as error:  # not settled, it is delivered again after ack_wait
            self._log.warning("settle", "a command could not be settled: %s", error)
            return
        if self._stream == subjects.ASK_STREAM and disposition in (Done(), Reject()):
            removal = asyncio.create_task(self._remove(msg.metadata.sequence.stream))  # its slot is free meanwhile
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _remove(self, place: int) -> None:
        body: JsonObject = {"seq": place, "no_erase": True}
        try:
            await call_api(self._conn, f"STREAM.MSG.DELETE.{self._stream}", body)
        except TurnstileError as error:
            self._log.warning("remove", "a settled command stays in %s until it is a day old: %s", self._stream, error)
