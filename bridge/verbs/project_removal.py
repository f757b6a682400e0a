"""Removal of a project's turns and workflows before its ledger rows are removed (docs/operations.md).

Every function may run again: after an interrupted removal it ends or deletes what is left.
"""

import asyncio

from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import ensure_engine
from turnstile.bridge.publishing.stop import fence_stopped, stop_turn
from turnstile.ledger.operations.removal import list_live_turns
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.views import locate_turn
from turnstile.runtime.ports import Publisher
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, ProjectId, token
from turnstile.schema.wire.inbox import StopRequest
from turnstile.workflows import options

_REASON = "the project is being removed"
_POLL_SECONDS = 0.3
_TIMEOUT_SECONDS = 60.0


async def stop_live_turns(pool: Pool, publisher: Publisher, project: ProjectId) -> int:
    """End every queued or live turn without waiting for workers; returns how many."""
    stopped: set[AgentTurnId] = set()
    while live := await pool.run(lambda conn: list_live_turns(conn, project)):
        for turn in reversed(live):  # queued turns first: the end of a live turn would lease the next one
            await stop_turn(pool, publisher, project, StopRequest(agent_turn_id=turn, reason=_REASON))
            stopped_turn = await pool.run(lambda conn, turn=turn: locate_turn(conn, project, turn))
            if stopped_turn is not None:
                await fence_stopped(pool, publisher, stopped_turn)
            stopped.add(turn)
    return len(stopped)


async def count_workflows(client: Client, project: ProjectId) -> int:
    """Number of workflows of the project's turns and threads, open or closed, according to visibility."""
    return len(await _listed(client, project))


async def remove_workflows(client: Client, project: ProjectId) -> int:
    """Terminate and delete the workflows of the project's turns and threads; returns how many.

    Raises `ServerUnavailable` if Temporal is away, or if visibility still shows some after a minute: Temporal deletes
    asynchronously.
    """
    removed: set[tuple[str, str]] = set()
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            while flows := await _listed(client, project):
                for flow in flows:
                    await _remove(client, flow)
                removed |= {(flow.id, flow.run_id) for flow in flows}
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise ServerUnavailable(f"Temporal still shows workflows of project {project}: run it again") from None
    return len(removed)


async def _listed(client: Client, project: ProjectId) -> list[WorkflowExecution]:
    await ensure_engine(client)
    condition = f"{options.TURN_PROJECT.name} = '{token(project, 'project')}'"
    try:
        return [flow async for flow in client.list_workflows(condition, page_size=1000)]
    except (RPCError, OSError) as error:
        raise ServerUnavailable(f"Temporal: {error}") from error


async def _remove(client: Client, flow: WorkflowExecution) -> None:
    execution = Execution(workflow_id=flow.id, run_id=flow.run_id)
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=execution)
    try:
        if flow.status is WorkflowExecutionStatus.RUNNING:
            await client.get_workflow_handle(flow.id, run_id=flow.run_id).terminate(reason=_REASON)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # not found: it has closed meanwhile
            raise ServerUnavailable(f"Temporal: {error}") from error
    try:
        await client.workflow_service.delete_workflow_execution(request)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # not found: deleted, but still visible
            raise ServerUnavailable(f"Temporal: {error}") from error
