"""A tree of turns as people look at it; no transition reads it."""

from datetime import datetime

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.views import BudgetColumn
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, ToolCallId


class TreeNode(Tolerant):
    """A turn of a tree. `tokens` and `cost` are its own; `status` is its outcome's, else its head's or `queued`."""

    agent_turn_id: AgentTurnId
    parent_turn_id: AgentTurnId | None
    depth: int
    """0 for the root of the tree."""
    agent_id: AgentId
    waited: bool
    """Whether its parent waits for it."""
    stopping: bool
    """Whether it is marked and not over."""
    stop_reason: str | None
    status: str
    error_code: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    batch_id: str | None
    task_index: int | None
    label: str | None
    tool_call_id: ToolCallId | None
    """The call whose batch it is a task of."""
    batch_status: str | None
    tokens: int
    cost: float | None
    """In USD; null if no model of it has a price."""
    steps: int
    budget: BudgetColumn = None
    """Its own grant, which has all that the turns below it spend; null if it has none."""


async def tree(
    conn: Connection,
    project: ProjectId,
    turn: AgentTurnId,
    *,
    channel: ChannelId | None = None,
    after: AgentTurnId | None = None,
    row_limit: int | None = None,
) -> list[TreeNode]:
    """The tree that the turn is in, parents before children; a turn in no tree alone; empty if unknown.

    Of the whole tree those of one channel, those after another turn of it, and at most `row_limit`.
    """
    return await query("list_tree").all_as(
        conn,
        TreeNode,
        project_id=project,
        agent_turn_id=turn,
        channel_id=channel,
        after_turn_id=after,
        row_limit=row_limit,
    )
