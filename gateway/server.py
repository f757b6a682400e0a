"""The HTTP server of a gateway: uvicorn, with the times that it lacks.

A request must be there whole within `request_seconds`, from the begin of a connection or the first byte after an
answer: whoever sends it a byte at a time is cut. Of an upload that was let in, each part must come within that time.
Heads are bounded. Connections beyond the limit are answered that there are too many, and closed at once beyond a
reserve. A peer that is gone without a word is given up by the system.
It takes no signals and changes no logging: the process that runs it does both.
"""

import asyncio
import contextlib
import logging
import re
import socket
import struct
from collections.abc import Generator

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnstile.gateway.bounds import GatewayLimits
from turnstile.gateway.http.endpoints import PATIENT
from turnstile.gateway.http.problems import headers_of, problem_of
from turnstile.runtime.program import GRACE_SECONDS
from turnstile.schema.errors import BadRequest, ConfigError

_HEAD_BYTES = 32 * 1024
_FIELD_BYTES = 16 * 1024
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_BACKLOG = 2048
_SEND_BYTES = 128 * 1024
_RESERVE = 100
_GONE_SECONDS = 60
_GIVEN_UP = [
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_USER_TIMEOUT", _GONE_SECONDS * 1000),
        ("TCP_KEEPIDLE", _GONE_SECONDS // 2),
        ("TCP_KEEPINTVL", _GONE_SECONDS // 6),
        ("TCP_KEEPCNT", 3),
    )
    if hasattr(socket, name)
]
"""After how long the system gives up a peer that acknowledges nothing, where it lets that be said."""


class Connections:
    """The open connections by their client's address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[object, asyncio.Transport] = {}

    def __len__(self) -> int:
        """Open connections."""
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether there are more than there may be."""
        return len(self._open) > self._most

    def add(self, client: object, transport: asyncio.Transport) -> None:
        """One was made; closed at once if there are far too many."""
        self._open[client] = transport
        if len(self._open) > self._most + _RESERVE:
            transport.abort()

    def remove(self, client: object) -> None:
        """It is gone."""
        self._open.pop(client, None)

    def abort(self, client: object) -> None:
        """Close one at once; what it has not taken is dropped, also by the system, which would offer it for minutes."""
        if (transport := self._open.get(client)) is not None:
            held: socket.socket | None = transport.get_extra_info("socket")
            if held is not None:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()


def _protocol(connections: Connections, seconds: float) -> type[H11Protocol]:
    class Bounded(H11Protocol):
        """Closes a connection whose request does not come to its end in time."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] -- as uvicorn's own
            super().connection_made(transport)
            connections.add(self.client, transport)
            self._deadline = self.loop.call_later(seconds, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self.client)
            self._whole()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            """Also called for what came during the answer before."""
            if self.conn.their_state is h11.IDLE and is_ambiguous(self.conn.trailing_data[0]):
                self.send_400_response("")
                return
            super().handle_events()
            state = self.conn.their_state
            begun = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
            if not begun:
                self._whole()
            elif (self._deadline is None or self._is_patient(state)) and not self.transport.is_closing():
                self._whole()
                self._deadline = self.loop.call_later(seconds, self.transport.abort)

        def _is_patient(self, state: object) -> bool:
            """Whether this is the body of a request that the application has let in, however long it takes."""
            return state is h11.SEND_BODY and PATIENT in self.scope

        def send_400_response(self, msg: str) -> None:
            """A problem, as for all that is refused."""
            problem = problem_of(BadRequest("the HTTP request cannot be read"))
            body = problem.model_dump_json(exclude_none=True).encode()
            headers = [*headers_of(problem).items(), ("content-length", str(len(body))), ("connection", "close")]
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                answer = h11.Response(status_code=problem.status, headers=headers)
                for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

        def _whole(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Bounded


def is_ambiguous(data: bytes) -> bool:
    """Whether the head of a request, as far as it came, is one that a proxy before us may have read another way.

    So are lines that end with a bare LF or hold a bare CR, folded fields, a body with two lengths, and fields that are
    too long.
    """
    head, _, _ = data.lstrip(b"\r\n").partition(b"\r\n\r\n")
    if len(head) > _HEAD_BYTES or _BARE.search(head) is not None:
        return True
    lines = head.split(b"\r\n")
    if any(len(line) > _FIELD_BYTES or line[:1] in (b" ", b"\t") for line in lines):
        return True
    names = [line.partition(b":")[0].strip().lower() for line in lines[1:]]
    return names.count(b"content-length") + names.count(b"transfer-encoding") > 1


class HttpServer(uvicorn.Server):
    """Serves an application on a socket until `should_exit` is set."""

    def __init__(self, app: ASGIApp, limits: GatewayLimits, connections: Connections) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_protocol(connections, limits.request_seconds),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=_BACKLOG,
                timeout_keep_alive=max(1, round(limits.idle_seconds)),
                timeout_graceful_shutdown=round(GRACE_SECONDS),
                h11_max_incomplete_event_size=_HEAD_BYTES,
            )
        )
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Take none: they are the program's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; then says that it is ready."""
        await super().startup(sockets)
        self.ready.set()


def bind(host: str, port: int) -> socket.socket:
    """A socket to serve on; raises `ConfigError` if the address is taken or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it: the system would hold megabytes for each client that takes nothing.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _GIVEN_UP:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"[gateway]: {host}:{port} cannot be served ({error.strerror}): choose another") from None
    listener.setblocking(False)
    return listener


def quiet() -> None:
    """Let uvicorn log errors alone: what strangers send wrong would fill the log."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
