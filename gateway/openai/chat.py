"""`/openai/v1/chat/completions`: a turn whose whole past is in the request (protocol §14.4).

The turn reads the messages and nothing else, and goes into no conversation. Nobody can find it again, so it is stopped
when its client goes away, unless an `Idempotency-Key` names it: then the same request finds it again.

A client cannot take back streamed text: a step that begins anew must repeat what was streamed of it, and continues from
there. A blank line stands between the texts of steps; the deliverable follows if the last step did not say it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.events.frames import HEARTBEAT, ResetEvent, StepDone
from turnstile.gateway.events.reading import Change, Reader, reader_of
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.gateway.events.stream import EventStream, attend
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Problem, Unauthenticated, problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.chat_answer import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    Frames,
    delivered_text,
    error_frame,
    reason_of,
    usage_of,
)
from turnstile.gateway.openai.chat_request import ChatCreate, message_texts
from turnstile.gateway.openai.error_objects import CONTEXT_LENGTH, code_of, error_response
from turnstile.gateway.openai.messages import Composed, composed
from turnstile.gateway.openai.models import find_target, known_model
from turnstile.gateway.v1.turn_handlers import key_in
from turnstile.ledger.turns.usage import TurnUsage, sum_turn_usage
from turnstile.rules.tool_specs import OUTPUT_INVALID
from turnstile.runtime.telemetry import Metric
from turnstile.schema.access import Principal
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.ids import ChannelId
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.descriptions import TurnView

_DELIVERED = frozenset({TurnStatus.SUCCESS, TurnStatus.PARTIAL})
_NOBODY = 499
"""The status in the log of a request whose client has gone."""


class TurnFailed(TurnstileError):
    """The turn ended without a deliverable of its own: no client may ask again by itself."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn.error or f"the turn ended: {turn.status}")
        self.code = code_of(turn)
        is_too_long = self.code == CONTEXT_LENGTH
        self.status = HTTPStatus.BAD_REQUEST if is_too_long else HTTPStatus.UNPROCESSABLE_ENTITY


@dataclass(frozen=True, slots=True)
class ChatCompletions:
    """The handler."""

    kernel: Kernel

    async def create(self, call: Call[object, ChatCreate]) -> Answer:
        """Run a turn on these messages; answer when it is over, or as it goes."""
        kernel, body = self.kernel, call.body
        with ExitStack() as stack:
            stack.enter_context(kernel.access.streaming(call.principal))  # refused before there is a turn
            prompt, key = composed(message_texts(body.messages)), key_in(call.headers)
            target = await find_target(kernel.pool, call.principal.project_id, body.model)
            fields = await self._fields(call, target, prompt, key)
            try:
                with known_model(body.model):
                    view = await kernel.enqueue(call, self._channel(call), target, fields, key)
            except ServerUnavailable as error:  # nobody knows whether it was enqueued
                return Answer(error_response(problem_of(error), over=key is None))
            reader = reader_of(kernel.access, call.secret, kernel.heartbeat_seconds)
            is_typed = body.output_format is not None
            answer = _ChatAnswer(
                kernel, call.principal, view, target.named, reader, found_again=key is not None, is_typed=is_typed
            )
            if body.stream:
                tells_usage = body.stream_options is not None and body.stream_options.include_usage
                return Answer(answer.streamed(stack.pop_all(), tells_usage=tells_usage))
            return Answer(await answer.whole(call.request.receive))

    def _channel(self, call: Call[object, ChatCreate]) -> ChannelId:
        return self.kernel.turns.asking.channel(call.principal, None)

    async def _fields(
        self, call: Call[object, ChatCreate], target: AddressedTarget, prompt: Composed, key: str | None
    ) -> JsonObject:
        """What the enqueue says."""
        fields: JsonObject = {"runtime_config": call.body.runtime_config(prompt.instructions)}
        if notes := call.body.notes():
            fields["metadata"] = notes
        if target.is_profile and len(prompt.parts) == 1:
            return {**fields, "instruction": prompt.parts[0].text}
        # A turn of an agent that names no box goes on in the conversation that its profile may keep.
        return {**fields, "context_box_id": await self.kernel.make_box(call, self._channel(call), prompt.parts, key)}


@dataclass(frozen=True, slots=True)
class _ChatAnswer:
    """A turn that runs for a completion."""

    kernel: Kernel
    principal: Principal
    view: TurnView
    model: str
    reader: Reader
    found_again: bool
    """Whether its client can find it again."""
    is_typed: bool = False
    """Whether the answer is the JSON of a value, and nothing else."""

    async def whole(self, receive: Receive) -> Response:
        """The completion when the turn is over, or an error; nothing is read if the client has gone."""
        finding = asyncio.create_task(self._completion())
        try:
            ending = await attend(finding, receive, self.kernel.streaming.closing, holds=self.reader.allowed)
        except Unauthenticated:
            await self.leave()
            raise
        match ending:
            case "done":
                try:
                    return JSONResponse(finding.result().model_dump(mode="json"))
                except TurnstileError as failed:
                    error = failed
            case "gone":
                await self.leave()
                return Response(status_code=_NOBODY)
            case "closing":
                error = ServerUnavailable("the gateway is stopping")
        return error_response(await self._problem(error), over=not self.found_again)

    def streamed(self, counted: AbstractContextManager[object], *, tells_usage: bool) -> EventStream:
        """The completion as chunks."""
        streaming = self.kernel.streaming
        streaming.meter.count(Metric.HTTP_STREAMS, resumed="no")
        frames = Frames(self._id, self._created, self.model, tells_usage=tells_usage)
        farewell = error_frame(problem_of(ServerUnavailable("the gateway is stopping")))
        return EventStream(self._chunks(frames), streaming, counted, self.leave, self.leave, farewell)

    async def leave(self) -> None:
        """Stop the turn, unless its client can find it again."""
        if self.found_again:
            return
        await self.kernel.turns.abandon(self.principal, self.view)

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self.view.agent_turn_id}"

    @property
    def _created(self) -> int:
        return int(self.view.created_at.timestamp())

    async def _completion(self) -> ChatCompletion:
        async with contextlib.aclosing(self._events()) as batches:
            async for change in batches:
                if (turn := _outcome(change)) is not None:
                    message = AssistantMessage(content=delivered_text(turn, is_typed=self.is_typed))
                    choice = ChatChoice(message=message, finish_reason=reason_of(turn))
                    return ChatCompletion(
                        id=self._id,
                        created=self._created,
                        model=self.model,
                        choices=[choice],
                        usage=usage_of(await self._usage()),
                    )
        raise ServerUnavailable("the turn cannot be followed")

    async def _chunks(self, frames: Frames) -> AsyncGenerator[bytes]:
        sent_text = SentText()
        yield frames.begun()
        try:
            async with contextlib.aclosing(self._events()) as batches:
                async for change in batches:
                    if change is None:
                        yield HEARTBEAT
                        continue
                    # what a model says before it gives its value is no JSON
                    if not self.is_typed and (text := sent_text.take(change.events)):
                        yield frames.text(text)
                    if (turn := _outcome(change)) is not None:
                        if text := sent_text.deliver(delivered_text(turn, is_typed=self.is_typed)):
                            yield frames.text(text)
                        yield frames.ended(reason_of(turn), await self._usage())
                        return
            raise ServerUnavailable("the turn cannot be followed")
        except TurnstileError as error:
            yield error_frame(await self._problem(error))

    async def _events(self) -> AsyncGenerator[Change | None]:
        async with (
            self.kernel.feeds.following(self.view) as feed,
            contextlib.aclosing(self.reader.changes(feed)) as changes,
        ):
            async for change in changes:
                yield change

    async def _usage(self) -> TurnUsage:
        view = self.view
        return await self.kernel.pool.run(lambda conn: sum_turn_usage(conn, view.project_id, view.agent_turn_id))

    async def _problem(self, error: TurnstileError) -> Problem:
        """The problem that ends the completion; a turn that is not over is left."""
        if isinstance(error, TurnFailed):
            return problem_of(error, error.status)
        await self.leave()
        return problem_of(error)


def _outcome(change: Change | None) -> Turn | None:
    """The turn if it is over; raises `TurnFailed`."""
    turn = None if change is None else change.outcome
    if turn is not None and (turn.status not in _DELIVERED or turn.error_code == OUTPUT_INVALID):
        raise TurnFailed(turn)
    return turn


_APART: Final = "\n\n"


class StreamVoided(TurnstileError):
    """What was streamed is no longer what the turn says."""

    code: str = "stream_voided"


class SentText:
    """The text of one turn that a client has got."""

    def __init__(self) -> None:
        self._step: int = 0
        self._attempt: int = 0
        self._sent: list[str] = []
        """Of the step."""
        self._again = ""
        """What the step must still say again."""
        self._any = False

    def take(self, events: Sequence[Event]) -> str:
        """The text to send after these events; raises `StreamVoided`."""
        return "".join(self._take(event) for event in events)

    def deliver(self, text: str) -> str:
        """The text to send at the end, so that all of the deliverable was sent."""
        streamed = "".join(self._sent)
        if text == streamed or not text:
            return ""
        if streamed and text.startswith(streamed):
            return text[len(streamed) :]
        return _APART + text if self._any else text

    def _take(self, event: Event) -> str:
        match event.data:
            case ChunkPiece() as piece:
                self._enter(event.position.step, event.position.a)
                return self._say(piece.text) if piece.kind is ChunkType.CONTENT else ""
            case ResetEvent():
                self._again = "".join(self._sent)
                return ""
            case CardAnswer(type=CardType.THOUGHT, content=content):
                self._enter(event.position.step, self._attempt)
                text = content.get("text") if isinstance(content, dict) else None
                if not isinstance(text, str) or (self._sent and not self._again):
                    return ""
                self._again = "".join(self._sent)  # the card has the whole text
                return self._say(text)
            case StepDone():
                if self._again:
                    raise _voided()
                return ""
            case CardAnswer() | Turn():
                return ""

    def _enter(self, step: int, attempt: int) -> None:
        if step != self._step:
            self._step, self._attempt, self._again = step, attempt, ""
            self._sent = []
        elif attempt != self._attempt:
            self._attempt, self._again = attempt, "".join(self._sent)

    def _say(self, text: str) -> str:
        if self._again:
            known = min(len(text), len(self._again))
            if text[:known] != self._again[:known]:
                raise _voided()
            self._again, text = self._again[known:], text[known:]
        if not text:
            return ""
        apart = _APART if self._any and not self._sent else ""
        self._sent.append(text)
        self._any = True
        return apart + text


def _voided() -> StreamVoided:
    return StreamVoided("a step was retried, and its text differs from what was streamed; request it without stream")
