"""What was given up (inbox rows that ended as errors) and what was refused, as people look at them. Reads only."""

from datetime import datetime

from pydantic import Json, JsonValue

from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InboxId, ProjectId, StepId, ToolCallId


class DeadLetter(Tolerant):
    """An inbox row that ended as an error: nothing takes it again."""

    inbox_id: InboxId
    agent_id: AgentId
    channel_id: ChannelId
    message_type: str
    reason: str
    """`protocol_violation`, or `resume_retry_exhausted` for a report whose card never appeared."""
    agent_turn_id: AgentTurnId | None
    retry_count: int
    created_at: datetime
    archived_at: datetime
    sender: str | None
    tool_call_id: ToolCallId | None
    """The call that it would have answered, if it was a report of one."""
    tool_name: str | None
    step_id: StepId | None
    wait_status: str | None
    has_turn: bool
    """Whether its turn is there."""
    repeatable: bool
    """Whether that turn can be run again, once it is over."""
    outcome: str | None
    """How that turn ended; None while it lives."""


class Rejection(Tolerant):
    """A refusal: who asked, the rule that was broken, and which ids were named. It holds no content."""

    rejection_id: int
    source: str
    error_code: str
    error: str
    ids: Json[dict[str, JsonValue]]
    created_at: datetime


async def list_dead_letters(
    conn: Connection, project: ProjectId, *, channel: ChannelId | None, before: PageCursor | None, row_limit: int
) -> list[DeadLetter]:
    """The newest first, those before a place."""
    return await query("list_dead_letters").all_as(
        conn,
        DeadLetter,
        project_id=project,
        channel_id=channel,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.id,
        row_limit=row_limit,
    )


async def list_rejections(
    conn: Connection, project: ProjectId, *, before: int | None, row_limit: int
) -> list[Rejection]:
    """The newest first, those before one of them; of the whole project, since a refusal names no channel."""
    return await query("list_rejections").all_as(
        conn, Rejection, project_id=project, before_id=before, row_limit=row_limit
    )
