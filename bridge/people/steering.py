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
from turnstile.schema.wire.events import Address, steer_events


async def steer_turn(pool: Pool, publisher: Publisher, request: VerbRequest) -> SteerReply:
    """Accept what the caller says to a turn; a request under the same correlation is accepted once."""
    wanted, caller = request.parse(SteerRequest), request.named_caller()
    done = await steer(pool, request.project_id, request.channel_id, wanted, caller)
    hit(Fault.STEER_COMMITTED)
    turn = wanted.agent_turn_id
    await publish_steer(publisher, request.project_id, turn, done)
    hit(Fault.STEER_PUBLISHED)
    return SteerReply(
        status=ReplyStatus.ACCEPTED,
        agent_turn_id=turn,
        steer_id=done.steer_id,
        steer_status=done.steer_status,
        duplicate=not done.is_new,
    )


async def publish_steer(publisher: Publisher, project: ProjectId, turn: AgentTurnId, done: AcceptedSteer) -> None:
    """Publish that the steer waits, if it is new."""
    if done.is_new:
        named = (project, done.channel_id, done.agent_id, turn)
        address = Address(*named, turn_epoch=0, context=done.context_headers, sender=SENDER)
        await publish_best_effort(publisher, *steer_events(address, turn, [done.steer_id], done.steer_status))
