"""What is posted to `/mcp`: requests, notifications and replies, of both generations of the protocol (protocol §17.2).

The header `MCP-Protocol-Version` says which: one of a handshake version, or none, is of the generation with sessions;
each other is held against 2026-07-28. In neither does a gateway keep anything between two messages.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp.server.connection import Connection
from mcp.server.streamable_http import check_accept_headers
from mcp.shared.inbound import (
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
from starlette.types import ASGIApp

from turnstile.gateway.asking import key_of
from turnstile.gateway.http.endpoints import Call
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker
from turnstile.gateway.mcp.elicited import asked_by
from turnstile.gateway.mcp.exchange import Exchange, reply_response
from turnstile.gateway.mcp.rpc_errors import PARSE_ERROR
from turnstile.gateway.mcp.session_ids import asks_people, is_session, new_session, request_key
from turnstile.gateway.mcp.tool_calls import ToolCalls
from turnstile.gateway.mcp.tool_server import mcp_server
from turnstile.ledger.access.past import find_requested_turn
from turnstile.schema.api import TurnStop
from turnstile.schema.errors import BadRequest, Refused
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
