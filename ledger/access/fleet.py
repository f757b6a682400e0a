"""Agents with what they have in hand, and the processes that serve them, as people look at them. Reads only.

The roster is the project's, so a token of a channel sees it, too; of what an agent has in hand or queued it sees what
is its channel's.
"""

from datetime import datetime
from typing import Literal

from turnstile.ledger.operations.sweep import WORKER_SILENT_SECONDS
from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId

AgentFilter = Literal["busy", "queued", "paused", "retired", "dormant"]
QUEUE_LIMIT = 1000
"""The most queued turns of an agent that are counted."""
_TARGETS = 200


class AgentFile(Tolerant):
    """An agent and its lease; what is None of the lease belongs to a channel that the reader may not see."""

    agent_id: AgentId
    worker_target: str
    status: str
    display_name: str | None
    tags: list[str]
    instance_of: str | None
    profile_name: str | None
    head_status: str | None
    agent_turn_id: AgentTurnId | None
    channel_id: ChannelId | None
    turn_epoch: int | None
    updated_at: datetime | None
    """When the turn in hand last moved on."""
    started_at: datetime | None
    resume_deadline: datetime | None
    waiting_calls: int | None
    restarts: int | None
    """How often its workflow was started again."""
    queued: int
    oldest_at: datetime | None
    """Since when the first of the queue waits."""
    served: bool
    """Whether a worker of its target is there."""


class QueuedTurn(Tolerant):
    """A turn that waits for its agent."""

    agent_turn_id: AgentTurnId
    channel_id: ChannelId
    created_at: datetime
    asked: str | None


class Process(Tolerant):
    """A bridge or a worker, as it signs on every ten seconds."""

    instance: str
    is_bridge: bool
    targets: list[str]
    started_at: datetime
    last_seen_at: datetime
    protocol_level: int | None
    here: bool
    """Whether it has signed on lately."""


class TargetNeed(Tolerant):
    """A worker target that the project names, and who serves it."""

    worker_target: str
    agents: int
    profiles: int
    workers: int


class LedgerServer(Tolerant):
    """The database's server."""

    text: str
    """Its version."""
    read_only: bool
    """Whether it refuses to write; a gateway's own connections always do."""


async def describe_server(conn: Connection) -> LedgerServer:
    """The server that answers now."""
    return await query("server_version").one_as(conn, LedgerServer)


async def page_agents(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None,
    agent: AgentId | None = None,
    profile: str | None = None,
    shown: AgentFilter | None = None,
    after: AgentId | None = None,
    row_limit: int,
) -> list[AgentFile]:
    """The agents by id, those after one of them."""
    return await query("page_agents").all_as(
        conn,
        AgentFile,
        project_id=project,
        channel_id=channel,
        agent_id=agent,
        profile_name=profile,
        shown=shown,
        after_id=after,
        silent_seconds=WORKER_SILENT_SECONDS,
        row_limit=row_limit,
    )


async def list_queue(
    conn: Connection, project: ProjectId, agent: AgentId, *, channel: ChannelId | None, row_limit: int
) -> list[QueuedTurn]:
    """The first of an agent's queued turns, in order."""
    return await query("list_queue").all_as(
        conn, QueuedTurn, project_id=project, agent_id=agent, channel_id=channel, row_limit=row_limit
    )


async def list_processes(conn: Connection, project: ProjectId, *, row_limit: int) -> list[Process]:
    """The bridges, and the workers of the project's targets, of the last day."""
    return await query("list_processes").all_as(
        conn, Process, project_id=project, silent_seconds=WORKER_SILENT_SECONDS, row_limit=row_limit
    )


async def list_target_needs(conn: Connection, project: ProjectId) -> list[TargetNeed]:
    """The project's worker targets, with the workers that serve them."""
    return await query("list_target_needs").all_as(
        conn, TargetNeed, project_id=project, silent_seconds=WORKER_SILENT_SECONDS, row_limit=_TARGETS
    )
