"""The verb `rerun`: a turn that is over is run again from one of its steps, by a new turn (protocol §6, rerun)."""

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.bridge.verbs.micro_service import VerbRequest
from turnstile.ledger.people.reruns import rerun_turn
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.schema.people.reruns import RerunReply, RerunRequest
from turnstile.schema.wire.limits import Admission, rate_limited


async def run_again(
    pool: Pool, publisher: Publisher, request: VerbRequest, *, depth_limit: int, admission: Admission
) -> RerunReply:
    """Run a turn again; raises as `ledger.people.reruns.rerun_turn` does, and `BadRequest` if no caller is named."""
    caller, wanted = request.named_caller(), request.parse(RerunRequest)
    if request.wait_seconds and wanted.correlation_id is None:
        raise rate_limited(request.wait_seconds)  # without an id it cannot be a repeat, so it is not looked up
    done, of = await rerun_turn(
        pool,
        request.project_id,
        request.channel_id,
        wanted,
        caller,
        request.headers,
        depth_limit=depth_limit,
        admission=admission,
    )
    hit(Fault.RERUN_COMMITTED)
    if (lease := done.lease) is not None:
        await publish_best_effort(publisher, lease.dispatched(SENDER), lease.doorbell(SENDER, "enqueue"))
    hit(Fault.RERUN_PUBLISHED)
    return RerunReply.model_validate({**done.reply.model_dump(), "rerun_of": of.of, "from_step": of.from_step})
