"""What a request's items are as parts of a box: texts, and the cards of items that turns made (protocol §14.4)."""

import contextlib
from collections.abc import Collection, Sequence
from typing import Final

from turnstile.gateway.http.problems import BadField
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.messages import Said, composed
from turnstile.gateway.openai.responses.request import ItemRef
from turnstile.gateway.openai.responses.response_reading import ItemCards, cards_of_items, turn_of_item
from turnstile.schema.access import Principal
from turnstile.schema.errors import Refused
from turnstile.schema.wire.box_requests import CardPart, Part

_MOST_TURNS: Final = 100
"""Earlier responses whose items one request may name."""


class ItemNotFound(BadField):
    """An item that a request names is not there."""

    code: str = "item_not_found"


async def parts_of(kernel: Kernel, principal: Principal, said: Sequence[Said | ItemRef], field: str) -> list[Part]:
    """What is in the field of a request as parts of a box.

    Raises `ItemNotFound` for an item that it names and is not there, and `BadField` if it says nothing.
    """
    known = await _items(kernel, principal, {each.item for each in said if isinstance(each, ItemRef)}, field)
    parts: list[Part] = []
    for each in said:
        item = known.get(each.item) if isinstance(each, ItemRef) else None
        if isinstance(each, Said):
            parts += composed([each]).parts
        elif item is not None and (each.text is None or (item.text or "").strip() == each.text.strip()):
            parts += [CardPart(card_id=card) for card in item.cards]
        elif each.text is not None:
            parts += composed([Said("assistant", each.text)]).parts
        elif each.is_needed:
            raise ItemNotFound(f"{each.param}: the project has no such item; send the message itself", each.param)
    if not parts:
        raise BadField(f"{field}: it says nothing", field)
    return parts


async def _items(kernel: Kernel, principal: Principal, items: Collection[str], field: str) -> dict[str, ItemCards]:
    """Those of these items that are there for the token."""
    turns = {turn for item in items if (turn := turn_of_item(item)) is not None}
    if len(turns) > _MOST_TURNS:
        raise BadField(f"{field}: items of at most {_MOST_TURNS} responses; use previous_response_id", field)
    found: dict[str, ItemCards] = {}
    for turn in turns:
        with contextlib.suppress(Refused):
            view = await kernel.turns.described(principal, turn)
            found |= await cards_of_items(kernel.pool, view)
    return found
