"""One connection to NATS that works around the pitfalls of nats-py (docs: architecture, "NATS").

It waits for a server that is down at start, logs which one, and can do so in the background; once connected it
reconnects for ever. An oversized message or revoked rights end it for good and set `closed`: its user must then build a
new connection or exit. Nothing here raises inside a callback, because that kills nats-py's read loop; no flush is ever
cancelled, because its late PONG does the same. `drain` and `close` are bounded and do not raise. Cost: one socket and
three tasks of nats-py.
"""

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlparse

import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import PubAck
from nats.js.client import JetStreamContext
from nats.js.errors import APIError
from pydantic import ValidationError

from turnstile.runtime.waiting import LOG_SECONDS
from turnstile.schema.errors import ConfigError, ServerUnavailable
from turnstile.schema.validation import describe_faults
from turnstile.transport.address import NatsAddress, parse_address
from turnstile.transport.limited_log import LimitedLog
from turnstile.transport.local_servers import DEFAULT_NATS, find_nats

NATS_TROUBLE: Final = (nats.errors.Error, OSError, TimeoutError)
"""What a call on a connection raises when the server or the way to it is at fault."""

_HEADROOM = 4096  # headers and protocol line: payload + headers over max_payload closes the connection for good
_FIRST_WAIT_SECONDS = 1.0
_DRAIN_SECONDS = 5
_CLOSE_SECONDS = 2.0

logger = logging.getLogger(__name__)


def words_of(error: Exception) -> str:
    """A message for an error of NATS: the server's own description where there is one."""
    match error:
        case APIError(description=str(reason), err_code=code):
            return f"{reason} (JetStream error {code})"
        case TimeoutError():
            return "no answer in time"
        case ValidationError():
            return f"its answer cannot be read: {describe_faults(error, most=1)}"
        case _:
            return str(error) or type(error).__name__


class _Client(Client):
    """nats-py's client with two changes.

    It refuses to connect to a `tls://` server that offers no TLS; nats-py would continue unencrypted. It calls
    `locate`, if set, before each attempt to connect, for the server's present address.
    """

    locate: Callable[[], str | None] | None = None

    async def _connect_to_server(self, s: Srv) -> None:
        if self.locate is not None and (url := self.locate()) is not None:
            s.uri = urlparse(url)
        await super()._connect_to_server(s)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise nats.errors.Error("the server offers no TLS, and its address is tls://")
        await super()._process_info(info, initial_connection)


@dataclass(frozen=True, slots=True)
class StreamStorage:
    """How a stream that is declared is stored."""

    replicas: int = 1
    """Servers of the cluster that each have it: 1, 3 or 5."""
    kind: Literal["file", "memory"] = "file"
    commands_bytes: int = 0
    """Of each stream of commands, as far as it is not larger already; 0: as the stream is."""
    events_bytes: int = 0
    """The same of the events' stream."""


class PublishRefused(nats.errors.Error):
    """NATS does not let this user publish to the subject of a request."""


class NatsConnection:
    """A client, its JetStream context, and the state of the connection. Made by `connect` or `start_connecting`.

    Until it has connected, each call raises one of `NATS_TROUBLE`.
    """

    def __init__(self, shown: str) -> None:
        self.nc = _Client()
        self.js: JetStreamContext = self.nc.jetstream()  # pyright: ignore[reportUnknownMemberType]  # bare **opts
        self.shown = shown
        self.storage = StreamStorage()
        """How the streams that are declared over it are stored."""
        self.connected = asyncio.Event()
        self.closed = asyncio.Event()
        """Set when the connection is gone for good: build a new one or exit."""
        self.reconnects = 0
        self.violations: deque[str] = deque(maxlen=16)
        self.last_error = "no answer yet"
        self._refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opening: asyncio.Task[None] | None = None
        self._opened = False
        self._listeners: set[Callable[[], None]] = set()
        self._tasks: set[asyncio.Task[bool]] = set()
        self._requests: dict[str, set[asyncio.Timeout]] = {}
        """By subject in lower case, as the server's refusals name it: what ends the requests that wait there."""
        self._begun = False
        self._closing = False
        self._log = LimitedLog(logger)
        self._asking = False

    @property
    def max_payload(self) -> int:
        """Bytes of headers and payload that the server takes in one message."""
        return self.nc.max_payload

    @property
    def size_limit(self) -> int:
        """Bytes of payload that a message may have; more could close the connection."""
        return self.nc.max_payload - _HEADROOM

    @property
    def messages_out(self) -> int:
        """Messages sent since the start, requests and acknowledgements included."""
        return self.nc.stats["out_msgs"]

    @property
    def messages_in(self) -> int:
        """Messages received since the start."""
        return self.nc.stats["in_msgs"]

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after every connect, disconnect and close; returns a function that ends that."""
        self._listeners.add(changed)
        return lambda: self._listeners.discard(changed)

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Subscribe on core NATS; `callback` gets one message after the other."""
        self._must_have_opened()
        return await self.nc.subscribe(  # pyright: ignore[reportUnknownMemberType]  # its `future` is a bare Future
            subject, queue=queue, cb=callback
        )

    async def hear(self, subject: str, take: Callable[[str, bytes], Awaitable[None]]) -> Subscription:
        """Subscribe on core NATS; `take` gets subject and payload of one message after the other."""

        async def on_message(msg: Msg) -> None:
            await take(msg.subject, msg.data)

        return await self.subscribe(subject, on_message)

    async def send(
        self, subject: str, payload: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish on core NATS; returns when the message is in the connection's buffer."""
        self._must_have_opened()
        await self.nc.publish(subject, payload, reply=reply, headers=headers or None)

    async def request(
        self, subject: str, payload: bytes, *, timeout: float, headers: dict[str, str] | None = None
    ) -> Msg:
        """Publish a request and return its first reply; raises one of `NATS_TROUBLE` after `timeout` seconds.

        That is `PublishRefused`, at once, if this user may not publish to the subject, and `ConnectionClosedError` as
        soon as this connection is closed.
        """
        self._must_have_opened()
        waiting = self._requests.setdefault(subject.lower(), set())
        refused = asyncio.timeout(None)
        try:
            async with refused:
                waiting.add(refused)
                return await self.nc.request(subject, payload, timeout=timeout, headers=headers or None)
        except TimeoutError:
            if not refused.expired():
                raise
            if self._closing:
                raise nats.errors.ConnectionClosedError from None
            raise PublishRefused(f"NATS at {self.shown} does not let this user publish to {subject}") from None
        finally:
            waiting.discard(refused)
            if not waiting:
                self._requests.pop(subject.lower(), None)

    async def store(
        self, subject: str, payload: bytes, *, headers: dict[str, str] | None = None, timeout: float = 2.0
    ) -> PubAck:
        """Publish into a stream and wait for its acknowledgement; one that says `duplicate` is success, too."""
        self._must_have_opened()
        return await self.js.publish(subject, payload, timeout=timeout, headers=headers or None)

    async def verify(self, timeout: float = 10.0, *, about: str = "") -> None:
        """One round trip; raises `ConfigError` if the server has refused a subject, `ServerUnavailable` on no answer.

        `about` (`subscription` or `publish`) limits that to refusals whose text contains it. Call it at the end of a
        start: a refused subject shows nowhere else, and its subscriber would wait for ever.
        """
        if not await self._wait_uncancelled(self.nc.flush(timeout=3600), timeout):
            raise ServerUnavailable(f"NATS at {self.shown} does not answer")
        if refused := [violation for violation in self.violations if about in violation.lower()]:
            raise ConfigError(f"NATS at {self.shown} refuses this user a subject: {refused[0]}")

    async def may_publish(self, subject: str) -> bool:
        """Whether this user may publish to `subject`; finds out by publishing an empty message without a reply subject.

        Clears `violations`, so use a connection that serves nothing else. Raises `ServerUnavailable` on no answer.
        """
        self.violations.clear()
        self._asking = True
        try:
            await self.send(subject, b"")
            await self.verify()
        except ConfigError:
            return False
        finally:
            self._asking = False
            self.violations.clear()
        return True

    async def drain_subscription(self, subscription: Subscription) -> None:
        """End a subscription once the messages already sent to it have been handled; bounded, never raises."""
        if self.nc.is_closed:
            return
        if not self.connected.is_set():
            await self.unsubscribe(subscription)
            return
        await self._wait_uncancelled(subscription.drain(), 2.0)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription at once; never raises."""
        with contextlib.suppress(*NATS_TROUBLE):  # closed, draining or ended already: there is nothing to end
            await subscription.unsubscribe()

    async def drain(self) -> None:
        """Send what is buffered, handle what has arrived, and close; takes at most about 9 seconds, never raises."""
        if self.connected.is_set() and not self.nc.is_closed:
            await self._wait_uncancelled(self.nc.drain(), _DRAIN_SECONDS + 2.0)
        await self.close()

    async def close(self) -> None:
        """Close without draining; takes at most about 2 seconds, never raises."""
        self._closing = True
        _expire(itertools.chain.from_iterable(self._requests.values()))
        while self._opening is not None and not self._opening.done():
            self._opening.cancel()  # Python 3.11's wait_for inside nats-py can swallow a cancellation
            await asyncio.wait({self._opening}, timeout=0.5)
        if self._begun:  # before that, nats-py has nothing to close and asserts
            await self._wait_uncancelled(self.nc.close(), _CLOSE_SECONDS)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)
        await self._on_closed()

    async def _wait_uncancelled(self, work: Coroutine[Any, Any, None], timeout: float) -> bool:
        """Wait for `work` without cancelling it: a cancelled flush kills the read loop. True if it succeeded."""
        task = asyncio.create_task(self._log_trouble(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        finished, _ = await asyncio.wait({task}, timeout=timeout)
        return bool(finished) and task.result()

    async def _log_trouble(self, work: Coroutine[Any, Any, None]) -> bool:
        try:
            await work
        except NATS_TROUBLE as error:  # reconnecting, reset or closed in the middle of a flush, drain or close
            self._log.warning("ending", "NATS: %s", error)
            return False
        return True

    def start(self, address: NatsAddress, name: str, inbox_prefix: str, on_wait: Callable[[str], None]) -> None:
        """Used by `start_connecting`: start a task that tries until connected."""
        self._opening = asyncio.create_task(self._open(address, name, inbox_prefix, on_wait), name="connect to NATS")
        self._opening.add_done_callback(_ignore_error)

    async def opened(self) -> None:
        """Returns once it has connected for the first time; raises `ConfigError` if the server refuses the login."""
        assert self._opening is not None  # noqa: S101 -- `start_connecting` has called `start`
        await asyncio.shield(self._opening)

    def _must_have_opened(self) -> None:
        if not self._opened:
            raise nats.errors.NoServersError

    async def _open(self, address: NatsAddress, name: str, inbox_prefix: str, on_wait: Callable[[str], None]) -> None:
        """Connect, however long that takes; `on_wait` gets a line now and then."""
        began = asyncio.get_running_loop().time()
        attempt = asyncio.create_task(self._attempt(address, name, inbox_prefix))
        announced = False
        try:
            while not attempt.done() and not self._refused.done():
                timeout = LOG_SECONDS if announced else _FIRST_WAIT_SECONDS
                waited = {attempt, self._refused}
                if not (await asyncio.wait(waited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED))[0]:
                    on_wait(f"waiting for NATS at {self.shown}: {self.last_error}")
                    announced = True
            if not attempt.done():
                raise ConfigError(f"NATS at {self.shown} refuses the login; check user and password in nats.servers")
            await attempt
        finally:
            while not attempt.done():  # as in `close`
                attempt.cancel()
                await asyncio.wait({attempt}, timeout=0.5)
        if announced:
            logger.info("NATS at %s answers, after %.0f s", self.shown, asyncio.get_running_loop().time() - began)

    async def _attempt(self, address: NatsAddress, name: str, inbox_prefix: str) -> None:
        options: dict[str, Any] = {  # nats-py declares some of these as int, and takes float
            "servers": address.servers,
            "name": name,
            "inbox_prefix": inbox_prefix,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.2,
            "connect_timeout": 2,
            "ping_interval": 5,
            "max_outstanding_pings": 1,
            "drain_timeout": _DRAIN_SECONDS,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
            **address.login,
        }
        if address.tls is not None:
            options["tls"] = address.tls
        self._begun = True
        await self.nc.connect(**options)
        self._opened = True
        self.connected.set()
        self._notify()

    def locate(self) -> str | None:
        """Used by `connect`: where a `turnstile up` announces the server now; None if it does not."""
        server = find_nats()
        if server is not None and (shown := parse_address(server).shown) != self.shown:
            logger.warning("NATS has moved from %s to %s", self.shown, shown)
            self.shown = shown
        return server

    async def _on_error(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if isinstance(error, BrokenPipeError | ConnectionResetError):  # its reason may be lost with the connection
            text = f"the server closes the connection; its log says why, such as maximum connections exceeded ({text})"
        self.last_error = text
        lowered = text.lower()
        if "permissions violation" in lowered:
            self.violations.append(text)
            if not self._end_requests(lowered) and not self._asking:
                self._log.warning("permissions", "NATS at %s: %s", self.shown, text)
        elif "authorization violation" in lowered or "authentication" in lowered:
            if not self._refused.done():
                self._refused.set_result(None)
            self._log.warning("login", "NATS at %s refuses the login: %s", self.shown, text)
        elif self.connected.is_set():
            self._log.warning(type(error).__name__, "NATS at %s: %s", self.shown, text)

    def _end_requests(self, violation: str) -> bool:
        """End the requests whose subject the server has refused; whether there are any."""
        _, _, rest = violation.partition('publish to "')
        requests = self._requests.get(rest.partition('"')[0], set())
        _expire(requests)
        return bool(requests)

    async def _on_disconnected(self) -> None:
        if self.connected.is_set():
            self.connected.clear()
            self._notify()

    async def _on_reconnected(self) -> None:
        self.reconnects += 1
        self.connected.set()
        logger.info("NATS at %s: connected again", self.shown)
        self._notify()

    async def _on_closed(self) -> None:
        self.connected.clear()
        if not self.closed.is_set():
            self.closed.set()
            self._notify()

    def _notify(self) -> None:
        for changed in tuple(self._listeners):
            changed()


def _expire(requests: Iterable[asyncio.Timeout]) -> None:
    for waiting in requests:
        if not waiting.expired():
            waiting.reschedule(0.0)


def _ignore_error(opening: asyncio.Task[None]) -> None:
    """Keep asyncio from logging the task's error: `opened` raises it to whoever awaits it."""
    if not opening.cancelled():
        opening.exception()


def start_connecting(
    url: str | None, *, name: str, inbox_prefix: str | None = None, on_wait: Callable[[str], None] | None = None
) -> NatsConnection:
    """Connect in the background, however long that takes; `opened` returns when it has.

    Otherwise as `connect`.
    """
    address = parse_address(url or find_nats() or DEFAULT_NATS)
    conn = NatsConnection(address.shown)
    if url is None:
        conn.nc.locate = conn.locate
    conn.start(address, name, inbox_prefix or address.inbox_prefix, on_wait or logger.warning)
    return conn


async def connect(
    url: str | None = None, *, name: str, inbox_prefix: str | None = None, on_wait: Callable[[str], None] | None = None
) -> NatsConnection:
    """Connect, waiting without limit for a server that is down.

    `url` is an address as `turnstile.transport.address` reads it: logins, files, several servers separated by commas.
    Without one it is the address that a `turnstile up` in this directory or above announces, looked up again at every
    reconnect, else port 4222 of this machine. Replies arrive at inboxes under `inbox_prefix`, else under the address's.
    While it waits, `on_wait` (by default the log) gets a line now and then that names the server, never the password.
    Raises `ConfigError` if the server refuses the login or the URL makes no sense.
    """
    conn = start_connecting(url, name=name, inbox_prefix=inbox_prefix, on_wait=on_wait)
    try:
        await conn.opened()
    except BaseException:
        await conn.close()
        raise
    return conn
