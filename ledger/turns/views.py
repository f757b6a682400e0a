"""Reads turns, steps, calls and inbox rows for `describe`, `turn show`, `inbox list` and the like. Decides nothing."""

from turnstile.ledger.operations.sweep import WORKER_SILENT_SECONDS
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ConversationId, ProjectId
from turnstile.schema.ledger_reads import (
    ConversationLine,
    ConversationName,
    InboxLine,
    SaidTurn,
    SentCall,
    StepView,
    TurnLine,
)
from turnstile.schema.wire.descriptions import TurnView


async def describe_turn(conn: Connection, project: ProjectId, turn: AgentTurnId) -> TurnView | None:
    """The turn, if the project has it."""
    return await query("describe_turn").opt_as(
        conn, TurnView, project_id=project, agent_turn_id=turn, silent_seconds=WORKER_SILENT_SECONDS
    )


async def list_turns(conn: Connection, project: ProjectId, agent: AgentId | None, *, row_limit: int) -> list[TurnLine]:
    """The newest turns first."""
    return await query("list_turns").all_as(conn, TurnLine, project_id=project, agent_id=agent, row_limit=row_limit)


async def list_steps(conn: Connection, project: ProjectId, turn: AgentTurnId) -> list[StepView]:
    """The turn's committed steps in order."""
    return await query("list_steps").all_as(conn, StepView, project_id=project, agent_turn_id=turn)


async def find_turns(conn: Connection, project: ProjectId, beginning: str, *, row_limit: int) -> list[AgentTurnId]:
    """The turns whose ids begin with `beginning`, the newest first."""
    rows = await query("find_turns").many(conn, project_id=project, beginning=beginning, row_limit=row_limit)
    return [AgentTurnId(row["agent_turn_id"]) for row in rows]


async def list_conversations(
    conn: Connection,
    project: ProjectId,
    agent: AgentId | None = None,
    channel: ChannelId | None = None,
    *,
    row_limit: int,
) -> list[ConversationLine]:
    """The last used first."""
    return await query("list_conversations").all_as(
        conn, ConversationLine, project_id=project, agent_id=agent, channel_id=channel, row_limit=row_limit
    )


async def find_conversations(
    conn: Connection,
    project: ProjectId,
    conversation: ConversationId,
    agent: AgentId | None = None,
    channel: ChannelId | None = None,
    *,
    row_limit: int,
) -> list[ConversationLine]:
    """The conversations of this name, the last used first."""
    return await query("find_conversations").all_as(
        conn,
        ConversationLine,
        project_id=project,
        conversation_id=conversation,
        agent_id=agent,
        channel_id=channel,
        row_limit=row_limit,
    )


async def list_conversation_turns(
    conn: Connection, project: ProjectId, name: ConversationName, *, row_limit: int
) -> list[SaidTurn]:
    """The conversation's last turns, oldest first."""
    return await query("list_conversation_turns").all_as(
        conn, SaidTurn, project_id=project, **name._asdict(), row_limit=row_limit
    )


async def list_calls(conn: Connection, project: ProjectId, turn: AgentTurnId) -> list[SentCall]:
    """The calls that the turn has sent, in order."""
    return await query("list_calls").all_as(conn, SentCall, project_id=project, agent_turn_id=turn)


async def list_inbox(
    conn: Connection, project: ProjectId, agent: AgentId | None, status: str | None, *, row_limit: int
) -> list[InboxLine]:
    """The newest rows first."""
    return await query("list_inbox").all_as(
        conn, InboxLine, project_id=project, agent_id=agent, status=status, row_limit=row_limit
    )


async def locate_turn(conn: Connection, project: ProjectId, turn: AgentTurnId) -> LiveTurn | None:
    """The gate and boxes of the turn; None if it is not active."""
    return await query("locate_turn").opt_as(conn, LiveTurn, project_id=project, agent_turn_id=turn)
