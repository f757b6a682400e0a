"""`/v1/agents`, `/v1/profiles`, `/v1/tools` and `/v1/usage` (protocol §14.1).

The roster is the project's, not a channel's: tokens of a channel read it, too. What it says of agents in hand (their
turns) is left out for these, and usage is that of their channel.
"""

from dataclasses import dataclass

from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.v1.cursors import is_moment
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import list_agents, list_profiles, list_tools
from turnstile.ledger.turns.usage import sum_usage
from turnstile.schema.access import Detail
from turnstile.schema.api import AgentPage, PageQuery, ProfilePage, ToolPage, Usage, UsageQuery
from turnstile.schema.errors import BadRequest
from turnstile.schema.tools import without_wiring
from turnstile.schema.wire.roster_requests import AgentLine, ProfileLine

_LONGEST = 256
_IN_HAND = {"active_agent_turn_id": None, "head_status": "", "turn_epoch": 0, "queued": 0}
"""What is left out of an agent for a token of a channel: its turns may be those of others."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The handlers, over one ledger."""

    pool: Pool

    async def agents(self, call: Call[PageQuery, object]) -> Answer:
        """A page of agents."""
        project, limit = call.principal.project_id, call.query.limit
        agents = await list_agents(self.pool, project, after=_after(call.query), row_limit=limit + 1)
        hidden = {} if call.principal.channel_id is None else _IN_HAND
        lines = [AgentLine.model_validate(line.model_dump() | hidden) for line in agents[:limit]]
        return Answer(AgentPage(agents=lines, next=lines[-1].agent_id if len(agents) > limit else None))

    async def profiles(self, call: Call[PageQuery, object]) -> Answer:
        """A page of profiles, without their prompts."""
        project, limit = call.principal.project_id, call.query.limit
        profiles = await list_profiles(self.pool, project, after=_after(call.query), row_limit=limit + 1)
        lines = [ProfileLine.model_validate(line.model_dump()) for line in profiles[:limit]]
        return Answer(ProfilePage(profiles=lines, next=lines[-1].name if len(profiles) > limit else None))

    async def tools(self, call: Call[PageQuery, object]) -> Answer:
        """A page of tools."""
        project, limit = call.principal.project_id, call.query.limit
        tools = await list_tools(self.pool, project, after=_after(call.query), row_limit=limit + 1)
        seen = call.principal.sees_detail(Detail.WIRING)
        lines = [row if seen else without_wiring(row) for row in tools[:limit]]
        return Answer(ToolPage(tools=lines, next=lines[-1].tool_name if len(tools) > limit else None))

    async def usage(self, call: Call[UsageQuery, object]) -> Answer:
        """What the project's models used."""
        query = call.query
        if query.since is not None and not is_moment(query.since):
            raise BadRequest("since: a time zone is required, such as in 2026-01-01T00:00:00Z")
        principal, after = call.principal, _after(query) or ""
        *sums, total = await self.pool.run(
            lambda conn: sum_usage(
                conn, principal.project_id, query.by, channel=principal.channel_id, since=query.since
            )
        )
        left = sorted((line for line in sums if (line.name or "") > after), key=lambda line: line.name or "")
        lines = left[: query.limit]
        return Answer(Usage(lines=[*lines, total], next=lines[-1].name if len(left) > len(lines) else None))


def _after(query: PageQuery) -> str | None:
    if query.cursor is not None and (len(query.cursor) > _LONGEST or "\0" in query.cursor):
        raise BadRequest("cursor: unknown; use the cursor of an earlier page")
    return query.cursor
