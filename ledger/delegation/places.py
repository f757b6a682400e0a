"""Looks up where a turn stands in its tree (protocol §12.9); one round trip, and only reads."""

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentTurnId, ProjectId


class TreePlace(Tolerant):
    """The root of a turn's tree, and its parent."""

    root_turn_id: AgentTurnId
    parent_turn_id: AgentTurnId | None


async def find_place(conn: Connection, project: ProjectId, turn: AgentTurnId) -> TreePlace | None:
    """The turn's place; None if it is in no tree."""
    return await query("find_place").opt_as(conn, TreePlace, project_id=project, agent_turn_id=turn)
