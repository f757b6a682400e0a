"""An MCP server over HTTP: responses are bounded, and read no faster than the server's pace.

A response that is no stream of events has at most `max_message_bytes`, and so has each event. Compressed responses
are refused, since they may be a thousand times as large. A redirect is followed within the server's origin only. Of
the older transport, HTTP+SSE, an event has at most 1 MiB, too; a message that it does not take ends the connection,
since the library sends nothing after it.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from turnstile.sdk.mcp.client_credentials import ClientCredentials
from turnstile.sdk.mcp.lenient import Halves
from turnstile.sdk.mcp.mcp_server import McpServer, value_of_env
from turnstile.sdk.mcp.pacing import Pace, Streams
from turnstile.sdk.mcp.stdio_pipes import LastWords

_SECONDS = 30.0
_END_SECONDS = 5.0
_ENV = "env:"
_WHO_ASKS = frozenset({401, 403})
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class BodyRefused(httpx2.StreamError):
    """A response is too long, or compressed; only the request that it answers fails."""


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, pace: Pace, most: int, *, events: bool) -> None:
        self._inner = inner
        self._pace = pace
        self._most = most
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, tail, halves = 0, b"", Halves()
        async for chunk in self._inner:
            longest = size = size + len(chunk)
            if self._events:  # each event is counted by itself
                text, longest = tail + chunk, 0
                before = size - len(text)
                for end in _EVENT_END.finditer(text):
                    longest, before = max(longest, before + end.end()), -end.end()
                size, tail = before + len(text), text[-3:]
                longest = max(longest, size)
            if longest > self._most:
                what = "an event" if self._events else "the response"
                raise BodyRefused(f"{what} has more than {self._most} bytes")
            await self._pace.spend(len(chunk))
            yield halves.take(chunk)
        yield halves.rest()

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """HTTP with bounded responses."""

    def __init__(self, pace: Pace, most: int, lost: asyncio.Event | None = None) -> None:
        """Prepare; `lost` is set by a POST that fails."""
        self._lost = lost
        self._inner = httpx2.AsyncHTTPTransport()
        self._pace = pace
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; the body of what it returns raises `BodyRefused`."""
        request.extensions.setdefault("timeout", httpx2.Timeout(_SECONDS).as_dict())  # those of OAuth have none
        if request.method == "DELETE":  # the end of a session, which nobody waits for longer
            request.extensions["timeout"] = httpx2.Timeout(_END_SECONDS).as_dict()
        lost = self._lost if request.method == "POST" else None
        try:
            response = await self._inner.handle_async_request(request)
        except httpx2.TransportError:
            if lost is not None:
                lost.set()
            raise
        if lost is not None and response.is_error:
            lost.set()
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        plain = response.headers.get("content-encoding", "identity").strip().lower() == "identity"
        inner = cast("httpx2.AsyncByteStream", response.stream)
        events = kind == "text/event-stream"
        response.stream = _BoundedBody(inner, self._pace, self._most if plain else 0, events=events)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def bounded_http(
    entry: McpServer,
    environ: Mapping[str, str],
    pace: Pace,
    words: LastWords,
    closed: asyncio.Event,
    credentials: ClientCredentials | None = None,
) -> AsyncGenerator[Streams]:
    """The server at the entry's address; raises `ConfigError` for a missing variable.

    `words` receives why the server cannot be used, if it asks for credentials, and whether it may be one of the older
    transport, which refuse a POST to their address. `closed` is set when such a server does not take a message.
    """
    url, older = entry.url or "", entry.transport == "sse"

    async def look(response: httpx2.Response) -> None:
        if response.status_code in _WHO_ASKS:
            words.reason = f"it answered {response.status_code} to a request {_sent(entry)}"
        elif response.is_success:
            words.reason, words.refuses_post = "", False
        elif response.is_client_error and response.request.method == "POST" and response.request.url == url:
            words.refuses_post = True

    configured = {name: value_of_env(value.removeprefix(_ENV), environ) for name, value in entry.headers.items()}
    client = httpx2.AsyncClient(
        transport=BoundedTransport(pace, entry.max_message_bytes, closed if older else None),
        headers={**configured, "accept-encoding": "identity"},
        timeout=httpx2.Timeout(_SECONDS, read=None),  # calls have a time of their own
        event_hooks={"response": [look]},
        auth=credentials,
    )

    def ours(*_: object, **__: object) -> httpx2.AsyncClient:
        return client

    if older:
        async with sse_client(url, httpx_client_factory=ours) as streams:
            yield streams
    else:
        bound = entry.max_message_bytes
        async with client, streamable_http_client(url, http_client=client, max_sse_event_size=bound) as streams:
            yield streams


def _sent(entry: McpServer) -> str:
    """How a request was signed that the server refused, and what to do."""
    if entry.oauth is not None:
        return f"of the OAuth client {entry.oauth.client_id}: see whether its secret and scope are right"
    sent = f"with the headers {', '.join(entry.headers)}" if entry.headers else "without a header of yours"
    header = "name the variable of its token by --header Authorization=env:NAME"
    return f"{sent}: {header}, or its OAuth client by --oauth-client-id ID --oauth-client-secret-file FILE"
