"""Listeners of a program before a change: `host` answers by itself. `rollout_after` is the program after it."""

from turnstile.schema.pump.listeners import listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse


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
