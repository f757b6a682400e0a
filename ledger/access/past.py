"""What a turn was asked with, and what it had read and made when it ended, for the next that goes on from there."""

from collections.abc import Sequence

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.cards import card_of
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import Card
from turnstile.schema.ids import AgentTurnId, CardId, ProjectId


class TurnRequest(Tolerant):
    """What a turn was enqueued with."""

    runtime_config: Json[JsonObject]
    """The settings that it overrides, with the text on their card, if that is still there."""
    metadata: Json[JsonObject]
    """The caller's notes; empty if retention has removed them."""
    requester: str = ""
    """Who asked for the turn."""


async def get_turn_request(conn: Connection, project: ProjectId, turn: AgentTurnId) -> TurnRequest | None:
    """What a turn of the project was enqueued with."""
    return await query("get_turn_request").opt_as(conn, TurnRequest, project_id=project, agent_turn_id=turn)


async def list_turn_past(conn: Connection, project: ProjectId, turn: AgentTurnId, *, row_limit: int) -> list[CardId]:
    """The cards that a turn had read and made when it ended, in the order in which its model read them.

    What later turns wrote into its box is not among them, and of what was cut off its memory only the summary.
    """
    rows = await query("list_turn_past").many(conn, project_id=project, agent_turn_id=turn, row_limit=row_limit)
    return [CardId(row["card_id"]) for row in rows]


async def list_cards(conn: Connection, project: ProjectId, cards: Sequence[CardId]) -> list[Card]:
    """These cards, in this order; those that are not there are left out."""
    rows = await query("list_cards").many(conn, project_id=project, cards=list(cards))
    return [card_of(row) for row in rows]


async def find_requested_turn(conn: Connection, project: ProjectId, correlation: str) -> AgentTurnId | None:
    """The turn that was asked for under this name; None if there is none."""
    row = await query("find_requested_turn").opt(conn, project_id=project, correlation_id=correlation)
    return None if row is None else AgentTurnId(row["agent_turn_id"])
