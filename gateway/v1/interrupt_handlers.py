"""`/v1/interrupts`: what turns ask people, and what people decide (protocol §13, §14.1).

Reading is the ledger's, within the token's project and channel. Deciding is the bridge's verb: the token is its caller,
so the ledger says who decided.
"""

from dataclasses import dataclass

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.people.interrupt_views import get_interrupt, list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema import verbs
from turnstile.schema.access import Principal
from turnstile.schema.api import Decided, InterruptDecision, InterruptPage, InterruptsQuery
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, InterruptId
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import InterruptStatus


@dataclass(frozen=True, slots=True)
class Interrupts:
    """The handlers, over one ledger and one bridge."""

    pool: Pool
    asking: Asking

    async def list(self, call: Call[InterruptsQuery, object]) -> Answer:
        """A page of questions."""
        principal, query = call.principal, call.query
        channel = seen_channel(principal, query.channel_id)
        views = await self.pool.run(
            lambda conn: list_interrupts(
                conn,
                principal.project_id,
                channel=channel,
                agent=None if query.agent_id is None else AgentId(query.agent_id),
                turn=None if query.agent_turn_id is None else AgentTurnId(query.agent_turn_id),
                status=None if query.status is None else InterruptStatus(query.status),
                after=None if query.cursor is None else InterruptId(query.cursor),
                row_limit=query.limit + 1,
            )
        )
        page = list(views[: query.limit])
        return Answer(InterruptPage(interrupts=page, next=page[-1].interrupt_id if len(views) > len(page) else None))

    async def get(self, call: Call[object, object]) -> Answer:
        """A question with its call."""
        return Answer(await self._seen(call.principal, call.path["interrupt_id"]))

    async def decide(self, call: Call[object, InterruptDecision]) -> Answer:
        """Decide a question, once."""
        view = await self._seen(call.principal, call.path["interrupt_id"])
        payload: JsonObject = {
            **call.body.model_dump(mode="json", exclude_unset=True),
            "interrupt_id": view.interrupt_id,
        }
        reply = await self.asking.ask(call.principal, view.channel_id, verbs.DECIDE, payload, call.headers)
        return Answer(
            Decided(
                interrupt_id=view.interrupt_id,
                decision=reply.decision or call.body.decision,
                agent_turn_id=view.agent_turn_id,
                tool_call_id=view.tool_call_id,
                tool_changed=reply.tool_changed,
                duplicate=reply.duplicate,
            )
        )

    async def _seen(self, principal: Principal, interrupt: str) -> InterruptView:
        """A question that the token may see; raises `Refused` (unknown_interrupt)."""
        named, channel = InterruptId(interrupt), principal.channel_id
        view = await self.pool.run(
            lambda conn: get_interrupt(
                conn, principal.project_id, named, channel=channel, with_added=principal.sees_added
            )
        )
        if view is None:
            raise Refused("unknown_interrupt", "the project has no such interrupt")
        return view
