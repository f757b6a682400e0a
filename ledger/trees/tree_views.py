"""A tree of turns as people look at it; no transition reads it."""

from turnstile.ledger.queries import Connection, query
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId
from turnstile.schema.wire.descriptions import TreeTurn


async def tree(
    conn: Connection,
    project: ProjectId,
    turn: AgentTurnId,
    *,
    channel: ChannelId | None = None,
    after: AgentTurnId | None = None,
    row_limit: int | None = None,
) -> list[TreeTurn]:
    """The tree that the turn is in, parents before children; a turn in no tree alone; empty if unknown.

    Of the whole tree those of one channel, those after another turn of it, and at most `row_limit`.
    """
    return await query("list_tree").all_as(
        conn,
        TreeTurn,
        project_id=project,
        agent_turn_id=turn,
        channel_id=channel,
        after_turn_id=after,
        row_limit=row_limit,
    )
