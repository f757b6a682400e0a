"""Converts cards to statement parameters and from rows, and caches the contents of boxes.

A box is append-only, so its first cards never change: the cache keeps prefixes of boxes by era, project and box, and
a step reads only the cards after them (protocol §7.2). Where a card is deleted or its expiry changes, the box gets
another version, and is read anew. The cache is bounded and holds nothing else.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from turnstile.ledger.queries import Connection, Row, query
from turnstile.rules.turn_step import OpenedBox
from turnstile.schema.base import JsonObject, stored_json
from turnstile.schema.cards import Card
from turnstile.schema.ids import BoxId, CardId, ChannelId, ProjectId

_PAGE = 200
"""Rows read of a box for a page, with one that is the next page's first."""


def card_columns(cards: Sequence[Card]) -> dict[str, list[Any]]:
    """The parameters `card_ids`, `card_contents` and so on: parallel arrays, JSON as text."""
    return {
        "card_ids": [card.card_id for card in cards],
        "card_contents": [json.dumps(card.content) for card in cards],
        "card_tool_calls": [
            None if card.tool_calls is None else json.dumps([c.model_dump(mode="json") for c in card.tool_calls])
            for card in cards
        ],
        "card_tool_call_ids": [card.tool_call_id for card in cards],
        "card_metadatas": [card.metadata.model_dump_json(exclude_none=True) for card in cards],
    }


def new_card(card: Card) -> JsonObject:
    """A card of a turn that is enqueued, as `state.write_turns` takes it."""
    metadata = card.metadata.model_dump(mode="json", exclude_none=True)
    return {"card_id": card.card_id, "content": card.content, "metadata": metadata}


def card_of(row: Row) -> Card:
    """A card from a row with its columns."""
    calls = row["tool_calls"]
    return Card.model_validate(
        {
            "card_id": row["card_id"],
            "content": stored_json(row["content"]),
            "tool_calls": None if calls is None else json.loads(calls),
            "tool_call_id": row["tool_call_id"],
            "metadata": json.loads(row["metadata"]),
        }
    )


class BoxedCard(NamedTuple):
    """A card at its place in a box."""

    position: int
    expires_at: datetime | None
    card: Card


@dataclass(frozen=True, slots=True)
class BoxPrefix:
    """The first cards of a box of this version, in order, without those that were expired or deleted as it was read."""

    version: str
    cards: tuple[BoxedCard, ...]
    size: int
    """Bytes of JSON, roughly."""

    @property
    def position(self) -> int:
        """The last position among them."""
        return self.cards[-1].position if self.cards else 0

    def readable(self, now: datetime, upto: int | None) -> tuple[Card, ...]:
        """The cards at these first positions, all without `upto`, that have not expired."""
        return tuple(
            card.card
            for card in self.cards
            if (card.expires_at is None or card.expires_at > now) and (upto is None or card.position <= upto)
        )


BoxKey = tuple[int, ProjectId, BoxId]
"""Which box, and the era of the turn that reads it: a later era may have other cards in its place."""
_EMPTY = BoxPrefix("", (), 0)


class BoxCache:
    """A least-recently-used cache of box prefixes, bounded in bytes; safe to share between turns."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._boxes: OrderedDict[BoxKey, BoxPrefix] = OrderedDict()

    def get(self, key: BoxKey) -> BoxPrefix:
        """The cached prefix of the box; empty if there is none."""
        prefix = self._boxes.get(key)
        if prefix is None:
            return _EMPTY
        self._boxes.move_to_end(key)
        return prefix

    def extend(self, key: BoxKey, known: BoxPrefix, opened: OpenedBox, rows: Sequence[Row]) -> BoxPrefix:
        """`known`, if it is of the box's version, and the rows after it; caches them for the next read."""
        kept = known if opened.version == known.version else BoxPrefix(opened.version, (), 0)
        if not rows and kept.cards:
            return kept
        added = tuple(BoxedCard(row["position"], row["expires_at"], card_of(row)) for row in rows)
        size = kept.size + sum(len(row["content"]) + len(row["metadata"]) + 200 for row in rows)
        extended = BoxPrefix(opened.version, kept.cards + added, size)
        self._keep(key, extended)
        return extended

    def _keep(self, key: BoxKey, prefix: BoxPrefix) -> None:
        held = self._boxes.pop(key, _EMPTY)
        longer = held.version == prefix.version and held.position > prefix.position
        kept = held if longer else prefix
        self._bytes += kept.size - held.size
        self._boxes[key] = kept
        while self._bytes > self._max_bytes and self._boxes:
            _, dropped = self._boxes.popitem(last=False)
            self._bytes -= dropped.size


async def get_card(conn: Connection, project: ProjectId, card: CardId, channel: ChannelId | None = None) -> Card | None:
    """The card, if the project, or the channel, has it and it is neither expired nor deleted."""
    row = await query("get_card").opt(conn, project_id=project, channel_id=channel, card_id=card)
    return None if row is None else card_of(row)


async def box_cards(conn: Connection, project: ProjectId, box: BoxId) -> list[Card] | None:
    """The cards of a box in order, without expired and deleted ones; None if the project has no such box."""
    rows = await query("box_cards").many(conn, project_id=project, box_id=box)
    if not rows:
        return None
    return [card_of(row) for row in rows if row["card_id"] is not None]


async def page_of_box(
    conn: Connection, project: ProjectId, box: BoxId, *, after: int, most_bytes: int
) -> tuple[list[Card], int | None] | None:
    """The next cards of a box after a position, at most about `most_bytes` of content or one card; as `box_cards`.

    Returns also the position after which the rest follows; None if there is no rest.
    """
    rows = await query("page_of_box").many(conn, project_id=project, box_id=box, after_position=after, row_limit=_PAGE)
    if not rows:
        return None
    cards: list[Card] = []
    size = 0
    for row in rows[: _PAGE - 1]:
        size += 0 if row["card_id"] is None else len(row["content"]) + len(row["metadata"])
        if cards and size > most_bytes:
            return cards, row["position"] - 1
        if row["card_id"] is not None:
            cards.append(card_of(row))
    return cards, rows[-1]["position"] - 1 if len(rows) == _PAGE else None


async def make_box(conn: Connection, project: ProjectId, box: BoxId, cards: Sequence[Card]) -> None:
    """Store these new cards in a new box, for callers that build a context of their own."""
    await query("make_box").many(conn, project_id=project, box_id=box, **card_columns(cards))
