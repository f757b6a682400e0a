"""Leases agents to turns, and claims inbox rows for a bridge (protocol §3, §6)."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from turnstile.ledger.queries import Connection, query
from turnstile.rules.turn_ends import NewLease
from turnstile.schema.base import Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InboxId, ProjectId
from turnstile.schema.message_types import Purpose, purpose_of
from turnstile.schema.states import DeferReason, HeadStatus, MessageType
from turnstile.schema.turns import Ring, TurnRef
from turnstile.schema.wire.events import Message, TurnAddress
from turnstile.schema.wire.headers import ContextHeaders


class Claim(Tolerant):
    """A claimed inbox row. With `start` or `signal` its workflow must be started or signalled; others are settled."""

    verdict: Literal["start", "signal", "consumed", "skipped", "deferred", "error"]
    inbox_id: InboxId
    project_id: ProjectId
    agent_id: AgentId
    channel_id: ChannelId
    message_type: Annotated[MessageType | str, Field(union_mode="left_to_right")]
    """A plain text if this release does not know the type; the verdict is then `error`."""
    correlation_id: str | None
    agent_turn_id: AgentTurnId | None
    turn_epoch: int | None
    worker_target: str
    profile_box_id: str | None
    context_box_id: str | None
    output_box_id: str | None
    trace_id: str | None
    active_inbox_id: InboxId | None
    last_error: str | None
    context_headers: ContextHeaders
    head_status: HeadStatus | None
    """Of the agent, as the row was claimed."""
    root_turn_id: AgentTurnId | None
    """With `start`, the root of the tree of a turn that another asked for."""
    parent_turn_id: AgentTurnId | None

    @property
    def purpose(self) -> Purpose | None:
        """What the row is for; None for an unknown type."""
        return purpose_of(self.message_type) if isinstance(self.message_type, MessageType) else None

    def turn(self) -> TurnRef:
        """The gate and boxes of the row's turn; `inbox_id` is that of the turn's own row."""
        return TurnRef.model_validate(self.model_dump() | {"inbox_id": self.active_inbox_id or self.inbox_id})

    def ring(self) -> Ring:
        """The pointer to the row, for the turn's workflow."""
        return Ring.model_validate(self.model_dump())

    def doorbell(self, sender: str, reason: str) -> Message:
        """The doorbell of the row, which is claimed."""
        address = TurnAddress.of(self, self.context_headers, sender)
        return address.wakeup(self.worker_target, self.inbox_id, reason, claimed=True)


class LiveTurn(TurnRef):
    """An active turn and its progress; `updated_at` is the head's last change."""

    status: HeadStatus
    updated_at: datetime
    resume_deadline: datetime | None
    restart_count: int


AgentKey = tuple[ProjectId, AgentId]


async def dispatch_next(conn: Connection, agents: Sequence[AgentKey]) -> list[NewLease]:
    """Lease each idle agent that has a queued turn; busy agents are skipped."""
    return await query("dispatch_next").all_as(
        conn, NewLease, project_ids=[project for project, _ in agents], agent_ids=[agent for _, agent in agents]
    )


async def claim_inbox(
    conn: Connection, agents: Sequence[AgentKey], worker_targets: Sequence[str], *, row_limit: int
) -> list[Claim]:
    """Claim the due rows of these agents, at most `row_limit` of each, in one statement."""
    return await query("claim_inbox").all_as(
        conn,
        Claim,
        project_ids=[project for project, _ in agents],
        agent_ids=[agent for _, agent in agents],
        worker_targets=list(worker_targets),
        row_limit=row_limit,
    )


async def release_claims(
    conn: Connection, inbox_ids: Sequence[InboxId], reason: DeferReason, *, delay_seconds: float
) -> int:
    """Give claimed rows back for this reason: deferred, and due after the delay; returns how many.

    `retry_count` counts the tries that failed for one reason, running; the delay doubles twice as it rises.
    """
    rows = await query("release_claims").many(
        conn, inbox_ids=list(inbox_ids), reason=reason, delay_seconds=delay_seconds
    )
    return len(rows)
