"""The calls that turns wait for, as people look at them. Reads only, of what is in hand; decides nothing."""

from datetime import datetime
from typing import Literal

from pydantic import Json, JsonValue

from turnstile.ledger.access.pages import PageCursor
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId, ProjectId, StepId, ToolCallId

WaitsFor = Literal["tool", "held", "overdue"]
"""A tool that has time, a person or children, or a tool whose time is over."""


class CallOut(Tolerant):
    """A call that waits for an answer."""

    tool_call_id: ToolCallId
    tool_name: str
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    step_id: StepId
    channel_id: ChannelId
    wait_status: str
    created_at: datetime
    received_at: datetime | None
    """When it was answered; its turn has not taken the answer yet."""
    begun_at: datetime | None
    """When a run of it began, if its tool must not run it twice."""
    begun_by: str | None
    doubted_at: datetime | None
    """Since when nobody knows whether it was done."""
    deadline: datetime | None
    """When it times out; None while something holds it."""
    overdue: bool
    interrupt_id: InterruptId | None
    """The open question to people that holds it, or that its tool asks."""
    asks_people: bool
    """Whether its tool asks people while it runs."""
    batch_id: str | None
    """The children that hold it."""
    target_subject: str | None
    """The subject of its tool's commands, if the tool has a row."""

    @property
    def held(self) -> bool:
        """Whether a person or children keep it from being answered."""
        return (self.interrupt_id is not None and not self.asks_people) or self.batch_id is not None


class ListedCall(CallOut):
    """A call in a list."""

    found: int
    """How many calls there are of what was asked for, on all pages."""


class CallFile(CallOut):
    """A call with its contents, whether it waits or not."""

    applied_at: datetime | None
    held_because: str | None
    """The question's reason."""
    call: Json[JsonValue] | None
    """The content of the card of the call that counts; None once it is gone."""
    added: Json[JsonValue] | None
    """The names of the arguments that the tool's options added; None where the card does not say."""
    result: Json[JsonValue] | None
    report_status: str | None
    """The status of the inbox row of its first report, if there is one."""
    report_error: str | None
    reported_by: str | None
    """`CG-Sender` of that report: what the sender says of itself, or the token that a gateway names."""

    @property
    def answerable(self) -> bool:
        """Whether a report of it would be accepted, and count."""
        in_doubt = self.held_because == "confirmation"
        return self.wait_status == "waiting" and self.report_status is None and (not self.held or in_doubt)


async def list_calls_out(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None = None,
    tool: str | None = None,
    waits_for: WaitsFor | None = None,
    after: PageCursor | None = None,
    row_limit: int,
) -> list[ListedCall]:
    """The oldest first, those after a place."""
    return await query("list_calls_out").all_as(
        conn,
        ListedCall,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        tool_name=tool,
        waits_for=waits_for,
        after_at=None if after is None else after.at,
        after_id=None if after is None else after.id,
        row_limit=row_limit,
    )


async def get_call_out(
    conn: Connection, project: ProjectId, call: ToolCallId, *, channel: ChannelId | None
) -> CallFile | None:
    """The call; None if the project, or the channel, has none of this id."""
    return await query("get_call_out").opt_as(conn, CallFile, project_id=project, tool_call_id=call, channel_id=channel)
