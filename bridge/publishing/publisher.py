"""Publishes the messages of committed transitions: `turnstile.runtime.ports.Publisher` on JetStream (protocol §5, §6).

A required message is sent again until it is acknowledged or ten seconds have passed; it keeps its message id, so the
stream stores it once. If the server says that no stream takes a message, the publisher declares the streams and sends
the message again. A best-effort message is sent once, without waiting for an acknowledgement. The first sending keeps
the order of a call's messages. A message that would make the server close the connection is never sent. A call with a
required message costs one round trip, any other none.
"""

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from nats.errors import BadHeaderError, BadSubjectError
from nats.js.errors import NoStreamResponseError

from turnstile.schema.amounts import amount
from turnstile.schema.errors import BadRequest, ServerUnavailable, TurnstileError
from turnstile.schema.wire.events import Message
from turnstile.schema.wire.headers import MSG_ID
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection, words_of
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.streams import declare_streams

_ACK_SECONDS = 2.0
_GIVE_UP_SECONDS = 10.0
_PAUSE_SECONDS = (0.1, 1.0)
_DECLARE_AGAIN_SECONDS = 5.0
_NAMES = 2048
"""More bytes than the names of a message's headers; a character of a value has four at most."""

logger = logging.getLogger(__name__)


class _Fate(Enum):
    DONE = auto()
    """Stored, or a best-effort message that was sent."""
    UNKNOWN = auto()
    """Not acknowledged: the stream may or may not have stored it."""
    REFUSED = auto()
    """Not stored, and sending it again cannot help."""
    NO_STREAM = auto()
    """Not stored: no stream takes it."""


@dataclass(frozen=True, slots=True)
class _Sent:
    fate: _Fate
    why: str = ""
    """Why it is not stored, in the server's words if it gave any."""


_DONE, _REFUSED = _Sent(_Fate.DONE), _Sent(_Fate.REFUSED)
_NO_STREAM = _Sent(_Fate.NO_STREAM, "no stream takes it")


@dataclass(slots=True)
class PublisherCounts:
    """Messages by outcome since the publisher was created."""

    stored: int = 0
    duplicates: int = 0
    retried: int = 0
    unconfirmed: int = 0
    """Best-effort messages that were sent or wait in the send buffer of a lost connection."""
    lost: int = 0
    emitted: int = 0


class NatsPublisher:
    """A publisher on one connection.

    `give_up_seconds` is how long a required message is sent again; with 0 it is sent once, if there is a connection.
    """

    def __init__(self, conn: NatsConnection, *, give_up_seconds: float = _GIVE_UP_SECONDS) -> None:
        self.counts = PublisherCounts()
        self._conn = conn
        self._give_up = give_up_seconds
        self._log = LimitedLog(logger)
        self._declaring: asyncio.Task[bool] | None = None
        self._declare_after = 0.0

    async def publish(self, messages: Sequence[Message]) -> None:
        """Send in order and wait for the acknowledgements.

        Raises `BadRequest` if a required message is too large or malformed, `ServerUnavailable` if one was not
        acknowledged in time; everything else has been sent by then. The loss of others is logged.
        """
        deadline = asyncio.get_running_loop().time() + self._give_up
        sending = [_with_id(message) if message.required else message for message in messages]
        too_large = [message for message in sending if not self._fits(message)]
        fitting = [message for message in sending if message not in too_large] if too_large else sending
        missing = await self._send_all(fitting)
        pause, longest = _PAUSE_SECONDS
        while missing and asyncio.get_running_loop().time() < deadline:
            await self._until_connected(pause, deadline)
            pause = min(pause * 2, longest)
            self.counts.retried += len(missing)
            missing = await self._send_all([message for message, _ in missing])
        if missing:
            self.counts.lost += len(missing)
            message, why = missing[0]
            tried = f" in {amount(self._give_up)} s" if self._give_up else ""
            failure = f"acknowledged no message on {message.subject}{tried}: {why}"
            raise ServerUnavailable(f"NATS at {self._conn.shown} {failure}")
        for message in too_large:
            self._lose(message, "too large")
            if message.required:
                raise BadRequest(f"a message on {message.subject} has {_size(message)} bytes, too many for NATS")

    async def emit(self, message: Message) -> None:
        """Send on core NATS without waiting; while disconnected the message is dropped and counted as lost."""
        if not self._conn.connected.is_set() or not self._fits(message):
            self._lose(message, "not connected, or too large")
            return
        try:
            await self._conn.send(message.subject, message.payload, headers=message.headers)
        except NATS_TROUBLE as error:
            self._lose(message, error)
        else:
            self.counts.emitted += 1

    async def _send_all(self, messages: list[Message]) -> list[tuple[Message, str]]:
        """Send in order; returns the required messages that were not acknowledged, each with the reason."""
        sent = await self._send_each(messages)
        unstored = [number for number, fate in enumerate(sent) if fate.fate is _Fate.NO_STREAM]
        if unstored and await self._declared():
            again = await self._send_each([messages[number] for number in unstored])
            for number, outcome in zip(unstored, again, strict=True):
                sent[number] = outcome
        outcomes = zip(messages, sent, strict=True)
        return [(m, outcome.why) for m, outcome in outcomes if m.required and outcome.fate is not _Fate.DONE]

    async def _send_each(self, messages: list[Message]) -> list[_Sent]:
        if any(message.required for message in messages[:-1]):  # several may wait for acknowledgements, together
            return list(await asyncio.gather(*map(self._send, messages)))
        return [await self._send(message) for message in messages]

    async def _send(self, message: Message) -> _Sent:
        try:
            return await (self._store(message) if message.required else self._pass_on(message))
        except (BadSubjectError, BadHeaderError) as error:
            if message.required:
                raise BadRequest(f"a message on {message.subject[:120]!r} cannot be sent: {error}") from None
            self._lose(message, error)
            return _REFUSED
        except NoStreamResponseError:
            return _NO_STREAM
        except NATS_TROUBLE as error:
            if not message.required:
                self._lose(message, error)
            return _Sent(_Fate.UNKNOWN, words_of(error))

    async def _pass_on(self, message: Message) -> _Sent:
        """Send without waiting; while disconnected the message waits in the send buffer for the reconnect."""
        await self._conn.send(message.subject, message.payload, headers=message.headers)
        self.counts.unconfirmed += 1
        return _DONE

    async def _store(self, message: Message) -> _Sent:
        if not self._conn.connected.is_set():  # an acknowledgement would take its full timeout now
            if self._give_up:
                await self._conn.send(message.subject, message.payload, headers=message.headers)
            return _Sent(_Fate.UNKNOWN, "not connected")
        ack = await self._conn.store(message.subject, message.payload, headers=message.headers, timeout=_ACK_SECONDS)
        self.counts.stored += 1
        self.counts.duplicates += bool(ack.duplicate)
        return _DONE

    async def _declared(self) -> bool:
        """Declare the streams, once for all concurrent callers; False if that fails, or failed a moment ago."""
        if self._declaring is None or self._declaring.done():
            if asyncio.get_running_loop().time() < self._declare_after:
                return False
            self._declaring = asyncio.create_task(self._declare())
        task = self._declaring
        await asyncio.wait({task}, timeout=_ACK_SECONDS)
        return task.done() and task.result()

    async def _declare(self) -> bool:
        try:
            await declare_streams(self._conn)
        except TurnstileError as error:  # this NATS user may lack the permission that bridges have
            self._declare_after = asyncio.get_running_loop().time() + _DECLARE_AGAIN_SECONDS
            self._log.warning("declare", "the streams are gone, and cannot be declared here: %s", error)
            return False
        self._log.warning("declared", "a stream was gone: the streams are declared again")
        return True

    async def _until_connected(self, pause: float, deadline: float) -> None:
        """Wait `pause` seconds, then for a connection, so that repeats do not fill its send buffer."""
        await asyncio.sleep(pause)
        try:
            async with asyncio.timeout_at(deadline):
                await self._conn.connected.wait()
        except TimeoutError:
            return

    def _fits(self, message: Message) -> bool:
        limit = self._conn.size_limit
        most = len(message.payload) + _NAMES + 4 * sum(map(len, message.headers.values()))
        return most <= limit or _size(message) <= limit

    def _lose(self, message: Message, why: object) -> None:
        self.counts.lost += 1
        self._log.warning("lost", "a message on %s was lost: %s", message.subject, why)


def _with_id(message: Message) -> Message:
    """The message with a message id, so that the stream stores it once however often it is sent."""
    if MSG_ID in message.headers:
        return message
    return replace(message, headers={**message.headers, MSG_ID: uuid.uuid4().hex})


def _size(message: Message) -> int:
    names = sum(len(name) + len(value.encode()) + 4 for name, value in message.headers.items())
    return len(message.payload) + names
