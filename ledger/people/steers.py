"""Accepts what people say to turns (protocol §6, steer).

Guarantees: a steer is accepted behind the lock of the turn's head, or of its queued row, so that a turn that is over
gets none, and an end that was under way sees it. One round trip. Never publishes.
"""

import json
from typing import Final

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection, query
from turnstile.schema.access import Caller
from turnstile.schema.base import Tolerant
from turnstile.schema.cards import CardType, Role, TextContent, make_card
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentId, CardId, ChannelId, ProjectId, SteerId, new_steer_id
from turnstile.schema.people.steers import MOST_WAITING, SteerRequest
from turnstile.schema.states import SteerStatus
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES

_REFUSALS: Final = {
    "unknown_turn": "the channel has no such turn",
    "not_yours": "somebody else asked for this turn: only they and operators may steer it",
    "correlation_conflict": "this correlation_id was used before, with other content",
    "asks_no_model": "the turn is an action of a user, whose only step asks no model",
    "already_final": "the turn is over: ask for another one",
}


class AcceptedSteer(Tolerant):
    """A steer, new or of an earlier request, and the turn that it is for."""

    verdict: str
    steer_id: SteerId
    steer_status: SteerStatus
    agent_id: AgentId
    channel_id: ChannelId
    context_headers: ContextHeaders

    @property
    def is_new(self) -> bool:
        """Whether this request wrote it."""
        return self.verdict == "accepted"


async def steer(
    pool: Pool, project: ProjectId, channel: ChannelId, request: SteerRequest, caller: Caller
) -> AcceptedSteer:
    """Accept what the caller says to the turn; raises `Refused`, or `Limited`, with the code for the reply."""
    if request.text_bytes() > TEXT_LIMIT_BYTES:
        raise Refused("text_too_large", f"a steer is limited to {TEXT_LIMIT_BYTES} bytes")
    new = new_steer_id()
    return await pool.run(lambda conn: steer_turn(conn, project, channel, request, caller, new))


async def steer_turn(
    conn: Connection, project: ProjectId, channel: ChannelId, request: SteerRequest, caller: Caller, new: SteerId
) -> AcceptedSteer:
    """Run the statement once; raises `Again` if it must be repeated."""
    turn, content = request.agent_turn_id, TextContent(text=request.text)
    card = make_card(CardId(new), CardType.STEER, Role.USER, content, author=caller.name, turn=turn)
    row = await query("steer_turn").one(
        conn,
        project_id=project,
        channel_id=channel,
        agent_turn_id=turn,
        principal=caller.name,
        operates=caller.operates,
        steer_id=new,
        correlation_id=request.correlation_id or new,
        priority=request.priority,
        request_digest=request.digest(),
        most_waiting=MOST_WAITING,
        content=json.dumps(card.content),
        metadata=card.metadata.model_dump_json(exclude_none=True),
    )
    match row["verdict"]:
        case "again":
            raise Again
        case "accepted" | "duplicate" as verdict:
            is_new = row["steer_id"] == new  # then the statement ran before, and its answer was lost
            return AcceptedSteer.model_validate(dict(row) | {"verdict": "accepted" if is_new else verdict})
        case "too_many_steers":
            raise Limited("too_many_steers", "too many steers wait for the turn's next step: again when it has begun")
        case refusal:
            raise Refused(refusal, _REFUSALS[refusal])
