"""What Temporal's visibility says of the turns' workflows: how many are open, which are, and which closed lately.

Visibility lags and is no proof: whoever acts describes the workflow and asks the ledger first. A count and a look at
what closed lately cost one call each, however many turns sleep; a list costs a call for every thousand workflows. Close
times are compared with other close times only, so no bridge's clock matters. Everything raises `ServerUnavailable`
while Temporal is away.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    CountWorkflowExecutionsRequest,
    DescribeNamespaceRequest,
    ListWorkflowExecutionsRequest,
)
from temporalio.client import Client
from temporalio.service import RPCError

from turnstile.bridge.engine import ensure_engine
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId
from turnstile.workflows import options

T = TypeVar("T")
V = TypeVar("V")
RPC_TIMEOUT = timedelta(seconds=10)
_PAGE = 1000
_AT_ONCE = 16
OPEN_TURNS = "WorkflowType = 'AgentTurn' AND ExecutionStatus = 'Running'"
_CLOSED_TURNS = (
    "WorkflowType = 'AgentTurn' AND ExecutionStatus IN ('Completed', 'Failed', 'Terminated', 'TimedOut', 'Canceled')"
)


@dataclass(frozen=True, slots=True)
class ClosedRun:
    """A closed run of a turn's workflow; a later run of it may be open."""

    agent_turn_id: AgentTurnId
    run_id: str
    closed_at: datetime


@dataclass(frozen=True, slots=True)
class Visibility:
    """Asks Temporal about the workflows of turns. Holds a client only."""

    client: Client

    async def engine(self) -> str:
        """The id of the namespace; a Temporal that lost its data has another one."""
        await ensure_engine(self.client)
        request = DescribeNamespaceRequest(namespace=self.client.namespace)
        try:
            namespace = await self.client.workflow_service.describe_namespace(request, retry=True, timeout=RPC_TIMEOUT)
        except (RPCError, OSError) as error:
            raise ServerUnavailable(f"Temporal: {error}") from error
        return namespace.namespace_info.id

    async def count_open(self, worker_targets: Sequence[str]) -> int:
        """The number of open workflows of these targets."""
        request = CountWorkflowExecutionsRequest(
            namespace=self.client.namespace, query=f"{OPEN_TURNS} AND {_queues(worker_targets)}"
        )
        try:
            response = await self.client.workflow_service.count_workflow_executions(
                request, retry=True, timeout=RPC_TIMEOUT
            )
        except (RPCError, OSError) as error:
            raise ServerUnavailable(f"Temporal: {error}") from error
        return response.count

    async def list_open(self, worker_targets: Sequence[str]) -> dict[AgentTurnId, WorkflowExecutionInfo]:
        """The open workflows of these targets, by turn."""
        executions = await list_executions(self.client, f"{OPEN_TURNS} AND {_queues(worker_targets)}")
        return {options.turn_of(e.execution.workflow_id): e for e in executions}

    async def list_closed(self, worker_targets: Sequence[str], *, after: datetime | None) -> list[ClosedRun]:
        """The runs of these targets that closed after this close time, or all that Temporal still has."""
        since = "" if after is None else f" AND CloseTime > '{after.isoformat()}'"
        executions = await list_executions(self.client, f"{_CLOSED_TURNS} AND {_queues(worker_targets)}{since}")
        return [_closed(e) for e in executions]

    async def latest_close(self, worker_targets: Sequence[str]) -> datetime | None:
        """When the newest closed run of these targets closed. Temporal lists closed runs newest first."""
        executions = await list_executions(self.client, f"{_CLOSED_TURNS} AND {_queues(worker_targets)}", limit=1)
        return _closed(executions[0]).closed_at if executions else None


async def list_executions(client: Client, query: str, limit: int | None = None) -> list[WorkflowExecutionInfo]:
    """The workflows that match the query, all or the first few.

    The raw call: `Client.list_workflows` would decode search attributes that are not needed.
    """
    request = ListWorkflowExecutionsRequest(namespace=client.namespace, query=query, page_size=limit or _PAGE)
    executions: list[WorkflowExecutionInfo] = []
    try:
        while True:
            page = await client.workflow_service.list_workflow_executions(request, retry=True, timeout=RPC_TIMEOUT)
            executions += page.executions
            if not page.next_page_token or limit is not None:
                return executions
            request.next_page_token = page.next_page_token
    except (RPCError, OSError) as error:
        raise ServerUnavailable(f"Temporal: {error}") from error


async def for_each(items: Sequence[T], action: Callable[[T], Awaitable[V]]) -> list[V]:
    """Call `action` for each item, `_AT_ONCE` at a time; returns the results in order.

    Raises `ServerUnavailable` if Temporal did not answer one of the calls.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> V:
        async with gate:
            return await action(item)

    outcomes = await asyncio.gather(*map(one, items), return_exceptions=True)
    results: list[V] = []
    for outcome in outcomes:
        if isinstance(outcome, RPCError | OSError):
            raise ServerUnavailable(f"Temporal: {outcome}") from outcome
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


def _queues(worker_targets: Sequence[str]) -> str:
    names = ", ".join(f"'{options.task_queue(target)}'" for target in worker_targets)
    return f"TaskQueue IN ({names})"


def _closed(execution: WorkflowExecutionInfo) -> ClosedRun:
    turn = options.turn_of(execution.execution.workflow_id)
    return ClosedRun(turn, execution.execution.run_id, execution.close_time.ToDatetime(UTC))
