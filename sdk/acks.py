"""Hearing what becomes of a UI action: its acks as they come (protocol §7.10)."""

import asyncio
from collections.abc import Mapping

from pydantic import ValidationError

from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.states import ActionStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.ui_actions import ActionAck
from turnstile.transport.connection import NatsConnection


class ActionWaiter:
    """Collects the acks of one action from the moment it was made."""

    def __init__(self, conn: NatsConnection, action_id: str) -> None:
        self.action_id = action_id
        self._conn = conn
        self._turn: str | None = None
        self._heard: list[ActionAck] = []
        self._changed = asyncio.Event()

    async def next(self, after: int = 0) -> ActionAck:
        """The ack that follows so many; raises `ServerUnavailable` once the connection is closed."""
        forget = self._conn.listen(self._changed.set)
        try:
            while len(self._heard) <= after:
                if self._conn.closed.is_set():
                    raise ServerUnavailable(f"the connection to NATS at {self._conn.shown} is closed")
                self._changed.clear()
                await self._changed.wait()
        finally:
            forget()
        return self._heard[after]

    async def last(self, timeout: float) -> ActionAck:
        """The ack after which none follows: `busy`, `rejected` or `done`; raises `TimeoutError` after `timeout` s."""
        heard = 0
        async with asyncio.timeout(timeout):
            while (ack := await self.next(heard)).status is ActionStatus.ACCEPTED:
                heard += 1
        return ack

    def take(self, payload: JsonObject, told: Mapping[str, str]) -> None:
        """Used by `BridgeClient`: an ack of some action, and its headers.

        Once there is a turn, only acks of that turn count: others answer somebody who uses the same id for another.
        """
        try:
            ack = ActionAck.model_validate(payload)
        except ValidationError:  # not an ack: whoever waits runs into its timeout
            return
        if ack.action_id != self.action_id or self._turn not in (None, told.get(headers.TURN_ID)):
            return
        self._turn = told.get(headers.TURN_ID)
        self._heard.append(ack)
        self._changed.set()
