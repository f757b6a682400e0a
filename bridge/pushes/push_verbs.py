"""The verbs `push.set` and `push.remove`: who is notified of a turn over HTTP (protocol §17.3)."""

from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.receivers import remove_receiver, set_receiver
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.outbound import Names, destination
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.limits import UNLIMITED, Admission
from turnstile.schema.wire.push_requests import PushRemoveRequest, PushReply, PushSetRequest


class PushVerbs:
    """The verbs over one ledger; each sees the channel of its subject alone."""

    def __init__(self, pool: Pool, names: Names, *, private: bool, admission: Admission = UNLIMITED) -> None:
        self._admission = admission
        self._pool = pool
        self._names = names
        self._private = private

    async def push_set(self, request: VerbRequest) -> PushReply:
        """Tell a receiver.

        Raises `Refused` (push_url_refused, unknown_turn, too_many_receivers), or `Limited` (pushes_full).
        """
        body = request.parse(PushSetRequest)
        await destination(body.url, self._names, request.project_id, private=self._private)
        await self._pool.run(
            lambda conn: set_receiver(
                conn,
                request.project_id,
                request.channel_id,
                body.agent_turn_id,
                body.receiver_id,
                url=body.url,
                token=body.token,
                maker=request.maker(self._admission),
            )
        )
        hit(Fault.RECEIVER_SET)
        return _accepted(body)

    async def push_remove(self, request: VerbRequest) -> PushReply:
        """Tell a receiver no more."""
        body = request.parse(PushRemoveRequest)
        where = request.project_id, request.channel_id, body.agent_turn_id, body.receiver_id
        await self._pool.run(lambda conn: remove_receiver(conn, *where))
        hit(Fault.RECEIVER_REMOVED)
        return _accepted(body)


def _accepted(request: PushSetRequest | PushRemoveRequest) -> PushReply:
    status, turn, receiver = ReplyStatus.ACCEPTED, request.agent_turn_id, request.receiver_id
    return PushReply(status=status, agent_turn_id=turn, receiver_id=receiver)
