"""Doorbells: messages that say "look at the inbox" (protocol §5, §6), handed to the claims at once.

They are never held up by a claim, so that one behind ten thousand of another project's is heard at once.
Always acknowledged, whatever comes of the claim: the watchdog's poll is the truth, so a lost or refused doorbell costs
seconds and no turn. One that cannot be read is terminated and counted.
"""

import asyncio
import logging
from functools import partial

from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.ledger.turns.lease import AgentKey
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId, token
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Wakeup
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import declare_wakeups, wakeup_consumer

log = logging.getLogger(__name__)


class Doorbells:
    """Hears the doorbells of one worker target."""

    def __init__(self, conn: NatsConnection, claims: ClaimQueue, worker_target: str) -> None:
        self._claims = claims
        ensure = partial(declare_wakeups, conn, worker_target)
        self._pull = ContinuousPull(conn, subjects.CMD_STREAM, wakeup_consumer(worker_target), ensure)
        self.undecodable = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`; raises `ServerUnavailable` when the connection is gone for good."""
        await self._pull.run(self._handle, stop)

    async def _handle(self, messages: list[Msg]) -> None:
        agents: list[AgentKey] = []
        for message in messages:
            try:
                agents.append(_agent(message))
                await message.ack()
            except BadRequest as error:
                self.undecodable += 1
                log.warning("a doorbell cannot be read: %s", error)
                await message.term()
            except NATS_TROUBLE as error:
                log.debug("a doorbell was not acknowledged: %s", type(error).__name__)
        self._claims.offer(agents, "doorbell")


def _agent(message: Msg) -> AgentKey:
    """Who is rung for: the subject's project, the agent of the payload or the header, which may not differ."""
    subject = subjects.parse(message.subject)
    named = (message.headers or {}).get(headers.AGENT_ID)
    agent = named
    if message.data:
        try:
            agent = Wakeup.model_validate_json(message.data).agent_id
        except ValidationError:
            if named is None:
                raise BadRequest("it names no agent") from None
    if agent is None:
        raise BadRequest("it names no agent")
    if named is not None and named != agent:
        raise BadRequest("payload and header name different agents")
    return subject.project_id, AgentId(token(agent, "agent_id"))
