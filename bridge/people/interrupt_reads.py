"""The verbs `interrupt.list` and `interrupt.get`: what the people of a channel are asked (protocol §13)."""

from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.people.interrupt_views import get_interrupt, list_interrupts
from turnstile.ledger.pool import Pool
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId, ProjectId
from turnstile.schema.people.interrupt_requests import (
    InterruptListReply,
    InterruptListRequest,
    InterruptReply,
    InterruptRequest,
)
from turnstile.schema.states import ReplyStatus


class InterruptReads:
    """The verbs over one ledger; each sees the channel of its subject alone."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def interrupt_list(self, request: VerbRequest) -> InterruptListReply:
        """A page of questions."""
        return await interrupt_page(
            self._pool, request.project_id, request.channel_id, request.parse(InterruptListRequest)
        )

    async def interrupt_get(self, request: VerbRequest) -> InterruptReply:
        """A question with its call; raises `Refused` (unknown_interrupt)."""
        interrupt_id = request.parse(InterruptRequest).interrupt_id
        interrupt = await self._pool.run(
            lambda conn: get_interrupt(
                conn, request.project_id, interrupt_id, channel=request.channel_id, with_added=True
            )
        )
        if interrupt is None:
            raise Refused("unknown_interrupt", "the channel has no such question")
        return InterruptReply(status=ReplyStatus.ACCEPTED, interrupt=interrupt)


async def interrupt_page(
    pool: Pool, project: ProjectId, channel: ChannelId | None, body: InterruptListRequest
) -> InterruptListReply:
    """A page of questions of the channel, or of the project."""
    rows = await pool.run(
        lambda conn: list_interrupts(
            conn,
            project,
            channel=channel,
            agent=body.agent_id,
            turn=body.agent_turn_id,
            status=body.status,
            reason=body.reason,
            after=body.after,
            row_limit=body.limit + 1,
        )
    )
    page = tuple(rows[: body.limit])
    more = page[-1].interrupt_id if len(rows) > len(page) else None
    return InterruptListReply(status=ReplyStatus.ACCEPTED, interrupts=page, next=more)
