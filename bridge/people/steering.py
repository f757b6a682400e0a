"""The verb `steer`: what somebody says to a turn while it runs (protocol §6, steer).

Nobody is woken: the turn's next step takes what waits. The event that follows the commit is best effort; `describe`
says where a steer stands.
"""

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.people.steers import AcceptedSteer, steer
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.ids import AgentTurnId, ProjectId
from turnstile.schema.people.steers import SteerReply, SteerRequest
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.events import TurnAddress, steer_events


async def steer_turn(pool: Pool, publisher: Publisher, request: VerbRequest) -> SteerReply:
    """Accept what the caller says to a turn; a request under the same correlation is accepted once."""
    body, caller = request.parse(SteerRequest), request.named_caller()
    accepted = await steer(pool, request.project_id, request.channel_id, body, caller)
    hit(Fault.STEER_COMMITTED)
    turn = body.agent_turn_id
    await publish_steer(publisher, request.project_id, turn, accepted)
    hit(Fault.STEER_PUBLISHED)
    return SteerReply(
        status=ReplyStatus.ACCEPTED,
        agent_turn_id=turn,
        steer_id=accepted.steer_id,
        steer_status=accepted.steer_status,
        duplicate=not accepted.is_new,
    )


async def publish_steer(publisher: Publisher, project: ProjectId, turn: AgentTurnId, accepted: AcceptedSteer) -> None:
    """Publish that the steer waits, if it is new."""
    if accepted.is_new:
        named = (project, accepted.channel_id, accepted.agent_id, turn)
        address = TurnAddress(*named, turn_epoch=0, context=accepted.context_headers, sender=SENDER)
        await publish_best_effort(publisher, *steer_events(address, turn, [accepted.steer_id], accepted.steer_status))
