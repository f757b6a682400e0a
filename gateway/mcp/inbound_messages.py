"""What is posted to `/mcp`: requests, notifications and replies, of both generations of the protocol (protocol §17.2).

The header `MCP-Protocol-Version` says which: one of a handshake version, or none, is of the generation with sessions;
each other is held against 2026-07-28. In neither does a gateway keep anything between two messages.

The answer to a request is JSON, or server-sent events if something is sent before it. A gateway waits for the first of
them at most as long as a heartbeat, so that an immediate answer has a status of its own. A handler is never canceled
from outside: when its client goes away it is notified, and ends by itself.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params, progress_token_from_params
from mcp_types import (
    DEFAULT_NEGOTIATED_VERSION,
    HEADER_MISMATCH,
    ClientCapabilities,
    ElicitResult,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from turnstile.gateway.asking import key_of
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.stream import EventStream, attend
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker, sse
from turnstile.gateway.mcp.elicited import asked_by
from turnstile.gateway.mcp.rpc_errors import PARSE_ERROR
from turnstile.gateway.mcp.session_ids import asks_people, is_session, new_session, request_key
from turnstile.gateway.mcp.tool_calls import ToolCalls
from turnstile.gateway.mcp.tool_server import mcp_server
from turnstile.ledger.access.past import find_requested_turn
from turnstile.runtime.telemetry import Metric
from turnstile.schema.api import TurnStop
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.json_reading import read_json

_SESSION: Final = "mcp-session-id"
_NO_MESSAGE: Final = "the body must be one JSON-RPC request, notification or response"
_LOOKS: Final = 5
_LOOK_SECONDS: Final = 0.2
_ACCEPTED: Final = 202


class NotJson(BadRequest):
    """A body is not JSON."""

    code: str = PARSE_ERROR


class Messages:
    """The messages of one gateway."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._calls = ToolCalls(kernel)
        self._server = mcp_server(kernel, self._calls)

    async def answered(self, call: Call[Any, Any], body: bytes) -> ASGIApp:
        """The response to a message; raises `TurnstileError`."""
        if not all(check_accept_headers(call.request)):
            raise Refused("not_acceptable", "the Accept header must list both application/json and text/event-stream")
        try:
            fields = read_json(body)
        except BadRequest as error:
            raise NotJson(str(error)) from None
        if not isinstance(fields, dict):
            raise BadRequest(_NO_MESSAGE)
        message = cast("dict[str, Any]", fields)
        version = call.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        try:
            if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
                return await self._of_session(call, message, version or DEFAULT_NEGOTIATED_VERSION)
            return self._stateless(call, message, version)
        except ValidationError:
            raise BadRequest(_NO_MESSAGE) from None

    def _stateless(self, call: Call[Any, Any], message: dict[str, Any], version: str) -> ASGIApp:
        """A message of 2026-07-28."""
        if "id" not in message:
            JSONRPCNotification.model_validate(message)
            unknown = unsupported_protocol_version_rejection(version)
            return Response(status_code=_ACCEPTED) if unknown is None else _rejected(unknown, None)
        request = JSONRPCRequest.model_validate(message)
        if (twice := find_duplicated_routing_header(call.headers.items())) is not None:
            return _rejected(InboundLadderRejection(HEADER_MISMATCH, f"{twice} was sent more than once"), request.id)
        route = classify_inbound_request(message, headers=dict(call.headers))
        if isinstance(route, InboundLadderRejection):
            return _rejected(route, request.id)
        connection = Connection.from_envelope(route.protocol_version, route.client_info, route.client_capabilities)
        asker = Asker(
            call,
            request.id,
            is_stateless=True,
            session=None,
            asks_people=_takes_forms(connection.client_capabilities),
            progress_token=progress_token_from_params(request.params),
        )
        return Exchange(self._kernel, self._server, asker, request, connection)

    async def _of_session(self, call: Call[Any, Any], message: dict[str, Any], version: str) -> ASGIApp:
        """A message of a generation with sessions."""
        session = call.headers.get(_SESSION)
        if session is not None and not is_session(session):
            raise Refused("not_found", "the session does not exist: initialize again")
        is_request = "method" in message and "id" in message  # also one with an id that is none: it is owed an error
        match (
            JSONRPCRequest.model_validate(message) if is_request else jsonrpc_message_adapter.validate_python(message)
        ):
            case JSONRPCRequest(method="initialize") as request:
                return await self._initialized(call, request)
            case JSONRPCRequest() as request:
                asker = Asker(
                    call,
                    request.id,
                    is_stateless=False,
                    session=session,
                    asks_people=asks_people(session),
                    progress_token=progress_token_from_params(request.params),
                )
                connection = Connection.from_envelope(version, None, None)
                return Exchange(self._kernel, self._server, asker, request, connection)
            case JSONRPCNotification(method="notifications/cancelled", params=params) if session is not None:
                await self._cancelled(call, session, cancelled_request_id_from_params(params))
            case JSONRPCResponse(id=name, result=result):
                await self._answered_by_person(call, name, result)
            case JSONRPCError(id=name):
                self._calls.dismiss(call.principal, str(name))
            case _:
                pass
        return Response(status_code=_ACCEPTED)

    async def _initialized(self, call: Call[Any, Any], request: JSONRPCRequest) -> ASGIApp:
        """A new session."""
        connection = Connection.from_envelope(DEFAULT_NEGOTIATED_VERSION, None, None)
        asker = Asker(call, request.id, is_stateless=False, session=None, asks_people=False, progress_token=None)
        exchange = Exchange(self._kernel, self._server, asker, request, connection)
        reply = await exchange.reply()
        session = new_session(asks_people=_takes_forms(connection.client_capabilities))
        headers = {} if isinstance(reply, JSONRPCError) else {_SESSION: session}
        return reply_response(reply, is_stateless=False, headers=headers)

    async def _cancelled(self, call: Call[Any, Any], session: str, request: str | int | None) -> None:
        """Stop the turn of a request that the client canceled the request, wherever it is answered."""
        if request is None:
            return
        principal, turns = call.principal, self._kernel.turns
        key = key_of(principal, request_key(principal.token_id, session, request))
        for look in range(_LOOKS):  # the request may be on its way still
            await asyncio.sleep(_LOOK_SECONDS if look else 0)
            turn = await self._kernel.pool.run(lambda conn: find_requested_turn(conn, principal.project_id, key))
            if turn is not None:
                view = await turns.described(principal, turn)
                await turns.stop_turn(principal, view, TurnStop(reason="the client canceled the request"), call.headers)
                return

    async def _answered_by_person(
        self, call: Call[Any, Any], name: str | int | None, result: Mapping[str, Any]
    ) -> None:
        """Decide what a person was asked on a stream of this gateway or another; raises `TurnstileError`."""
        if name is None or (names := asked_by(name)) is None:
            return
        is_decided = False
        try:
            answer = ElicitResult.model_validate(result, by_name=False)
            is_decided = await self._calls.decide(call, *names, answer)
        finally:
            if not is_decided:
                self._calls.dismiss(call.principal, str(name))


def _takes_forms(capabilities: ClientCapabilities | None) -> bool:
    """Whether a client can ask its person by forms: what says nothing of forms and addresses means forms."""
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _rejected(rejection: InboundLadderRejection, request: str | int | None) -> Response:
    error = ErrorData(code=rejection.code, message=rejection.message, data=rejection.data)
    return reply_response(JSONRPCError(jsonrpc="2.0", id=request, error=error), is_stateless=True)


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
        """The answer of the server; what the SDK does not know is only logged."""
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
        except TurnstileError as error:  # the token is no longer valid
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
