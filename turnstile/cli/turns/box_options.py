"""`agent memory`, `box put`, `box make` and `box show`: a bridge reads, makes and sets boxes."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue
from pydantic_core import from_json

from turnstile.cli.session import Session
from turnstile.cli.turns.texts import read_text
from turnstile.cli.turns.turn_report import read_box
from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import Card, value_of
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import BoxId, box_id
from turnstile.schema.ledger_reads import MemoryRead, ReadRequest
from turnstile.schema.wire.box_requests import (
    AgentBoxes,
    BoxForkRequest,
    BoxMakeRequest,
    BoxReplaceRequest,
)
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES
from turnstile.sdk.requests import parse_request


class PlacedCard(Card):
    """A card with its position in the box that is shown."""

    position: int


@dataclass(frozen=True, slots=True)
class MemoryArguments:
    """The arguments of `agent memory`."""

    agent: str
    box: str | None
    fork: bool
    forget: bool

    def check(self) -> None:
        """Raises `BadRequest` for options that exclude each other."""
        if self.forget and self.box is not None:
            raise BadRequest("either a box or --forget")
        if self.fork and self.box is None:
            raise BadRequest("--fork needs the box to copy")


async def show_memory(session: Session, agent: str) -> None:
    """Print the boxes that the agent's pointers name; raises `Refused` for an unknown agent."""
    request = ReadRequest(memory=parse_request(MemoryRead, {"agent_id": agent}))
    boxes = (await session.read(request)).memory or AgentBoxes()
    if session.out.as_json:
        session.out.document(boxes)
        return
    session.out.line(f"memory       {boxes.memory_context_box_id or 'none'}")
    session.out.line(f"last output  {boxes.last_output_box_id or 'none'}")


async def set_memory(session: Session, memory: MemoryArguments) -> None:
    """Set or remove the agent's memory.

    Raises `Refused` with the bridge's code, `NoBridge` or `ServerUnavailable`.
    """
    async with session.bridge() as client:
        await session.await_bridge(client)
        box = memory.box
        if memory.fork:
            fork = parse_request(BoxForkRequest, {"box_id": box})
            box = (await client.call(verbs.BOX_FORK, fork)).box_id
        replace = parse_request(BoxReplaceRequest, {"agent_id": memory.agent, "memory_context_box_id": box})
        now = await client.call(verbs.BOX_REPLACE, replace)
    if session.out.as_json:
        session.out.document(now)
    elif now.memory_context_box_id is None:
        session.out.line(f"agent {memory.agent} has no memory any more")
    else:
        session.out.line(f"agent {memory.agent} remembers box {now.memory_context_box_id}")


async def make_of_parts(session: Session, parts: list[str], correlation_id: str | None) -> None:
    """Make a box of the parts; raises as `set_memory` does."""
    fields: JsonObject = {"parts": [part_of(part) for part in parts]}
    if correlation_id is not None:
        fields["correlation_id"] = correlation_id
    reply = await session.change(verbs.BOX_MAKE, parse_request(BoxMakeRequest, fields))
    before = ", made before" if reply.duplicate else ""
    session.out.result(
        reply, f"box {reply.box_id} with {reply.cards} {'card' if reply.cards == 1 else 'cards'}{before}"
    )


def part_of(argument: str) -> JsonObject:
    """A part of `box make` as `box_make` takes it; raises `BadRequest` if it is none."""
    kind, _, rest = argument.partition(":")
    match kind:
        case "box":
            box, _, last = rest.partition(":")
            if last and not last.isdecimal():
                raise BadRequest(f"{argument[:80]!r}: the number of last cards is a number, as in box:BOX:20")
            return {"box_id": box, **({"last": int(last)} if last else {})}
        case "card":
            return {"card_id": rest}
        case "text":
            return {"text": rest}
        case "-":
            return {"text": sys.stdin.read()}
        case _ if argument.startswith("@"):
            return {"text": read_text(Path(argument[1:]))}
        case _ if argument.startswith("{"):
            return _part_in_json(argument)
        case _:
            raise BadRequest(f"{argument[:80]!r} is no part: write box:BOX, card:CARD, text:TEXT, @FILE, - or JSON")


def _part_in_json(argument: str) -> JsonObject:
    try:
        return from_json(argument)
    except ValueError as error:
        raise BadRequest(f"{argument[:80]!r} is no JSON: {error}") from None


async def put_texts(session: Session, texts: Sequence[str]) -> None:
    """Put texts into a new box, one card each; a request takes as many as it may have, and the next goes on."""
    box: BoxId | None = None
    async with session.bridge() as client:
        await session.await_bridge(client)
        for batch in _batches(texts):
            before: list[JsonValue] = [] if box is None else [{"box_id": box}]
            parts: list[JsonValue] = [*before, *({"text": text} for text in batch)]
            box = (await client.call(verbs.BOX_MAKE, parse_request(BoxMakeRequest, {"parts": parts}))).box_id
        cards = [] if box is None else await read_box(lambda request: session.read_on(client, request), box)
    session.out.result(
        {"box_id": box, "card_ids": [card.card_id for card in cards]}, f"box {box} with {len(texts)} texts"
    )


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in order, as many together as one request may have."""
    batch: list[str] = []
    for text in texts:
        if batch and sum(len(t.encode("utf-8")) for t in (*batch, text)) > TEXT_LIMIT_BYTES:
            yield batch
            batch = []
        batch.append(text)
    yield batch


async def show_box(session: Session, box: str, last: int | None) -> None:
    """Print the cards of a box; raises `BadRequest` or `Refused` (`unknown_box`)."""
    named = box_id(box, "box")
    async with session.bridge() as client:
        cards = await read_box(lambda request: session.read_on(client, request), named)
    placed = [PlacedCard(position=place, **dict(card)) for place, card in enumerate(cards, 1)]
    placed = placed[-last:] if last else placed
    if session.out.as_json:
        session.out.document({"box_id": named, "cards": [card.model_dump(mode="json") for card in placed]})
        return
    session.out.records(
        f"cards of box {named}",
        placed,
        {
            "position": lambda card: card.position,
            "type": lambda card: card.type,
            "by": lambda card: card.metadata.author_id,
            "card": lambda card: card.card_id,
            "content": _beginning,
        },
        cut="content",
    )


def _beginning(card: Card) -> str:
    """The first characters of a card's content, on one line."""
    value = value_of(card)
    text = value if isinstance(value, str) else str(value)
    return " ".join(text[:200].split())
