"""Whom a request from outside may name: agents that take turns, and profiles that have instances. Reads only."""

from datetime import datetime

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import ProjectId


class Addressee(Tolerant):
    """An agent or a profile."""

    name: str
    is_profile: bool
    since: datetime
    """When the agent was made, or the profile put."""


class AddresseeLine(Addressee):
    """One of them in a page."""

    title: str | None
    """An agent's name for people."""
    profile_name: str | None
    output_schema: Json[JsonObject] | None
    """What its answers match by default, if its profile says so; empty if that is too long to be shown."""


async def page_addressees(
    conn: Connection, project: ProjectId, *, after: Addressee | None, row_limit: int
) -> list[AddresseeLine]:
    """Those after one of them: agents by id, then profiles by name."""
    return await query("page_addressees").all_as(
        conn,
        AddresseeLine,
        project_id=project,
        after_agent=None if after is None or after.is_profile else after.name,
        after_profile=after.name if after is not None and after.is_profile else None,
        row_limit=row_limit,
    )


async def list_addressees(conn: Connection, project: ProjectId, *, row_limit: int) -> list[Addressee]:
    """At most so many agents by id, then at most so many profiles by name; instances are none."""
    return await query("list_addressees").all_as(conn, Addressee, project_id=project, row_limit=row_limit)


async def find_agent(conn: Connection, project: ProjectId, name: str) -> Addressee | None:
    """The agent of this id, if it takes turns and is no instance."""
    return await query("find_addressed_agent").opt_as(conn, Addressee, project_id=project, name=name)


async def find_profile(conn: Connection, project: ProjectId, name: str) -> Addressee | None:
    """The profile of this name, in any case, if it has instances."""
    return await query("find_addressed_profile").opt_as(conn, Addressee, project_id=project, name=name)
