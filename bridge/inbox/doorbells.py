"""Doorbells: messages that say that an agent's inbox has due rows (protocol §5, §6). Each adds its agent to the queue.

Receiving a doorbell never waits for a claim, so ten thousand doorbells of one project do not delay another's.
A doorbell is acknowledged before its claim: if it is lost or the claim fails, the watchdog's poll finds the row some
seconds later. One that this process has published itself needs no claim (`local_doorbells`). One that cannot be read is
terminated and counted.
"""

import asyncio
import logging
from functools import partial

from nats.aio.msg import Msg
from pydantic import ValidationError

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.ledger.turns.lease import AgentKey
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import AgentId, InboxId, token
from turnstile.schema.wire import headers, subjects
from turnstile.schema.wire.events import Wakeup
from turnstile.transport.connection import NATS_TROUBLE, NatsConnection
from turnstile.transport.pull import ContinuousPull
from turnstile.transport.streams import declare_wakeups, wakeup_consumer

log = logging.getLogger(__name__)


class Doorbells:
    """Consumes the doorbells of one worker target."""

    def __init__(self, conn: NatsConnection, claims: ClaimQueue, worker_target: str) -> None:
        self._claims = claims
        ensure = partial(declare_wakeups, conn, worker_target)
        self._pull = ContinuousPull(conn, subjects.CMD_STREAM, wakeup_consumer(worker_target), ensure)
        self.undecodable = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until `stop` is set; raises `ServerUnavailable` when the connection is closed for good."""
        await self._pull.run(self._handle, stop)

    async def _handle(self, messages: list[Msg]) -> None:
        agents: list[AgentKey] = []
        for message in messages:
            try:
                agent, row = _agent(message)
                if not self._claims.has_rung(row):
                    agents.append(agent)
                await message.ack()
            except BadRequest as error:
                self.undecodable += 1
                log.warning("a doorbell cannot be read: %s", error)
                await message.term()
            except NATS_TROUBLE as error:
                log.debug("a doorbell was not acknowledged: %s", type(error).__name__)
        self._claims.offer(agents, "doorbell")


def _agent(message: Msg) -> tuple[AgentKey, InboxId | None]:
    """The agent that a doorbell names, in payload or header or both, with the subject's project; and the row, if any.

    Raises `BadRequest` if it names no agent, or two.
    """
    subject = subjects.parse(message.subject)
    named = (message.headers or {}).get(headers.AGENT_ID)
    agent, row = named, None
    if message.data:
        try:
            wakeup = Wakeup.model_validate_json(message.data)
            agent, row = wakeup.agent_id, wakeup.inbox_id
        except ValidationError:
            if named is None:
                raise BadRequest("it names no agent") from None
    if agent is None:
        raise BadRequest("it names no agent")
    if named is not None and named != agent:
        raise BadRequest("payload and header name different agents")
    return (subject.project_id, AgentId(token(agent, "agent_id"))), row
