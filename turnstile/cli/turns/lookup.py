"""Finds turns named on the command line; raises `Refused` with the protocol's code if there is none."""

import re

from turnstile.cli.session import Session
from turnstile.schema.errors import Refused
from turnstile.schema.ledger_reads import ReadRequest, TurnRead
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.nats_turns import turn_in
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Turn
from turnstile.sdk.turns import Client

_WHOLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def turn_request(turn: str, *, record: bool = False) -> ReadRequest:
    """Reads the turn with this id, or the only one whose id begins with it, with its record if that is wanted."""
    return ReadRequest(turn=parse_request(TurnRead, {"agent_turn_id": turn, "record": record}))


async def find_turn(session: Session, client: BridgeClient, turn: str) -> TurnView:
    """The turn of any channel; raises `Refused` (`unknown_turn`, `ambiguous_turn` if several ids begin so)."""
    return turn_in(await session.read_on(client, turn_request(turn)))


async def turn_of_client(session: Session, client: Client, turn: str) -> Turn | None:
    """The turn with this whole id, without the rights of an operator; None if the id is shortened or unknown."""
    if not _WHOLE.fullmatch(turn):
        return None
    try:
        return await session.patiently(lambda: client.turn(turn))
    except Refused as error:
        if error.code != "unknown_turn":
            raise
        return None


async def require_of_client(session: Session, client: Client, turn: str) -> Turn:
    """Like `turn_of_client`, but raises `Refused` (`unknown_turn`) if there is none."""
    view = await turn_of_client(session, client, turn)
    if view is None:
        raise Refused("unknown_turn", f"there is no turn {turn!r}; only operators over NATS need not give its whole id")
    return view


async def whole_id(session: Session, turn: str) -> str:
    """The whole id of the turn, for a client; only a shortened id is looked up. Raises as `find_turn` does."""
    if _WHOLE.fullmatch(turn) or session.gateway is not None:
        return turn
    async with session.bridge() as client:
        return (await find_turn(session, client, turn)).agent_turn_id
