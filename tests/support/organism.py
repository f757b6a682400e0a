"""Listeners for tests of the message pump: what each does is in the payload, what it did is appended to a file."""

import asyncio
import os
from pathlib import Path

from schema.listeners import listener
from schema.payloads import Payload
from schema.primitives import HandlerMetadata, HandlerResponse, Huh, SystemErrorMessage

EFFECTS = "ORGANISM_EFFECTS"


class Relay(Payload, tag="relay"):
    """Goes down through `left` listeners, then comes back."""

    left: int
    text: str


class Relayed(Payload, tag="relayed"):
    """What came back."""

    text: str


class Shout(Payload, tag="shout"):
    """To be said loudly."""

    text: str


class Shouted(Payload, tag="shouted"):
    """Said loudly."""

    text: str


class Order(Payload, tag="order"):
    """What the worker is to do: one word, and perhaps with what."""

    do: str
    what: str = ""


class Done(Payload, tag="done"):
    """What came of an order."""

    said: str


def note(what: str) -> None:
    """One line in the file of effects."""
    if path := os.environ.get(EFFECTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")


@listener("relay", payload=Relay, description="Passes on.", answers=[Relayed], retries=3)
async def relay(payload: Relay | Relayed, metadata: HandlerMetadata) -> HandlerResponse | None:
    """Forwards to a relay below until nothing is left."""
    if isinstance(payload, Relayed):
        return HandlerResponse.respond(Relayed(text=f"{payload.text}<"))
    note(f"relay {payload.left} {metadata.from_id}")
    if payload.left == 0:
        return HandlerResponse.respond(Relayed(text=payload.text))
    return HandlerResponse(Relay(left=payload.left - 1, text=f"{payload.text}>"), to="relay2")


@listener("shouter", payload=Shout, description="Says it loudly.", answers=[Shouted])
async def shout(payload: Shout, metadata: HandlerMetadata) -> HandlerResponse | None:
    """Responds in capitals."""
    note(f"shout {metadata.from_id}")
    return HandlerResponse.respond(Shouted(text=payload.text.upper()))


class Relay2(Payload, tag="relay2"):
    """As `Relay`, for the other one."""

    left: int
    text: str


@listener("worker", payload=Order, description="Does what it is told.", answers=[Done], deadline_seconds=2)
async def work(  # noqa: PLR0911 -- one line an order
    payload: Order | Shouted | Huh | SystemErrorMessage | Done, metadata: HandlerMetadata
) -> HandlerResponse | None:
    """Does what the order says; tells what it heard."""
    match payload:
        case Order(do="shout"):
            return HandlerResponse(Shout(text=payload.what))
        case Order(do="forward"):
            return HandlerResponse(Shout(text="hello"), to=payload.what)
        case Order(do="again"):
            return HandlerResponse(Order(do="say", what=f"{metadata.thread_id}"), to="worker")
        case Order(do="say"):
            return HandlerResponse.respond(Done(said=f"{metadata.is_self_call} {payload.what == metadata.thread_id}"))
        case Order(do="crash"):
            raise RuntimeError("a secret")
        case Order(do="sleep"):
            await asyncio.sleep(60)
        case Order(do="nothing"):
            return None
        case Shouted():
            return HandlerResponse.respond(Done(said=payload.text))
        case SystemErrorMessage():
            return HandlerResponse.respond(Done(said=f"{payload.code} from {metadata.from_id}"))
        case Huh():
            return HandlerResponse.respond(Done(said="huh"))
        case _:
            return None
    return None
