"""A turn as a response, read from the ledger: what it was asked with, what it did, how it ended (protocol §14.4)."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from pydantic import JsonValue

from turnstile.gateway.events.feed import SHOWN
from turnstile.gateway.events.positions import EventPart, Position
from turnstile.gateway.openai.error_objects import code_of
from turnstile.gateway.openai.fields import NOTES
from turnstile.gateway.openai.responses.items import ItemLog, call_item_id, function_item_id, message_id
from turnstile.gateway.openai.responses.objects import (
    Failure,
    Incomplete,
    InputDetails,
    InputText,
    Item,
    Named,
    OutputDetails,
    Response,
    Status,
    Usage,
    UserMessage,
)
from turnstile.gateway.outputs import output_of
from turnstile.ledger.access.pages import list_turn_progress
from turnstile.ledger.access.past import TurnRequest, get_turn_request
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import TurnUsage, sum_turn_usage
from turnstile.schema.access import Detail, Principal
from turnstile.schema.api import CardAnswer, Turn
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, CardType, TextContent, read_content
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, CardId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.chunk_order import step_number

_ITEM = re.compile(r"(?:msg|mcp|fc)_([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-.{1,200}")
_ID = re.compile(r"resp_([A-Za-z0-9_-]{1,128}?)(?:_(\d{1,6}))?")
PREFIX: Final = "resp_"


def place_in(response: str) -> tuple[AgentTurnId, int]:
    """The turn that a response's id names, and the step after which it begins; raises `Refused` (unknown_response)."""
    match = _ID.fullmatch(response)
    if match is None:
        raise unknown_response()
    return AgentTurnId(match[1]), int(match[2] or 0)


def response_id(turn: AgentTurnId, begin: int) -> str:
    """The id of the response that begins after this step of a turn: each one ends with calls that its client runs."""
    return f"{PREFIX}{turn}_{begin}" if begin else PREFIX + turn


def unknown_response() -> Refused:
    """The error for a response that is not there, or is another's."""
    return Refused("unknown_response", "the project has no such response")


def turn_of_item(item: str) -> AgentTurnId | None:
    """The turn that made an item, by the item's id; None if no turn can have made it."""
    match = _ITEM.fullmatch(item)
    return None if match is None else AgentTurnId(match[1])


class ItemCards(NamedTuple):
    """What an item is made of."""

    cards: list[CardId]
    text: str | None = None
    """What it says; of a call, what the model said with it."""

    def says(self, text: str) -> bool:
        """Whether this is its text."""
        return (self.text or "").strip() == text.strip()


async def cards_of_items(pool: Pool, view: TurnView) -> dict[str, ItemCards]:
    """The items of a turn by their ids, with the cards that they are made of: of a call all its step's results."""
    rows = await pool.run(lambda conn: list_turn_progress(conn, view.project_id, view.agent_turn_id))
    made_cards = [(row.step_id, row.card) for row in rows if row.card is not None and row.card.type in SHOWN]
    items: dict[str, ItemCards] = {}
    for step, card in made_cards:
        results = [c.card_id for where, c in made_cards if where == step and c.type == CardType.TOOL_RESULT]
        if card.type in (CardType.THOUGHT, CardType.DELIVERABLE):
            cards = [card.card_id, *(results if card.tool_calls else [])]
            items[message_id(card.card_id)] = ItemCards(cards, text_of_card(card))
            for call in card.tool_calls or ():
                items[function_item_id(card.card_id, call.tool_call_id)] = ItemCards(cards, text_of_card(card))
                items[call_item_id(card.card_id, call.tool_call_id)] = ItemCards(cards, text_of_card(card))
    delivered = view.deliverable_card_id
    if delivered is not None:
        items.setdefault(message_id(delivered), ItemCards([delivered]))
    return items


def text_of_card(card: Card) -> str | None:
    """The text on a card; None if it has another content."""
    content = read_content(card.content) if isinstance(card.content, dict) else None
    return content.text if isinstance(content, TextContent) else None


def items_of(cards: Sequence[Card]) -> list[UserMessage | Item]:
    """Cards of any turns as items, in their order: instructions as what users said."""
    log, items = ItemLog(), list[UserMessage | Item]()
    places = dict[int, int]()
    for number, card in enumerate(cards, 1):
        text = text_of_card(card)
        if card.type == CardType.INSTRUCTION and text:
            items.append(UserMessage(id=message_id(card.card_id), content=[InputText(text=text)]))
            continue
        for placed in log.take(Position(number, EventPart.CARDS, 1, 0), CardAnswer.of(card)):
            if placed.is_new:
                places[placed.index] = len(items)
                items.append(placed.item)
            else:
                items[places[placed.index]] = placed.item
    return [
        item.model_copy(update={"status": "incomplete"}) if item.status == "in_progress" else item for item in items
    ]


_PROMPTS = frozenset({"instructions", "output_schema"})
"""Settings that a model reads."""


def is_typed(request: TurnRequest) -> bool:
    """Whether the response is the JSON of a value, and nothing else (protocol §18)."""
    noted = request.metadata.get(NOTES)
    return isinstance(noted, dict) and "text_format" in noted


def client_tools_of(request: TurnRequest) -> frozenset[str]:
    """The names of the functions that the turn's client runs."""
    tools = request.runtime_config.get("client_tools")
    names = (tool.get("name") for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
    return frozenset(name for name in names if isinstance(name, str))


async def asked_with(pool: Pool, view: TurnView, principal: Principal) -> TurnRequest:
    """What the turn was enqueued with; its instructions are for those who gave them, or see prompts."""
    request = await pool.run(lambda conn: get_turn_request(conn, view.project_id, view.agent_turn_id))
    if request is None:
        return TurnRequest.model_validate({"runtime_config": "{}", "metadata": "{}"})
    if principal.sees_detail(Detail.PROMPTS) or request.requester == principal.sender:
        return request
    config = {name: value for name, value in request.runtime_config.items() if name not in _PROMPTS}
    if "client_tools" in config:
        config["client_tools"] = [{"name": name} for name in sorted(client_tools_of(request))]
    return request.model_copy(update={"runtime_config": config})


async def read_response(pool: Pool, view: TurnView, principal: Principal, begin: int = 0) -> Response:
    """The response as it is now, for this principal; of a turn with several the one that begins after this step.

    One that ended with calls that its client runs stays as it was, whatever becomes of the turn (protocol §19). Raises
    `Refused` (unknown_response) where none begins there.
    """
    project, turn = view.project_id, view.agent_turn_id
    rows = await pool.run(lambda conn: list_turn_progress(conn, project, turn))
    request = await asked_with(pool, view, principal)
    tools = client_tools_of(request)
    log, before = (ItemLog(is_typed=is_typed(request), client_tools=tools) for _ in range(2))
    placed = [
        (Position(step_number(row.step_id), row.part, row.place, row.sub), row.card)
        for row in rows
        if row.card is not None and row.card.type in SHOWN
    ]
    for position, card in sorted(placed, key=lambda p: p[0]):
        if position.step <= begin:
            before.take(position, CardAnswer.of(card))
        elif position.step <= (log.first_handed or position.step):
            log.take(position, CardAnswer.of(card))
    if begin and begin not in before.handed_steps:
        raise unknown_response()
    response = begun(view, request, "queued" if view.status == "queued" else "in_progress", begin)
    if (end := log.handed_over) is not None:
        counted = await pool.run(lambda conn: sum_turn_usage(conn, project, turn, after_step=begin, until_step=end))
        update = {"status": "completed", "output": log.items, "usage": _usage(counted)}
        return response.model_copy(update=update)
    if view.ended_at is None:
        return response.model_copy(update={"output": log.items})
    card_id = view.deliverable_card_id
    output = None if card_id is None else await output_of(pool, view, card_id)
    ended = Turn.model_validate({**view.model_dump(), "output": output})
    log.end(ended)
    counted = await pool.run(lambda conn: sum_turn_usage(conn, project, turn, after_step=begin))
    incomplete, failure = _incomplete(ended), _failure(ended)
    return response.model_copy(
        update={
            "status": _status(ended),
            "completed_at": int(view.ended_at.timestamp()) if _status(ended) == "completed" else None,
            "output": log.items,
            "usage": _usage(counted),
            "incomplete_details": incomplete,
            "error": failure,
        }
    )


def begun(view: TurnView, request: TurnRequest, status: Status, begin: int = 0) -> Response:
    """The response before the turn has done anything."""
    noted = request.metadata.get(NOTES)
    notes = cast("JsonObject", noted) if isinstance(noted, dict) else {}
    config = request.runtime_config
    return Response.model_validate(
        {
            **{name: notes[name] for name in _NOTED if name in notes},
            "id": response_id(view.agent_turn_id, begin),
            "tools": _functions(config.get("client_tools")),
            "created_at": int(view.created_at.timestamp()),
            "status": status,
            "model": notes.get("model", view.agent_id),
            "instructions": config.get("instructions"),
            "max_output_tokens": config.get("max_tokens"),
            "parallel_tool_calls": config.get("parallel_tool_calls", True),
            "reasoning": {"effort": config.get("reasoning_effort")} if "reasoning_effort" in config else None,
            "temperature": config.get("temperature"),
            "text": _text_config(notes.get("text_format"), config),
            "top_p": config.get("top_p"),
            "conversation": Named(id=view.conversation_id) if view.conversation_id else None,
        }
    )


def _functions(tools: JsonValue) -> list[JsonObject]:
    """The client's functions, as a request has them."""
    defaults: JsonObject = {"type": "function", "description": None, "parameters": None, "strict": False}
    return [{**defaults, **tool} for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _text_config(noted: JsonValue, config: JsonObject) -> JsonObject:
    match noted:
        case {"type": "json_schema"}:
            form: JsonObject = {"format": {**noted, "schema": config.get("output_schema")}}
        case dict():
            form = {"format": noted}
        case _:
            form = {}
    return {**form, "verbosity": config.get("verbosity")}


_NOTED = ("background", "metadata", "previous_response_id", "prompt_cache_key", "safety_identifier", "store", "user")


def _status(turn: Turn) -> Status:
    match TurnStatus(turn.status):
        case TurnStatus.SUCCESS:
            return "completed" if _incomplete(turn) is None else "incomplete"
        case TurnStatus.PARTIAL:
            return "incomplete"
        case TurnStatus.CANCELED:
            return "cancelled"
        case TurnStatus.FAILED | TurnStatus.TIMEOUT:
            return "failed"


def _incomplete(turn: Turn) -> Incomplete | None:
    if turn.status == TurnStatus.SUCCESS and turn.output is not None and turn.output.partial:
        return Incomplete(reason="max_output_tokens")
    return None


def _failure(turn: Turn) -> Failure | None:
    if turn.status in (TurnStatus.SUCCESS, TurnStatus.CANCELED):
        return None
    return Failure(code=code_of(turn), message=turn.error or f"the turn ended: {turn.status}")


def _usage(counted: TurnUsage) -> Usage:
    return Usage(
        input_tokens=counted.prompt_tokens,
        input_tokens_details=InputDetails(cached_tokens=counted.cached_tokens),
        output_tokens=counted.completion_tokens,
        output_tokens_details=OutputDetails(reasoning_tokens=counted.reasoning_tokens),
        total_tokens=counted.prompt_tokens + counted.completion_tokens,
    )
