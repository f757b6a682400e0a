"""Endpoints: what each takes, needs and answers, in one place for the router and the OpenAPI document.

An endpoint's handler gets a `Call` whose path, query and body are validated, and who asks. What the client sent wrong
is `bad_request`, which names the field and never repeats a value.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Generic, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turnstile.gateway.bounds import GatewayLimits
from turnstile.gateway.http.bearers import Access, secret_in
from turnstile.gateway.http.guard import ADDRESS, ROUTE, TOKEN
from turnstile.gateway.http.problems import BadField
from turnstile.schema.access import Principal, Right, Secret
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.json_reading import read_json_object
from turnstile.schema.validation import faults_in
from turnstile.schema.verbs import Route

Method = Literal["GET", "POST", "PUT", "DELETE"]
_SHOWN_FAULTS = 5
_LONGEST_PARAM = 200
_LARGEST_ANSWER = 16 << 20
PATIENT = "turnstile.patient"
"""The key of the scope that says: the time for a request counts from its last bytes on, not from its first."""
_TOKEN_NAMES = frozenset({"token", "access_token", "api_key", "authorization"})


class NoQuery(Strict):
    """No parameters."""


Query = TypeVar("Query")
Body = TypeVar("Body")
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call(Generic[Query, Body]):
    """One request, read and checked."""

    principal: Principal
    path: Mapping[str, str]
    query: Query
    body: Body
    headers: Headers
    request: Request
    secret: Secret
    """The token that asks: a stream goes on as long as it holds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a handler answers: a model, or a response of its own."""

    content: BaseModel | Response
    status: int = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[Call[Any, Any]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint of `/v1`, or of another protocol."""

    name: str
    """Its operation id, which log and metrics have, too."""
    method: Method
    path: str
    right: Right | frozenset[Right]
    """What it needs, before anything of the request is read; of several one is enough."""
    summary: str
    handler: Handler
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    raw: bool = False
    """Whether its handler gets the body as it was sent, and reads it itself."""
    streamed: bool = False
    """Whether its handler reads the body as it comes: bytes of any media type, and as many as it lets in."""
    answer: type[BaseModel] | None = None
    """None: server-sent events."""
    statuses: Mapping[int, str] = field(default_factory=lambda: {200: "Done."})
    request_headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers that it reads, and what for."""

    @classmethod
    def of(cls, route: Route, handler: Handler) -> Self:
        """The endpoint of a verb."""
        return cls(
            name=route.name,
            method=route.method,
            path=route.path,
            right=route.right,
            summary=route.summary,
            handler=handler,
            query=route.query or NoQuery,
            body=route.body,
            answer=route.answer,
            statuses=route.statuses,
            request_headers=route.request_headers,
        )


class Dispatch:
    """The ASGI application of one endpoint."""

    def __init__(self, endpoint: Endpoint, access: Access, limits: GatewayLimits) -> None:
        self.endpoint = endpoint
        self._access = access
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ROUTE] = self.endpoint.name
        request = Request(scope, receive)
        principal, secret = await admitted(request, self._access, self.endpoint.right)
        query = read_query(self.endpoint.query, request.query_params)
        body: BaseModel | bytes = NoQuery()
        if self.endpoint.streamed:
            scope[PATIENT] = True
        elif self.endpoint.raw:
            body = await read_json_bytes(request, self._limits.body_bytes)
        elif self.endpoint.body is not None:
            body = parsed(self.endpoint.body, await read_body(request, self._limits.body_bytes), "body")
        path = {name: str(value) for name, value in request.path_params.items()}
        call: Call[Any, Any] = Call(principal, path, query, body, request.headers, request, secret)
        answer = await self.endpoint.handler(call)
        if isinstance(answer.content, Response):
            await answer.content(scope, receive, send)
            return
        text = answer.content.model_dump_json()
        if len(text) > _LARGEST_ANSWER:
            raise Refused("result_too_large", "the response is too large: request fewer items at a time")
        headers = {"content-type": "application/json", **answer.headers}
        await Response(text, answer.status, headers)(scope, receive, send)


async def admitted(request: Request, access: Access, right: Right | frozenset[Right]) -> tuple[Principal, Secret]:
    """Who asks, and with which token; raises as `Access` does."""
    address = str(request.scope.get(ADDRESS, ""))
    secret = secret_in(request.headers)
    principal = await access.principal(secret, address)
    request.scope[TOKEN] = principal.token_id
    access.admit(principal, right)
    return principal, secret


async def read_body(request: Request, most: int) -> JsonObject:
    """The JSON object of a request that changes something.

    Raises `BadRequest`, or `Refused` for another media type (unsupported_media_type) or size (body_too_large).
    """
    return read_json_object(await read_json_bytes(request, most) or b"{}")


async def read_json_bytes(request: Request, most: int) -> bytes:
    """The body of a request that is JSON; raises as `read_body` does."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        raise Refused("unsupported_media_type", "this request needs Content-Type: application/json")
    return await read_bytes(request, most)


async def read_bytes(request: Request, most: int) -> bytes:
    """The body of a request; raises `BadRequest`, or `Refused` for its encoding or size."""
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("unsupported_media_type", "Content-Encoding is not supported: send the body uncompressed")
    if announced_bytes(request) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _too_large(most)
            parts.append(part)
    except ClientDisconnect:
        raise BadRequest("the request ended before its body did") from None
    return b"".join(parts)


def announced_bytes(request: Request) -> int:
    """The bytes that a request says it has; 0 where it does not say."""
    announced = request.headers.get("content-length", "0")
    return int(announced[:20]) if announced.isdigit() else 0


def _too_large(most: int) -> Refused:
    return Refused("body_too_large", f"a request may have at most {most} bytes")


def read_query(model: type[Model], query: QueryParams) -> Model:
    """The parameters behind the question mark; raises `BadRequest`, also for one that is repeated or unknown."""
    pairs = query.multi_items()
    names = [name for name, _ in pairs]
    if _TOKEN_NAMES & {name.lower() for name in names}:
        raise BadRequest("a token belongs in the Authorization header, never in a URL")
    if len(set(names)) != len(names):
        raise BadRequest("a parameter was sent twice")
    return parsed(model, cast("JsonObject", dict(pairs)), "query")


def parsed(model: type[Model], fields: JsonObject, where: str) -> Model:
    """`given` as the model; raises `BadRequest`, which names the fields at fault without their values."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        faults = faults_in(error, model, most=_SHOWN_FAULTS)
        param = faults[0].place or where
        raise BadField("; ".join(fault.said(where) for fault in faults), param[:_LONGEST_PARAM]) from None
