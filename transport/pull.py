"""A continuous pull from a durable consumer, which survives failures of its server.

One request for `batch` messages is outstanding at any time. All messages that have arrived are handed over at once as
one batch; those that arrive meanwhile form the next. So a single message waits for no timer, and many share a batch.
A broken consumer, a missing stream, silence or a reconnect ends the request; stream and consumer are then declared and
the request is sent again, after 0.05 to 1 s. At most two batches are held; with `free_slots`, no more messages than the
handler can start now, so that the others wait in the consumer, where any replica can take them. The handler
acknowledges. A batch whose handler raises stays unacknowledged and is delivered again after the consumer's ack_wait.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from nats.aio.msg import Msg

from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.json_messages import encode
from turnstile.transport.limited_log import LimitedLog

_SECOND = 1_000_000_000
_EXPIRES_SECONDS = 5
_HEARTBEAT_SECONDS = 1
_SILENCE_SECONDS = 2.25
_BACKOFF_SECONDS = (0.05, 1.0)
_ACK_PREFIX = "$JS.ACK."

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Request:
    """The outstanding request of one inbox and the messages it has brought."""

    arrived: list[Msg]
    ready: asyncio.Event
    changed: asyncio.Event
    left: int = 0
    broken: str = ""
    healthy: bool = False
    last_message_at: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    async def on_message(self, msg: Msg) -> None:
        """Take a message, or a status of the server, which has no acknowledgement subject."""
        self.last_message_at = asyncio.get_running_loop().time()
        if msg.reply.startswith(_ACK_PREFIX):
            self.healthy = True
            self.left = max(0, self.left - 1)
            self.arrived.append(msg)
            self.ready.set()
        else:
            self._on_status(msg.headers or {})
        if self.left == 0 or self.broken:
            self.changed.set()

    def _on_status(self, headers: dict[str, str]) -> None:
        match headers.get("Status", "none"):
            case "100":  # heartbeat
                self.healthy = True
            case "404" | "408":  # no messages, or the request expired: send another
                self.healthy = True
                self.left = 0
            case status:
                self.broken = f"{status} {headers.get('Description', '')}".strip()


def _request_body(batch: int) -> bytes:
    return encode(
        {"batch": batch, "expires": _EXPIRES_SECONDS * _SECOND, "idle_heartbeat": _HEARTBEAT_SECONDS * _SECOND}
    )


class ContinuousPull:
    """Pulls one consumer's messages in batches. `ensure` declares its stream and consumer, idempotently.

    `free_slots` returns how many messages the handler can start now. If it returned 0, call `wake` when that changes.
    """

    def __init__(
        self,
        conn: NatsConnection,
        stream: str,
        consumer: str,
        ensure: Callable[[], Awaitable[None]],
        *,
        batch: int = 256,
        free_slots: Callable[[], int] | None = None,
    ) -> None:
        self.rebuilds = 0
        self.delivered = 0
        self._conn = conn
        self._consumer = consumer
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._ensure = ensure
        self._batch = batch
        self._free_slots = free_slots
        self._arrived: list[Msg] = []
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = False
        self._log = LimitedLog(logger)

    async def run(self, handle: Callable[[list[Msg]], Awaitable[None]], stop: asyncio.Event) -> None:
        """Hand over batches until `stop` is set and the last one is handled.

        Raises `ServerUnavailable` once the connection is closed for good. Call it once, and do not cancel it: after a
        cancelled nats-py call the connection may receive nothing more.
        """
        self._stopping = False
        feeder = asyncio.create_task(self._feed())
        watcher = asyncio.create_task(self._end_on(stop))
        feeder.add_done_callback(lambda _: self._ready.set())
        unlisten = self._conn.listen(self._changed.set)
        try:
            while batch := await self._next_batch(feeder):
                await self._hand_over(handle, batch)
        finally:
            watcher.cancel()
            self._end()
            unlisten()
            await asyncio.wait({feeder})
        await feeder

    def wake(self) -> None:
        """Call `free_slots` again: it may return more than 0 now."""
        self._changed.set()

    async def _end_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._end()

    def _end(self) -> None:
        self._stopping = True
        self._changed.set()

    async def _next_batch(self, feeder: asyncio.Task[None]) -> list[Msg]:
        """Wait for the next batch; returns an empty one once the feeder has ended and all messages are handed over."""
        while not self._arrived:
            if feeder.done():
                return []
            self._ready.clear()
            await self._ready.wait()
        batch = self._arrived[: self._batch]
        del self._arrived[: self._batch]
        self._changed.set()
        return batch

    async def _hand_over(self, handle: Callable[[list[Msg]], Awaitable[None]], batch: list[Msg]) -> None:
        self.delivered += len(batch)
        try:
            await handle(batch)
        except Exception:  # no batch may end the loop; unacknowledged messages are delivered again
            logger.exception("a batch of %d messages of %s failed", len(batch), self._consumer)

    async def _feed(self) -> None:
        backoff, longest = _BACKOFF_SECONDS
        await self._pause(0)
        while not self._stopping:
            try:
                await self._ensure()
                request = await self._pull()
                healthy, why = request.healthy, request.broken
            except (*NATS_TROUBLE, TurnstileError) as error:
                healthy, why = False, str(error)
            if self._conn.closed.is_set():
                raise ServerUnavailable(f"the connection to NATS at {self._conn.shown} is closed")
            if self._stopping:
                return
            self.rebuilds += 1
            self._log.warning("rebuild", "pulling from %s again: %s", self._consumer, why)
            backoff = _BACKOFF_SECONDS[0] if healthy else min(backoff * 2, longest)
            await self._pause(backoff)

    async def _pull(self) -> _Request:
        """Keep one request outstanding until it breaks; returns it, and `broken` says why."""
        request = _Request(self._arrived, self._ready, self._changed)
        subscription = await self._conn.subscribe(self._conn.nc.new_inbox(), request.on_message)
        reconnects = self._conn.reconnects
        try:
            while not request.broken and not self._stopping:
                self._changed.clear()
                if self._conn.reconnects != reconnects or self._conn.closed.is_set():
                    request.broken = "reconnected"
                elif request.left == 0 and (count := self._wanted()) > 0:
                    request.left = count
                    request.last_message_at = asyncio.get_running_loop().time()
                    await self._conn.send(self._subject, _request_body(count), reply=subscription.subject)
                else:
                    await self._watch(request)
        finally:
            if self._stopping and not request.broken:
                await self._conn.drain_subscription(subscription)
            else:
                await self._conn.unsubscribe(subscription)
        return request

    def _wanted(self) -> int:
        """How many messages to request now."""
        if len(self._arrived) >= self._batch:
            return 0
        return self._batch if self._free_slots is None else min(self._batch, self._free_slots() - len(self._arrived))

    async def _watch(self, request: _Request) -> None:
        """Wait until there is something to do; marks the request broken if the server has been silent too long."""
        silence = request.last_message_at + _SILENCE_SECONDS - asyncio.get_running_loop().time()
        if not request.left or not self._conn.connected.is_set():
            await self._changed.wait()  # the handler takes a batch, or the connection changes
        elif silence <= 0:
            request.broken = "silence"
        else:
            await self._sleep(silence)

    async def _pause(self, seconds: float) -> None:
        """Back off, then wait until connected; ends at once when stopping or closed."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not self._stopping and not self._conn.closed.is_set():
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left > 0:
                await self._sleep(left)
            elif self._conn.connected.is_set():
                return
            else:
                await self._changed.wait()

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
