"""A bakery's counter as three listeners: `counter` takes orders, and asks `stock` and `prices` before it answers.

Name it in config.toml (`[pump] listeners = ["bakery"]`), start `turnstile up` in this directory, and then:

    turnstile thread send counter '<order><bread>rye</bread><loaves>3</loaves></order>'
"""

from turnstile import HandlerMetadata, HandlerResponse, Payload, SystemErrorMessage, listener


class Order(Payload):
    """What a customer wants."""

    bread: str
    loaves: int


class Reservation(Payload):
    """Loaves to be put aside."""

    bread: str
    loaves: int


class Reserved(Payload):
    """They are put aside; `loaves` may be fewer than were asked for."""

    bread: str
    loaves: int


class Quote(Payload):
    """Loaves whose price is wanted."""

    bread: str
    loaves: int


class Price(Payload):
    """What they cost."""

    bread: str
    loaves: int
    cents: int


class Receipt(Payload):
    """The counter's answer."""

    text: str


SHELF = {"rye": 12, "wheat": 40}
CENTS = {"rye": 420, "wheat": 310}


@listener("counter", payload=Order, description="Takes orders of bread.", answers=[Receipt])
async def counter(
    payload: Order | Reserved | Price | SystemErrorMessage, metadata: HandlerMetadata
) -> HandlerResponse | None:
    """A message at a time: whatever it must know again comes back with the answers."""
    match payload:
        case Order(bread=bread, loaves=loaves):
            return HandlerResponse(Reservation(bread=bread, loaves=loaves), to="stock")
        case Reserved(loaves=0, bread=bread):
            return HandlerResponse.respond(Receipt(text=f"We are out of {bread} bread, sorry."))
        case Reserved(bread=bread, loaves=loaves):
            return HandlerResponse(Quote(bread=bread, loaves=loaves))  # its root tag finds `prices`
        case Price(bread=bread, loaves=loaves, cents=cents):
            return HandlerResponse.respond(Receipt(text=f"{loaves} {bread}: {cents / 100:.2f}"))
        case _:
            return HandlerResponse.respond(Receipt(text="Please come back later."))


@listener("stock", payload=Reservation, description="Puts loaves aside.", answers=[Reserved])
async def stock(payload: Reservation, metadata: HandlerMetadata) -> HandlerResponse:
    """As many as there are."""
    there = min(payload.loaves, SHELF.get(payload.bread, 0))
    return HandlerResponse.respond(Reserved(bread=payload.bread, loaves=there))


@listener("prices", payload=Quote, description="Knows what bread costs.", answers=[Price], retries=3)
async def prices(payload: Quote, metadata: HandlerMetadata) -> HandlerResponse:
    """Looks it up, which may be done again: hence the retries."""
    cents = payload.loaves * CENTS[payload.bread]
    return HandlerResponse.respond(Price(bread=payload.bread, loaves=payload.loaves, cents=cents))
