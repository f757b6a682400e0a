"""Why an activity was cancelled: because its turn is to stop, or for a reason that leaves the turn to another run.

A server that pushes cancellations tells of a terminated workflow in the words of a stop. But only an open workflow
stops its turn, and it waits for the activity; so the engine is asked: one call, at a stop. If it does not answer, the
turn is not ended here.

A local activity is never stopped. Our workflows cancel none; the SDK does, in the words of a request, whenever it drops
a workflow from its cache: because the workflow task timed out, or for want of room. The workflow is open then, and its
next task runs the activity again. A stop reaches the workflow as a signal, which ends the turn after that.
"""

from datetime import timedelta

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

_RPC_TIMEOUT = timedelta(seconds=5)


async def is_stopped() -> bool:
    """Whether this activity was cancelled by its workflow; not by a worker's shutdown, nor because the run is gone."""
    details = activity.cancellation_details()
    if details is None or not details.cancel_requested:
        return False
    info = activity.info()
    if info.is_local or info.workflow_id is None:
        return False
    run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    try:
        found = await run.describe(rpc_timeout=_RPC_TIMEOUT)
    except (RPCError, OSError):
        return False
    return found.status is WorkflowExecutionStatus.RUNNING


def is_given_up() -> bool:
    """Whether the engine waits for this run no longer, as after missed heartbeats; nobody has asked for its end."""
    details = activity.cancellation_details()
    return details is not None and (details.not_found or details.timed_out) and not details.worker_shutdown
