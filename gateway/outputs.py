"""What a turn delivered, as clients get it."""

from collections.abc import Mapping

from pydantic import JsonValue

from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import get_card
from turnstile.schema.api import Output
from turnstile.schema.cards import CardUnreadable, FallbackDeliverable, JsonContent, TextContent, content_of, parts_of
from turnstile.schema.ids import CardId
from turnstile.schema.wire.descriptions import TurnView


async def output_of(pool: Pool, view: TurnView, card_id: CardId) -> Output:
    """What a turn delivered; one whose card is gone has neither text nor data."""
    card = await pool.run(lambda conn: get_card(conn, view.project_id, card_id))
    if card is None:
        return Output(card_id=card_id)
    partial, files = bool(card.metadata.partial), parts_of(card)
    try:
        match content_of(card):
            case TextContent(text=text):
                return Output(card_id=card_id, text=text, files=files, partial=partial)
            case JsonContent(data=data):
                return Output(card_id=card_id, data=data, files=files, partial=partial)
            case _:
                return Output(card_id=card_id, data=card.content, files=files, partial=partial)
    except CardUnreadable:
        return Output(card_id=card_id, data=card.content, partial=partial)


def typed_value(data: JsonValue) -> JsonValue:
    """The value in the deliverable of a typed answer (protocol §18); what is none stays as it is."""
    return data["value"] if isinstance(data, dict) and data.keys() == {"value"} else data


def is_fallback(data: Mapping[str, JsonValue]) -> bool:
    """Whether these are the fields of a deliverable that the kernel made."""
    fields = FallbackDeliverable.model_fields
    return {name for name, info in fields.items() if info.is_required()} <= data.keys() <= fields.keys()
