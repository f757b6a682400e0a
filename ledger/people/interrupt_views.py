"""A question to a person with the call that it is about, as people look at it. Reads only."""

import json
from typing import Any

from turnstile.ledger.queries import Connection, query
from turnstile.schema.cards import ToolCallContent, read_content
from turnstile.schema.ids import ChannelId, InterruptId, ProjectId
from turnstile.schema.people.interrupt_requests import InterruptView


async def show_interrupt(
    conn: Connection, project: ProjectId, interrupt: InterruptId, *, channel: ChannelId | None = None
) -> InterruptView | None:
    """The question with its call; None if the project, or the channel, has no such question."""
    row = await query("show_interrupt").opt(conn, project_id=project, channel_id=channel, interrupt_id=interrupt)
    if row is None:
        return None
    schema = row["response_schema"]
    columns: dict[str, Any] = dict(row) | {"response_schema": None if schema is None else json.loads(schema)}
    found = None if row["content"] is None else read_content(json.loads(row["content"]))
    if isinstance(found, ToolCallContent):
        columns |= {"arguments": found.arguments, "target_subject": found.target_subject}
    return InterruptView.model_validate(columns)
