"""Doorbells of a process that serves their target: its claim queue has their agents at once (protocol §5).

The message goes out besides, as any doorbell does: it costs a publish and no wait. The bridge of this process will hear
it and knows by the row's id that no claim is needed (`ClaimQueue.rings`). Another bridge that hears it looks for the
row, so the row waits for no poll if this process dies.
"""

from collections.abc import Sequence

from turnstile.bridge.inbox.claim_queue import ClaimQueue
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.runtime.ports import Publisher
from turnstile.schema.wire.events import Doorbell, Message


class LocalDoorbells:
    """A publisher that wraps another one, which publishes all messages."""

    def __init__(self, publisher: Publisher, claims: ClaimQueue, served: ServedTargets) -> None:
        self._publisher = publisher
        self._claims = claims
        self._served = served

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publish, then queue the agents that doorbells for targets served here name, but for claimed rows."""
        served = self._served.now() if self._claims.runs else ()
        near = [message for message in messages if isinstance(message, Doorbell) and message.worker_target in served]
        self._claims.rings(ring.inbox_id for ring in near)
        try:
            await self._publisher.publish(messages)
        finally:
            self._claims.offer([(ring.project_id, ring.agent_id) for ring in near if not ring.claimed], "doorbell")

    async def emit(self, message: Message) -> None:
        """Emit by the wrapped publisher."""
        await self._publisher.emit(message)
