"""Questions to people, as people look at them: pages of them, and one with the call that it is about. Reads only."""

import json
from collections.abc import Sequence
from typing import Any

from turnstile.ledger.queries import Connection, Row, query
from turnstile.schema.cards import ToolCallContent, read_content
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId, ProjectId
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus


async def list_interrupts(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None = None,
    agent: AgentId | None = None,
    turn: AgentTurnId | None = None,
    status: InterruptStatus | None = None,
    after: InterruptId | None = None,
    row_limit: int,
) -> Sequence[Interrupt]:
    """The newest first; those older than `after`, none if the project has no such question."""
    page = {
        "project_id": project,
        "channel_id": channel,
        "agent_id": agent,
        "after_id": after,
        "row_limit": row_limit,
    }
    if turn is not None:
        rows = await query("list_interrupts_of_turn").many(conn, **page, agent_turn_id=turn, status=status)
    elif status is InterruptStatus.OPEN:
        rows = await query("list_open_interrupts").many(conn, **page)
    else:
        rows = await query("list_interrupts").many(conn, **page, status=status)
    return [Interrupt.model_validate(_columns(row)) for row in rows]


async def count_open_interrupts(
    conn: Connection, project: ProjectId, *, channel: ChannelId | None = None, most: int
) -> int:
    """How many questions are open, counted up to `most`."""
    row = await query("count_open_interrupts").one(conn, project_id=project, channel_id=channel, most=most)
    return int(row["open"])


async def get_interrupt(
    conn: Connection, project: ProjectId, interrupt: InterruptId, *, channel: ChannelId | None = None
) -> InterruptView | None:
    """The question with its call; None if the project, or the channel, has no such question."""
    row = await query("get_interrupt").opt(conn, project_id=project, channel_id=channel, interrupt_id=interrupt)
    if row is None:
        return None
    columns = _columns(row)
    found = None if row["content"] is None else read_content(json.loads(row["content"]))
    if isinstance(found, ToolCallContent):
        columns |= {"arguments": found.arguments, "target_subject": found.target_subject}
    return InterruptView.model_validate(columns)


def _columns(row: Row) -> dict[str, Any]:
    schema = row["response_schema"]
    return dict(row) | {"response_schema": None if schema is None else json.loads(schema)}
