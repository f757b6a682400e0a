"""The verb `progress`: how far a tool is with a call that it runs, as `step` events of the call's turn (protocol §6).

Best effort, and nothing is written. What comes faster than `PROGRESS_RATE` is dropped before anything is read; else it
costs the look at the call.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from turnstile.bridge.delegation.tool_requests import checked_call
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.verbs.micro_service import VerbHandler, VerbRequest
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import find_call
from turnstile.runtime.ports import Publisher
from turnstile.runtime.throttle import Throttle
from turnstile.schema.errors import Refused
from turnstile.schema.ids import StepId
from turnstile.schema.states import ReplyStatus, StepPhase
from turnstile.schema.wire.events import Address, StepEvent
from turnstile.schema.wire.progress import PROGRESS_RATE, ProgressReply, ProgressRequest


@dataclass
class ToolProgress:
    """The verb over one ledger. It holds how often each call has told its progress."""

    pool: Pool
    publisher: Publisher
    throttle: Throttle = field(default_factory=lambda: Throttle(PROGRESS_RATE, int(PROGRESS_RATE)))

    def handlers(self) -> Mapping[str, VerbHandler]:
        """The handler by verb."""
        return {"progress": self.progress}

    async def progress(self, request: VerbRequest) -> ProgressReply:
        """Publish the event, or drop it; raises `Refused` if the call is not the sender's, or waits no more."""
        told = request.parse(ProgressRequest)
        if self.throttle.take(f"{request.project_id}/{request.channel_id}/{told.tool_call_id}"):
            return ProgressReply(status=ReplyStatus.ACCEPTED, tool_call_id=told.tool_call_id)
        found = await self.pool.run(lambda conn: find_call(conn, request.project_id, told.tool_call_id))
        call = checked_call(request, found)
        if not call.waits:
            raise Refused("parent_over", "the call waits no more: its turn is over, or it was answered")
        event = StepEvent(
            agent_turn_id=call.agent_turn_id,
            step_id=StepId(call.step_id),
            phase=StepPhase.TOOL_PROGRESS,
            metadata=told.shown(call.tool_name),
        )
        message = Address.of(call, call.context_headers, SENDER).step(event)
        published = await publish_best_effort(self.publisher, message)
        return ProgressReply(status=ReplyStatus.ACCEPTED, tool_call_id=told.tool_call_id, published=published)
