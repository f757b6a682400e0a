"""What an agent did, in the order in which it did it, and that as the items of a response (protocol §14.4). Pure.

Both derive from cards alone, so the same cards are the same items, whether streamed or read. A deliverable that repeats
what the agent said last is no item of its own. A call that the kernel has run is one item, `mcp_call`, with its result:
OpenAI's clients take a `function_call` for something that they have to run. Texts that follow each other end with, or
begin with, a blank line, since clients join them with nothing between.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from pydantic import JsonValue

from turnstile.gateway.events.positions import END, EventPart, Position
from turnstile.gateway.openai.responses.objects import FunctionCallItem, Item, McpCall, Message, OutputText
from turnstile.gateway.outputs import is_fallback, typed_value
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.cards import (
    CardType,
    JsonContent,
    TextContent,
    ToolResultContent,
    read_content,
)
from turnstile.schema.ids import CardId, ToolCallId
from turnstile.schema.states import TurnStatus

APART: Final = "\n\n"
OWN_LABEL: Final = "turnstile"
"""The server's label of tools that are of no MCP server."""
_CLOSING: Final = 509
"""The place among a step's results of calls that the turn's end closes."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A text of the agent."""

    card: CardId
    text: str
    goes_on: bool = False
    """Whether calls follow, so that it is not the last text."""


@dataclass(frozen=True, slots=True)
class Called:
    """A call that the agent made."""

    card: CardId
    """The thought that made it."""
    call: ToolCallId
    name: str
    arguments: str
    is_clients: bool = False
    """Whether the client runs it."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The result of a call."""

    call: ToolCallId
    output: str
    """What a model reads of it, as JSON or as a text."""
    error: str | None = None
    """Why it failed, if it did."""


class PlacedAct(NamedTuple):
    """An act, and where it is among the turn's events; `b` numbers the acts of one card."""

    position: Position
    act: Spoken | Called | Returned


class ActLog:
    """Takes a turn's cards in their order, then its outcome.

    Of a typed answer (protocol §18) the only text is its value: what the model said on the way would break its JSON.
    A call of one of `client_tools` is the client's to run only if it is held, which its own card says; else it was
    refused, and its result comes instead.
    """

    def __init__(self, *, is_typed: bool = False, client_tools: Collection[str] = ()) -> None:
        self._is_typed = is_typed
        self._client_tools = client_tools
        self._unclear: dict[ToolCallId, Called] = {}
        """Calls of client tools of which nobody knows yet whether the client runs them."""
        self._said: str | None = None
        self._delivered: set[CardId] = set()

    @property
    def is_unclear(self) -> bool:
        """Whether there are calls of which nobody knows yet whether the client runs them."""
        return bool(self._unclear)

    def take(self, position: Position, card: CardAnswer) -> list[PlacedAct]:
        """The acts of a card."""
        return [PlacedAct(replace(position, b=n), act) for n, act in enumerate(self._acts_of(card))]

    def end(self, turn: Turn) -> list[PlacedAct]:
        """The deliverable, if no step made it."""
        output = turn.output
        if output is None or output.card_id in self._delivered:
            return []
        acts = self._delivery(output.card_id, output.data if output.text is None else output.text)
        return [PlacedAct(END, act) for act in acts]

    def _acts_of(self, card: CardAnswer) -> list[Spoken | Called | Returned]:
        content = read_content(card.content) if isinstance(card.content, dict) else None
        match card.type, content:
            case CardType.THOUGHT, TextContent(text=text):
                self._said = text or self._said
                calls = card.tool_calls or []
                says = text and not self._is_typed
                entries: list[Spoken | Called | Returned] = [Spoken(card.card_id, text, bool(calls))] if says else []
                made = [Called(card.card_id, call.tool_call_id, call.tool_name, call.arguments) for call in calls]
                self._unclear |= {called.call: called for called in made if called.name in self._client_tools}
                return entries + [called for called in made if called.name not in self._client_tools]
            case CardType.TOOL_CALL, _ if (called := self._unclear.pop(_id(card), None)) is not None:
                return [replace(called, is_clients=True)]
            case CardType.TOOL_RESULT, ToolResultContent() if card.tool_call_id is not None:
                refused = self._unclear.pop(card.tool_call_id, None)
                return [*([] if refused is None else [refused]), _returned(card.tool_call_id, content)]
            case CardType.DELIVERABLE, TextContent(text=text):
                return [*self._delivery(card.card_id, text)]
            case CardType.DELIVERABLE, JsonContent(data=data):
                return [*self._delivery(card.card_id, data)]
            case _:
                return []

    def _delivery(self, card: CardId, delivered: JsonValue) -> list[Spoken]:
        self._delivered.add(card)
        if isinstance(delivered, dict) and is_fallback(delivered):
            return []  # the kernel's own account of a turn that delivered nothing
        if self._is_typed:
            is_value = isinstance(delivered, dict) and delivered.keys() == {"value"}
            return [Spoken(card, _json(typed_value(delivered)))] if is_value else []
        text = delivered if isinstance(delivered, str) else _json(delivered)
        return [] if text == self._said else [Spoken(card, text)]


@dataclass(frozen=True, slots=True)
class Placed:
    """An item that is new, or done: a call's item is both, at different places."""

    position: Position
    index: int
    item: Item
    is_new: bool


class ItemLog:
    """The items of a response, as far as its turn is known."""

    def __init__(self, *, is_typed: bool = False, client_tools: Collection[str] = ()) -> None:
        self.items: list[Item] = []
        self._acts = ActLog(is_typed=is_typed, client_tools=client_tools)
        self._handed: set[int] = set()
        """The steps that have made calls which the client runs."""
        self._places: dict[ToolCallId, tuple[int, int]] = {}
        """The index of each call's item, and its step."""
        self._apart = ""
        """What the next text begins with."""

    @property
    def handed_steps(self) -> frozenset[int]:
        """The steps that have made calls which the client runs."""
        return frozenset(self._handed)

    @property
    def first_handed(self) -> int | None:
        """The first of them: what the client is handed ends with it. None if there is none."""
        return min(self._handed, default=None)

    @property
    def handed_over(self) -> int | None:
        """That step, if nothing else of it is waited for."""
        step = self.first_handed
        if self._acts.is_unclear:
            return None
        running = (self.items[index] for index, of_step in self._places.values() if of_step == step)
        return None if any(isinstance(i, McpCall) and i.status == "in_progress" for i in running) else step

    @property
    def before_text(self) -> str:
        """What the next text begins with, so that it does not run into the one before."""
        return self._apart

    def take(self, position: Position, card: CardAnswer) -> list[Placed]:
        """The items of a card, and the call that it answers."""
        placed = [self._placed(entry) for entry in self._acts.take(position, card)]
        return [item for item in placed if item is not None]

    def close(self, before: int, status: str = "incomplete") -> list[Placed]:
        """The calls of steps before this one that nothing answered."""
        placed: list[Placed] = []
        for number, (index, step) in enumerate(self._places.values()):
            item = self.items[index]
            if isinstance(item, McpCall) and item.status == "in_progress" and step < before:
                self.items[index] = item = item.model_copy(update={"status": status})
                placed.append(Placed(Position(step, EventPart.RESULTS, _CLOSING, number), index, item, is_new=False))
        return placed

    def end(self, turn: Turn) -> list[Placed]:
        """The calls that nothing answered, such as the one that delivers, then a deliverable that no step made."""
        status = "completed" if turn.status == TurnStatus.SUCCESS else "incomplete"
        placed = [self._placed(entry) for entry in self._acts.end(turn)]
        return [*self.close(END.step, status), *(item for item in placed if item is not None)]

    def _placed(self, entry: PlacedAct) -> Placed | None:
        position, act = entry
        match act:
            case Spoken(card=card, text=text, goes_on=goes_on):
                whole = self._apart + text + (APART if goes_on else "")
                self._apart = "" if goes_on else APART
                return self._new(position, Message(id=message_id(card), content=[OutputText(text=whole)]))
            case Called(card=card, call=call, name=name, arguments=arguments, is_clients=True):
                self._handed.add(position.step)
                named = {"id": function_item_id(card, call), "call_id": call, "name": name, "arguments": arguments}
                return self._new(position, FunctionCallItem.model_validate(named))
            case Called(card=card, call=call, name=name, arguments=arguments):
                self._places[call] = len(self.items), position.step
                server = name.partition("__")[0] if "__" in name.strip("_") else OWN_LABEL
                named = {"id": call_item_id(card, call), "server_label": server, "name": name}
                return self._new(position, McpCall.model_validate({**named, "arguments": arguments}))
            case Returned(call=call, output=output, error=error):
                index, _ = self._places.get(call, (None, 0))
                if index is None:
                    return None
                update = {"status": "completed", "output": output}
                if error is not None:
                    update = {"status": "failed", "error": error}
                self.items[index] = item = self.items[index].model_copy(update=update)
                return Placed(position, index, item, is_new=False)

    def _new(self, position: Position, item: Item) -> Placed:
        self.items.append(item)
        return Placed(position, len(self.items) - 1, item, is_new=True)


def message_id(card: CardId) -> str:
    """The id of the message that a card is."""
    return f"msg_{card}"


def call_item_id(thought: CardId, call: ToolCallId) -> str:
    """The id of the item that a call is: it leads to the step that made it."""
    return f"mcp_{thought.removesuffix('-thought')}-{call}"


def function_item_id(thought: CardId, call: ToolCallId) -> str:
    """The id of the item that a call which the client runs is."""
    return f"fc_{thought.removesuffix('-thought')}-{call}"


def _id(card: CardAnswer) -> ToolCallId:
    return ToolCallId("") if card.tool_call_id is None else card.tool_call_id


def _returned(call: ToolCallId, content: ToolResultContent) -> Returned:
    if content.error is not None:
        code, message = content.error.code, content.error.message
        return Returned(call, _json({"error": {"code": code, "message": message}}), f"{code}: {message}")
    return Returned(call, content.result if isinstance(content.result, str) else _json(content.result))


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
