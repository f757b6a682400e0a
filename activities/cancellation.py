"""Why an activity was cancelled: because its turn is to stop, or for a reason that leaves the turn to another run.

A server that pushes cancellations tells of a terminated workflow in the words of a stop. But only an open workflow
stops its turn, and it waits for the activity; so the engine is asked: one call, at a stop. If it does not answer, the
turn is not ended here.
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
    if info.workflow_id is None:
        return False
    run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    try:
        found = await run.describe(rpc_timeout=_RPC_TIMEOUT)
    except (RPCError, OSError):
        return False
    return found.status is WorkflowExecutionStatus.RUNNING
