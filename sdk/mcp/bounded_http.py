"""An MCP server over HTTP: responses are bounded, and read no faster than the server's pace.

A response that is no stream of events has at most `max_message_bytes`, and so has each event. Compressed responses
are refused, since they may be a thousand times as large. A redirect is followed within the server's origin only.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import cast

import httpx2
from mcp.client.streamable_http import streamable_http_client

from turnstile.sdk.mcp.mcp_server import McpServer, value_of_env
from turnstile.sdk.mcp.pacing import Pace, Streams
from turnstile.sdk.mcp.stdio_pipes import LastWords

_SECONDS = 30.0
_END_SECONDS = 5.0
_ENV = "env:"
_WHO_ASKS = frozenset({401, 403})


class BodyRefused(httpx2.StreamError):
    """A response is too long, or compressed; only the request that it answers fails."""


class _BoundedBody(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, pace: Pace, most: int | None) -> None:
        self._inner = inner
        self._pace = pace
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            size += len(chunk)
            if self._most is not None and size > self._most:
                raise BodyRefused(f"the response has more than {self._most} bytes")
            await self._pace.spend(len(chunk))
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class BoundedTransport(httpx2.AsyncBaseTransport):
    """HTTP with bounded responses."""

    def __init__(self, pace: Pace, most: int) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._pace = pace
        self._most = most

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request; the body of what it returns raises `BodyRefused`."""
        if request.method == "DELETE":  # the end of a session, which nobody waits for longer
            request.extensions["timeout"] = httpx2.Timeout(_END_SECONDS).as_dict()
        response = await self._inner.handle_async_request(request)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        plain = response.headers.get("content-encoding", "identity").strip().lower() == "identity"
        most = 0 if not plain else None if kind == "text/event-stream" else self._most
        response.stream = _BoundedBody(cast("httpx2.AsyncByteStream", response.stream), self._pace, most)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def bounded_http(
    entry: McpServer, environ: Mapping[str, str], pace: Pace, words: LastWords
) -> AsyncGenerator[Streams]:
    """The server at the entry's address; raises `ConfigError` for a missing variable.

    `words` are told why it cannot be used, where it wants to know who asks.
    """

    async def look(response: httpx2.Response) -> None:
        if response.status_code in _WHO_ASKS:
            sent = f"with the headers {', '.join(entry.headers)}" if entry.headers else "without a header of yours"
            words.reason = (
                f"it answered {response.status_code} to a request {sent}: "
                "name the variable of its token by --header Authorization=env:NAME"
            )
        elif response.is_success:
            words.reason = ""

    given = {name: value_of_env(value.removeprefix(_ENV), environ) for name, value in entry.headers.items()}
    async with (
        httpx2.AsyncClient(
            transport=BoundedTransport(pace, entry.max_message_bytes),
            headers={**given, "accept-encoding": "identity"},
            timeout=httpx2.Timeout(_SECONDS, read=None),  # calls have a time of their own
            event_hooks={"response": [look]},
        ) as client,
        streamable_http_client(
            entry.url or "", http_client=client, max_sse_event_size=entry.max_message_bytes
        ) as streams,
    ):
        yield streams
