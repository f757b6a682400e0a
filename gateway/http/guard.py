"""What every request passes first: by which name it asks, from which page, and what it leaves in log and metrics.

A request that calls this gateway by a name that is not its own is refused, so that no page can reach it by rebinding a
name of its own. One that a page of another origin sends is refused unless that origin is listed. The log and the
metrics have method, route, status and time, never a path as it was asked, a query or a body. An exception that nobody
expected is logged and answered `internal_error`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnstile.gateway.http.problems import Problem, headers_of, problem_of
from turnstile.gateway.limits import Doors
from turnstile.runtime.telemetry import Meter, Metric
from turnstile.schema.errors import BadRequest, Refused, TurnstileError

log = logging.getLogger(__name__)
access_log = logging.getLogger("turnstile.gateway.access")
_SAFE: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
_ALLOWED_METHODS = "GET, POST, PUT, DELETE"
_ALLOWED_HEADERS = "authorization, content-type, idempotency-key, last-event-id, prefer, traceparent, tracestate"
_EXPOSED_HEADERS = "location, preference-applied, retry-after"
ROUTE = "turnstile.route"
"""The key of the scope under which a matched endpoint leaves its name."""


def problem_response(problem: Problem) -> Response:
    """The response for a problem."""
    return Response(problem.model_dump_json(exclude_none=True), problem.status, headers_of(problem))


Tell = Callable[[str, Problem], Response]
"""Makes the response that tells the clients of a path of a problem."""


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, doors: Doors, meter: Meter, tell: Tell) -> None:
        self._app = app
        self._doors = doors
        self._meter = meter
        self._told = tell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers, origin = Headers(scope=scope), None
        seen = _Seen(send)
        try:
            try:
                self._check_host(headers)
                origin = self._check_origin(headers)
                seen.origin = origin
                if scope["method"] == "OPTIONS" and origin is not None:
                    await Response(status_code=204)(scope, receive, seen)
                else:
                    await self._app(scope, receive, seen)
            except TurnstileError as error:
                await self._tell(error, scope, receive, seen)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # a bug: the client is told that there is one, the log what it is
                log.exception("a request failed: %s", scope.get(ROUTE, "unmatched"))
                failure = TurnstileError(type(error).__name__)
                await self._tell(failure, scope, receive, seen)
        finally:
            self._record(scope, seen)

    async def _tell(self, error: TurnstileError, scope: Scope, receive: Receive, seen: "_Seen") -> None:
        if seen.status == 0:
            await self._told(scope["path"], problem_of(error))(scope, receive, seen)

    def _record(self, scope: Scope, seen: "_Seen") -> None:
        route, seconds = str(scope.get(ROUTE, "unmatched")), time.perf_counter() - seen.began
        status = str(seen.status or 499)
        self._meter.count(Metric.HTTP_REQUESTS, route=route, status=status)
        self._meter.count(Metric.HTTP_BYTES, seen.sent)
        self._meter.observe(Metric.HTTP_SECONDS, seen.first or seconds, route=route)
        extra = {"route": route, "status": status, "token": scope.get("turnstile.token", "")}
        access_log.debug("%s %s %s %.0f ms", scope["method"], route, status, seconds * 1000, extra=extra)

    def _check_host(self, headers: Headers) -> None:
        named = headers.getlist("host")
        if len(named) != 1:
            raise BadRequest("a request needs exactly one Host")
        host = named[0].lower()
        if host in self._doors.hosts or (self._doors.any_address and _is_address(host)):
            return
        raise Refused("host_not_allowed", "the gateway is not known by this name: list it in [gateway].allowed_hosts")

    def _check_origin(self, headers: Headers) -> str | None:
        """The origin to which an answer may be shown; None if no page of another origin asks."""
        given = headers.getlist("origin")
        if not given:
            return None
        origin = given[0].lower()
        if len(given) == 1 and origin in self._doors.origins:
            return given[0]
        parts = urlsplit(origin) if len(given) == 1 else None
        if parts is not None and parts.scheme in ("http", "https") and parts.netloc == headers["host"].lower():
            return None
        raise Refused("origin_not_allowed", "pages of this origin may not ask: list it in [gateway].allowed_origins")


class _Seen:
    """Passes a response on with the headers that all have, and remembers what was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.origin: str | None = None
        self.status = 0
        self.sent = 0
        self.began = time.perf_counter()
        self.first = 0.0
        """Seconds to the first byte."""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = cast("int", message["status"])
            self.first = time.perf_counter() - self.began
            headers = MutableHeaders(scope=message)
            for name, value in _SAFE.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            if self.origin is not None:
                headers["access-control-allow-origin"] = self.origin
                headers["access-control-allow-methods"] = _ALLOWED_METHODS
                headers["access-control-allow-headers"] = _ALLOWED_HEADERS
                headers["access-control-expose-headers"] = _EXPOSED_HEADERS
                headers.append("vary", "origin")
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)


def _is_address(host: str) -> bool:
    """Whether this is an IP address, with or without a port."""
    try:
        name = urlsplit(f"//{host}").hostname
        ip_address(name or "")
    except ValueError:
        return False
    return True
