"""Listeners of a program before a change: `host` answers by itself. `tests.support.rollout_after` is it after that."""

from schema.listeners import listener
from schema.payloads import Payload
from schema.primitives import HandlerMetadata, HandlerResponse


class Ask(Payload, tag="ask"):
    """What `host` is asked."""

    text: str


class Told(Payload, tag="told"):
    """What it answers."""

    text: str


@listener("host", payload=Ask, description="Answers.", answers=[Told])
async def host(payload: Ask, metadata: HandlerMetadata) -> HandlerResponse | None:
    """By itself."""
    return HandlerResponse.respond(Told(text="by itself"))
