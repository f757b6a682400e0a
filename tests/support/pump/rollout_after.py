"""The listeners of `tests.support.pump.rollout_before` after a change that adds `guest`, whom `host` asks."""

from turnstile.schema.pump.listeners import listener
from turnstile.schema.pump.payloads import Payload
from turnstile.schema.pump.primitives import HandlerMetadata, HandlerResponse


class Ask(Payload, tag="ask"):
    """What `host` is asked."""

    text: str


class Told(Payload, tag="told"):
    """What it answers."""

    text: str


class Query(Payload, tag="query"):
    """What `guest` is asked."""

    text: str


class Found(Payload, tag="found"):
    """What it answers: a payload that the program before does not know."""

    text: str


@listener("host", payload=Ask, description="Answers.", answers=[Told])
async def host(payload: Payload, metadata: HandlerMetadata) -> HandlerResponse | None:
    """As `guest` says."""
    match payload:
        case Ask(text=text):
            return HandlerResponse(Query(text=text), to="guest")
        case Found(text=text):
            return HandlerResponse.respond(Told(text=text))
        case _:
            return HandlerResponse.respond(Told(text=payload.to_xml().decode()))


@listener("guest", payload=Query, description="Finds it.", answers=[Found])
async def guest(payload: Query, metadata: HandlerMetadata) -> HandlerResponse | None:
    """At once."""
    return HandlerResponse.respond(Found(text="found by guest"))
