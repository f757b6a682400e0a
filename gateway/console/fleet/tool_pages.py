"""Tools, which profiles offer them, and whether a process waits for their calls."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.templating import CONSOLE
from turnstile.ledger.access.profile_versions import ToolUser, list_tool_users
from turnstile.ledger.roster import list_tools
from turnstile.schema.base import Strict
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import ProjectId
from turnstile.schema.tools import ToolRow
from turnstile.transport.connection import NatsConnection
from turnstile.transport.stream_probe import (
    Consumer,
    find_listeners,
    list_consumers,
    named_consumers,
    tool_consumers,
    tool_pattern,
)

TOOLS = f"{CONSOLE}/tools"
_PAGE = 50
_USERS = 8
_SECONDS = 2.0
_BUILT_IN = "cmd.sys.pmo.internal."

Served = Literal["listens", "busy", "nobody", "kernel", "invalid", "unknown"]
"""Whether a process waits for a tool's calls: one does; one has calls in hand and waits for none; none; the bridges do;
its subject is none; the gateway may not ask, or NATS did not answer."""


class ToolsQuery(Strict):
    """A page of tools."""

    after: str | None = Field(default=None, min_length=1, max_length=256)
    """Only those that follow this name."""


@dataclass(frozen=True, slots=True)
class ToolLine:
    """A tool as the page shows it."""

    row: ToolRow
    served: Served
    pending: int
    """Calls that its consumers have not delivered yet."""
    profiles: Sequence[str]
    """Profiles that offer it, at most so many."""
    more: bool
    """Whether more profiles offer it."""


def pages(_: Console) -> tuple[Page, ...]:
    """The page."""
    asking = asyncio.Lock()

    async def show_tools(visit: Visit[ToolsQuery, NoForm]) -> Response:
        return await _shown(visit, asking)

    return (Page(name="tools", path=TOOLS, handler=show_tools, query=ToolsQuery),)


async def _shown(visit: Visit[ToolsQuery, NoForm], asking: asyncio.Lock) -> Response:
    """A page of tools."""
    if visit.fragment:  # it asks NATS for a while
        return render(visit, "still.html")
    pool, project = visit.console.pool, visit.principal.project_id
    tools = await list_tools(pool, project, after=visit.query.after, row_limit=_PAGE + 1)
    page = tools[:_PAGE]
    names = [row.tool_name for row in page]
    users = await pool.run(lambda conn: list_tool_users(conn, project, names, row_limit=_USERS + 1))
    consumers = await _listeners(visit.console.conn, asking, project, page)
    lines = [_line(row, project, consumers, users) for row in page]
    after = names[-1] if len(tools) > _PAGE else None
    return render(visit, "fleet/tools.html", tools=lines, after=after, asked=consumers is not None, served=SERVED)


async def _listeners(
    conn: NatsConnection, asking: asyncio.Lock, project: ProjectId, rows: Sequence[ToolRow]
) -> list[Consumer] | None:
    """The consumers of these tools' calls; None if the gateway's NATS user may not ask, or NATS does not answer.

    One asks at a time: what a user may, the connection finds out by what it was refused meanwhile.
    """
    patterns = [pattern for row in rows if (pattern := _pattern(row, project)) is not None]
    names = [name for pattern in patterns for name in tool_consumers(pattern, project)]
    if not names:
        return []

    async def ask() -> list[Consumer] | None:
        listed = await list_consumers(conn)
        return listed if listed is not None else await named_consumers(conn, names)

    try:
        async with asyncio.timeout(_SECONDS), asking:
            return await find_listeners(ask, names, [])
    except (TimeoutError, ServerUnavailable):
        return None


def _pattern(row: ToolRow, project: ProjectId) -> str | None:
    return None if _BUILT_IN in (row.target_subject or "") else tool_pattern(row.target_subject, project)


def _line(
    row: ToolRow, project: ProjectId, consumers: Sequence[Consumer] | None, users: Sequence[ToolUser]
) -> ToolLine:
    profiles = [user.profile_name for user in users if user.tool_name == row.tool_name]
    readers: Sequence[Consumer] = ()
    if (pattern := _pattern(row, project)) is not None and consumers is not None:
        readers = [consumer for consumer in consumers if consumer.takes(pattern)]
    served = _served(row, pattern, readers, known=consumers is not None)
    pending = sum(reader.num_pending for reader in readers)
    return ToolLine(row, served, pending, profiles[:_USERS], len(profiles) > _USERS)


def _served(row: ToolRow, pattern: str | None, readers: Sequence[Consumer], *, known: bool) -> Served:
    if _BUILT_IN in (row.target_subject or ""):
        return "kernel"
    if pattern is None:
        return "invalid"
    if not known:
        return "unknown"
    if any(reader.listens for reader in readers):
        return "listens"
    return "busy" if any(reader.num_ack_pending for reader in readers) else "nobody"


SERVED: Mapping[Served, str] = {
    "listens": "a process serves it",
    "busy": "calls are being delivered, but no process is waiting for more: it is busy, or it has ended",
    "nobody": "no process serves it: start one, or its calls will time out",
    "kernel": "the bridges serve it",
    "invalid": "its subject is not a tool's subject: store the tool again",
    "unknown": "unknown, because this gateway cannot ask NATS; turnstile doctor can",
}
