"""The operators' verbs on the roster: `agent.pause`, `agent.resume` and `agent.retire` (protocol §6).

They are requests only, each with a subject of two tokens, so that a permission for `req.sys.bridge.*` does not cover
them. Each sets what it names, so that a repeat is harmless.
"""

from collections.abc import Mapping

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.verbs.handlers import dispatched
from turnstile.bridge.verbs.micro_service import VerbHandler, VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.roster import Origin, StatusAction, set_agent_status
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.states import AgentStatus, ReplyStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.roster_requests import AgentRequest, AgentStatusReply


class RosterVerbs:
    """The verbs over one ledger."""

    def __init__(self, pool: Pool, publisher: Publisher) -> None:
        self._pool = pool
        self._publisher = publisher

    def handlers(self) -> Mapping[str, VerbHandler]:
        """The handlers by verb."""
        return {"agent.pause": self.pause, "agent.resume": self.resume, "agent.retire": self.retire}

    async def pause(self, request: VerbRequest) -> AgentStatusReply:
        """Let the agent take no further lease."""
        return await self._set_status(request, "pause", AgentStatus.PAUSED)

    async def resume(self, request: VerbRequest) -> AgentStatusReply:
        """Make a paused or retired agent active, and lease it to what waits."""
        return await self._set_status(request, "resume", AgentStatus.ACTIVE)

    async def retire(self, request: VerbRequest) -> AgentStatusReply:
        """Let the agent take no further enqueue; what is queued still runs."""
        return await self._set_status(request, "retire", AgentStatus.RETIRED)

    async def _set_status(self, request: VerbRequest, action: StatusAction, status: AgentStatus) -> AgentStatusReply:
        agent = request.parse(AgentRequest).agent_id
        changed, leases = await set_agent_status(self._pool, request.project_id, agent, action, origin_of(request))
        hit(Fault.AGENT_CHANGED)
        for lease in leases:
            await publish_best_effort(self._publisher, dispatched(lease), lease.doorbell(SENDER, action))
        hit(Fault.AGENT_PUBLISHED)
        return AgentStatusReply(status=ReplyStatus.ACCEPTED, agent_id=agent, agent_status=status, duplicate=not changed)


def origin_of(request: VerbRequest) -> Origin:
    """Who asks, as identity edges record it; raises `BadRequest` for malformed lineage."""
    context = headers.context_headers(request.headers)
    return Origin(
        sender=request.headers.get(headers.SENDER, "client")[:128],
        channel_id=request.channel_id,
        trace_id=headers.trace_id(context[headers.TRACEPARENT]),
        parent_step_id=context.get(headers.PARENT_STEP_ID),
    )
