"""`/openai/v1/chat/completions`: a turn whose whole past is in the request (protocol §14.4).

The turn reads the messages and nothing else, and goes into no conversation. Nobody can find it again, so it is stopped
when its client goes away, unless an `Idempotency-Key` names it: then the same request finds it again. A completion that
ends with calls of the client's functions ends before its turn does, which then waits for them (protocol §19).

A client cannot take back streamed text: a step that begins anew must repeat what was streamed of it, and continues from
there. A blank line stands between the texts of steps; the deliverable follows if the last step did not say it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.client_calls import continued
from turnstile.gateway.events.frames import HEARTBEAT, ResetEvent, StepDone
from turnstile.gateway.events.positions import BEGIN, Position
from turnstile.gateway.events.reading import Change, Reader, reader_of
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.gateway.events.stream import EventStream, attend
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Problem, Unauthenticated, problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.chat_answer import (
    AssistantMessage,
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    FinishReason,
    Frames,
    FunctionCall,
    delivered_text,
    error_frame,
    reason_of,
    usage_of,
)
from turnstile.gateway.openai.chat_request import ChatCreate, said_in
from turnstile.gateway.openai.client_tools import check_target
from turnstile.gateway.openai.error_objects import CONTEXT_LENGTH, code_of, error_response
from turnstile.gateway.openai.fields import end_user_of
from turnstile.gateway.openai.messages import Composed, answers_in, composed
from turnstile.gateway.openai.models import find_target, known_model
from turnstile.gateway.v1.turn_handlers import key_in
from turnstile.ledger.turns.usage import TurnUsage, sum_turn_usage
from turnstile.rules.tool_specs import OUTPUT_INVALID
from turnstile.runtime.telemetry import Metric
from turnstile.schema.access import Principal
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType, ThoughtCall
from turnstile.schema.errors import ServerUnavailable, TurnstileError
from turnstile.schema.ids import ChannelId
from turnstile.schema.states import ChunkType, TurnStatus
from turnstile.schema.wire.box_requests import TextPart
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
            said, key = said_in(body.messages), key_in(call.headers)
            prompt = composed(said)
            target = await find_target(kernel.pool, call.principal.project_id, body.model)
            answers = answers_in(said)
            try:
                before = await continued(kernel, call, target, answers) if answers else None
                view, begin = before or (await self._enqueued(call, target, prompt, key), BEGIN)
            except ServerUnavailable as error:  # nobody knows whether it was enqueued
                return Answer(error_response(problem_of(error), over=key is None))
            reader = reader_of(kernel.access, call.secret, kernel.heartbeat_seconds)
            is_typed = body.output_format is not None
            answer = _ChatAnswer(
                kernel,
                call.principal,
                view,
                target.named,
                reader,
                begin,
                found_again=key is not None,
                is_typed=is_typed,
            )
            if body.stream:
                tells_usage = body.stream_options is not None and body.stream_options.include_usage
                return Answer(answer.streamed(stack.pop_all(), tells_usage=tells_usage))
            return Answer(await answer.whole(call.request.receive))

    def _channel(self, call: Call[object, ChatCreate]) -> ChannelId:
        return self.kernel.turns.asking.channel(call.principal, None)

    async def _enqueued(
        self, call: Call[object, ChatCreate], target: AddressedTarget, prompt: Composed, key: str | None
    ) -> TurnView:
        """The turn of a new completion, or of the same request before."""
        fields = await self._fields(call, target, prompt, key)
        with known_model(call.body.model):
            return await self.kernel.enqueue(call, self._channel(call), target, fields, key)

    async def _fields(
        self, call: Call[object, ChatCreate], target: AddressedTarget, prompt: Composed, key: str | None
    ) -> JsonObject:
        """What the enqueue says."""
        config = call.body.runtime_config(prompt.instructions)
        check_target(target, config)
        fields: JsonObject = {"runtime_config": config}
        if notes := call.body.notes():
            fields["metadata"] = notes
        fields |= end_user_of(call.body.user, call.body.safety_identifier)
        match prompt.parts:
            case [TextPart(text=text)] if target.is_profile:
                return {**fields, "instruction": text}
            case _:
                pass
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
    begin: Position
    """The place in the turn behind which the completion begins."""
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
        step = f"-{self.begin.step}" if self.begin.step else ""
        return f"chatcmpl-{self.view.agent_turn_id}{step}"

    @property
    def _created(self) -> int:
        return int(self.view.created_at.timestamp())

    async def _completion(self) -> ChatCompletion:
        thoughts = LastThought()
        async with contextlib.aclosing(self._events()) as batches:
            async for change in batches:
                if change is not None:
                    thoughts.take(change.events)
                if (turn := _outcome(change)) is not None:
                    message = AssistantMessage(content=delivered_text(turn, is_typed=self.is_typed))
                    return await self._completed(message, reason_of(turn))
                if calls := self._handed_over(change, thoughts):
                    message = AssistantMessage(content=thoughts.text or None, tool_calls=calls)
                    return await self._completed(message, "tool_calls")
        raise ServerUnavailable("the turn cannot be followed")

    async def _completed(self, message: AssistantMessage, reason: FinishReason) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self.model,
            choices=[ChatChoice(message=message, finish_reason=reason)],
            usage=usage_of(await self._usage()),
        )

    def _handed_over(self, change: Change | None, thoughts: "LastThought") -> list[FunctionCall]:
        """The calls that end the completion: all that its turn waits for are the client's own."""
        if change is None or not change.seen.awaits_client(self.begin.step):
            return []
        return thoughts.calls({call.tool_call_id for call in change.seen.client_calls})

    async def _chunks(self, frames: Frames) -> AsyncGenerator[bytes]:
        sent_text, thoughts = SentText(), LastThought()
        yield frames.begun()
        try:
            async with contextlib.aclosing(self._events()) as batches:
                async for change in batches:
                    if change is None:
                        yield HEARTBEAT
                        continue
                    thoughts.take(change.events)
                    # what a model says before it gives its value is no JSON
                    if not self.is_typed and (text := sent_text.take(change.events)):
                        yield frames.text(text)
                    if (turn := _outcome(change)) is not None:
                        if text := sent_text.deliver(delivered_text(turn, is_typed=self.is_typed)):
                            yield frames.text(text)
                        yield frames.ended(reason_of(turn), await self._usage())
                        return
                    if calls := self._handed_over(change, thoughts):
                        yield frames.calls(calls)
                        yield frames.ended("tool_calls", await self._usage())
                        return
            raise ServerUnavailable("the turn cannot be followed")
        except TurnstileError as error:
            yield error_frame(await self._problem(error))

    async def _events(self) -> AsyncGenerator[Change | None]:
        async with (
            self.kernel.feeds.following(self.view) as feed,
            contextlib.aclosing(self.reader.changes(feed, self.begin)) as changes,
        ):
            async for change in changes:
                yield change

    async def _usage(self) -> TurnUsage:
        view = self.view
        step = self.begin.step
        return await self.kernel.pool.run(
            lambda conn: sum_turn_usage(conn, view.project_id, view.agent_turn_id, after_step=step)
        )

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


class LastThought:
    """What the model said and called last."""

    def __init__(self) -> None:
        self.text = ""
        self._calls: Sequence[ThoughtCall] = ()

    def take(self, events: Sequence[Event]) -> None:
        """Take the turn's events."""
        for event in events:
            match event.data:
                case CardAnswer(type=CardType.THOUGHT, content=content, tool_calls=calls):
                    text = content.get("text") if isinstance(content, dict) else None
                    self.text, self._calls = text if isinstance(text, str) else "", calls or ()
                case _:
                    pass

    def calls(self, of: Collection[str]) -> list[FunctionCall]:
        """These of its calls, in their order; none before all are known."""
        calls = [
            FunctionCall(id=call.tool_call_id, function=CalledFunction(name=call.tool_name, arguments=call.arguments))
            for call in self._calls
            if call.tool_call_id in of
        ]
        return calls if len(calls) == len(of) else []


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
