"""Marks trees of turns that shall end, and finds the turns to wake for what an end decided (protocol §6, join).

Guarantees: after `mark_tree` has committed, no gate opens for a marked turn: no step begins, no command leaves, no
child is enqueued. What had passed a gate before is counted. A mark ends nothing itself: the rings do, and the net.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.rules.turn_ends import Lease
from turnstile.schema.ids import AgentTurnId, ProjectId


@dataclass(frozen=True, slots=True)
class MarkedTree:
    """The turns that were marked now, and how many of them had passed a gate before."""

    turns: Sequence[AgentTurnId]
    on_their_way: int


async def mark_tree(pool: Pool, project: ProjectId, turn: AgentTurnId, reason: str, *, whole: bool) -> MarkedTree:
    """Mark the turn and what its tree waits for; with `whole` all below it. Nothing for a turn that is over.

    Two round trips: what had passed a gate is counted after the marks have committed.
    """
    arguments = {"project_id": project, "agent_turn_id": turn, "reason": reason, "whole": whole}
    row = await pool.run(lambda conn: query("mark_tree").one(conn, **arguments))
    marked: list[AgentTurnId] = row["marked"] or []
    if not marked:
        return MarkedTree((), 0)
    counted = await pool.run(lambda conn: query("count_on_their_way").one(conn, agent_turn_ids=marked))
    return MarkedTree(marked, counted["on_their_way"])


async def rings_of(conn: Connection, enders: Sequence[str]) -> list[Lease]:
    """Whom to ring for what these turns' ends, these batches' decisions or these turns' stops have brought about."""
    return await query("list_rings").all_as(conn, Lease, enders=list(enders))
