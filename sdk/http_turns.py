"""Turns asked for over HTTP, from a gateway (protocol §14): one request each, and one stream while one is followed.

A stream that breaks off goes on where it was, at the same gateway or at another behind the same address; the text is
exact, also where NATS has lost it meanwhile. It holds one connection for each turn that is followed or waited for.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from turnstile.schema import verbs
from turnstile.schema.access import read_secret
from turnstile.schema.api import Turn as ApiTurn
from turnstile.schema.api import TurnTree
from turnstile.schema.base import JsonObject, Reply, Tolerant
from turnstile.schema.cards import CardType
from turnstile.schema.errors import BadRequest, ConfigError, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, StepId, step_id
from turnstile.schema.people.reruns import RerunRequest
from turnstile.schema.states import ChunkType, ReplyStatus, TurnStatus
from turnstile.schema.verbs import Verb
from turnstile.schema.wire.descriptions import TreeTurn, TurnView
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueReply, EnqueueRequest
from turnstile.schema.wire.progress import CallProgress
from turnstile.sdk.file_client import Files
from turnstile.sdk.requests import idempotent, parse_request, part_of
from turnstile.sdk.turn import Answer, Attached, Backend, Request, Turn, TurnResult
from turnstile.transport.json_messages import encode

_WAIT_SECONDS = 30
"""How long one request for a result waits at the gateway."""
_AGAIN_SECONDS = 0.5
_SILENT_SECONDS = 60.0
"""A stream without so much as a comment for so long is broken off and begun again."""
_TIMEOUT = httpx.Timeout(10.0, read=_SILENT_SECONDS, pool=None)
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
"""A turn that is waited for holds a connection: with a bound the others would time out."""
_PART_BYTES = 256 << 10
_PARAMETER = re.compile(r"\{\w+\}")

Model = TypeVar("Model", bound=BaseModel)
logger: Final = logging.getLogger(__name__)


class _Problem(Tolerant):
    code: str
    detail: str = ""
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class HttpBackend(Backend):
    """A gateway."""

    http: httpx.AsyncClient
    channel: str | None
    on_wait: Callable[[str], None]
    """Gets a line when the gateway does not answer while something waits for it, and one when it does again."""

    @property
    def shown(self) -> str:
        """Its address."""
        return str(self.http.base_url).rstrip("/")

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self.http.is_closed

    def ask(self, request: EnqueueRequest) -> Turn:
        return HttpTurn(self, request)

    def known(self, agent_id: AgentId, agent_turn_id: AgentTurnId) -> Turn:
        return HttpTurn(self, agent_turn_id)

    async def find(self, agent_turn_id: AgentTurnId) -> Turn:
        turn = await self.request("GET", _path(agent_turn_id), ApiTurn)
        return HttpTurn(self, turn.agent_turn_id)

    async def call(self, verb: Verb[Request, Answer], request: Request, channel: ChannelId | None = None) -> Answer:
        answer = await self.endpoint(verb, request)
        values = dict(answer) if verb.route is None or verb.route.part is None else {verb.route.part: answer}
        known = {name: value for name, value in values.items() if value is not None}
        return verb.reply.model_validate({**known, "status": ReplyStatus.ACCEPTED})

    async def endpoint(self, verb: Verb[Any, Reply], request: BaseModel) -> BaseModel:
        """What the endpoint of a verb answers; raises as `request`, and `BadRequest` for a verb that has none."""
        if (route := verb.route) is None:
            raise BadRequest(f"a gateway has no endpoint for {verb.name}: connect to NATS for it")
        fields: JsonObject = request.model_dump(mode="json", exclude_unset=True, exclude={"message_type"})
        path, headers = route.path, dict[str, str]()
        if route.key is not None:
            path = _PARAMETER.sub(part_of(route.key, str(fields.pop(route.key))), path)
        in_body, in_query = (set(model.model_fields) if model else set[str]() for model in (route.body, route.query))
        if "correlation_id" not in in_body and (key := fields.pop("correlation_id", None)) is not None:
            headers = idempotent(str(key))
        if "after" in fields:  # in `/v1` each page names the next by a cursor
            fields["cursor"] = fields.pop("after")
        if "channel_id" in in_body | in_query and self.channel is not None:
            fields["channel_id"] = self.channel
        body = None if route.body is None else {name: fields[name] for name in fields.keys() - in_query}
        query_fields = fields if body is None else {name: fields[name] for name in in_query & fields.keys()}
        query = urlencode({name: value for name, value in query_fields.items() if value is not None})
        return await self.request(route.method, f"{path}?{query}" if query else path, route.answer, body, headers)

    async def close(self) -> None:
        await self.http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        answer: type[Model],
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterable[bytes] | None = None,
    ) -> Model:
        """The answer; `body` is sent as JSON, `content` as it is.

        Raises `Refused` with the gateway's code, `ConfigError` for a wrong address or token, `ServerUnavailable`.
        """
        if self.http.is_closed:
            raise ServerUnavailable("the client is closed")
        sent_headers = {**(headers or {}), **({} if body is None else {"content-type": "application/json"})}
        sent = content if body is None else encode(body)
        try:
            response = await self.http.request(method, path, content=sent, headers=sent_headers)
        except httpx.HTTPError as error:
            raise self.away(error) from error
        if not response.is_success:
            raise self.error_of(response.status_code, response.content)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            raise self._no_gateway("something else, or another version") from None

    async def download(self, path: str, first: int) -> AsyncGenerator[bytes]:
        """What is at this path from byte `first` on, as far as one connection has it; raises as `request`."""
        if self.http.is_closed:
            raise ServerUnavailable("the client is closed")
        headers = {"accept-encoding": "identity"} | ({"range": f"bytes={first}-"} if first else {})
        try:
            async with self.http.stream("GET", path, headers=headers) as response:
                if response.status_code != (HTTPStatus.PARTIAL_CONTENT if first else HTTPStatus.OK):
                    raise self.error_of(response.status_code, await response.aread())
                async for part in response.aiter_raw(_PART_BYTES):
                    yield part
        except httpx.HTTPError as error:
            raise self.away(error) from error

    def error_of(self, status: int, content: bytes) -> TurnstileError:
        """The error that a response describes."""
        try:
            problem = _Problem.model_validate(from_json(content))
        except (ValueError, ValidationError):  # something on the way to the gateway answers in its place
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                return ServerUnavailable(f"the gateway at {self.shown} does not answer: HTTP {status}")
            return self._no_gateway(f"HTTP {status}")
        match status, problem.code:
            case (HTTPStatus.UNAUTHORIZED, _):
                return ConfigError(f"the gateway at {self.shown} refuses the login: {problem.detail}")
            case (HTTPStatus.BAD_GATEWAY | HTTPStatus.SERVICE_UNAVAILABLE | HTTPStatus.GATEWAY_TIMEOUT, _):
                return ServerUnavailable(f"the gateway at {self.shown}: {problem.detail}")
            case (HTTPStatus.TOO_MANY_REQUESTS, _):
                return Limited(problem.code, problem.detail, retry_after=problem.retry_after_seconds)
            case _:
                return Refused(problem.code, problem.detail)

    def away(self, error: Exception) -> ServerUnavailable:
        """The error for a request without an answer."""
        if self.http.is_closed:
            return ServerUnavailable("the client is closed")
        return ServerUnavailable(f"the gateway at {self.shown} does not answer: {str(error) or type(error).__name__}")

    def _no_gateway(self, what: str) -> ConfigError:
        return ConfigError(f"what answers at {self.shown} is no gateway of this version ({what}): check the address")


def open_http(
    address: str, token: str, channel: str | None, *, on_wait: Callable[[str], None] | None = None
) -> HttpBackend:
    """A client of the gateway at this address; nothing is sent yet. Raises `ConfigError` for what cannot be one.

    `on_wait` (by default the log) receives a sentence when the gateway is away while something waits for it.
    """
    secret = read_secret(token.strip())
    if secret is None:
        raise ConfigError("the token is none of a gateway, which begins with tsk_: `turnstile token add` makes one")
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL as error:
        raise ConfigError(f"the address of the gateway makes no sense ({error}): https://HOST[:PORT]") from None
    if not url.host or url.userinfo or url.query or url.fragment:
        raise ConfigError("the address of a gateway is https://HOST[:PORT][/PATH], without a login and parameters")
    headers = {"authorization": f"Bearer {secret.text}"}
    http = httpx.AsyncClient(base_url=url, headers=headers, timeout=_TIMEOUT, limits=_LIMITS)
    return HttpBackend(http, channel, on_wait or logger.warning)


class HttpTurn(Turn):
    """A turn over HTTP."""

    def __init__(self, backend: HttpBackend, request: EnqueueRequest | RerunRequest | AgentTurnId) -> None:
        self._backend = backend
        self._request = request
        self._attached: Sequence[Attached] = ()

    def attach(self, files: Sequence[Attached]) -> None:
        self._attached = files

    async def start(self) -> AgentTurnId:
        if isinstance(self._request, BaseModel):
            if self._attached and isinstance(self._request, EnqueueRequest):
                self._request = await self._with_files(self._request)
            verb = verbs.ENQUEUE if isinstance(self._request, EnqueueRequest) else verbs.RERUN
            turn = ApiTurn.model_validate(await self._backend.endpoint(verb, self._request))
            self.reply = _reply(turn)
            self._request = turn.agent_turn_id
        return self._request

    @asynccontextmanager
    async def streamed(self) -> AsyncGenerator[AsyncGenerator[Chunk]]:
        async with aclosing(self._chunks()) as chunks:
            yield chunks

    async def describe(self) -> TurnView:
        return await self._backend.request("GET", _path(await self.start()), TurnView)

    async def ended(self, timeout: float | None = None) -> TurnResult:
        async with asyncio.timeout(timeout):
            path, outage = _path(await self.start()), _Outage(self._backend)
            while (turn := await self._waited(path, outage)) is None or turn.ended_at is None:
                pass
        output = turn.output
        return TurnResult(
            agent_turn_id=turn.agent_turn_id,
            status=TurnStatus(turn.status),
            value=None if output is None else output.data if output.text is None else output.text,
            card_id=None if output is None else output.card_id,
            partial=output is not None and output.partial,
            error_code=turn.error_code,
            error=turn.error,
            stats=turn.stats or {},
            files=() if output is None else output.files,
        )

    async def call(self, verb: Verb[Request, Answer], request: Request) -> Answer:
        return await self._backend.call(verb, request)

    @asynccontextmanager
    async def hints(self) -> AsyncGenerator[asyncio.Event]:
        hint, turn = asyncio.Event(), await self.start()

        async def follow() -> None:
            async with aclosing(self._events(turn)) as events:
                async for event in events:
                    if event.event == "state":
                        hint.set()

        following = asyncio.create_task(follow(), name=f"events of {turn}")
        try:
            yield hint
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    @property
    def closed(self) -> bool:
        return self._backend.closed

    def again(self, request: RerunRequest) -> Turn:
        return HttpTurn(self._backend, request)

    async def tree(self) -> Sequence[TreeTurn]:
        path, turns, query = f"{_path(await self.start())}/tree", list[TreeTurn](), ""
        while True:
            page = await self._backend.request("GET", path + query, TurnTree)
            turns += page.turns
            if page.next is None:
                return turns
            query = f"?cursor={page.next}"

    async def _with_files(self, request: EnqueueRequest) -> EnqueueRequest:
        """The request with its files sent: again, they are the same ones."""
        ids, files = list[str](), Files(self._backend)
        for number, file in enumerate(self._attached):
            key = f"{request.correlation_id}/{number}"
            ids.append(file if isinstance(file, str) else (await files.put(file, correlation_id=key)).artifact_id)
        self._attached = ()
        fields: JsonObject = {**request.model_dump(mode="json", exclude_unset=True), "files": [*ids]}
        return parse_request(EnqueueRequest, fields)

    async def _waited(self, path: str, outage: "_Outage") -> ApiTurn | None:
        """The turn, if it ends soon also its result; None after a while without an answer."""
        try:
            turn = await self._backend.request("GET", path, ApiTurn, headers={"prefer": f"wait={_WAIT_SECONDS}"})
        except (ServerUnavailable, Limited) as error:
            await outage.wait(error)
            return None
        outage.over()
        return turn

    async def _chunks(self) -> AsyncGenerator[Chunk]:
        turn = await self.start()
        text = StreamedText(turn)
        async with aclosing(self._events(turn)) as events:
            async for event in events:
                if event.event == "progress" and self.on_progress is not None:
                    with suppress(ValidationError):  # a newer gateway's
                        self.on_progress(CallProgress.model_validate_json(event.data))
                for chunk in text.take(event):
                    yield chunk

    async def _events(self, turn: AgentTurnId) -> AsyncGenerator[ServerSentEvent]:
        """The turn's events, each once, until its outcome; raises as `HttpBackend.request` for what will not pass."""
        last, outage = "", _Outage(self._backend)
        while True:
            try:
                async with aclosing(self._stream(turn, last)) as events:
                    async for event in events:
                        outage.over()
                        last = event.id or last
                        yield event
                        if event.event == "outcome":
                            return
                await asyncio.sleep(_AGAIN_SECONDS)  # the gateway stops; another one goes on
            except _ReadBefore:
                return
            except (ServerUnavailable, Limited) as error:
                await outage.wait(error)

    async def _stream(self, turn: AgentTurnId, last: str) -> AsyncGenerator[ServerSentEvent]:
        """One connection's events; raises `_ReadBefore` if there are none left."""
        if self._backend.http.is_closed:
            raise ServerUnavailable("the client is closed")
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        try:
            async with self._backend.http.stream("GET", f"{_path(turn)}/events", headers=headers) as response:
                if response.status_code == HTTPStatus.NO_CONTENT:
                    raise _ReadBefore
                if not response.is_success:
                    raise self._backend.error_of(response.status_code, await response.aread())
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        yield event
        except (httpx.HTTPError, SSEError) as error:
            raise self._backend.away(error) from error


@dataclass(slots=True)
class _Outage:
    """The time that a gateway is away, announced once."""

    backend: HttpBackend
    announced: bool = False

    async def wait(self, error: ServerUnavailable | Limited) -> None:
        """Wait before the next attempt; raises the error if the client is closed."""
        if self.backend.http.is_closed:
            raise error
        if not self.announced:
            self.backend.on_wait(f"waiting: {error}")
            self.announced = True
        await asyncio.sleep((error.retry_after if isinstance(error, Limited) else None) or _AGAIN_SECONDS)

    def over(self) -> None:
        """There was an answer."""
        if self.announced:
            self.backend.on_wait(f"the gateway at {self.backend.shown} answers again")
            self.announced = False


class _ReadBefore(Exception):
    """The stream was read to its end before."""


def _path(turn: AgentTurnId) -> str:
    return f"/v1/turns/{part_of('agent_turn_id', turn)}"


def _reply(turn: ApiTurn) -> EnqueueReply:
    """What the bridge replied, of the turn that the gateway answered."""
    if not turn.steered:
        return EnqueueReply.model_validate({**turn.model_dump(), "status": ReplyStatus.ACCEPTED})
    return EnqueueReply(
        status=ReplyStatus.STEERED,
        agent_id=turn.agent_id,
        conversation_id=turn.conversation_id,
        steered_turn_id=turn.agent_turn_id,
        inbox_id=turn.steer_inbox_id,
        trace_id=turn.trace_id,
        duplicate=turn.duplicate,
    )


_STEP = re.compile(r":(\d{1,6})\.")
"""The number of the step in an event's id."""


class _Card(Tolerant):
    type: str
    content: JsonValue = None


class StreamedText:
    """Makes chunks of a turn's events: those that came, and of a card the text that did not."""

    def __init__(self, turn: AgentTurnId) -> None:
        self._turn = turn
        self._begin(step_id(turn, 0), 0)

    def take(self, event: ServerSentEvent) -> list[Chunk]:
        """The chunks of an event; what is none of ours has none."""
        try:
            match event.event:
                case "chunk":
                    return [self._chunk(Chunk.model_validate_json(event.data))]
                case "card":
                    return self._card(_Card.model_validate_json(event.data), event.id)
                case _:
                    return []
        except ValidationError:  # a newer gateway's; its card or the result has the text
            return []

    def _begin(self, step: StepId, attempt: int) -> None:
        self._step, self._attempt = step, attempt
        self._index = -1
        self._said: list[str] = []
        """The text of the attempt that was passed on."""

    def _chunk(self, chunk: Chunk) -> Chunk:
        if (chunk.step_id, chunk.attempt) != (self._step, self._attempt):
            self._begin(chunk.step_id, chunk.attempt)
        self._index = chunk.index
        if chunk.chunk_type is ChunkType.CONTENT:
            self._said.append(chunk.content)
        return chunk

    def _card(self, card: _Card, event_id: str) -> list[Chunk]:
        """A model's text that was not streamed, or not to its end, or not as it is."""
        match card.content, _STEP.search(event_id):
            case ({"text": str(whole)}, re.Match() as place) if card.type == CardType.THOUGHT:
                pass
            case _:
                return []
        if (step := step_id(self._turn, int(place[1]))) != self._step:
            self._begin(step, 1)
        streamed = "".join(self._said)
        if whole == streamed:
            return []
        if not whole.startswith(streamed):
            self._begin(step, self._attempt + 1)
            streamed = ""
        missing = [] if self._index >= 0 else [self._made(ChunkType.START)]
        return [*missing, self._made(ChunkType.CONTENT, whole[len(streamed) :]), self._made(ChunkType.END)]

    def _made(self, kind: ChunkType, text: str = "") -> Chunk:
        return self._chunk(
            Chunk(
                agent_turn_id=self._turn,
                step_id=self._step,
                attempt=self._attempt,
                index=self._index + 1,
                chunk_type=kind,
                content=text,
            )
        )
