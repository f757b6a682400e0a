"""`/v1/interrupts`: what turns ask people, read from the ledger within the token's project and channel (§13, §14.1)."""

from dataclasses import dataclass
from typing import Any

from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Forbidden
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.people.interrupt_views import get_interrupt, list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal, Right
from turnstile.schema.api import InterruptPage, InterruptsQuery
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InterruptId
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus


@dataclass(frozen=True, slots=True)
class Interrupts:
    """The handlers, over one ledger."""

    pool: Pool

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
                reason=None if query.reason is None else InterruptReason(query.reason),
                after=None if query.cursor is None else InterruptId(query.cursor),
                row_limit=query.limit + 1,
            )
        )
        page = list(views[: query.limit])
        return Answer(InterruptPage(interrupts=page, next=page[-1].interrupt_id if len(views) > len(page) else None))

    async def get(self, call: Call[object, object]) -> Answer:
        """A question with its call."""
        return Answer(await self._seen(call.principal, call.path["interrupt_id"]))

    async def lookup(self, call: Call[Any, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel of the question that the path names, and the question; raises as `get`, and `Forbidden`.

        A call that its client runs is answered with the right to ask, as the turn was asked for (protocol §19).
        """
        principal = call.principal
        view = await self._seen(principal, call.path["interrupt_id"])
        right = Right.ASK if view.reason is InterruptReason.CLIENT_TOOL else Right.DECIDE
        if not principal.may(right):
            raise Forbidden(f"a token of role {principal.role} may not {right} here")
        return view.channel_id, {"interrupt_id": view.interrupt_id}

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
