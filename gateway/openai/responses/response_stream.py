"""The events of one turn as the events of a response's stream, from its begin or after any of them. Pure.

A client's place is its last `sequence_number` and nothing else (`numbers`). Text that becomes void, by another attempt
of its step or because it was not what the step's cards say, closes its item as incomplete; the text then comes as a new
item of the same id. So items that were added are never taken back, and their `output_index` counts them all; the
response of the last event has those that hold, under the ids that were streamed.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from turnstile.gateway.events.positions import BEGIN, END, EventPart, Position
from turnstile.gateway.events.step_log import ChunkPiece, Event
from turnstile.gateway.openai.responses.items import APART, ItemLog, Placed, message_id
from turnstile.gateway.openai.responses.numbers import CREATED, IN_PROGRESS, QUEUED, Mark, Sub
from turnstile.gateway.openai.responses.objects import (
    FunctionCallItem,
    Item,
    McpCall,
    Message,
    OutputText,
    Response,
    Status,
    StreamEvent,
)
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.ids import AgentTurnId, step_card_id, step_id
from turnstile.schema.states import ChunkType

_ENDS: dict[Status, str] = {
    "completed": "response.completed",
    "failed": "response.failed",
    "cancelled": "response.failed",
    "incomplete": "response.incomplete",
}
_FAR = (1 << 31) - 1


class _Open(NamedTuple):
    """The item whose text is on its way."""

    step: int
    attempt: int
    item_id: str


class ResponseStream:
    """The events for one client."""

    def __init__(
        self,
        turn: AgentTurnId,
        render: Callable[[Status], Response],
        mark: Mark | None,
        *,
        is_typed: bool = False,
        begin: int = 0,
        client_tools: Collection[str] = (),
    ) -> None:
        """`begin`: the step of the turn after which the response begins."""
        self._turn = turn
        self._begin = Position(begin, EventPart.RESULTS, _FAR, _FAR) if begin else BEGIN
        self._is_typed = is_typed
        self._shown = render
        """The response at its begin, with this status."""
        self._seen: tuple[Position, int] = (BEGIN, -1) if mark is None else (mark.position, mark.sub)
        self._voids = 0 if mark is None else mark.voids
        self._log = ItemLog(is_typed=is_typed, client_tools=client_tools)
        self._open: _Open | None = None
        self._whole = True
        """Whether all the text of the open item was sent."""
        if mark is not None and mark.is_open and mark.position.in_chunks:
            self._open = self._opened(mark.position)
            self._whole = mark.sub is Sub.DELTA

    @property
    def over(self) -> bool:
        """Whether its client has had the last event."""
        return self._seen == (END, Sub.RESPONSE)

    @property
    def cursor(self) -> Position:
        """The place behind which the turn's events are needed: the last one again, if it was not sent whole."""
        position, sub = self._seen
        if position.step == 0:
            return self._begin
        if position == END:
            return replace(END, b=END.b - 1)
        if position.part != EventPart.CHUNKS:
            return replace(position, a=position.a - 1, b=_FAR)
        if sub == Sub.DELTA or not position.in_chunks:
            return position
        if position.b:
            return replace(position, b=position.b - 1)
        return replace(position, a=position.a - 1)

    @property
    def handed_over(self) -> bool:
        """Whether the response ends with calls that its client runs."""
        return self._log.handed_over is not None

    def known(self, events: list[Event]) -> None:
        """Take the events that its client has had, of those that are known, so that items are counted from there."""
        for event in events:
            if self._begin < event.position <= self.cursor:
                self._log.close(event.position.step)
                if isinstance(event.data, CardAnswer):
                    self._log.take(event.position, event.data)

    def status(self, status: str) -> Iterator[StreamEvent]:
        """The events with the turn's state before it does anything."""
        if self._seen[0] != BEGIN:
            return
        queued = status == "queued"
        response = self._shown("queued" if queued else "in_progress")
        yield from self._event("response.created", Mark(BEGIN, CREATED), response=response)
        if queued:
            yield from self._event("response.queued", Mark(BEGIN, QUEUED), response=response)
        else:
            yield from self._event("response.in_progress", Mark(BEGIN, IN_PROGRESS), response=response)

    def take(self, event: Event) -> Iterator[StreamEvent]:
        """The events for one of the turn's; nothing for its outcome."""
        if not isinstance(event.data, Turn):
            yield from self._entries(self._log.close(event.position.step))
        match event.data:
            case ChunkPiece(kind=kind, text=text):
                if self._open is not None and (self._open.step, self._open.attempt) != (
                    event.position.step,
                    event.position.a,
                ):
                    yield from self._void(event.position)
                if text and kind is ChunkType.CONTENT and not self._is_typed:
                    yield from self._piece(event.position, text)
            case CardAnswer() as card:
                yield from self._entries(self._log.take(event.position, card))
            case Turn():
                pass
            case _:
                yield from self._void(event.position)

    def hand_over(self, response: Response) -> Iterator[StreamEvent]:
        """The events for the end of a response whose client runs its last calls."""
        yield from self._void(END)
        yield from self._event("response.completed", Mark(END, Sub.RESPONSE), response=response)

    def end(self, turn: Turn, response: Response) -> Iterator[StreamEvent]:
        """The events for the turn's outcome, with the whole response."""
        last = self._log.end(turn)
        yield from self._entries([entry for entry in last if not entry.is_new])  # at places before the end
        yield from self._void(END)
        yield from self._entries([entry for entry in last if entry.is_new])
        yield from self._event(_ENDS[response.status], Mark(END, Sub.RESPONSE), response=response)

    def _piece(self, position: Position, text: str) -> Iterator[StreamEvent]:
        if Mark(position, Sub.DELTA).number is None:
            self._whole = False  # its item ends here; the card has the text
            return
        index = len(self._log.items)
        if self._open is None or not self._whole:
            self._open, self._whole = self._opened(position), True
            yield from self._begun(position, self._open.item_id, index)
            text = self._log.before_text + text
        yield from self._delta(position, self._open.item_id, index, text)

    def _entries(self, entries: list[Placed]) -> Iterator[StreamEvent]:
        for entry in entries:
            position, index = entry.position, entry.index
            match item := entry.item:
                case Message():
                    yield from self._message(position, item, index)
                case FunctionCallItem():
                    yield from self._handed(position, item, index)
                case McpCall() if entry.is_new:
                    yield from self._called(position, item, index)
                case McpCall(id=item_id, status=status):
                    if status != "incomplete":
                        end = Mark(position, Sub.PART_DONE, self._voids)
                        named = {"output_index": index + self._voids, "item_id": item_id}
                        yield from self._event(f"response.mcp_call.{status}", end, **named)
                    yield from self._item("done", Mark(position, Sub.DONE, self._voids), index, item)

    def _handed(self, position: Position, item: FunctionCallItem, index: int) -> Iterator[StreamEvent]:
        added, delta, whole, done = (
            Mark(position, sub, self._voids) for sub in (Sub.ADDED, Sub.DELTA, Sub.TOLD, Sub.DONE)
        )
        named = {"output_index": index + self._voids, "item_id": item.id}
        begun = item.model_copy(update={"arguments": "", "status": "in_progress"})
        kind = "response.function_call_arguments"
        yield from self._item("added", added, index, begun)
        yield from self._event(f"{kind}.delta", delta, delta=item.arguments, **named)
        yield from self._event(f"{kind}.done", whole, arguments=item.arguments, name=item.name, **named)
        yield from self._item("done", done, index, item)

    def _called(self, position: Position, item: McpCall, index: int) -> Iterator[StreamEvent]:
        text, named = item.arguments, {"output_index": index + self._voids, "item_id": item.id}
        begun = item.model_copy(update={"arguments": ""})
        yield from self._item("added", Mark(position, Sub.ADDED, self._voids), index, begun)
        going, delta, text_mark = (Mark(position, sub, self._voids) for sub in (Sub.PART_ADDED, Sub.DELTA, Sub.TOLD))
        yield from self._event("response.mcp_call.in_progress", going, **named)
        yield from self._event("response.mcp_call_arguments.delta", delta, delta=text, **named)
        yield from self._event("response.mcp_call_arguments.done", text_mark, arguments=text, **named)

    def _message(self, position: Position, item: Message, index: int) -> Iterator[StreamEvent]:
        if self._open is not None and not self._whole:
            yield from self._void(position, index)
        if self._open is None:
            yield from self._begun(position, item.id, index)
            yield from self._delta(position, item.id, index, item.text)
        elif item.text.endswith(APART):
            yield from self._delta(position, item.id, index, APART)
        self._open, self._whole = None, True
        named = {"output_index": index + self._voids, "item_id": item.id, "content_index": 0}
        text_mark, part, end = (Mark(position, sub, self._voids, True) for sub in (Sub.TOLD, Sub.PART_DONE, Sub.DONE))
        yield from self._event("response.output_text.done", text_mark, text=item.text, logprobs=[], **named)
        yield from self._event("response.content_part.done", part, part=item.content[0], **named)
        yield from self._item("done", replace(end, is_open=False), index, item)

    def _begun(self, position: Position, item_id: str, index: int) -> Iterator[StreamEvent]:
        begun = Message(id=item_id, status="in_progress", content=[])
        yield from self._item("added", Mark(position, Sub.ADDED, self._voids, True), index, begun)
        named = {"output_index": index + self._voids, "item_id": item_id, "content_index": 0}
        mark = Mark(position, Sub.PART_ADDED, self._voids, True)
        yield from self._event("response.content_part.added", mark, part=OutputText(), **named)

    def _delta(self, position: Position, item_id: str, index: int, text: str) -> Iterator[StreamEvent]:
        named = {"output_index": index + self._voids, "item_id": item_id, "content_index": 0}
        mark = Mark(position, Sub.DELTA, self._voids, True)
        yield from self._event("response.output_text.delta", mark, delta=text, logprobs=[], **named)

    def _void(self, position: Position, index: int | None = None) -> Iterator[StreamEvent]:
        """Close the open item, if there is one: its text is not what the agent said."""
        if self._open is None:
            return
        item = Message(id=self._open.item_id, status="incomplete", content=[])
        mark = Mark(position, Sub.VOIDED, self._voids + 1)
        yield from self._item("done", mark, len(self._log.items) if index is None else index, item)
        self._open, self._whole, self._voids = None, True, self._voids + 1

    def _item(self, what: str, mark: Mark, index: int, item: Item) -> Iterator[StreamEvent]:
        return self._event(f"response.output_item.{what}", mark, output_index=index + self._voids, item=item)

    def _event(self, kind: str, mark: Mark, **fields: Any) -> Iterator[StreamEvent]:
        number, place = mark.number, (mark.position, int(mark.sub))
        if number is not None and place > self._seen:
            self._seen = place
            yield StreamEvent(type=kind, sequence_number=number, **fields)

    def _opened(self, position: Position) -> _Open:
        card = step_card_id(step_id(self._turn, position.step), "thought")
        return _Open(position.step, position.a, message_id(card))
