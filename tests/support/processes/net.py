"""A safety net whose rules run when a test calls them, with all ages set to zero.

With `STILL` the safety net of the stack's own bridge does not run, so that damage stays until the test's net mends it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from tests.support.conditions import until
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.tenants import ALICE, CHANNEL, Tenant, turn_of
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.publisher import NatsPublisher
from turnstile.bridge.safety.rules import Rules, WatchdogTimes
from turnstile.bridge.safety.watchdog import RuleReport, Watchdog
from turnstile.ledger.operations.recovery import list_repairs
from turnstile.ledger.operations.sweep import touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.intake import enqueue
from turnstile.ledger.turns.lease import Claim, LiveTurn, claim_inbox
from turnstile.ledger.turns.views import locate_turn
from turnstile.ledger.turns.waiting import report
from turnstile.processes.bridge import safety_rules
from turnstile.processes.connections import Servers
from turnstile.schema.ids import AgentId, AgentTurnId, ToolCallId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.inbox import EnqueueRequest, ReportRequest
from turnstile.workflows.options import turn_workflow_id

STILL: Config = {**QUICK, "bridge": {**QUICK["bridge"], "poll_interval_seconds": 3600}}
AT_ONCE = WatchdogTimes(
    poll_interval=0.1,
    engine_interval=0.1,
    inbox_processing_timeout=0,
    pending_wakeup=0,
    dispatched_retry=0,
    dispatched_timeout=0.001,
    active_reap=0,
    unannounced=0,
    overdue=0,
    stop_grace=0,
    command_retry=0,
)
AGO = timedelta(hours=1)
OPEN, COMPLETED, FAILED, TERMINATED = (
    WorkflowExecutionStatus.RUNNING,
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.TERMINATED,
)


@dataclass(frozen=True)
class Net:
    """The rules of one bridge."""

    rules: Rules

    async def look(self, name: str, *, dry_run: bool = False) -> RuleReport:
        """Run this rule; returns what it found and mended."""
        [swept] = await self.watchdog(name).once(dry_run=dry_run)
        return swept

    def watchdog(self, *names: str) -> Watchdog:
        """A watchdog with these rules, or with all."""
        watchdog = Watchdog(self.rules.pool, self.rules)
        watchdog._rules = [rule for rule in watchdog._rules if not names or rule.name in names]
        return watchdog

    async def finds(self, name: str, turn: AgentTurnId) -> RuleReport:
        """Run the rule until it finds this turn; returns what that run mended.

        Visibility may lag, and a workflow that was just started looks silent between its first tasks only, so what one
        look found need not be there at the next.
        """
        looks: list[RuleReport] = []

        async def found() -> bool:
            looks.append(await self.look(name))
            return f"agent_turn_id={turn}" in looks[-1].ids

        await until(found, 25, f"{name} finds {turn}")
        return looks[-1]


def net_of(stack: Stack, times: WatchdogTimes = AT_ONCE, *targets: str) -> Net:
    """The safety net of an additional bridge, which serves these targets beside the stack's."""
    served = ServedTargets([*stack.settings.worker.worker_targets, *targets])
    servers = Servers(stack.settings, stack.pool, stack.conn, stack.temporal)
    rules = safety_rules(servers, served, NatsPublisher(stack.conn))
    return Net(replace(rules, times=times))


async def pass_time(tenant: Tenant, by: timedelta = AGO) -> None:
    """Shift the project's times, and every worker's first sign of life, into the past; deadlines stay."""
    for statement in (
        "UPDATE state.agent_state_head SET updated_at = updated_at - $1::interval WHERE project_id = $2",
        "UPDATE state.turn_outcomes SET ended_at = ended_at - $1::interval WHERE project_id = $2",
        "UPDATE state.workers SET started_at = started_at - $1::interval WHERE $2::text IS NOT NULL",
    ):
        await tenant.rows(statement, by, tenant.project)


async def sign_on(stack: Stack, instance: str = "somebody") -> None:
    """Record a live worker."""
    await stack.pool.run(lambda conn: touch_worker(conn, instance, stack.settings.worker.worker_targets))


async def nobody_serves(stack: Stack) -> None:
    """Delete all rows of workers."""
    async with stack.pool.connection() as conn:
        await conn.fetch("DELETE FROM state.workers")


async def repairs(pool: Pool) -> dict[str, int]:
    """The number of repairs of each rule, according to the ledger."""
    return {each.rule: each.repaired for each in await pool.run(list_repairs)}


async def in_hand(tenant: Tenant, turn: AgentTurnId) -> LiveTurn:
    """The live turn, from its agent's head."""
    found = await tenant.pool.run(lambda conn: locate_turn(conn, tenant.project, turn))
    assert found is not None
    return found


def workflow(stack: Stack, turn: AgentTurnId, run: str | None = None) -> WorkflowHandle[Any, Any]:
    """The workflow of a turn, or one run of it."""
    return stack.temporal.get_workflow_handle(turn_workflow_id(turn), run_id=run)


async def status_of(stack: Stack, turn: AgentTurnId, run: str | None = None) -> WorkflowExecutionStatus | None:
    """The status of the turn's workflow in Temporal; None if there is none."""
    try:
        return (await workflow(stack, turn, run).describe()).status
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise


async def until_status(stack: Stack, turn: AgentTurnId, *wanted: WorkflowExecutionStatus | None) -> None:
    """Wait until the turn's workflow has one of these statuses; None means that there is no workflow."""

    async def there() -> bool:
        return await status_of(stack, turn) in wanted

    await until(there, 25, f"the workflow of {turn} is {wanted}")


async def terminate(stack: Stack, *turns: AgentTurnId) -> None:
    """Terminate the workflows of these turns, and wait until they are not visible any more."""
    await asyncio.gather(*(workflow(stack, turn).terminate() for turn in turns))
    await until_invisible(stack, *turns)


async def visible(stack: Stack) -> set[AgentTurnId]:
    """The turns of the stack's targets with an open workflow, according to visibility."""
    reconciler = net_of(stack).rules.reconciler
    return set(await reconciler.visibility.list_open(reconciler.served.now()))


async def until_invisible(stack: Stack, *turns: AgentTurnId) -> None:
    """Wait until visibility, which lags, does not list their workflows as open."""

    async def gone() -> bool:
        return not set(turns) & await visible(stack)

    await until(gone, 25, "the workflows are not visible")


async def delete(stack: Stack, turn: AgentTurnId) -> None:
    """Delete the turn's workflow from Temporal."""
    execution = WorkflowExecution(workflow_id=turn_workflow_id(turn))
    request = DeleteWorkflowExecutionRequest(namespace=stack.temporal.namespace, workflow_execution=execution)
    await stack.temporal.workflow_service.delete_workflow_execution(request)
    await until_status(stack, turn, None)
    await until_invisible(stack, turn)


async def restarts(tenant: Tenant, turns: Sequence[AgentTurnId]) -> list[int]:
    """The number of restarts of each live turn."""
    return [(await in_hand(tenant, turn)).restart_count for turn in turns]


async def unheard(tenant: Tenant, agent: AgentId = ALICE, instruction: str = "hello") -> AgentTurnId:
    """Lease a turn without publishing its doorbell."""
    request = EnqueueRequest(agent_id=agent, instruction=instruction)
    enqueued = await enqueue(tenant.pool, tenant.project, CHANNEL, request, {}, depth_limit=20, sender="user.test")
    return turn_of(enqueued.reply)


async def claim(tenant: Tenant) -> list[Claim]:
    """Claim the due rows of the project's agents, like a bridge that dies after the claim."""
    agents = await tenant.rows("SELECT agent_id FROM resource.project_agents WHERE project_id = $1", tenant.project)
    keys = [(tenant.project, row["agent_id"]) for row in agents]
    targets = tenant.stack.settings.worker.worker_targets
    return await tenant.pool.run(lambda conn: claim_inbox(conn, keys, targets, row_limit=9))


async def claimed_report(tenant: Tenant, call: ToolCallId) -> None:
    """Store and claim a report without signalling the turn's workflow."""
    await report(
        tenant.pool, tenant.project, ReportRequest(tool_call_id=call, status=TurnStatus.SUCCESS, result="found")
    )
    assert [claimed.verdict for claimed in await claim(tenant)] == ["signal"]
