"""What every request passes first: by which name it asks, from which page, and what it leaves in log and metrics.

A request that calls this gateway by a name that is not its own is refused, so that no page can reach it by rebinding a
name of its own. One that a page of another origin sends is refused unless that origin is listed. The log and the
metrics have method, route, status and time, never a path as it was asked, a query or a body. An exception that nobody
expected is logged and answered `internal_error`. A body that is not wanted is read and thrown away before an answer, or
a client that sends all before it reads would never read why. The connection of whoever has no token is closed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnstile.gateway.bounds import Doors
from turnstile.gateway.http.problems import Problem, headers_of, problem_of
from turnstile.runtime.telemetry import Meter, Metric
from turnstile.schema.errors import BadRequest, Limited, Refused, TurnstileError
from turnstile.schema.ids import uuid7

log = logging.getLogger(__name__)
access_log = logging.getLogger("turnstile.gateway.access")
_SAFE: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_ALLOWED_METHODS = "GET, POST, PUT, DELETE"
_ALLOWED_HEADERS = "authorization, *"
_EXPOSED_HEADERS = "location, mcp-session-id, preference-applied, retry-after, x-request-id"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""No page can have one of these rebound, and its own origin is compared with the whole of Host."""
_DRAINED_BYTES = 256 << 20
MOST_PARAMETERS = 100
"""Behind the question mark of one address."""
TOKEN = "turnstile.token"  # noqa: S105 -- a key
"""The key of the scope under which the id of the request's token is."""
ADDRESS = "turnstile.address"
"""The key of the scope under which the address of the client is: the peer's, or what a trusted proxy says."""
ROUTE = "turnstile.route"
"""The key of the scope under which a matched endpoint leaves its name."""


def problem_response(problem: Problem) -> Response:
    """The response for a problem."""
    return Response(problem.model_dump_json(exclude_none=True), problem.status, headers_of(problem))


ProblemRenderer = Callable[[str, Problem], Response]
"""Makes the response for a problem, in the form that the clients of a path read."""


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: ASGIApp, doors: Doors, meter: Meter, render: ProblemRenderer, crowded: Callable[[], bool]
    ) -> None:
        self._app = app
        self._crowded = crowded
        self._doors = doors
        self._meter = meter
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers, origin = Headers(scope=scope), None
        scope[ADDRESS] = client_address(scope, headers, self._doors.proxies)
        body = _Body(headers, receive)
        seen = _Seen(scope, send, body)
        try:
            try:
                self._check_room()
                _check_query(scope)
                self._check_host(headers)
                origin = self._check_origin(headers)
                seen.origin = origin
                if scope["method"] == "OPTIONS" and origin is not None:
                    await Response(status_code=204)(scope, body, seen)
                else:
                    await self._app(scope, body, seen)
            except TurnstileError as error:
                await self._respond(error, scope, body, seen)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a bug: the client learns that there is one, the log has what it is
                log.exception("a request failed: %s, x-request-id %s", scope.get(ROUTE, "unmatched"), seen.request_id)
                failure = TurnstileError(type(error).__name__)
                await self._respond(failure, scope, body, seen)
        finally:
            self._record(scope, seen)

    async def _respond(self, error: TurnstileError, scope: Scope, body: "_Body", seen: "_Seen") -> None:
        if seen.status == 0:
            await self._render(scope["path"], problem_of(error))(scope, body, seen)

    def _record(self, scope: Scope, seen: "_Seen") -> None:
        route, seconds = str(scope.get(ROUTE, "unmatched")), time.perf_counter() - seen.began
        status = str(seen.status or 499)
        self._meter.count(Metric.HTTP_REQUESTS, route=route, status=status)
        self._meter.count(Metric.HTTP_BYTES, seen.sent)
        self._meter.observe(Metric.HTTP_SECONDS, seen.first or seconds, route=route)
        extra = {"route": route, "status": status, "token": scope.get(TOKEN, ""), "request": seen.request_id}
        method = scope["method"] if scope["method"] in _METHODS else "other"
        access_log.debug("%s %s %s %.0f ms", method, route, status, seconds * 1000, extra=extra)

    def _check_room(self) -> None:
        if self._crowded():
            raise Limited("overloaded", "the gateway has reached its limit of connections", retry_after=1.0)

    def _check_host(self, headers: Headers) -> None:
        named = headers.getlist("host")
        if len(named) != 1:
            raise BadRequest("a request needs exactly one Host header")
        host = named[0].lower()
        if host in self._doors.hosts or _is_loopback(host) or (self._doors.any_address and _is_address(host)):
            return
        raise Refused("host_not_allowed", "the gateway does not accept this Host: list it in [gateway].allowed_hosts")

    def _check_origin(self, headers: Headers) -> str | None:
        """The origin to which an answer may be shown; None if no page of another origin asks."""
        origins = headers.getlist("origin")
        if not origins:
            return None
        origin = origins[0].lower()
        if len(origins) == 1 and origin in self._doors.origins:
            return origins[0]
        host = headers["host"].lower()
        if len(origins) == 1 and origin in (f"http://{host}", f"https://{host}"):
            return None
        raise Refused(
            "origin_not_allowed", "the gateway does not accept this Origin: list it in [gateway].allowed_origins"
        )


def _check_query(scope: Scope) -> None:
    if scope["query_string"].count(b"&") >= MOST_PARAMETERS:
        raise BadRequest(f"a query may have at most {MOST_PARAMETERS} parameters")


def client_address(scope: Scope, headers: Headers, proxies: Sequence[IPv4Network | IPv6Network]) -> str:
    """The address of who asks.

    Behind trusted proxies it is the last one in `X-Forwarded-For` that is not a trusted proxy's: what stands before it
    anybody can write. Without them the header says nothing.
    """
    peer = scope.get("client")
    client = "" if peer is None else str(peer[0])
    forwarded = [part.strip() for line in headers.getlist("x-forwarded-for") for part in line.split(",")]
    while proxies and forwarded and _is_in(client, proxies):
        address = forwarded.pop()
        if not _is_address(f"[{address}]" if ":" in address else address):
            break
        client = address
    return client


def _is_in(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address_value = ip_address(address)
    except ValueError:
        return False
    inner = address_value.ipv4_mapped if isinstance(address_value, IPv6Address) else None
    return any((inner or address_value) in network for network in networks)


class _Body:
    """Passes the body of a request on, and knows whether there is more of it."""

    def __init__(self, headers: Headers, receive: Receive) -> None:
        self._receive = receive
        announced = headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers
        self._more = bool(announced) and "expect" not in headers
        """A client that expects `100 Continue` has sent nothing yet, and does not get it."""

    async def __call__(self) -> Message:
        message = await self._receive()
        self._more = message["type"] == "http.request" and bool(message.get("more_body", False))
        return message

    async def drain(self) -> None:
        """Throw the rest away, as far as there is one and it comes in time."""
        size = 0
        while self._more and size < _DRAINED_BYTES:
            size += len((await self()).get("body", b""))


class _Seen:
    """Passes a response on with the headers that all have, and remembers what was sent."""

    def __init__(self, scope: Scope, send: Send, body: _Body) -> None:
        self._scope = scope
        self._send = send
        self._body = body
        self.request_id = f"req_{uuid7()}"
        """What log lines about the request and its answer's `x-request-id` have."""
        self.origin: str | None = None
        self.status = 0
        self.sent = 0
        self.began = time.perf_counter()
        self.first = 0.0
        """Seconds to the first byte."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._body.drain()
            self.status = cast("int", message["status"])
            self.first = time.perf_counter() - self.began
            headers = MutableHeaders(scope=message)
            for name, value in _SAFE.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            headers["x-request-id"] = self.request_id
            if TOKEN not in self._scope:
                headers["connection"] = "close"
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-allow-methods"] = _ALLOWED_METHODS
                headers["access-control-allow-headers"] = _ALLOWED_HEADERS
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                headers.append("vary", "origin")
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)


def _is_loopback(host: str) -> bool:
    """Whether this is one of the machine's own names, at any port: one that was forwarded (`ssh -L`) has another."""
    name, _, port = host.rpartition(":")
    return (name if port.isdecimal() and name else host) in _LOOPBACK


def _is_address(host: str) -> bool:
    """Whether this is an IP address, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname
        ip_address(name or "")
    except ValueError:
        return False
    return True
