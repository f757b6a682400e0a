"""Renders cards as the messages of a model request (protocol §7.3). Pure.

For any content of the boxes the result is valid for every provider. After the system prompt, the first message is a
user's and the last a user's or a tool's. Consecutive texts of one role are one message. Content is blank only beside
tool calls (an adapter may send null). Ids and names have plain characters, and no call id repeats. Every call is
followed at once by its result, in the order of the calls.

The kernel's own ids are never changed (protocol §10), only names and ids on cards that others wrote.

Rules for what is rendered:

- A card that several boxes hold, or one box twice, is rendered once, at its last position.
- A result belongs to the nearest earlier call with its id; only the first result of a call counts. A result without a
  call is left out. A call without a result, as of a turn that was ended, gets `{"status":"canceled"}`; one of the turn
  that a `meta.parent_pointer` names, `{"status":"pending"}`: that turn waits for this one.
- A deliverable is left out if an `agent.thought` of the same `agent_turn_id` has its content: the same text, or the
  call of the same choice. Every other JSON deliverable (of `submit_result`, of a terminating tool, a fallback) is
  rendered as JSON text.
- `task.result_fields` and `sys.must_end_with_required` become user messages: some providers refuse a system message
  within a conversation, others move it.
- A thought has its reasoning with it: the adapter sends that to the provider that gave it, and to no other.
- A `memory.summary` or `memory.turn_summary` becomes a user message that says so; a `memory.cut` is not for the model.
- A card of a type that is not ours, such as v1r4's `task.context`, is a message of its role, of the user where that is
  the system's. Without a role, or with a content that is neither text nor JSON, it is left out.
- Images are replaced by a note, since requests hold text only. Recognised are data URIs in a text or result, parts of
  an OpenAI-style content list, and contents of an image type.
- Memory holds instructions only of turns that remember; the instructions of others are in their context boxes. So it
  may begin with an assistant message: then a fixed user message is put before it. If a request would end with an
  assistant message, a fixed user message is appended.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from turnstile.rules.results import IMAGE, WHOLE, ResultView, ShownResult, compact, shown_result, without_images
from turnstile.rules.text import PENDING, function_name, parse_arguments
from turnstile.rules.tool_specs import chosen, fields_of
from turnstile.runtime.ports import ModelMessage, ModelToolCall
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import (
    Card,
    CardType,
    CardUnreadable,
    FilePart,
    JsonContent,
    ResultField,
    Role,
    TextContent,
    ThoughtCall,
    content_of,
    parts_of,
    readable_content,
    without_lines,
)
from turnstile.schema.errors import ModelError
from turnstile.schema.ids import AgentTurnId, CardId, ToolCallId

EMPTY = "(empty)"
"""Stands for blank content, which some providers refuse."""
OPENING = "(What you said and did in earlier turns follows.)"
CONTINUE = "Continue."
TURN_SUMMARY = "(What you did since is summed up here.)"
SUMMARY = "(What was said before this is summed up here.)"

_KNOWN = frozenset(CardType)
_CANCELED = '{"status":"canceled"}'


_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_ID_LENGTH = 40


class CallNames:
    """The call ids of one request: makes each acceptable and unique."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def new_id(self, call_id: str) -> str:
        """`given` if it is acceptable and unused, else a similar id."""
        plain = _OTHER.sub("_", call_id)[:_ID_LENGTH] or "call"
        unique, number = plain, 1
        while unique in self._used:
            number += 1
            unique = f"{plain[: _ID_LENGTH - len(str(number)) - 1]}-{number}"
        self._used.add(unique)
        return unique


@dataclass(slots=True)
class _Answered:
    """A call of a thought and its result card, if there is one."""

    call: ThoughtCall
    missing: str
    """Stands for a result that is not there."""
    result: Card | None = None
    edited: JsonObject | None = None
    """The arguments that a person put in place of the model's."""


@dataclass(slots=True)
class _Results:
    """The results of one request, in their order."""

    view: ResultView
    count: int = 0

    def shown(self, answer: _Answered) -> ShownResult:
        """The next one, as the model sees it."""
        if answer.result is None:
            return ShownResult(answer.missing)
        self.count += 1
        return shown_result(answer.result, answer.edited, *self.view.shown(self.count - 1))


@dataclass(slots=True)
class _Pairs:
    """Pairs calls with their results; holds the pairs by the card that made the call."""

    askers: set[str]
    """The turns that ask the one whose request this is."""
    by_card: dict[CardId, list[_Answered]] = field(default_factory=dict[CardId, list[_Answered]])
    open: dict[ToolCallId, _Answered] = field(default_factory=dict[ToolCallId, _Answered])

    def take(self, card: Card) -> None:
        if card.type == CardType.THOUGHT and card.tool_calls and card.card_id not in self.by_card:
            missing = PENDING if card.metadata.agent_turn_id in self.askers else _CANCELED
            answered = [_Answered(call, missing) for call in card.tool_calls]
            self.by_card[card.card_id] = answered
            self.open.update({call.call.tool_call_id: call for call in answered})
        elif card.type == CardType.TOOL_RESULT and card.tool_call_id is not None:
            call = self.open.pop(card.tool_call_id, None)
            if call is not None:
                call.result = card
        elif card.type == CardType.TOOL_CALL and card.metadata.edited is not None and card.tool_call_id is not None:
            call = self.open.get(card.tool_call_id)
            if call is not None:
                call.edited = card.metadata.edited


@dataclass(slots=True)
class _Thoughts:
    """The contents of thoughts: texts by turn, and arguments by turn and name of the call."""

    texts: set[tuple[AgentTurnId | None, str]] = field(default_factory=set[tuple[AgentTurnId | None, str]])
    calls: dict[tuple[AgentTurnId | None, str], list[str]] = field(
        default_factory=dict[tuple[AgentTurnId | None, str], list[str]]
    )

    def take(self, card: Card) -> None:
        if card.type == CardType.THOUGHT:
            turn = card.metadata.agent_turn_id
            self.texts.add((turn, _text(card).strip()))
            for call in card.tool_calls or ():
                self.calls.setdefault((turn, call.tool_name), []).append(call.arguments)

    def has(self, deliverable: Card) -> bool:
        """Whether a thought of the deliverable's turn has its content."""
        turn, content = deliverable.metadata.agent_turn_id, content_of(deliverable)
        if turn is None:
            return False
        match content:
            case TextContent():
                return (turn, without_lines(content).strip()) in self.texts
            case JsonContent() if (choice := chosen(content.data)) is not None:
                name, arguments = choice
                return any(parse_arguments(text) == arguments for text in self.calls.get((turn, name), ()))
            case _:
                return False


def build_messages(
    system_prompt: str,
    memory: Sequence[Card],
    context: Sequence[Card],
    current: Sequence[Card],
    view: ResultView = WHOLE,
    note: str = "",
) -> tuple[ModelMessage, ...]:
    """The messages of one request: the system prompt (if any), the cards of the three sources in this order, the note.

    `memory` are the output box's cards of earlier turns, `context` those of the context box, `current` the output box's
    cards of this turn. Raises `CardUnreadable` for a rendered card whose content does not fit its type (a
    `task.result_fields` is skipped instead), and `ModelError` (`model_request_invalid`) if there is no user message.
    """
    rendered = _rendered((*memory, *context, *current), view)
    if not any(message.role == "user" for message in rendered):
        raise ModelError("model_request_invalid", "no card of the turn asks the model anything", retryable=False)
    if rendered[0].role != "user":
        rendered.insert(0, _user(OPENING))
    if note:
        rendered.append(_user(note))
    elif rendered[-1].role == "assistant":
        rendered.append(_user(CONTINUE))
    system = [ModelMessage(role="system", content=system_prompt)] if system_prompt.strip() else []
    return (*system, *(_filled(message) for message in _merge(rendered)))


def card_messages(cards: Sequence[Card], view: ResultView = WHOLE) -> tuple[ModelMessage, ...]:
    """The messages of these cards, without a system prompt; raises `CardUnreadable`."""
    return tuple(_merge(_rendered(cards, view)))


def _rendered(named: Sequence[Card], view: ResultView) -> list[ModelMessage]:
    pairs = _Pairs({asker for card in named if (asker := _asker(card)) is not None})
    for card in named:
        pairs.take(card)
    cards = _each_once(named)
    thoughts = _Thoughts()
    for card in cards:
        thoughts.take(card)
    names, results = CallNames(), _Results(view)
    return [message for card in cards for message in _render(card, pairs, thoughts, names, results)]


def _asker(card: Card) -> str | None:
    """The turn that a pointer names as the one that asks."""
    match readable_content(card) if card.type == CardType.PARENT_POINTER else None:
        case JsonContent(data={"parent_agent_turn_id": str(turn)}):
            return turn
        case _:
            return None


def _each_once(cards: Sequence[Card]) -> list[Card]:
    last = {card.card_id: position for position, card in enumerate(cards)}
    return [card for position, card in enumerate(cards) if last[card.card_id] == position]


def _render(
    card: Card, pairs: _Pairs, thoughts: _Thoughts, names: CallNames, results: _Results
) -> Iterable[ModelMessage]:
    match card.type:
        case CardType.INSTRUCTION | CardType.STEER | CardType.MUST_END_WITH_REQUIRED:
            yield _user(_text(card), parts_of(card))
        case CardType.MEMORY_SUMMARY:
            yield _user(f"{SUMMARY}\n\n{_text(card)}")
        case CardType.TURN_SUMMARY:
            yield _user(f"{TURN_SUMMARY}\n\n{_text(card)}")
        case CardType.RESULT_FIELDS:
            if fields := fields_of(card):
                yield _user(fields_text(fields))
        case CardType.THOUGHT:
            yield from _thought(card, pairs.by_card.get(card.card_id, []), names, results)
        case CardType.DELIVERABLE:
            if not thoughts.has(card):
                yield ModelMessage(role="assistant", content=_text(card), files=parts_of(card))
        case _ if card.type not in _KNOWN:
            yield from _by_role(card)
        case _:
            pass  # results are rendered with their calls; the others are not for the model


def _by_role(card: Card) -> Iterable[ModelMessage]:
    """A card of a type that only its writer knows."""
    if card.content is None or not isinstance(readable_content(card), TextContent | JsonContent):
        return
    match card.metadata.role:
        case Role.USER | Role.SYSTEM:
            yield _user(_text(card))
        case Role.ASSISTANT:
            yield ModelMessage(role="assistant", content=_text(card))
        case _:
            pass


def _thought(card: Card, answered: Sequence[_Answered], names: CallNames, results: _Results) -> Iterable[ModelMessage]:
    calls = [
        ModelToolCall(
            id=names.new_id(call.call.tool_call_id), name=function_name(call.call.tool_name), arguments=_args(call.call)
        )
        for call in answered
    ]
    content = readable_content(card)
    kept = content.reasoning if isinstance(content, TextContent) else None
    yield ModelMessage(role="assistant", content=_text(card), tool_calls=tuple(calls), reasoning=kept)
    for call, answer in zip(calls, answered, strict=True):
        result = results.shown(answer)
        shortened = not result.whole
        files = () if answer.result is None else parts_of(answer.result)
        yield ModelMessage(
            role="tool",
            content=result.text,
            tool_call_id=call.id,
            name=call.name,
            shortened=shortened,
            files=files,
        )


def _args(call: ThoughtCall) -> str:
    """The arguments as a JSON object, `{}` if the model wrote none: providers refuse anything else in a history."""
    arguments = parse_arguments(call.arguments)
    return compact({"malformed_arguments": call.arguments} if arguments is None else arguments)


def _text(card: Card) -> str:
    if isinstance(card.content, dict) and "image" in str(card.content.get("__type__")).lower():
        return IMAGE
    content = content_of(card)
    match content:
        case TextContent():
            return without_images(content.text)
        case JsonContent():
            return without_images(content.data if isinstance(content.data, str) else _json_text(content.data))
        case _:
            raise CardUnreadable(f"card {card.card_id} ({card.type}) has neither text nor JSON")


def _json_text(data: JsonValue) -> str:
    """The value as JSON, or the text of an OpenAI-style list of content parts."""
    parts = [_part(item) for item in data] if isinstance(data, list) else []
    texts = [text for text in parts if text is not None]
    return "\n".join(texts) if texts and len(texts) == len(parts) else compact(data)


def _part(value: JsonValue) -> str | None:
    """The text of a content part; None if it is none."""
    match value:
        case {"type": "text" | "input_text", "text": str(text)}:
            return text
        case {"type": "image_url" | "input_image" | "image"}:
            return IMAGE
        case _:
            return None


def fields_text(fields: Sequence[ResultField]) -> str:
    """A sentence that asks the model for the wanted fields."""
    lines = [f"- {f.name}: {f.description}" if f.description else f"- {f.name}" for f in fields]
    return "\n".join(["The result must have each of these fields once (deliver them with submit_result):", *lines])


def _user(text: str, files: tuple[FilePart, ...] = ()) -> ModelMessage:
    return ModelMessage(role="user", content=text, files=files)


def _merge(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Merge consecutive user messages, and an assistant's text with the assistant message that follows it."""
    merged: list[ModelMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if last is None or last.role != message.role or last.role == "tool" or last.tool_calls:
            merged.append(message)
            continue
        content = "\n\n".join(text for text in (last.content, message.content) if text.strip())
        kept = message.reasoning or last.reasoning
        files = (*last.files, *message.files)
        merged[-1] = message.model_copy(update={"content": content, "reasoning": kept, "files": files})
    return merged


def _filled(message: ModelMessage) -> ModelMessage:
    """The message with a placeholder for blank content; content beside tool calls may stay blank."""
    if message.content.strip():
        return message
    return message.model_copy(update={"content": "" if message.tool_calls else EMPTY})
