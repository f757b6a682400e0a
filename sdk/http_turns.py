"""Turns asked for over HTTP, from a gateway (protocol §14): one request each, and one stream while one is followed.

A stream that breaks off goes on where it was, at the same gateway or at another behind the same address; the text is
exact, also where NATS has lost it meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import from_json

from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.schema.wire.events import Chunk
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.sdk.turn import Backend, Cascade, Turn, TurnResult

_WAIT_SECONDS = 30
"""How long one request for a result waits at the gateway."""
_AGAIN_SECONDS = 0.5
_SILENT_SECONDS = 60.0
"""A stream without so much as a comment for so long is broken off and begun again."""
_TIMEOUT = httpx.Timeout(10.0, read=_SILENT_SECONDS)
_SPOKEN = frozenset({"agent.thought", "task.deliverable"})

Answer = TypeVar("Answer", bound=BaseModel)


class _Output(Tolerant):
    text: str | None = None
    data: JsonValue = None


class _Turn(Tolerant):
    """What is read of a turn."""

    agent_turn_id: AgentTurnId
    status: str
    ended_at: str | None = None
    output: _Output | None = None
    error_code: str | None = None
    error: str | None = None
    stats: JsonObject | None = None


class _Tree(Tolerant):
    turns: list[TreeTurn]
    next: str | None = None


class _Stop(Tolerant):
    already_final: bool


class _Problem(Tolerant):
    code: str = "internal_error"
    detail: str = ""
    retry_after_seconds: float | None = None


class _Card(Tolerant):
    type: str
    content: JsonValue = None


@dataclass(frozen=True, slots=True)
class HttpBackend(Backend):
    """A gateway."""

    http: httpx.AsyncClient
    channel: str | None

    def ask(self, request: EnqueueRequest) -> Turn:
        return HttpTurn(self, request)

    async def find(self, agent_turn_id: AgentTurnId) -> Turn:
        found = await self.request("GET", f"/v1/turns/{agent_turn_id}", _Turn)
        return HttpTurn(self, found.agent_turn_id)

    async def close(self) -> None:
        await self.http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        answer: type[Answer],
        body: JsonObject | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The answer; raises the error that a problem tells of, `ServerUnavailable` if there is no answer."""
        try:
            response = await self.http.request(method, path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise _away(error) from error
        raise_for_problem(response.status_code, response.content)
        try:
            return answer.model_validate_json(response.content)
        except ValidationError:
            raise ServerUnavailable(f"what answers at {self.http.base_url} is no gateway of this version") from None


def open_http(address: str, token: str, channel: str | None) -> HttpBackend:
    """A client of the gateway at this address; nothing is sent yet."""
    headers = {"authorization": f"Bearer {token}"}
    return HttpBackend(httpx.AsyncClient(base_url=address, headers=headers, timeout=_TIMEOUT), channel)


class HttpTurn(Turn):
    """A turn over HTTP."""

    def __init__(self, backend: HttpBackend, asked: EnqueueRequest | AgentTurnId) -> None:
        self._backend = backend
        self._asked = asked

    async def start(self) -> AgentTurnId:
        if isinstance(self._asked, EnqueueRequest):
            body = self._asked.model_dump(mode="json", exclude_none=True, exclude={"correlation_id"})
            if self._backend.channel is not None:
                body["channel_id"] = self._backend.channel
            headers = {"idempotency-key": self._asked.correlation_id or ""}
            made = await self._backend.request("POST", "/v1/turns", _Turn, body, headers)
            self._asked = made.agent_turn_id
        return self._asked

    async def __aiter__(self) -> AsyncGenerator[str]:
        text = _Text()
        async with aclosing(self._events(await self.start())) as events:
            async for event in events:
                if piece := text.take(event):
                    yield piece

    async def result(self, timeout: float | None = None) -> TurnResult:
        async with asyncio.timeout(timeout):
            path = f"/v1/turns/{await self.start()}"
            while (found := await self._waited(path)) is None or found.ended_at is None:
                pass
        output = found.output or _Output()
        return TurnResult(
            agent_turn_id=found.agent_turn_id,
            status=TurnStatus(found.status),
            value=output.data if output.text is None else output.text,
            error_code=found.error_code,
            error=found.error,
            stats=found.stats or {},
        )

    async def stop(self, reason: str = "", *, cascade: Cascade = "waited") -> bool:
        asked: JsonObject = {"reason": reason, "cascade": cascade}
        path = f"/v1/turns/{await self.start()}/stop"
        return not (await self._backend.request("POST", path, _Stop, asked)).already_final

    async def tree(self) -> Sequence[TreeTurn]:
        path, turns, query = f"/v1/turns/{await self.start()}/tree", list[TreeTurn](), ""
        while True:
            page = await self._backend.request("GET", path + query, _Tree)
            turns += page.turns
            if page.next is None:
                return turns
            query = f"?cursor={page.next}"

    async def _waited(self, path: str) -> _Turn | None:
        """The turn, if it ends soon also its result; None after a while without an answer."""
        try:
            return await self._backend.request("GET", path, _Turn, headers={"prefer": f"wait={_WAIT_SECONDS}"})
        except (ServerUnavailable, Limited) as error:
            if self._backend.http.is_closed:
                raise
            await asyncio.sleep((error.retry_after if isinstance(error, Limited) else None) or _AGAIN_SECONDS)
        return None

    async def _events(self, turn: AgentTurnId) -> AsyncGenerator[ServerSentEvent]:
        """The turn's events, each once, until its outcome; raises as `request` does for what will not pass."""
        last: str = ""
        while True:
            try:
                async with aclosing(self._stream(turn, last)) as events:
                    async for event in events:
                        last = event.id or last
                        yield event
                        if event.event == "outcome":
                            return
            except (ServerUnavailable, Limited):
                if self._backend.http.is_closed:
                    raise
            except _Ended:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _stream(self, turn: AgentTurnId, last: str) -> AsyncGenerator[ServerSentEvent]:
        """One connection's events; raises `_Ended` if there are none left."""
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        try:
            async with self._backend.http.stream("GET", f"/v1/turns/{turn}/events", headers=headers) as response:
                if response.status_code == HTTPStatus.NO_CONTENT:
                    raise _Ended
                if response.status_code != HTTPStatus.OK:
                    raise_for_problem(response.status_code, await response.aread())
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        yield event
        except (httpx.HTTPError, SSEError) as error:
            raise _away(error) from error


@dataclass(slots=True)
class _Text:
    """What was said of the step that is under way, so that its card adds only what is missing."""

    attempt: int = 0
    said: list[str] = field(default_factory=list[str])

    def take(self, event: ServerSentEvent) -> str:
        """The new text of an event; what is none of ours has none."""
        try:
            match event.event:
                case "chunk":
                    return self._chunk(Chunk.model_validate_json(event.data))
                case "card":
                    return self._card(_Card.model_validate_json(event.data))
                case "step":
                    self.attempt, self.said = 0, []
                case _:
                    pass
        except ValidationError:  # a newer gateway's; its card or the result has the text
            pass
        return ""

    def _chunk(self, chunk: Chunk) -> str:
        if chunk.attempt != self.attempt:
            self.attempt, self.said = chunk.attempt, []
        if chunk.chunk_type is not ChunkType.CONTENT:
            return ""
        self.said.append(chunk.content)
        return chunk.content

    def _card(self, card: _Card) -> str:
        match card.content:
            case {"text": str(whole)} if card.type in _SPOKEN:
                said, self.said = "".join(self.said), [whole]
                return whole.removeprefix(said) if whole.startswith(said) else whole
            case _:
                return ""


class _Ended(Exception):
    """The stream was read to its end before."""


def raise_for_problem(status: int, content: bytes) -> None:
    """Raise the error that a response tells of; None for one that is a success."""
    if status < HTTPStatus.BAD_REQUEST:
        return
    try:
        problem = _Problem.model_validate(from_json(content))
    except (ValueError, ValidationError):  # not the gateway: something on the way to it
        problem = _Problem(code="server_unavailable", detail=f"HTTP {status}")
    raise _error_of(status, problem)


def _error_of(status: int, problem: _Problem) -> TurnstileError:
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT):
        return ServerUnavailable(problem.detail)
    if problem.code == "server_unavailable":
        return ServerUnavailable(problem.detail)
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return Limited(problem.code, problem.detail, retry_after=problem.retry_after_seconds)
    if problem.code == "bad_request":
        return BadRequest(problem.detail)
    return Refused(problem.code, problem.detail)


def _away(error: Exception) -> ServerUnavailable:
    return ServerUnavailable(f"the gateway does not answer: {error or type(error).__name__}")
