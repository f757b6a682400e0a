"""The versions of profiles, and which profiles offer a tool, as people look at them. Reads only."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import Json, JsonValue

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import BoxId, ProjectId

TURN_LIMIT = 1000
"""The most turns of a version that are counted."""


class ProfileVersion(Tolerant):
    """A version of a profile."""

    profile_box_id: BoxId
    created_at: datetime
    is_current: bool
    """Whether the next turns have it."""
    turns: int
    """How many turns had it, at most `TURN_LIMIT`."""


class ProfileText(Tolerant):
    """What a version says; cards of other writers may hold any JSON."""

    data: Json[JsonValue] | None
    created_at: datetime


class ToolUser(Tolerant):
    """A profile that offers a tool to its model."""

    tool_name: str
    profile_name: str


async def list_profile_versions(
    conn: Connection, project: ProjectId, name: str, *, row_limit: int
) -> list[ProfileVersion]:
    """The versions that are there, the newest first; those that no turn names any more go with retention."""
    return await query("list_profile_versions").all_as(
        conn, ProfileVersion, project_id=project, name=name, turn_limit=TURN_LIMIT, row_limit=row_limit
    )


async def get_profile_version(conn: Connection, project: ProjectId, box: BoxId) -> ProfileText | None:
    """What the version in this box says; None if the project has no such box of a profile."""
    return await query("get_profile_version").opt_as(conn, ProfileText, project_id=project, profile_box_id=box)


async def list_tool_users(
    conn: Connection, project: ProjectId, tools: Sequence[str], *, row_limit: int
) -> list[ToolUser]:
    """The profiles that offer these tools, at most `row_limit` of each."""
    return await query("list_tool_users").all_as(
        conn, ToolUser, project_id=project, tool_names=list(tools), row_limit=row_limit
    )
