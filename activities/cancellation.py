"""Finds out why an activity was cancelled: to stop its turn, or for a reason after which another run does the turn.

A server that pushes cancellations reports a terminated workflow in the same way as a stop. But only an open workflow
stops its turn, and then it waits for the activity. So `is_stopped` asks the engine whether the workflow is open, with
one call; without an answer, the turn is not ended here.
"""

from datetime import timedelta

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError

_RPC_TIMEOUT = timedelta(seconds=5)


async def is_stopped() -> bool:
    """Whether the workflow cancelled this activity; False for a worker's shutdown, or if the workflow is closed."""
    details = activity.cancellation_details()
    if details is None or not details.cancel_requested:
        return False
    info = activity.info()
    if info.workflow_id is None:
        return False
    run = activity.client().get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
    try:
        execution = await run.describe(rpc_timeout=_RPC_TIMEOUT)
    except (RPCError, OSError):
        return False
    return execution.status is WorkflowExecutionStatus.RUNNING


def is_given_up() -> bool:
    """Whether the engine has given up this run, as after missed heartbeats, without a request to stop."""
    details = activity.cancellation_details()
    return details is not None and (details.not_found or details.timed_out) and not details.worker_shutdown
