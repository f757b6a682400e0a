"""One request of MCP and its answer: JSON, or server-sent events if something is said before it (protocol §17.2).

It waits for the first of them at most as long as a heartbeat, so that an answer that is there at once has a status of
its own. The handler is never broken off: when its client goes away it is told, and comes to its end by itself.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.stream import EventStream, attend
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker, sse
from turnstile.runtime.telemetry import Metric
from turnstile.schema.errors import TurnstileError

Reply = JSONRPCResponse | JSONRPCError
_SERVER_ERROR: Final = -32000


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that is being answered; an ASGI application for it."""

    kernel: Kernel
    server: Server[Any]
    asker: Asker
    request: JSONRPCRequest
    connection: Connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asker, closing = self.asker, self.kernel.streaming.closing
        working = asyncio.create_task(self.reply())
        try:
            first = asyncio.create_task(self._first(working))
            still = partial(self.kernel.access.still, asker.call.secret)
            if await attend(first, receive, closing, lambda: True, holds=still) == "gone":
                return
            if working.done() and not asker.has_frames.is_set():
                await reply_response(working.result(), is_stateless=asker.is_stateless)(scope, receive, send)
                return
            self.kernel.streaming.meter.count(Metric.HTTP_STREAMS, resumed="no")
            stream = EventStream(
                self._frames(working), self.kernel.streaming, nullcontext(), farewell=b"", ends_itself=True
            )
            await stream(scope, receive, send)
        finally:
            asker.gone.set()
            await asyncio.wait({working})

    async def reply(self) -> Reply:
        """The answer of the server; what the SDK does not know is logged, and told to nobody."""
        request, asker = self.request, self.asker
        try:
            result = await serve_one(
                self.server,
                asker,
                request.method,
                request.params,
                connection=self.connection,
                lifespan_state=asker,
            )
        except Exception as error:  # noqa: BLE001 -- the SDK maps what it knows, and logs what it does not
            return JSONRPCError(jsonrpc="2.0", id=request.id, error=modern_error_data(error))
        return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)

    async def _first(self, working: asyncio.Task[Reply]) -> None:
        """Returns when there is the answer, or something to say before it, or for a heartbeat neither."""
        await self._something(working)

    async def _something(self, working: asyncio.Task[Reply]) -> bool:
        """Whether there was something within a heartbeat."""
        saying = asyncio.create_task(self.asker.has_frames.wait())
        try:
            finished, _ = await asyncio.wait(
                {working, saying}, timeout=self.kernel.heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            saying.cancel()
        return bool(finished)

    async def _frames(self, working: asyncio.Task[Reply]) -> AsyncGenerator[bytes]:
        asker = self.asker
        try:
            while True:
                await self.kernel.access.still(asker.call.secret)
                for frame in asker.take():
                    yield frame
                if working.done():
                    yield sse(working.result())
                    return
                if not await self._something(working):
                    yield HEARTBEAT
        except TurnstileError as error:  # the token holds no more
            problem = problem_of(error)
            data = ErrorData(code=_SERVER_ERROR, message=problem.detail, data={"code": problem.code})
            yield sse(JSONRPCError(jsonrpc="2.0", id=self.request.id, error=data))


def reply_response(reply: Reply, *, is_stateless: bool, headers: Mapping[str, str] | None = None) -> Response:
    """A reply as JSON. The generation of 2026-07-28 gives errors a status; before that it is 200 but for no request."""
    status = 200
    if isinstance(reply, JSONRPCError) and (is_stateless or reply.id is None):
        status = ERROR_CODE_HTTP_STATUS.get(reply.error.code, 200)
    body = reply.model_dump(mode="json", by_alias=True, exclude_none=True)
    body.setdefault("id", None)
    return Response(json.dumps(body), status, dict(headers or {}), media_type="application/json")
