"""What an agent did, as the items of a response, in the order in which it did it (protocol §14.4). Pure.

Items derive from cards alone, so the same cards are the same items, whether streamed or read. A deliverable that
repeats what the agent said last is no item of its own.
"""

import json
from dataclasses import replace
from typing import NamedTuple

from pydantic import JsonValue

from turnstile.gateway.events.positions import END, Position
from turnstile.gateway.openai.responses.objects import FunctionCall, FunctionCallOutput, Item, Message, OutputText
from turnstile.gateway.v1.outputs import is_fallback
from turnstile.gateway.v1.resources import CardAnswer, Turn
from turnstile.schema.cards import (
    CardType,
    JsonContent,
    TextContent,
    ToolResultContent,
    read_content,
)
from turnstile.schema.ids import CardId


class Entry(NamedTuple):
    """An item, and where it is among the turn's events; `b` numbers the items of one card."""

    position: Position
    item: Item


class ItemLog:
    """Takes a turn's cards in their order, then its outcome."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._said: str | None = None
        self._delivered: set[CardId] = set()

    def take(self, position: Position, card: CardAnswer) -> list[Entry]:
        """The items of a card."""
        items = self._items_of(card)
        self.items += items
        return [Entry(replace(position, b=n), item) for n, item in enumerate(items)]

    def end(self, turn: Turn) -> list[Entry]:
        """The item of a deliverable that no step made."""
        output = turn.output
        if output is None or output.card_id in self._delivered:
            return []
        items = self._delivery(output.card_id, output.data if output.text is None else output.text)
        self.items += items
        return [Entry(END, item) for item in items]

    def _items_of(self, card: CardAnswer) -> list[Item]:
        content = read_content(card.content) if isinstance(card.content, dict) else None
        match card.type, content:
            case CardType.THOUGHT, TextContent(text=text):
                said: list[Item] = [_message(card.card_id, text)] if text else []
                self._said = text or self._said
                calls = card.tool_calls or []
                return said + [
                    FunctionCall(
                        id=f"fc_{call.tool_call_id}",
                        call_id=call.tool_call_id,
                        name=call.tool_name,
                        arguments=call.arguments,
                    )
                    for call in calls
                ]
            case CardType.TOOL_RESULT, ToolResultContent() if card.tool_call_id is not None:
                output = _result_of(content)
                return [FunctionCallOutput(id=f"fco_{card.card_id}", call_id=card.tool_call_id, output=output)]
            case CardType.DELIVERABLE, TextContent(text=text):
                return self._delivery(card.card_id, text)
            case CardType.DELIVERABLE, JsonContent(data=data):
                return self._delivery(card.card_id, data)
            case _:
                return []

    def _delivery(self, card: CardId, delivered: JsonValue) -> list[Item]:
        self._delivered.add(card)
        if isinstance(delivered, dict) and is_fallback(delivered):
            return []  # the kernel's own account of a turn that delivered nothing
        text = delivered if isinstance(delivered, str) else _json(delivered)
        return [] if text == self._said else [_message(card, text)]


def message_id(card: CardId) -> str:
    """The id of the message that a card is."""
    return f"msg_{card}"


def _message(card: CardId, text: str) -> Message:
    return Message(id=message_id(card), content=[OutputText(text=text)])


def _result_of(content: ToolResultContent) -> str:
    if content.error is not None:
        return _json({"error": {"code": content.error.code, "message": content.error.message}})
    return content.result if isinstance(content.result, str) else _json(content.result)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
