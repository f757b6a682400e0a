"""What a request's items are as parts of a box: texts, and the cards of items that turns made (protocol §14.4)."""

import contextlib
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import Final

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.messages import CallOutput, MadeCalls, SpokenText, composed
from turnstile.gateway.openai.responses.request import Entry, ItemRef
from turnstile.gateway.openai.responses.response_reading import ItemCards, cards_of_items, turn_of_item
from turnstile.schema.access import Principal
from turnstile.schema.errors import Refused
from turnstile.schema.wire.box_requests import CardPart, Part

_MOST_TURNS: Final = 100
"""Earlier responses whose items one request may name."""


class ItemNotFound(BadField):
    """An item that a request names is not there."""

    code: str = "item_not_found"


async def parts_of(kernel: Kernel, principal: Principal, entries: Sequence[Entry], field: str) -> list[Part]:
    """What is in the field of a request as parts of a box.

    Raises `ItemNotFound` for an item that it names and is not there, and `BadField` if it says nothing.
    """
    known = await _items(kernel, principal, {entry.item for entry in entries if isinstance(entry, ItemRef)}, field)
    parts: list[Part] = []
    for entry, following in zip_longest(entries, entries[1:]):
        item = known.get(entry.item) if isinstance(entry, ItemRef) else None
        if isinstance(entry, MadeCalls | CallOutput):
            parts += composed([entry]).parts
        elif isinstance(entry, SpokenText):
            call = known.get(following.item) if isinstance(following, ItemRef) and following.text is None else None
            if entry.speaker == "assistant" and call is not None and call.says(entry.text):
                continue  # a client sends what a model said with its call without an id: the call's card has it
            parts += composed([entry]).parts
        elif (
            item is not None
            and (entry.text is None or item.says(entry.text))
            and not (entry.text is not None and isinstance(following, MadeCalls))  # whose calls come as they are given
        ):
            parts += [CardPart(card_id=card) for card in item.cards]
        elif entry.text is not None:
            said = item.text if item is not None and item.says(entry.text) else entry.text
            parts += composed([SpokenText("assistant", said or "")]).parts
        elif entry.is_needed:
            raise ItemNotFound(f"{entry.param}: the project has no such item; send the message itself", entry.param)
    if not parts:
        raise BadField(f"{field}: the message is empty", field)
    return parts


async def _items(kernel: Kernel, principal: Principal, items: Collection[str], field: str) -> dict[str, ItemCards]:
    """Those of these items that are there for the token."""
    turns = {turn for item in items if (turn := turn_of_item(item)) is not None}
    if len(turns) > _MOST_TURNS:
        raise BadField(
            f"{field}: items of at most {_MOST_TURNS} responses are accepted; use previous_response_id instead", field
        )
    known: dict[str, ItemCards] = {}
    for turn in turns:
        with contextlib.suppress(Refused):
            view = await kernel.turns.described(principal, turn)
            known |= await cards_of_items(kernel.pool, view)
    return known
