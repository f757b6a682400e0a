"""Turns as tasks of A2A, and what an agent or a profile says of itself (protocol §17.3). Reads only."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Json

from turnstile.ledger.access.pages import PageCursor, narrowed
from turnstile.ledger.queries import Connection, Query, query
from turnstile.schema.base import JsonObject, Tolerant, stored_json
from turnstile.schema.cards import CardContent, read_content
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ConversationId, ProjectId


def _content(value: object) -> object:
    return read_content(stored_json(value)) if isinstance(value, str) else value


class TaskScope(Tolerant):
    """Whose tasks: an agent's, or those of a profile's instances; in one channel, if that is given."""

    project_id: ProjectId
    channel_id: ChannelId | None
    agent_id: AgentId | None
    profile_name: str | None


class TaskRow(Tolerant):
    """A turn as a task."""

    agent_turn_id: AgentTurnId
    agent_id: AgentId
    channel_id: ChannelId
    conversation_id: ConversationId | None
    correlation_id: str | None
    created_at: datetime
    status: str
    """Its outcome's status once there is one, else its head's, or `queued`."""
    started_at: datetime | None
    ended_at: datetime | None
    error_code: str | None
    error: str | None
    asks: bool
    """Whether it waits for a person."""
    delivered: Annotated[CardContent | None, BeforeValidator(_content)]
    """The content of its deliverable, if that was wanted, is there and can be read."""
    partial: bool
    """Whether that was cut short."""
    instruction: str | None
    """The last instruction that it was asked with, if that was wanted and is there."""


class OfferedTool(Tolerant):
    """A tool that a profile offers its model."""

    name: str
    description: str | None


class TargetDescription(Tolerant):
    """What an agent or a profile says of itself."""

    profile_name: str
    tags: Json[list[str]]
    name: str
    description: str
    since: datetime
    """When it last changed."""
    tools: Json[list[OfferedTool]]


async def get_task(conn: Connection, scope: TaskScope, turn: AgentTurnId) -> TaskRow | None:
    """A task with its deliverable and its instruction; None if it is none of these."""
    return await query("get_task").opt_as(conn, TaskRow, **_named(scope), agent_turn_id=turn, with_artifacts=True)


async def page_tasks(
    conn: Connection,
    scope: TaskScope,
    *,
    conversation: ConversationId | None,
    before: PageCursor | None,
    with_artifacts: bool,
    with_history: bool,
    row_limit: int,
) -> list[TaskRow]:
    """The last enqueued first, those before a place."""
    narrowed = _narrowed("page_tasks", scope, conversation)
    return await narrowed.all_as(
        conn,
        TaskRow,
        **_of(narrowed, scope),
        conversation_id=conversation,
        before_at=None if before is None else before.at,
        before_id=None if before is None else before.id,
        with_artifacts=with_artifacts,
        with_history=with_history,
        row_limit=row_limit,
    )


async def read_tasks(
    conn: Connection, project: ProjectId, turns: Sequence[AgentTurnId], *, with_history: bool
) -> list[TaskRow]:
    """These turns with their deliverables, in this order, whoever's they are in the project."""
    return await query("read_tasks").all_as(
        conn, TaskRow, project_id=project, turns=list(turns), with_artifacts=True, with_history=with_history
    )


async def count_tasks(conn: Connection, scope: TaskScope, *, conversation: ConversationId | None, most: int) -> int:
    """How many there are, counted up to `most`."""
    narrowed = _narrowed("count_tasks", scope, conversation)
    row = await narrowed.one(conn, **_of(narrowed, scope), conversation_id=conversation, most=most)
    return int(row["total"])


async def describe_target(
    conn: Connection, project: ProjectId, *, agent: AgentId | None, profile: str | None
) -> TargetDescription | None:
    """What an agent, or a profile, says of itself; None if there is none."""
    return await query("describe_target").opt_as(
        conn, TargetDescription, project_id=project, agent_id=agent, profile_name=profile
    )


def _narrowed(name: str, scope: TaskScope, conversation: ConversationId | None) -> Query:
    talk = conversation if scope.agent_id is None else None
    in_channel = None if scope.channel_id is None else scope.agent_id
    by = {"instances_talk": talk, "conversation": conversation, "agent_in_channel": in_channel, "agent": scope.agent_id}
    return query(narrowed(name, **by))


def _of(statement: Query, scope: TaskScope) -> JsonObject:
    """Of a scope what a variant asks for: that of an agent asks for no profile."""
    return {name: value for name, value in _named(scope).items() if name in statement.parameters}


def _named(scope: TaskScope) -> JsonObject:
    return scope.model_dump()
