"""Signals between processes of one kind, on one subject of core NATS: `turnstile.runtime.ports.Signals`.

Nothing is kept: who is not connected misses them, and hears that it did once it is connected again. Without NATS a
signal is lost, and no caller waits or fails for that.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from turnstile.transport.connection import NATS_TROUBLE, NatsConnection


@dataclass(slots=True)
class SubjectSignals:
    """The signals of one subject."""

    conn: NatsConnection
    subject: str
    _subscribing: asyncio.Task[None] | None = field(default=None)

    async def send(self, payload: bytes) -> None:
        """Publish; lost while disconnected."""
        try:
            await self.conn.send(self.subject, payload)
        except NATS_TROUBLE:
            return

    async def hear(self, take: Callable[[bytes], None], missed: Callable[[], None]) -> None:
        """Subscribe, at once if NATS is there, else as soon as it is."""

        async def on_message(_: str, payload: bytes) -> None:
            take(payload)

        async def subscribe() -> None:
            await self.conn.opened()
            await self.conn.hear(self.subject, on_message)
            self.conn.listen(lambda: missed() if self.conn.connected.is_set() else None)

        if self.conn.connected.is_set():
            await subscribe()
            return

        async def subscribe_later() -> None:
            await subscribe()
            missed()

        self._subscribing = asyncio.create_task(subscribe_later(), name=f"subscribe to {self.subject}")
        self._subscribing.add_done_callback(_ignore)


def _ignore(subscribing: asyncio.Task[None]) -> None:
    if not subscribing.cancelled():
        subscribing.exception()  # a refused login, of which the connection's own task says so
