"""Profiles, agents and tools (protocol §4), which an operator registers before turns can run."""

import json
from collections.abc import Sequence
from datetime import datetime

from pydantic import Json, ValidationError

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection, Row, query
from turnstile.ledger.turns.cards import box_cards
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import SYSTEM_AUTHOR, CardMetadata, CardType, JsonContent, Role, read_content
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ProjectId, new_box_id, token, uuid7
from turnstile.schema.profiles import Profile
from turnstile.schema.tools import ToolDefinition, ToolRow


class ProfileRow(Tolerant):
    """A profile in `profile list`."""

    name: str
    profile_box_id: BoxId
    worker_target: str
    tags: Json[list[str]]
    updated_at: datetime
    agents: int


class AgentRow(Tolerant):
    """An agent in `agent list`, with its head's status."""

    agent_id: AgentId
    worker_target: str
    status: str
    display_name: str | None
    profile_name: str | None
    head_status: str
    active_agent_turn_id: AgentTurnId | None
    turn_epoch: int
    queued: int


async def put_profile(pool: Pool, project: ProjectId, profile: Profile) -> tuple[BoxId, bool, int]:
    """Store the profile in a new box and point profile and roster rows to it; active turns keep the old one.

    Returns the box, whether the profile is new, and how many agents were repointed.
    """
    token(project, "project_id")
    metadata = CardMetadata(type=CardType.PROFILE, role=Role.SYSTEM, author_id=SYSTEM_AUTHOR)

    async def put(conn: Connection) -> tuple[BoxId, bool, int]:
        box = new_box_id()  # new for each try: an earlier try whose answer was lost may have made its box
        row = await query("put_profile").one(
            conn,
            project_id=project,
            name=profile.name,
            box_id=box,
            card_id=f"{box}-profile",
            content=JsonContent(data=profile.model_dump(mode="json")).model_dump_json(),
            metadata=metadata.model_dump_json(exclude_none=True),
            worker_target=profile.worker_target,
            tags=json.dumps(profile.tags),
            system_prompt=profile.system_prompt_template,
            settings=json.dumps(_settings(profile, box)),
        )
        if row["verdict"] == "again":
            raise Again
        return box, row["verdict"] == "created", row["agents"]

    return await pool.run(put)


def _settings(profile: Profile, box: BoxId) -> JsonObject:
    """What an enqueue must know of the profile; nothing of one that has neither memory nor instances."""
    said = profile.model_dump(mode="json", include={"memory", "instances"})
    return {"profile_box_id": box, **said} if said else {}


async def list_profiles(pool: Pool, project: ProjectId) -> list[ProfileRow]:
    """The project's profiles by name."""
    return await pool.run(lambda conn: query("list_profiles").all_as(conn, ProfileRow, project_id=project))


async def add_agent(
    pool: Pool,
    project: ProjectId,
    agent: AgentId,
    profile_name: str,
    *,
    worker_target: str | None = None,
    display_name: str | None = None,
    tags: Sequence[str] = (),
    metadata: JsonObject | None = None,
) -> str:
    """Add an agent with its head; returns its worker target. Raises `Refused`: unknown_profile, agent_exists."""
    identity = uuid7()
    row = await pool.run(
        lambda conn: query("add_agent").one(
            conn,
            project_id=token(project, "project_id"),
            agent_id=token(agent, "agent_id"),
            profile_name=profile_name,
            worker_target=worker_target and token(worker_target, "worker_target"),
            tags=json.dumps(list(tags)),
            display_name=display_name,
            metadata=json.dumps(metadata or {}),
            edge_id=identity,
        )
    )
    match row["verdict"]:
        case "added":
            return row["worker_target"]
        case "exists":
            raise Refused("agent_exists", f"project {project} has an agent {agent} already")
        case _:
            raise Refused("unknown_profile", f"project {project} has no profile {profile_name!r}: put it first")


async def remove_agent(conn: Connection, project: ProjectId, agent: AgentId) -> None:
    """Remove the agent from the roster and its memory; its turns, cards and epoch are kept. Runs in a transaction.

    Raises `Refused`: unknown_agent; agent_busy if it has an active turn or queued turns.
    """
    named = {"project_id": project, "agent_id": agent}
    if await query("hold_agent").opt(conn, **named) is None:
        raise Refused("unknown_agent", f"project {project} has no agent {agent!r}")
    work = await query("count_agent_work").one(conn, **named)
    if work["live"] or work["queued"]:
        raise Refused("agent_busy", f"agent {agent} has {work['live']} active and {work['queued']} queued turns")
    head = await query("head_epoch").opt(conn, **named)
    await query("forget_agent").many(conn, **named, edge_id=uuid7())
    if head is not None:
        await query("keep_epoch").many(conn, **named, turn_epoch=head["turn_epoch"])


async def get_profile(pool: Pool, project: ProjectId, name: str) -> JsonObject:
    """The profile as it was stored; raises `Refused` (unknown_profile) if there is none that can be read."""
    row = await pool.run(lambda conn: query("profile_box").opt(conn, project_id=project, name=name))
    box = None if row is None else BoxId(row["profile_box_id"])
    cards = None if box is None else await pool.run(lambda conn: box_cards(conn, project, box))
    for card in cards or ():
        content = read_content(card.content) if isinstance(card.content, dict) else None
        if isinstance(content, JsonContent) and isinstance(content.data, dict):
            return content.data
    raise Refused("unknown_profile", f"project {project} has no profile {name!r}")


async def list_agents(pool: Pool, project: ProjectId) -> list[AgentRow]:
    """The project's agents by id."""
    return await pool.run(lambda conn: query("list_agents").all_as(conn, AgentRow, project_id=project))


async def put_tool(pool: Pool, project: ProjectId, tool: ToolDefinition) -> bool:
    """Store the tool; returns True if it is new. Active turns keep the row that they pinned."""
    row = await pool.run(
        lambda conn: query("put_tool").one(
            conn,
            project_id=token(project, "project_id"),
            tool_name=tool.tool_name,
            description=tool.description,
            parameters=json.dumps(tool.parameters),
            target_subject=tool.target_subject,
            after_execution=tool.after_execution,
            options=tool.options.model_dump_json(exclude_defaults=True),
        )
    )
    return row["created"]


async def list_tools(pool: Pool, project: ProjectId) -> list[ToolRow]:
    """The project's tools by name; raises `BadRequest`, which names the tool, for a row that does not parse."""
    rows = await pool.run(lambda conn: query("list_tools").many(conn, project_id=project))
    return [_tool(row) for row in rows]


async def remove_tool(pool: Pool, project: ProjectId, name: str) -> None:
    """Remove the tool; raises `Refused` (unknown_tool) if there is none."""
    row = await pool.run(lambda conn: query("remove_tool").opt(conn, project_id=project, tool_name=name))
    if row is None:
        raise Refused("unknown_tool", f"project {project} has no tool {name!r}")


def _tool(row: Row) -> ToolRow:
    values = dict(row)
    values |= {"parameters": json.loads(values["parameters"]), "options": json.loads(values["options"])}
    try:
        return ToolRow.model_validate(values)
    except ValidationError:
        raise BadRequest(f"the row of tool {values['tool_name']!r} does not parse: put it again") from None
