"""`/openai/v1/responses`: turns as responses, made, read, streamed and stopped (protocol §14.4).

A response is a turn, so it is kept, and any gateway answers for it. Without `background` its client waits for it, and
the turn is stopped when that client goes away, unless an `Idempotency-Key` names it: then the same request finds it
again. A stream that is cut by the gateway stops nothing; `starting_after` goes on with it.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from turnstile.gateway.client_calls import continued
from turnstile.gateway.events.frames import HEARTBEAT
from turnstile.gateway.events.positions import BEGIN
from turnstile.gateway.events.reading import Reader, reader_of
from turnstile.gateway.events.stream import EventStream, attend
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import BadField, Unauthenticated, problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.chat_answer import error_frame
from turnstile.gateway.openai.client_tools import check_target
from turnstile.gateway.openai.conversations import OpenAIConversations
from turnstile.gateway.openai.error_objects import error_response
from turnstile.gateway.openai.fields import end_user_of
from turnstile.gateway.openai.messages import CallOutput, SpokenText, answers_in, composed
from turnstile.gateway.openai.models import find_target, known_model
from turnstile.gateway.openai.responses.item_parts import parts_of
from turnstile.gateway.openai.responses.numbers import Mark, read_number
from turnstile.gateway.openai.responses.request import ItemsQuery, ResponseCreate, ResponseRetrieve
from turnstile.gateway.openai.responses.response_reading import (
    asked_with,
    begun,
    client_tools_of,
    is_typed,
    items_of,
    place_in,
    read_response,
    unknown_response,
)
from turnstile.gateway.openai.responses.response_stream import ResponseStream
from turnstile.gateway.v1.turn_handlers import key_in
from turnstile.ledger.access.past import list_cards, list_turn_past
from turnstile.runtime.telemetry import Metric
from turnstile.schema.access import Principal
from turnstile.schema.api import TurnStop
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType
from turnstile.schema.errors import Refused, ServerUnavailable, TurnstileError
from turnstile.schema.wire.box_requests import CARD_LIMIT, CardPart, Part, TextPart
from turnstile.schema.wire.descriptions import TurnView

_STOP_SECONDS: Final = 10.0
"""How long a cancel waits for the end of its turn."""
_FAREWELL: Final = b": the gateway stops; go on with starting_after\n\n"


class PreviousResponse(BadField):
    """The response to go on from is not there, or not over."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message, "previous_response_id")
        self.code = code


class _Place(NamedTuple):
    """A response: its turn, and the step after which it begins."""

    view: TurnView
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Responses:
    """The handlers."""

    kernel: Kernel

    async def create(self, call: Call[Any, ResponseCreate]) -> Answer:
        """Make a response: answer at once (`background`), when it is over, or with its stream."""
        kernel, request = self.kernel, call.body
        with ExitStack() as stack:
            if request.stream or not request.background:
                stack.enter_context(kernel.access.streaming(call.principal))  # refused before there is a turn
            key = key_in(call.headers)
            try:
                place = await self._enqueued(call, key)
            except ServerUnavailable as error:  # nobody knows whether it was enqueued
                return Answer(error_response(problem_of(error), over=key is None))
            lasts = request.background or key is not None
            if request.stream:
                return Answer(self._streamed(call, place, None, stack.pop_all(), lasts=lasts))
            if not request.background:
                return await self._awaited(call, place, lasts=lasts)
            return Answer(await read_response(kernel.pool, place.view, call.principal, place.begin))

    async def get(self, call: Call[ResponseRetrieve, object]) -> Answer:
        """A response as it is now, or its stream, from its begin or after a sequence number."""
        place = await self._place(call.principal, call.path["response_id"])
        mark = None if call.query.starting_after is None else read_number(int(call.query.starting_after))
        if call.query.stream == "true":
            counted = self.kernel.access.streaming(call.principal)
            return Answer(self._streamed(call, place, mark, counted, lasts=True))
        if mark is not None:
            raise BadField("starting_after: allowed only with stream", "starting_after")
        return Answer(await read_response(self.kernel.pool, place.view, call.principal, place.begin))

    async def input_items(self, call: Call[ItemsQuery, object]) -> Answer:
        """What a response's turn had read before it began, as items."""
        view = (await self._place(call.principal, call.path["response_id"])).view
        project, turn = view.project_id, view.agent_turn_id
        past = await self.kernel.pool.run(lambda conn: list_turn_past(conn, project, turn, row_limit=CARD_LIMIT))
        cards = await self.kernel.pool.run(lambda conn: list_cards(conn, project, past))
        first = next(
            (n for n, card in enumerate(cards) if card.metadata.agent_turn_id == turn and _is_made(card)), None
        )
        return Answer(call.query.page(items_of(cards[:first])))

    async def cancel(self, call: Call[object, object]) -> Answer:
        """Stop a response; one that is over stays as it is, also if its turn goes on or waits for its client."""
        view, begin = await self._place(call.principal, call.path["response_id"])
        before = await read_response(self.kernel.pool, view, call.principal, begin)
        if view.ended_at is None and before.status != "completed":
            request = TurnStop(reason="cancelled")
            await self.kernel.turns.stop_turn(call.principal, view, request, call.headers)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    view = await self.kernel.feeds.until_over(view)
            await self.kernel.access.still(call.secret)
            if view.ended_at is None:
                view = await self.kernel.turns.described(call.principal, view.agent_turn_id)
        return Answer(await read_response(self.kernel.pool, view, call.principal, begin))

    async def _enqueued(self, call: Call[Any, Any], key: str | None) -> "_Place":
        """The turn of a new response, of the same request before, or that goes on with what its client has run."""
        kernel, principal = self.kernel, call.principal
        request: ResponseCreate = call.body
        entries, conversation = request.entries(), request.conversation_id()
        instructions = composed([entry for entry in entries if isinstance(entry, SpokenText)]).instructions
        notes, target = request.notes(), await find_target(kernel.pool, principal.project_id, request.model)
        check_target(target, request.own_tools)
        if (answers := answers_in(entries)) and (on := await continued(kernel, call, target, answers)) is not None:
            return _Place(on[0], on[1].step)
        goes_on = request.previous_response_id is not None or conversation is not None
        if answers and not goes_on and all(isinstance(entry, CallOutput | SpokenText) for entry in entries):
            hint = "send previous_response_id, or the items before them"
            raise BadField(f"input: no turn of yours waits for these outputs: {hint}", "input")
        previous = await self._previous(principal, request.previous_response_id)
        channel = kernel.turns.asking.channel(principal, None) if previous is None else previous.channel_id
        fields: JsonObject = {"runtime_config": request.runtime_config(instructions), "metadata": notes}
        fields |= end_user_of(request.user, request.safety_identifier)
        parts: list[Part] = [] if previous is None else await self._past(previous)
        parts += await parts_of(kernel, principal, entries, "input")
        if conversation is not None:
            await OpenAIConversations(kernel).joined(call, channel, conversation, target)
            fields["conversation_id"] = conversation
        last = parts[-1]
        # A turn of an agent that names no box goes on in the conversation that its profile may keep: it gets one.
        alone = target.is_profile or conversation is not None or len(parts) > 1
        if alone and isinstance(last, TextPart) and last.type == "task.instruction":
            parts.pop()
            fields["instruction"] = last.text
        if parts:
            fields["context_box_id"] = await kernel.make_box(call, channel, parts, key)
        with known_model(request.model):
            return _Place(await kernel.enqueue(call, channel, target, fields, key))

    async def _previous(self, principal: Principal, response: str | None) -> TurnView | None:
        """The turn to go on from; raises `PreviousResponse` if it is not there or not over."""
        if response is None:
            return None
        try:
            view = (await self._place(principal, response)).view
        except Refused:
            message = "previous_response_id: the project has no such response"
            raise PreviousResponse(message, "previous_response_not_found") from None
        if view.ended_at is None:
            message = "previous_response_id: this response is still running; wait for it, or cancel it"
            raise PreviousResponse(message, "previous_response_in_progress")
        return view

    async def _past(self, view: TurnView) -> list[Part]:
        """What a turn had read and made when it ended."""
        project, turn = view.project_id, view.agent_turn_id
        cards = await self.kernel.pool.run(lambda conn: list_turn_past(conn, project, turn, row_limit=CARD_LIMIT))
        if len(cards) == CARD_LIMIT:
            raise PreviousResponse("previous_response_id: the conversation before it is too long", "too_many_cards")
        return [CardPart(card_id=card) for card in cards]

    async def _place(self, principal: Principal, response: str) -> "_Place":
        """The turn of a response that the token may see; raises `Refused` (unknown_response)."""
        turn, begin = place_in(response)
        try:
            return _Place(await self.kernel.turns.described(principal, turn), begin)
        except Refused:
            raise unknown_response() from None

    async def _over(self, call: Call[Any, Any], place: "_Place") -> TurnView:
        """The turn when the response is over: it is, or it waits for what its client runs."""
        kernel, view = self.kernel, place.view
        request = await asked_with(kernel.pool, view, call.principal)
        if not (tools := client_tools_of(request)):
            return await kernel.feeds.until_over(view)
        stream = ResponseStream(
            view.agent_turn_id, partial(begun, view, request), None, begin=place.begin, client_tools=tools
        )
        reader = reader_of(kernel.access, call.secret, kernel.heartbeat_seconds)
        async with (
            kernel.feeds.following(view) as feed,
            contextlib.aclosing(reader.changes(feed, stream.cursor)) as changes,
        ):
            async for change in changes:
                for event in () if change is None else change.events:
                    for _ in stream.take(event):
                        pass
                    if stream.handed_over:
                        break
                if change is not None and (stream.handed_over or change.outcome is not None):
                    return change.seen.view
        raise ServerUnavailable("the turn cannot be followed")

    async def _awaited(self, call: Call[Any, ResponseCreate], place: "_Place", *, lasts: bool) -> Answer:
        """The response when it is over; unless it `lasts`, its turn is stopped if no turn waits for it any more."""
        kernel, view = self.kernel, place.view
        waiting = asyncio.create_task(self._over(call, place))
        still = partial(kernel.access.still, call.secret)
        try:
            ending = await attend(waiting, call.request.receive, kernel.streaming.closing, holds=still)
        except Unauthenticated:
            if not lasts:
                await kernel.turns.abandon(call.principal, view)
            raise
        match ending:
            case "done":
                try:
                    return Answer(await read_response(kernel.pool, waiting.result(), call.principal, place.begin))
                except ServerUnavailable as error:
                    what = error
            case "gone":
                what = ServerUnavailable("the client disconnected")
            case "closing":
                what = ServerUnavailable("the gateway is stopping")
        if not lasts:
            await kernel.turns.abandon(call.principal, view)
        return Answer(error_response(problem_of(what), over=not lasts))

    def _streamed(
        self,
        call: Call[Any, Any],
        place: "_Place",
        mark: Mark | None,
        counted: AbstractContextManager[object],
        *,
        lasts: bool,
    ) -> EventStream:
        """The response as a stream, from its begin or after a mark."""
        kernel = self.kernel

        async def gone() -> None:
            await kernel.turns.abandon(call.principal, place.view)

        kernel.streaming.meter.count(Metric.HTTP_STREAMS, resumed="no" if mark is None else "yes")
        reader = reader_of(kernel.access, call.secret, kernel.heartbeat_seconds)
        events = self._ending_well(self._events(place, call.principal, mark, reader))
        return EventStream(events, kernel.streaming, counted, None if lasts else gone, farewell=_FAREWELL)

    async def _ending_well(self, events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """The events; an error, which the response itself has not, is the last one."""
        try:
            async with contextlib.aclosing(events) as pieces:
                async for piece in pieces:
                    yield piece
        except TurnstileError as error:
            yield error_frame(problem_of(error))

    async def _events(
        self, place: "_Place", principal: Principal, mark: Mark | None, reader: Reader
    ) -> AsyncGenerator[bytes]:
        kernel, (view, begin) = self.kernel, place
        request = await asked_with(kernel.pool, view, principal)
        stream = ResponseStream(
            view.agent_turn_id,
            partial(begun, view, request, begin=begin),
            mark,
            is_typed=is_typed(request),
            begin=begin,
            client_tools=client_tools_of(request),
        )
        if stream.over:
            return
        async with (
            kernel.feeds.following(view) as feed,
            contextlib.aclosing(reader.changes(feed, stream.cursor)) as changes,
        ):
            resumes = mark is not None
            async for change in changes:
                if change is None:
                    yield HEARTBEAT
                    continue
                events, now = change.events, change.seen.view
                if events and resumes:
                    stream.known(feed.after(BEGIN))
                    resumes = False
                events_sent = list(stream.status("running" if events else now.status))
                for event in events:
                    events_sent += stream.take(event)
                    if stream.handed_over:
                        break
                if stream.handed_over:
                    events_sent += stream.hand_over(await read_response(kernel.pool, now, principal, begin))
                elif (turn := change.outcome) is not None:
                    events_sent += stream.end(turn, await read_response(kernel.pool, now, principal, begin))
                if events_sent:
                    yield b"".join(event_sent.frame() for event_sent in events_sent)
                if stream.handed_over:
                    return


def _is_made(card: Card) -> bool:
    """Whether a turn makes such a card by itself; what it was asked is not."""
    return card.type != CardType.INSTRUCTION
