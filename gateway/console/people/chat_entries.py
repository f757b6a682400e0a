"""A conversation as a chat: what people said, what the model said, and its calls, each folded with its result. Pure.

It is made of the turns' rows and cards. What is too large to be shown here, or does not parse, is said to be so; the
turn's own page has all of it. The more there is on a page, the less is shown of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, cast

from pydantic import JsonValue, ValidationError

from turnstile.gateway.schema_slots import shown_json
from turnstile.ledger.access.chats import ChatCard, ChatTurn
from turnstile.schema.base import too_deep
from turnstile.schema.cards import (
    CardType,
    FallbackDeliverable,
    JsonContent,
    TextContent,
    ThoughtCall,
    ToolResultContent,
    readable_content,
)
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentTurnId, StepId, ToolCallId
from turnstile.schema.json_reading import read_json_text
from turnstile.schema.people.interrupts import Interrupt
from turnstile.schema.states import SteerStatus

PAGE_CHARACTERS: Final = 160_000
"""Of all that is said and done on a page, about."""
_MOST, _LEAST = 20_000, 800
"""Characters of one thing that are shown."""
LIVE = frozenset({"queued", "dispatched", "running", "suspended"})
"""Statuses of a turn that is not over."""


@dataclass(slots=True)
class ChatCall:
    """A call, with its result if it has one."""

    call_id: ToolCallId
    name: str
    arguments: str
    """As JSON, or as the model wrote them if they are none."""
    status: str = "waiting"
    result: str = ""
    """As JSON; empty if there is none."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said, or calls that were made, in the order in which it happened."""

    kind: Literal["person", "model", "calls"]
    text: str = ""
    by: str = ""
    """Of a person who said it while the turn ran."""
    steer: SteerStatus | None = None
    calls: tuple[ChatCall, ...] = ()
    left_out: int = 0
    """Bytes that are too many to be shown here."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a turn delivered: a text, fields, or any JSON."""

    text: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    data: str = ""
    """As JSON."""
    left_out: int = 0
    fallback: str = ""
    """Why the kernel made it instead of the model."""
    partial: bool = False


@dataclass(frozen=True, slots=True)
class ChatEntry:
    """A turn in a chat."""

    turn: ChatTurn
    said: tuple[Utterance, ...]
    delivered: Delivered | None
    asks: tuple[Interrupt, ...]
    """What it asks people now."""
    steps: int
    """The last step of which something is shown."""
    is_cut: bool = False
    """Whether earlier steps are left out."""

    @property
    def is_live(self) -> bool:
        """Whether it is not over."""
        return self.turn.ended_at is None and self.turn.status in LIVE

    @property
    def is_queued(self) -> bool:
        """Whether it has not begun."""
        return self.is_live and self.turn.status == "queued"


@dataclass(slots=True)
class _Turn:
    """What is known of a turn; of each thing at most `most` characters are shown."""

    most: int
    cards: list[ChatCard] = field(default_factory=list[ChatCard])
    asks: list[Interrupt] = field(default_factory=list[Interrupt])


def entries_of(
    turns: Sequence[ChatTurn], cards: Iterable[ChatCard], interrupts: Iterable[Interrupt], most_cards: int
) -> list[ChatEntry]:
    """The turns as entries, in their order; a turn of `most_cards` cards has more."""
    all_cards = list(cards)
    things = len(turns) + sum(1 + len(c.card.tool_calls or ()) for c in all_cards)
    most = min(_MOST, max(_LEAST, PAGE_CHARACTERS // max(1, things)))
    known = {turn.agent_turn_id: _Turn(most) for turn in turns}
    for card in all_cards:
        known[card.agent_turn_id].cards.append(card)
    for question in interrupts:
        if question.agent_turn_id in known:
            known[question.agent_turn_id].asks.append(question)
    return [_entry(turn, known[turn.agent_turn_id], most_cards) for turn in turns]


def running(entries: Sequence[ChatEntry]) -> ChatEntry | None:
    """The turn that can be steered, if there is one: the first that is not over."""
    return next((entry for entry in entries if entry.is_live), None)


def _entry(turn: ChatTurn, cards_of: _Turn, most_cards: int) -> ChatEntry:
    whole = _delivered(turn, cards_of.cards)
    utterances: list[Utterance] = []
    calls: dict[ToolCallId | None, ChatCall] = {}
    for card in cards_of.cards:
        match card.card.type:
            case CardType.STEER:
                utterances.append(_steer(card))
            case CardType.THOUGHT:
                utterances += _thought(card, calls, whole)
            case CardType.TOOL_RESULT:
                _answer(card, calls.get(card.card.tool_call_id))
            case _:
                pass
    for question in cards_of.asks:
        if (call := calls.get(question.tool_call_id)) is not None:
            call.status = "asks"
    if not turn.action_tool and turn.ended_at is not None:
        for call in calls.values():
            call.status = "not_sent" if call.status == "waiting" else call.status
    steps = max((_number(card.step_id) for card in cards_of.cards), default=0)
    return ChatEntry(
        turn,
        tuple(_cut_utterance(u, cards_of.most) for u in utterances),
        None if whole is None else _cut_delivered(whole, cards_of.most),
        tuple(cards_of.asks),
        steps,
        len(cards_of.cards) >= most_cards,
    )


def _cut_utterance(utterance: Utterance, most: int) -> Utterance:
    for call in utterance.calls:
        call.arguments, call.result, call.error = (
            _cut(call.arguments, most),
            _cut(call.result, most),
            _cut(call.error, most),
        )
    left = len(utterance.text) - most
    return utterance if left <= 0 else replace(utterance, text=utterance.text[:most], left_out=left)


def _cut_delivered(delivered: Delivered, most: int) -> Delivered:
    size = len(delivered.text) + len(delivered.data) + sum(len(value) for _, value in delivered.fields)
    if size <= most:
        return delivered
    fields = tuple((name, _cut(value, most // len(delivered.fields))) for name, value in delivered.fields)
    return replace(
        delivered, text=delivered.text[:most], data=_cut(delivered.data, most), fields=fields, left_out=size - most
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} …"


def _steer(card: ChatCard) -> Utterance:
    content = readable_content(card.card)
    text = content.text if isinstance(content, TextContent) else ""
    return Utterance("person", text, card.card.metadata.author_id or "", card.steer_status, left_out=_left_out(card))


def _thought(card: ChatCard, calls: dict[ToolCallId | None, ChatCall], delivered: Delivered | None) -> list[Utterance]:
    utterances: list[Utterance] = []
    content = readable_content(card.card)
    text = content.text if isinstance(content, TextContent) else ""
    made_calls = tuple(_call(call) for call in card.card.tool_calls or ())
    is_answer = delivered is not None and not made_calls and text == delivered.text
    left_out = _left_out(card)
    if left_out or (text.strip() and not is_answer):
        utterances.append(Utterance("model", text, left_out=left_out))
    if made_calls:
        calls.update((call.call_id, call) for call in made_calls)
        utterances.append(Utterance("calls", calls=made_calls))
    return utterances


def _call(call: ThoughtCall) -> ChatCall:
    try:
        value = read_json_text(call.arguments)
        arguments = call.arguments if too_deep(value) else shown_json(value)
    except BadRequest:
        arguments = call.arguments
    return ChatCall(call.tool_call_id, call.tool_name, arguments)


def _answer(card: ChatCard, call: ChatCall | None) -> None:
    """Put a result beside its call."""
    if call is None:
        return
    content = readable_content(card.card)
    if not isinstance(content, ToolResultContent):
        call.status, call.error = "answered", f"the result has {card.size} bytes" if _left_out(card) else ""
        return
    call.status = str(content.status)
    call.result = "" if content.result is None else shown_json(content.result)
    call.error = "" if content.error is None else f"{content.error.code}: {content.error.message}"


def _delivered(turn: ChatTurn, cards: Sequence[ChatCard]) -> Delivered | None:
    deliverable = next((card for card in cards if card.card.card_id == turn.deliverable_card_id), None)
    if deliverable is None:
        return None
    partial, content = bool(deliverable.card.metadata.partial), readable_content(deliverable.card)
    match content:
        case TextContent(text=text):
            return Delivered(text=text, partial=partial)
        case JsonContent(data=dict() as data) if _is_fields(data):
            fields = cast("list[dict[str, JsonValue]]", data["fields"])
            pairs = ((str(f.get("name", "")), _value(f.get("value"))) for f in fields)
            return Delivered(fields=tuple(pairs), partial=partial)
        case JsonContent(data=dict() as data) if (fallback := _fallback(data)) is not None:
            return Delivered(text=fallback.last_thought or "", fallback=fallback.reason)
        case JsonContent(data=data):
            return Delivered(data=shown_json(data), partial=partial)
        case None if _left_out(deliverable):
            return Delivered(left_out=deliverable.size)
        case _:
            return Delivered(data=shown_json(deliverable.card.content), partial=partial)


def _is_fields(data: dict[str, JsonValue]) -> bool:
    fields = data.get("fields")
    return isinstance(fields, list) and bool(fields) and all(isinstance(f, dict) for f in fields)


def _fallback(data: dict[str, JsonValue]) -> FallbackDeliverable | None:
    try:
        return FallbackDeliverable.model_validate(data)
    except ValidationError:
        return None


def _value(value: JsonValue) -> str:
    return value if isinstance(value, str) else shown_json(value)


def _left_out(card: ChatCard) -> int:
    return card.size if card.card.content is None else 0


def _number(step: StepId | None) -> int:
    text = "" if step is None else step.rpartition("-s")[2]
    return int(text) if text.isascii() and text.isdigit() else 0


def turn_ids(turns: Sequence[ChatTurn]) -> list[AgentTurnId]:
    """The ids of turns."""
    return [turn.agent_turn_id for turn in turns]
