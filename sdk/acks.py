"""Waiting for the acks of a UI action (protocol §7.10)."""

import asyncio
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.states import ActionStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.ui_actions import ActionAck
from turnstile.transport.connection import NatsConnection


async def until_arrived(conn: NatsConnection, changed: asyncio.Event, arrived: Callable[[], bool]) -> None:
    """Wait until `arrived`, asked again whenever `changed` is set; raises `ServerUnavailable` once `conn` is closed."""
    forget = conn.listen(changed.set)
    try:
        while not arrived():
            if conn.closed.is_set():
                raise ServerUnavailable(f"the connection to NATS at {conn.shown} is closed")
            changed.clear()
            await changed.wait()
    finally:
        forget()


class ActionWaiter:
    """Collects the acks of one action from the moment it was made."""

    def __init__(self, conn: NatsConnection, action_id: str) -> None:
        self.action_id = action_id
        self._conn = conn
        self._turn: str | None = None
        self._acks: list[ActionAck] = []
        self._changed = asyncio.Event()

    async def next(self, after: int = 0) -> ActionAck:
        """Wait for the ack number `after`, from 0; raises `ServerUnavailable` once the connection is closed."""
        await until_arrived(self._conn, self._changed, lambda: len(self._acks) > after)
        return self._acks[after]

    async def last(self, timeout: float) -> ActionAck:
        """Wait for the final ack: `busy`, `rejected` or `done`; raises `TimeoutError` after `timeout` seconds."""
        received = 0
        async with asyncio.timeout(timeout):
            while (ack := await self.next(received)).status is ActionStatus.ACCEPTED:
                received += 1
        return ack

    def take(self, payload: JsonObject, ack_headers: Mapping[str, str]) -> None:
        """Used by `BridgeClient`: take an ack and its headers; acks of other actions are ignored.

        Once an ack has named a turn, acks of other turns are ignored, too: they belong to a caller that used the same
        `action_id` for an action of its own.
        """
        try:
            ack = ActionAck.model_validate(payload)
        except ValidationError:  # not an ack; ignored, so a waiter times out
            return
        if ack.action_id != self.action_id or self._turn not in (None, ack_headers.get(headers.TURN_ID)):
            return
        self._turn = ack_headers.get(headers.TURN_ID)
        self._acks.append(ack)
        self._changed.set()
