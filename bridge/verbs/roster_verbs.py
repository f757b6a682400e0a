"""The operators' verbs on the roster: agents, profiles and tools (protocol §6).

They are requests only, each with a subject of two tokens, so that a permission for `req.sys.bridge.*` does not cover
them. Each sets what it names, so that a repeat is harmless.
"""

from collections.abc import Collection, Sequence
from typing import TypeVar

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.budgets.prices import has_price
from turnstile.ledger.operations.monitor import list_live_workers
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import (
    Origin,
    StatusAction,
    list_agents,
    list_profiles,
    list_tools,
    put_agent,
    put_profile,
    put_tool,
    remove_tool,
    set_agent_status,
)
from turnstile.rules.profile_warnings import profile_warnings
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ProjectId
from turnstile.schema.profiles import Profile
from turnstile.schema.states import AgentStatus, ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.limits import UNLIMITED, Admission
from turnstile.schema.wire.roster_requests import (
    AgentListReply,
    AgentPutReply,
    AgentPutRequest,
    AgentRequest,
    AgentStatusReply,
    ListRequest,
    ProfileLine,
    ProfileListReply,
    ProfilePutReply,
    ProfilePutRequest,
    ToolListReply,
    ToolPutReply,
    ToolPutRequest,
    ToolRemoveReply,
    ToolRemoveRequest,
)

Row = TypeVar("Row")


class RosterVerbs:
    """The verbs over one ledger."""

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        admission: Admission = UNLIMITED,
        *,
        targets: Collection[str] = (),
        answer_tokens: int,
    ) -> None:
        """`targets` are served though no worker has signed on; `answer_tokens` as in `profile_warnings`."""
        self._admission = admission
        self._pool = pool
        self._publisher = publisher
        self._targets = targets
        self._answer_tokens = answer_tokens

    async def agent_put(self, request: VerbRequest) -> AgentPutReply:
        """Add an agent, or change what is given."""
        body = request.parse(AgentPutRequest)
        maker = request.maker(self._admission)
        change, target = await put_agent(self._pool, request.project_id, body, origin_of(request), maker)
        hit(Fault.AGENT_CHANGED)
        return AgentPutReply(
            status=ReplyStatus.ACCEPTED,
            agent_id=body.agent_id,
            worker_target=target,
            created=change == "added",
            duplicate=change == "same",
        )

    async def agent_list(self, request: VerbRequest) -> AgentListReply:
        """The project's agents, a page at a time."""
        body = request.parse(ListRequest)
        rows = await list_agents(self._pool, request.project_id, after=body.after, row_limit=body.limit + 1)
        lines, more = _page(rows, body.limit)
        return AgentListReply(
            status=ReplyStatus.ACCEPTED, agents=tuple(lines), next=lines[-1].agent_id if more else None
        )

    async def profile_put(self, request: VerbRequest) -> ProfilePutReply:
        """Store a profile; its agents have it from their next turn on."""
        profile = request.parse(ProfilePutRequest).profile
        box, created, agents = await put_profile(self._pool, request.project_id, profile)
        hit(Fault.PROFILE_STORED)
        return ProfilePutReply(
            status=ReplyStatus.ACCEPTED,
            name=profile.name,
            profile_box_id=box,
            created=created,
            agents=agents,
            warnings=await self._warnings(request.project_id, profile),
        )

    async def _warnings(self, project: ProjectId, profile: Profile) -> tuple[str, ...]:
        try:
            tools = {row.tool_name for row in await list_tools(self._pool, project)}
        except BadRequest as error:
            return (str(error),)
        live = await self._pool.run(list_live_workers)
        model = None if profile.llm_config is None else profile.llm_config.model
        priced = model is None or await self._pool.run(lambda conn: has_price(conn, model))
        targets = {*self._targets, *(worker.worker_target for worker in live)}
        return tuple(profile_warnings(profile, tools, targets, priced=priced, answer_tokens=self._answer_tokens))

    async def profile_list(self, request: VerbRequest) -> ProfileListReply:
        """The project's profiles, a page at a time."""
        body = request.parse(ListRequest)
        rows = await list_profiles(self._pool, request.project_id, after=body.after, row_limit=body.limit + 1)
        profiles, more = _page(rows, body.limit)
        lines = tuple(ProfileLine.model_validate(row.model_dump()) for row in profiles)
        return ProfileListReply(status=ReplyStatus.ACCEPTED, profiles=lines, next=lines[-1].name if more else None)

    async def tool_put(self, request: VerbRequest) -> ToolPutReply:
        """Store a tool; turns that have begun keep the one that they know."""
        tool = request.parse(ToolPutRequest).tool
        created = await put_tool(self._pool, request.project_id, tool)
        hit(Fault.TOOL_STORED)
        return ToolPutReply(status=ReplyStatus.ACCEPTED, tool_name=tool.tool_name, created=created)

    async def tool_list(self, request: VerbRequest) -> ToolListReply:
        """The project's tools, a page at a time."""
        body = request.parse(ListRequest)
        rows = await list_tools(self._pool, request.project_id, after=body.after, row_limit=body.limit + 1)
        tools, more = _page(rows, body.limit)
        return ToolListReply(
            status=ReplyStatus.ACCEPTED, tools=tuple(tools), next=tools[-1].tool_name if more else None
        )

    async def tool_remove(self, request: VerbRequest) -> ToolRemoveReply:
        """Remove a tool; turns that have begun can still call it."""
        name = request.parse(ToolRemoveRequest).tool_name
        await remove_tool(self._pool, request.project_id, name)
        hit(Fault.TOOL_REMOVED)
        return ToolRemoveReply(status=ReplyStatus.ACCEPTED, tool_name=name)

    async def agent_pause(self, request: VerbRequest) -> AgentStatusReply:
        """Let the agent take no further lease."""
        return await self._set_status(request, "pause", AgentStatus.PAUSED)

    async def agent_resume(self, request: VerbRequest) -> AgentStatusReply:
        """Make a paused or retired agent active, and lease it to what waits."""
        return await self._set_status(request, "resume", AgentStatus.ACTIVE)

    async def agent_retire(self, request: VerbRequest) -> AgentStatusReply:
        """Let the agent take no further enqueue; what is queued still runs."""
        return await self._set_status(request, "retire", AgentStatus.RETIRED)

    async def _set_status(self, request: VerbRequest, action: StatusAction, status: AgentStatus) -> AgentStatusReply:
        agent = request.parse(AgentRequest).agent_id
        changed, leases = await set_agent_status(self._pool, request.project_id, agent, action, origin_of(request))
        hit(Fault.AGENT_CHANGED)
        for lease in leases:
            await publish_best_effort(self._publisher, lease.dispatched(SENDER), lease.doorbell(SENDER, action))
        hit(Fault.AGENT_PUBLISHED)
        return AgentStatusReply(status=ReplyStatus.ACCEPTED, agent_id=agent, agent_status=status, duplicate=not changed)


def _page(rows: Sequence[Row], limit: int) -> tuple[Sequence[Row], bool]:
    """The rows that fit, and whether there are more."""
    return rows[:limit], len(rows) > limit


def origin_of(request: VerbRequest) -> Origin:
    """Who asks, as identity edges record it; raises `BadRequest` for malformed lineage."""
    context = headers.context_headers(request.headers)
    return Origin(
        sender=request.headers.get(headers.SENDER, "client")[:128],
        channel_id=request.channel_id,
        trace_id=headers.trace_id(context[headers.TRACEPARENT]),
        parent_step_id=context.get(headers.PARENT_STEP_ID),
    )
