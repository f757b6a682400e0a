"""`/openai/v1/conversations`: the kernel's conversations in OpenAI's words (protocol §14.4).

One that is made here is no agent's until a response names it. Its items are what an agent reads of it: the cards of the
box that its next turn goes on in. To add or delete items moves the conversation to a box of those that stay, so that
nothing written is changed; it is refused while a turn of it runs. Deleting a conversation hides it here; turns and
cards stay until retention removes them.
"""

import hashlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, Field, JsonValue

from turnstile.gateway.addressed import AddressedTarget
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import BadField
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.openai.fields import OpenAiRequest, notes_of, unsupported
from turnstile.gateway.openai.messages import SpokenText
from turnstile.gateway.openai.responses.item_parts import parts_of
from turnstile.gateway.openai.responses.objects import Item, UserMessage
from turnstile.gateway.openai.responses.request import Entry, ItemsQuery, item_texts
from turnstile.gateway.openai.responses.response_reading import items_of
from turnstile.gateway.v1.turn_handlers import key_in
from turnstile.ledger.access.chats import KeptConversation, find_kept_conversations
from turnstile.ledger.turns.cards import box_cards
from turnstile.schema.access import Principal
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.cards import Card
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import BoxId, CardId, ChannelId, ConversationId, ProjectId, conversation_named, instance_id
from turnstile.schema.verbs import CONVERSATION_PUT
from turnstile.schema.wire.conversation_requests import ConversationPutReply

_MADE_HERE: Final = re.compile(r"conv_[0-9a-f]{32}\Z")
_MOST_ITEMS: Final = 20
"""Items of one request, as OpenAI has it."""
_TRIES: Final = 3
"""How often a change is made anew because another one came between."""


class ConversationCreate(OpenAiRequest):
    """A conversation to make."""

    metadata: dict[str, str] | None = None
    items: list[JsonValue] = Field(default_factory=list[JsonValue], max_length=_MOST_ITEMS)


class ConversationUpdate(OpenAiRequest):
    """The pairs that take the place of those before."""

    metadata: dict[str, str]


class ItemsCreate(OpenAiRequest):
    """Items to add."""

    items: list[JsonValue] = Field(min_length=1, max_length=_MOST_ITEMS)


class ItemsInclude(Strict):
    """What OpenAI's clients may ask for besides an item; there is nothing."""

    include: str | None = None


class ConversationObject(BaseModel):
    """A conversation."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(BaseModel):
    """A conversation that is not here any more."""

    object: Literal["conversation.deleted"] = "conversation.deleted"
    id: str
    deleted: Literal[True] = True


class AnyItem(BaseModel):
    """An item, as it is."""

    model_config: ClassVar = {"extra": "allow"}

    id: str
    type: str


class Inseparable(BadField):
    """An item that belongs to others."""

    code: str = "item_not_separable"


@dataclass(frozen=True, slots=True)
class OpenAIConversations:
    """The handlers."""

    kernel: Kernel

    async def create(self, call: Call[Any, ConversationCreate]) -> Answer:
        """Make a conversation, with items that its first turn reads; the same one for the same `Idempotency-Key`."""
        principal, key = call.principal, key_in(call.headers)
        channel = self._channel(principal)
        metadata = _pairs(call.body.metadata)
        fields: JsonObject = {"conversation_id": _new_id(principal.project_id, channel, key), "metadata": {**metadata}}
        if call.body.items:
            fields["add_box_id"] = await self._box_of(call, channel, call.body.items, key)
        await self._put(call, channel, fields)
        return Answer(_shown(await self._find(principal, str(fields["conversation_id"]))))

    async def get(self, call: Call[object, object]) -> Answer:
        """A conversation."""
        return Answer(_shown(await self._find(call.principal, call.path["conversation_id"])))

    async def update(self, call: Call[Any, ConversationUpdate]) -> Answer:
        """Give it other metadata."""
        kept = await self._find(call.principal, call.path["conversation_id"])
        await self._put(call, kept.channel_id, {**_named(kept), "metadata": {**_pairs(call.body.metadata)}})
        return Answer(_shown(await self._find(call.principal, call.path["conversation_id"])))

    async def delete(self, call: Call[Any, Any]) -> Answer:
        """Hide it; a repeat is the same."""
        name = call.path["conversation_id"]
        kept = await self._find(call.principal, name)
        await self._put(call, kept.channel_id, {**_named(kept), "removed": True})
        return Answer(ConversationDeleted(id=name))

    async def items(self, call: Call[ItemsQuery, object]) -> Answer:
        """A page of its items."""
        _, cards = await self._read(call.principal, call.path["conversation_id"])
        return Answer(call.query.page(items_of(cards)))

    async def item(self, call: Call[ItemsInclude, object]) -> Answer:
        """One of its items."""
        _, cards = await self._read(call.principal, call.path["conversation_id"])
        return Answer(_item_of(items_of(cards), call.path["item_id"]))

    async def add_items(self, call: Call[Any, ItemsCreate]) -> Answer:
        """Add items; those of the same `Idempotency-Key` once."""
        name, key = call.path["conversation_id"], key_in(call.headers)
        kept, cards = await self._read(call.principal, name)
        added = await self._box_of(call, kept.channel_id, call.body.items, key)
        new = await self._cards(call.principal, added)
        for tried in range(_TRIES):
            known = {card.card_id for card in cards}
            if all(card.card_id in known for card in new):
                break
            try:
                await self._put(
                    call, kept.channel_id, {**_named(kept), "box_id": kept.output_box_id, "add_box_id": added}
                )
                break
            except Refused as error:
                if error.code != "conversation_changed" or tried == _TRIES - 1:
                    raise
            kept, cards = await self._read(call.principal, name)
        return Answer(ItemsQuery(order="asc", limit=100).page(items_of(new)))

    async def delete_item(self, call: Call[Any, Any]) -> Answer:
        """Let the conversation go on without an item."""
        name, item = call.path["conversation_id"], call.path["item_id"]
        kept, cards = await self._read(call.principal, name)
        dropped = cards_without(cards, item)
        fields: JsonObject = {"box_id": kept.output_box_id, "drop_card_ids": [*dropped]}
        await self._put(call, kept.channel_id, {**_named(kept), **fields})
        return Answer(_shown(await self._find(call.principal, name)))

    async def joined(
        self, call: Call[Any, Any], channel: ChannelId, conversation: str, target: AddressedTarget
    ) -> None:
        """Before a turn in a conversation that was made here: it becomes its agent's, if it was nobody's.

        Raises `Refused` (unknown_conversation, conversation_of_another). Names of other kinds begin with their turn.
        """
        if not _MADE_HERE.match(conversation):
            return
        kept = await self._find(call.principal, conversation)
        agent = target.name
        if target.is_profile:
            agent = instance_id(call.principal.project_id, channel, target.name, "conversation", conversation)
        if kept.agent_id != agent:
            await self._put(call, channel, {"conversation_id": conversation, "agent_id": agent})

    def _channel(self, principal: Principal) -> ChannelId:
        return self.kernel.turns.asking.channel(principal, None)

    async def _find(self, principal: Principal, named: str) -> KeptConversation:
        """The conversation of this name; raises `Refused` (unknown_conversation, ambiguous)."""
        channel, project = self._channel(principal), principal.project_id
        try:
            name = conversation_named(named)
        except BadRequest:
            raise _unknown() from None
        lines = await self.kernel.pool.run(
            lambda conn: find_kept_conversations(conn, project, channel, name, row_limit=2)
        )
        present = [kept for kept in lines if not kept.notes.removed]
        if not present:
            raise _unknown()
        if len(present) > 1:
            raise Refused("ambiguous", "several agents have a conversation with this id: see GET /v1/conversations")
        return present[0]

    async def _read(self, principal: Principal, named: str) -> tuple[KeptConversation, list[Card]]:
        kept = await self._find(principal, named)
        return kept, await self._cards(principal, kept.output_box_id)

    async def _cards(self, principal: Principal, box: BoxId) -> list[Card]:
        return await self.kernel.pool.run(lambda conn: box_cards(conn, principal.project_id, box)) or []

    async def _box_of(
        self, call: Call[Any, Any], channel: ChannelId, items: Sequence[JsonValue], key: str | None
    ) -> BoxId:
        """A box of these items; raises `BadField` and `Unsupported`, which name the item."""
        entries: list[Entry] = item_texts(items, "items")
        for part in entries:
            if isinstance(part, SpokenText) and part.speaker == "instructions":
                hint = "system and developer messages apply to one response: send them as its instructions"
                raise unsupported("items", hint=hint)
        parts = await parts_of(self.kernel, call.principal, entries, "items")
        return await self.kernel.make_box(call, channel, parts, None if key is None else f"conversation/{key}")

    async def _put(self, call: Call[Any, Any], channel: ChannelId, fields: JsonObject) -> ConversationPutReply:
        asking = self.kernel.turns.asking
        return await asking.ask(call.principal, channel, CONVERSATION_PUT, fields, call.headers)


def cards_without(cards: Sequence[Card], item: str) -> list[CardId]:
    """The cards to drop so that all items stay but this one; raises `Refused` (unknown_item), or `Inseparable`.

    A text and the calls that a model made with it are one card, and providers want all results of its calls: such items
    go together or not at all.
    """
    before = [entry.id for entry in items_of(cards)]
    if item not in before:
        raise _unknown_item()
    stay = [name for name in before if name != item]
    dropped: set[CardId] = set()
    missing = item
    while True:
        dropped |= _cards_behind(cards, missing)
        after = [entry.id for entry in items_of([card for card in cards if card.card_id not in dropped])]
        if after == stay:
            return [card.card_id for card in cards if card.card_id in dropped]
        remaining = [name for name in after if name not in stay]  # a deliverable that only repeated what is dropped
        if not remaining or remaining[0] == missing:
            others = ", ".join(name for name in stay if name not in after)[:300]
            message = f"this item belongs together with other items of its step: {others}"
            raise Inseparable(f"{message}; create a new conversation of the items to keep", "item_id")
        missing = remaining[0]


def _cards_behind(cards: Sequence[Card], item: str) -> set[CardId]:
    """The card of a message, or of a call its thought and its result."""
    card_ids: set[CardId] = set()
    for card in cards:
        item_ids = [f"msg_{card.card_id}"]
        calls = [call.tool_call_id for call in card.tool_calls or ()]
        item_ids += [f"mcp_{card.card_id.removesuffix('-thought')}-{call}" for call in calls]
        if item in item_ids:
            card_ids.add(card.card_id)
            card_ids |= {c.card_id for c in cards if c.tool_call_id is not None and c.tool_call_id in calls}
    return card_ids


def _item_of(items: Sequence[UserMessage | Item], item_id: str) -> AnyItem:
    for item in items:
        if item.id == item_id:
            return AnyItem.model_validate(item.model_dump())
    raise _unknown_item()


def _new_id(project: ProjectId, channel: ChannelId, key: str | None) -> ConversationId:
    if key is None:
        return ConversationId(f"conv_{uuid.uuid4().hex}")
    digest = hashlib.sha256(f"{project}\0{channel}\0{key}".encode()).hexdigest()
    return ConversationId(f"conv_{digest[:32]}")


def _pairs(metadata: dict[str, str] | None) -> dict[str, str]:
    notes_of(metadata)  # raises beyond OpenAI's limits
    return metadata or {}


def _named(kept: KeptConversation) -> JsonObject:
    return {"conversation_id": kept.conversation_id, **({} if kept.agent_id is None else {"agent_id": kept.agent_id})}


def _shown(kept: KeptConversation) -> ConversationObject:
    return ConversationObject(
        id=kept.conversation_id, created_at=int(kept.created_at.timestamp()), metadata=kept.notes.metadata
    )


def _unknown() -> Refused:
    return Refused("unknown_conversation", "the project has no such conversation")


def _unknown_item() -> Refused:
    return Refused("unknown_item", "the conversation has no such item")
