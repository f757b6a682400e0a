"""One conversation as a chat: what was said, what is said while it is said, and saying more (protocol §14.1).

While a turn runs, what is typed steers it now or is asked next. The page reads a bounded number of turns and cards in
four statements, however long the conversation is; the text of a running turn comes as the frames of `/v1`'s stream.

What is too large to be shown here, or does not parse, is said to be so; the turn's own page has all of it. The more
there is on a page, the less is shown of each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, Literal, cast
from urllib.parse import urlencode

from pydantic import Field, JsonValue, ValidationError
from starlette.responses import Response

from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.people.conversations import LIST, OF_MEMORY, address_of, new_key
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.http.problems import Problem, problem_of
from turnstile.gateway.schema_slots import shown_json
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.access.chats import ChatCard, ChatTurn, list_chat_cards, list_chat_turns
from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.people.interrupt_views import list_interrupts
from turnstile.ledger.turns.views import find_conversations
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.api import TurnStop
from turnstile.schema.base import JsonObject, Strict, too_deep
from turnstile.schema.cards import (
    CardType,
    FallbackDeliverable,
    JsonContent,
    TextContent,
    ThoughtCall,
    ToolResultContent,
    readable_content,
)
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, ConversationId, StepId, ToolCallId
from turnstile.schema.json_reading import read_json_text
from turnstile.schema.ledger_reads import ConversationLine
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus
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


_TURNS = 20
_CARDS = 120
"""Of one turn, the last."""
_ASKED = 50


class ChatQuery(Strict):
    """Which conversation of this name, and which part of it."""

    channel_id: str | None = Field(default=None, max_length=128)
    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    """Only the turns before this one."""


class SayForm(Strict):
    """Something to say."""

    text: str = ""
    how: Literal["send", "queue", "steer"] = "send"
    turn: str = Field(default="", max_length=128)
    """The turn that is steered."""
    key: str = Field(min_length=1, max_length=64)


class ChatStopForm(Strict):
    """Which turn to stop."""

    turn: str = Field(min_length=1, max_length=128)


class ChatDeleteForm(Strict):
    """What was seen of the conversation to delete."""

    last_turn_id: str = Field(default="", max_length=128)
    """Its last turn: with a later one nothing is deleted."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A part of a conversation, and where the earlier part is."""

    entries: Sequence[ChatEntry]
    earlier: str | None

    @property
    def settled(self) -> list[ChatEntry]:
        """The turns that are over, and the one that runs."""
        now = self.now
        return [entry for entry in self.entries if not entry.is_live or entry is now]

    @property
    def now(self) -> ChatEntry | None:
        """The turn that runs, or is the next to."""
        return running(self.entries)

    @property
    def queued(self) -> list[ChatEntry]:
        """The turns that wait behind it."""
        return [entry for entry in self.entries if entry.is_live and entry is not self.now]


@dataclass(frozen=True, slots=True)
class ChatPages:
    """The handlers."""

    console: Console

    async def show(self, visit: Visit[ChatQuery, object]) -> Response:
        """The conversation."""
        return await self._page(visit, await self._found(visit, visit.query.channel_id), visit.query.cursor)

    async def say(self, visit: Visit[ChatQuery, SayForm]) -> Response:
        """Ask the next turn, or steer the running one."""
        line = await self._found(visit, visit.query.channel_id)
        try:
            notice = await self._said(visit, line, visit.form)
        except TurnstileError as error:
            return await self._page(visit, line, None, error=error, text=visit.form.text, key=visit.form.key)
        return see_other(f"{address_of(line)}#end", notice)

    async def stop(self, visit: Visit[ChatQuery, ChatStopForm]) -> Response:
        """Stop a turn of the conversation."""
        line = await self._found(visit, visit.query.channel_id)
        view = await self.console.turns.described(visit.principal, AgentTurnId(visit.form.turn))
        try:
            await self.console.turns.stop_turn(visit.principal, view, TurnStop(), visit.headers)
        except TurnstileError as error:
            return await self._page(visit, line, None, error=error)
        return see_other(f"{address_of(line)}#end", "stopped")

    async def delete(self, visit: Visit[ChatQuery, ChatDeleteForm]) -> Response:
        """Delete the conversation, if it is as it was seen."""
        line = await self._found(visit, visit.query.channel_id)
        payload: JsonObject = {"conversation_id": line.conversation_id, "agent_id": line.agent_id}
        if visit.form.last_turn_id:
            payload["last_turn_id"] = visit.form.last_turn_id
        try:
            asking = self.console.asking
            await asking.ask(visit.principal, line.channel_id, verbs.CONVERSATION_DELETE, payload, visit.headers)
        except TurnstileError as error:
            return await self._page(visit, line, None, error=error)
        return see_other(LIST, "deleted")

    async def _found(self, visit: Visit[Any, Any], requested_channel: str | None) -> ConversationLine:
        """The conversation of the address; raises `Refused`: unknown_conversation, ambiguous."""
        project, agent = visit.principal.project_id, AgentId(visit.path["agent_id"])
        conversation = visit.path["conversation_id"]
        name, channel = (
            ConversationId("" if conversation == OF_MEMORY else conversation),
            seen_channel(visit.principal, requested_channel),
        )
        lines = await self.console.pool.run(
            lambda conn: find_conversations(conn, project, name, agent, channel, row_limit=_ASKED)
        )
        if not lines:
            raise Refused(
                "unknown_conversation", f"the project has no such conversation: {LIST} lists its conversations"
            )
        if len(lines) > 1:
            lines = [line for line in lines if line.channel_id == self.console.default_channel]
        if not lines:
            raise Refused("ambiguous", f"several channels have a conversation of this name: choose one on {LIST}")
        return lines[0]

    async def _said(self, visit: Visit[Any, SayForm], line: ConversationLine, form: SayForm) -> str | None:
        if not form.text.strip():
            raise BadRequest("write something first")
        asking, principal = self.console.asking, visit.principal
        if form.how == "steer":
            turn = await self.console.turns.described(principal, AgentTurnId(form.turn))
            steer: JsonObject = {
                "agent_turn_id": turn.agent_turn_id,
                "text": form.text,
                "priority": "asap",
                "correlation_id": form.key,
            }
            await asking.ask(principal, turn.channel_id, verbs.STEER, steer, visit.headers)
            return "steered"
        request: JsonObject = {"agent_id": line.agent_id, "instruction": form.text, "correlation_id": form.key}
        if line.conversation_id:
            request["conversation_id"] = line.conversation_id
        await asking.ask(principal, line.channel_id, verbs.ENQUEUE, request, visit.headers)
        return "queued" if form.how == "queue" else None

    async def _shown(self, visit: Visit[Any, Any], line: ConversationLine, cursor: str | None) -> Shown:
        project, pool = visit.principal.project_id, self.console.pool
        turns = await pool.run(
            lambda conn: list_chat_turns(conn, project, line.name, before=place_of(cursor), row_limit=_TURNS + 1)
        )
        earlier = None
        if len(turns) > _TURNS:
            turns = turns[-_TURNS:]
            place = cursor_of(PageCursor(turns[0].created_at, turns[0].agent_turn_id))
            earlier = f"{address_of(line)}&{urlencode({'cursor': place})}"
        cards = await pool.run(lambda conn: list_chat_cards(conn, project, turn_ids(turns), row_limit=_CARDS))
        interrupts = await pool.run(
            lambda conn: list_interrupts(
                conn,
                project,
                channel=line.channel_id,
                agent=line.agent_id,
                status=InterruptStatus.OPEN,
                row_limit=_ASKED,
            )
        )
        return Shown(entries_of(turns, cards, interrupts, _CARDS), earlier)

    async def _page(
        self,
        visit: Visit[Any, Any],
        line: ConversationLine,
        cursor: str | None,
        *,
        error: TurnstileError | None = None,
        text: str = "",
        key: str = "",
    ) -> Response:
        view = await self._shown(visit, line, cursor)
        now = view.now
        is_own = now is not None and now.turn.requester == visit.principal.caller.name
        problem: Problem | None = None if error is None else problem_of(error)
        unsure = problem is not None and problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR  # it may have been asked
        where = address_of(line)
        path, _, query = where.partition("?")
        return render(
            visit,
            "people/chat.html",
            HTTPStatus.OK if problem is None else problem.status,
            line=line,
            shown=view,
            where=where,
            stop_address=f"{path}/stop?{query}",
            delete_address=f"{path}/delete?{query}",
            events_address=f"{path}/events?{query}&turns=1",
            is_last_part=cursor is None,
            may_steer=now is not None and not now.turn.action_tool and (is_own or visit.may(Right.OPERATE)),
            problem=problem,
            text=text,
            key=key if unsure else new_key(),
        )


def pages(console: Console) -> tuple[Page, ...]:
    """The pages of this area."""
    handlers = ChatPages(console)
    one = f"{LIST}/{{agent_id}}/{{conversation_id}}"
    return (
        Page(name="chat", path=one, handler=handlers.show, query=ChatQuery),
        Page(name="say", path=one, method="POST", right=Right.ASK, handler=handlers.say, query=ChatQuery, form=SayForm),
        Page(
            name="stop_chat",
            path=f"{one}/stop",
            method="POST",
            right=Right.ASK,
            handler=handlers.stop,
            query=ChatQuery,
            form=ChatStopForm,
        ),
        Page(
            name="delete_chat",
            path=f"{one}/delete",
            method="POST",
            right=Right.OPERATE,
            handler=handlers.delete,
            query=ChatQuery,
            form=ChatDeleteForm,
        ),
    )
