"""Receivers of push notifications: set, claimed, notified, given up (protocol §17.3).

The state to send is read from the turn at each claim. So a state is sent at least once if it lasts until a claim, the
last one always; a repeat has the same number.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId, ReceiverId
from turnstile.schema.wire.limits import MADE_LIMITS, Maker, made_limited

MOST_RECEIVERS: Final = 10
"""Of one turn."""
_REFUSALS: Final = {
    "unknown_turn": "the channel has no such turn",
    "too_many_receivers": f"a turn has at most {MOST_RECEIVERS} receivers: remove one",
}


class ClaimedPush(Tolerant):
    """A notification to send."""

    agent_turn_id: AgentTurnId
    receiver_id: ReceiverId
    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    context_id: str
    url: str
    token: str | None
    state: str
    """`submitted`, `working`, `completed`, `failed`, `canceled`, or `input_required:` and the question."""
    number: int
    """The number of the state that is sent to the receiver, from 1."""
    state_at: datetime
    attempts: int

    @property
    def id(self) -> str:
        """The notification's id, the same each time it is sent."""
        return f"{self.agent_turn_id}.{self.receiver_id}.{self.number}"


class Receiver(Tolerant):
    """A receiver, without its secret."""

    receiver_id: ReceiverId
    url: str
    status: str


async def set_receiver(
    conn: Connection,
    project: ProjectId,
    channel: ChannelId,
    turn: AgentTurnId,
    receiver: ReceiverId,
    *,
    url: str,
    token: str | None,
    maker: Maker,
) -> None:
    """Notify a receiver of a turn; raises `Refused` (unknown_turn, too_many_receivers), `Limited` (pushes_full)."""
    row = await query("set_receiver").one(
        conn,
        project_id=project,
        channel_id=channel,
        agent_turn_id=turn,
        receiver_id=receiver,
        url=url,
        token=token,
        created_by=maker.name or "",
        most=MOST_RECEIVERS,
        most_open=maker.limits.max_open_pushes,
    )
    if (verdict := row["verdict"]) in MADE_LIMITS:
        raise made_limited(verdict, maker)
    if verdict != "accepted":
        raise Refused(verdict, _REFUSALS[verdict])


async def remove_receiver(
    conn: Connection, project: ProjectId, channel: ChannelId, turn: AgentTurnId, receiver: ReceiverId
) -> None:
    """Notify a receiver no more; a second time changes nothing. Raises `Refused` (unknown_turn)."""
    row = await query("remove_receiver").one(
        conn, project_id=project, channel_id=channel, agent_turn_id=turn, receiver_id=receiver
    )
    if not row["found"]:
        raise Refused("unknown_turn", _REFUSALS["unknown_turn"])


async def claim_pushes(
    conn: Connection, *, busy: Sequence[ProjectId], share: int, hold_seconds: float, row_limit: int
) -> list[ClaimedPush]:
    """Take notifications that are due; they are due again after `hold_seconds`, unless their end is recorded."""
    return await query("claim_pushes").all_as(
        conn, ClaimedPush, busy_projects=list(busy), share=share, hold_seconds=hold_seconds, row_limit=row_limit
    )


async def record_push(conn: Connection, push: ClaimedPush) -> bool:
    """The receiver has acknowledged it; False if another state was sent since, or none will be."""
    row = await query("record_push").one(
        conn, agent_turn_id=push.agent_turn_id, receiver_id=push.receiver_id, number=push.number
    )
    return row["recorded"]


async def fail_push(
    conn: Connection, push: ClaimedPush, error: str, *, gone: bool, longest_pause: float, give_up_seconds: float
) -> bool:
    """The receiver has not acknowledged it; returns whether it is given up."""
    row = await query("fail_push").one(
        conn,
        agent_turn_id=push.agent_turn_id,
        receiver_id=push.receiver_id,
        number=push.number,
        error=error[:500],
        gone=gone,
        longest_pause=longest_pause,
        give_up_seconds=give_up_seconds,
    )
    return row["given_up"]


async def list_receivers(conn: Connection, project: ProjectId, turn: AgentTurnId) -> list[Receiver]:
    """The receivers of a turn."""
    return await query("list_receivers").all_as(conn, Receiver, project_id=project, agent_turn_id=turn)
