"""Profiles, agents and tools (protocol §4), which an operator registers before turns can run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from pydantic import Json, ValidationError

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection, Row, query
from turnstile.ledger.turns.cards import box_cards
from turnstile.ledger.turns.lease import dispatch_next
from turnstile.rules.turn_ends import NewLease
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import SYSTEM_AUTHOR, CardMetadata, CardType, JsonContent, Role, read_content
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentId, BoxId, ChannelId, ProjectId, new_box_id, token, uuid7
from turnstile.schema.ids import worker_target as checked_target
from turnstile.schema.message_types import CODE_AGENTS, TYPED_ANSWERS, WAKES
from turnstile.schema.profiles import Profile, memory_problem
from turnstile.schema.states import AgentStatus
from turnstile.schema.tools import PmoTool, ToolDefinition, ToolRow
from turnstile.schema.wire.limits import MADE_LIMITS, UNCOUNTED, Maker, made_limited
from turnstile.schema.wire.roster_requests import AgentLine, AgentPutRequest

StatusAction = Literal["pause", "resume", "retire"]
_STATUS: dict[StatusAction, AgentStatus] = {
    "pause": AgentStatus.PAUSED,
    "resume": AgentStatus.ACTIVE,
    "retire": AgentStatus.RETIRED,
}
"""The status that an operator's action sets."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Who changes the roster, as identity edges record it."""

    sender: str
    channel_id: ChannelId | None = None
    trace_id: str | None = None
    parent_step_id: str | None = None

    def columns(self) -> dict[str, Any]:
        """The parameters of a statement that leaves an edge."""
        return {
            "channel_id": self.channel_id,
            "trace_id": self.trace_id,
            "parent_step_id": self.parent_step_id,
            "edge_metadata": self.metadata(),
        }

    def metadata(self) -> str:
        """The edge's own metadata, as JSON."""
        return json.dumps({"sender": self.sender})


LOCAL = Origin("turnstile")
"""A change by a program that has the database, such as the command line."""


class ProfileRow(Tolerant):
    """A profile in `profile list`."""

    name: str
    profile_box_id: BoxId
    worker_target: str
    tags: Json[list[str]]
    updated_at: datetime
    agents: int


async def put_profile(pool: Pool, project: ProjectId, profile: Profile) -> tuple[BoxId, bool, int]:
    """Store the profile in a new box and point profile and roster rows to it; active turns keep the old one.

    Returns the box, whether the profile is new, and how many agents were repointed. Raises `BadRequest`, or `Refused`
    (memory_too_small) for a memory that holds no turn.
    """
    token(project, "project_id")
    checked_target(profile.worker_target, "worker_target")
    if (problem := memory_problem(profile, await _tool_texts(pool, project, profile))) is not None:
        raise Refused("memory_too_small", f"profile {profile.name}: its memory cannot hold one turn: {problem}")
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


async def _tool_texts(pool: Pool, project: ProjectId, profile: Profile) -> list[str]:
    """Names and descriptions of the tools that the profile offers, if its memory has a limit."""
    if profile.memory is None or profile.memory.max_context_tokens is None or profile.allowed_tools == []:
        return []
    try:
        tools = await list_tools(pool, project)
    except BadRequest:  # a row that does not parse is offered to no model
        return []
    return [f"{t.tool_name} {t.description or ''}" for t in tools if profile.allows(t.tool_name)]


def _settings(profile: Profile, box: BoxId) -> JsonObject:
    """What an enqueue must know of the profile; nothing of one that has only what most have.

    Of a long schema of its answers it is known only that there is one.
    """
    settings = profile.model_dump(mode="json", include={"memory", "instances"})
    settings |= {"budget": limits} if profile.budget and (limits := profile.budget.stored()) else {}
    if (schema := profile.output_schema) is not None:
        known = schema if len(json.dumps(schema)) <= _LONGEST_SCHEMA else {}
        settings |= {"output_schema": known, "needs_level": TYPED_ANSWERS}
    settings |= {} if profile.run_by is None else {"needs_level": CODE_AGENTS}
    settings |= {"needs_level": WAKES} if PmoTool.WAKE_ME in (profile.allowed_tools or ()) else {}
    return {"profile_box_id": box, **settings} if settings else {}


_LONGEST_SCHEMA = 16_384


async def list_profiles(
    pool: Pool, project: ProjectId, *, after: str | None = None, row_limit: int | None = None
) -> list[ProfileRow]:
    """The project's profiles by name; all, or at most `row_limit` whose names follow `after`."""
    page = {"project_id": project, "after": after, "row_limit": row_limit}
    return await pool.run(lambda conn: query("list_profiles").all_as(conn, ProfileRow, **page))


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
    request = AgentPutRequest.model_construct(
        agent_id=AgentId(token(agent, "agent_id")),
        profile_name=profile_name,
        worker_target=worker_target,
        display_name=display_name,
        tags=list(tags),
        metadata=metadata,
        only_new=True,
    )
    return (await put_agent(pool, project, request, LOCAL))[1]


async def put_agent(
    pool: Pool, project: ProjectId, request: AgentPutRequest, origin: Origin, maker: Maker = UNCOUNTED
) -> tuple[Literal["added", "changed", "same"], str]:
    """Add the agent, or change what is given; returns what was done, and its worker target.

    Raises `BadRequest`, or `Refused`: unknown_profile; agent_exists for one that must be new; agent_busy for another
    worker target while it has turns; agent_inactive; `Limited` (agents_full).
    """
    target = request.worker_target
    arguments = {
        "project_id": token(project, "project_id"),
        "agent_id": request.agent_id,
        "profile_name": request.profile_name,
        "worker_target": target and checked_target(target, "worker_target"),
        "display_name": request.display_name,
        "tags": None if request.tags is None else json.dumps(request.tags),
        "metadata": None if request.metadata is None else json.dumps(request.metadata),
        "edge_id": uuid7(),
        "made_by": maker.name,
        "most": maker.limits.max_agents,
        "only_new": request.only_new,
        **origin.columns(),
    }

    async def put(conn: Connection) -> Row:
        row = await query("put_agent").one(conn, **arguments)
        if row["verdict"] == "again":
            raise Again
        return row

    row = await pool.run(put)
    match row["verdict"]:
        case "added" | "changed" | "same" as verdict:
            return verdict, row["worker_target"]
        case "unknown_profile":
            raise Refused("unknown_profile", f"project {project} has no profile {request.profile_name!r}: put it first")
        case limit if limit in MADE_LIMITS:
            raise made_limited(limit, maker)
        case "agent_exists":
            raise Refused("agent_exists", f"project {project} has an agent {request.agent_id} already")
        case "agent_busy":
            raise Refused("agent_busy", "an agent with turns keeps its worker target until they are over")
        case _:
            raise Refused("agent_inactive", "the agent's project is being removed")


async def set_agent_status(
    pool: Pool, project: ProjectId, agent: AgentId, action: StatusAction, origin: Origin
) -> tuple[bool, list[NewLease]]:
    """Pause, resume or retire an agent; returns whether that changed its status, and a resumed agent's lease.

    After a pause the agent takes no lease: its turn in hand goes on, and what is queued stays queued. A retired agent
    takes no enqueue; what is queued still runs. Raises `Refused` (unknown_agent, agent_inactive).
    """
    edge = uuid7()

    async def change(conn: Connection) -> tuple[bool, list[NewLease]]:
        changed = await set_status_on(conn, project, agent, action, origin, edge)
        return changed, [] if action == "pause" else await dispatch_next(conn, [(project, agent)])

    return await pool.transact(change)


async def set_status_on(
    conn: Connection, project: ProjectId, agent: AgentId, action: StatusAction, origin: Origin, edge: str
) -> bool:
    """The statement of `set_agent_status`; returns whether it, or an earlier try with this edge, changed the status."""
    row = await query("set_agent_status").one(
        conn,
        project_id=project,
        agent_id=agent,
        status=_STATUS[action],
        action=action,
        edge_id=edge,
        **origin.columns(),
    )
    match row["verdict"]:
        case "changed" | "same" as verdict:
            return verdict == "changed"
        case "agent_inactive":
            raise Refused("agent_inactive", "the agent's project is being removed")
        case _:
            raise Refused("unknown_agent", f"project {project} has no agent {agent!r}")


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
    await query("forget_agent").many(conn, **named, edge_id=uuid7(), edge_metadata=LOCAL.metadata())
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


async def list_agents(
    pool: Pool, project: ProjectId, *, after: str | None = None, row_limit: int | None = None
) -> list[AgentLine]:
    """The project's agents by id; all, or at most `row_limit` whose ids follow `after`."""
    page = {"project_id": project, "after": after, "row_limit": row_limit}
    return await pool.run(lambda conn: query("list_agents").all_as(conn, AgentLine, **page))


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


async def list_tools(
    pool: Pool, project: ProjectId, *, after: str | None = None, row_limit: int | None = None
) -> list[ToolRow]:
    """The project's tools by name; all, or at most `row_limit` whose names follow `after`.

    Raises `BadRequest`, which names the tool, for a row that does not parse.
    """
    page = {"project_id": project, "after": after, "row_limit": row_limit}
    rows = await pool.run(lambda conn: query("list_tools").many(conn, **page))
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
