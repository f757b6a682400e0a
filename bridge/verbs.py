"""The bridge's verbs, one handler each, reached by request/reply and by durable command alike (protocol §6).

A handler commits, then publishes what the commit says, then answers. What it refuses it raises; `run_verb` turns that
into the reply with its code.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

from bridge.service import VerbHandler, VerbRequest
from bridge.starter import SENDER, tell
from ledger.cards import get_card
from ledger.intake import enqueue
from ledger.lease import Lease
from ledger.pool import Pool
from ledger.views import TurnView, describe_turn
from schema import headers
from schema.cards import Card
from schema.errors import BadRequest, Refused
from schema.events import Message, StateEvent
from schema.inbox import DescribeRequest, EnqueueReply, EnqueueRequest, Reply
from schema.ports import Publisher
from schema.states import HeadStatus, ReplyStatus


class DescribeReply(Reply):
    """What `describe` found: a turn, or a card."""

    turn: TurnView | None = None
    card: Card | None = None


class Verbs:
    """`enqueue` and `describe` over one ledger."""

    def __init__(self, pool: Pool, publisher: Publisher, *, depth_limit: int) -> None:
        self._pool = pool
        self._publisher = publisher
        self._depth_limit = depth_limit

    def handlers(self) -> Mapping[str, VerbHandler]:
        """The handlers by verb."""
        return {"enqueue": self.enqueue, "describe": self.describe}

    async def enqueue(self, request: VerbRequest) -> EnqueueReply:
        """Make a turn; a command that is delivered twice makes one."""
        wanted = request.parse(EnqueueRequest)
        _same(request, headers.AGENT_ID, wanted.agent_id)
        if wanted.correlation_id is None and request.command_id is not None:
            wanted = wanted.model_copy(update={"correlation_id": f"command-{request.command_id}"})
        done = await enqueue(
            self._pool,
            request.project_id,
            request.channel_id,
            wanted,
            request.headers,
            depth_limit=self._depth_limit,
            sender=request.headers.get(headers.SENDER, "client")[:128],
        )
        if (lease := done.lease) is not None:
            await tell(self._publisher, _dispatched(lease), lease.doorbell(SENDER, "enqueue"))
        return done.reply

    async def describe(self, request: VerbRequest) -> DescribeReply:
        """A turn or a card of the caller's project."""
        wanted = request.parse(DescribeRequest)
        match wanted:
            case DescribeRequest(agent_turn_id=None, card_id=str() as card_id):
                card = await self._pool.run(lambda conn: get_card(conn, request.project_id, card_id))
                if card is None:
                    raise Refused("unknown_card", "the project has no such card")
                return DescribeReply(status=ReplyStatus.ACCEPTED, card=card)
            case DescribeRequest(agent_turn_id=str() as turn_id, card_id=None):
                turn = await self._pool.run(lambda conn: describe_turn(conn, request.project_id, turn_id))
                if turn is None:
                    raise Refused("unknown_turn", "the project has no such turn")
                return DescribeReply(status=ReplyStatus.ACCEPTED, turn=turn)
            case _:
                raise BadRequest("describe takes exactly one of agent_turn_id and card_id")


def _dispatched(lease: Lease) -> Message:
    event = StateEvent(
        agent_id=lease.agent_id,
        agent_turn_id=lease.agent_turn_id,
        status=HeadStatus.DISPATCHED,
        turn_epoch=lease.turn_epoch,
        updated_at=datetime.now(UTC),
        output_box_id=None,
    )
    return lease.address(SENDER).state(event)


def _same(request: VerbRequest, header: str, argument: str) -> None:
    """Subject, header and argument may not name different things (protocol §5)."""
    named = request.headers.get(header)
    if named is not None and named != argument:
        raise BadRequest(f"header {header} and the payload name different things")
