"""The audit's rules on Temporal: each live turn has an open workflow, and no turn that is over has one.

Changes nothing. A visibility query finds suspects; since visibility lags, `describe` confirms each, and the ledger is
queried again, so that a turn that ended meanwhile is not reported. `EngineBounds` leaves the safety net time to mend
both first. Workflows of turns that this ledger does not know are ignored: several databases may share a Temporal.
Costs a page of visibility for a thousand open workflows, and a call for each suspect.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.safety.visibility import OPEN_TURNS, RPC_TIMEOUT, for_each, list_executions
from turnstile.ledger.operations.audit import (
    Audit,
    AuditedTurn,
    RuleResult,
    Scope,
    Violation,
    list_ended_turns,
    list_expected_workflows,
)
from turnstile.ledger.pool import Pool
from turnstile.schema.ids import AgentTurnId
from turnstile.workflows import options

_SECTION = "§8 engine"
LOST = "turns_have_their_workflow"
OVER = "workflows_have_their_turn"
SENTENCES = {LOST: "a live turn has an open workflow.", OVER: "a turn that is over has no open workflow."}
_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class EngineBounds:
    """How long ledger and engine may differ, in seconds, including the time that the safety net needs."""

    fresh_seconds: float = 10.0
    """A head that changed less than this ago is not checked."""
    claimed_seconds: float = 60.0
    """How long after its claim a turn may be without a workflow."""
    closed_seconds: float = 60.0
    """How long after its workflow closed a live turn may be without another one."""
    over_seconds: float = 180.0
    """How long a workflow may be open after its turn's end: once a minute the safety net cancels, then terminates."""


@dataclass(frozen=True, slots=True)
class _Workflow:
    """Temporal's description of a turn's latest workflow; `closed_at` is None while it is open or unknown."""

    status: str
    is_open: bool
    closed_at: datetime | None


async def audit_engine(pool: Pool, client: Client, scope: Scope, bounds: EngineBounds, *, row_limit: int) -> Audit:
    """Check both rules for a project, or all; raises `ServerUnavailable` if ledger or engine is away."""
    engine = _Engine(pool, client, scope, bounds)
    began = time.monotonic()
    visible = await engine.visible()
    lost = await engine.lost(visible)
    middle = time.monotonic()
    over = await engine.over(visible)
    rules = {LOST: (lost, middle - began), OVER: (over, time.monotonic() - middle)}
    results = [
        RuleResult(
            rule=rule,
            section=_SECTION,
            says=SENTENCES[rule],
            violations=min(len(broken), row_limit),
            cut=len(broken) > row_limit,
            seconds=round(seconds, 3),
        )
        for rule, (broken, seconds) in rules.items()
    ]
    return Audit(results, [turn for broken, _ in rules.values() for turn in broken[:row_limit]])


@dataclass(frozen=True, slots=True)
class _Engine:
    pool: Pool
    client: Client
    scope: Scope
    bounds: EngineBounds

    async def visible(self) -> set[AgentTurnId]:
        """The turns with an open workflow, according to visibility."""
        return {
            options.turn_of(execution.execution.workflow_id)
            for execution in await list_executions(self.client, OPEN_TURNS)
        }

    async def lost(self, visible: set[AgentTurnId]) -> list[Violation]:
        """Live turns without an open workflow."""
        suspects = [turn for turn in await self._live_turns() if turn.agent_turn_id not in visible]
        flows = await for_each(suspects, self._describe)
        since = datetime.now(UTC) - timedelta(seconds=self.bounds.closed_seconds)
        lost = {
            (turn.agent_turn_id, turn.turn_epoch): flow
            for turn, flow in zip(suspects, flows, strict=True)
            if not flow.is_open and (flow.closed_at is None or flow.closed_at < since)
        }
        still = await self._live_turns() if lost else []
        return [
            _violation(LOST, turn, f"the head is {turn.status}, and the workflow {flow.status}")
            for turn in still
            if (flow := lost.get((turn.agent_turn_id, turn.turn_epoch))) is not None
        ]

    async def over(self, visible: set[AgentTurnId]) -> list[Violation]:
        """Turns that are over and have an open workflow."""
        names = sorted(visible)
        suspects = [
            turn for start in range(0, len(names), _PAGE) for turn in await self._ended(names[start : start + _PAGE])
        ]
        flows = await for_each(suspects, self._describe)
        return [
            _violation(OVER, turn, f"the turn ended as {turn.status}, and its workflow is open")
            for turn, flow in zip(suspects, flows, strict=True)
            if flow.is_open
        ]

    async def _live_turns(self) -> list[AuditedTurn]:
        project, fresh, claimed = self.scope.project_id, self.bounds.fresh_seconds, self.bounds.claimed_seconds
        return await self.pool.run(
            lambda conn: list_expected_workflows(conn, project, fresh_seconds=fresh, claimed_seconds=claimed)
        )

    async def _ended(self, turns: Sequence[AgentTurnId]) -> list[AuditedTurn]:
        project, older = self.scope.project_id, self.bounds.over_seconds
        return await self.pool.run(lambda conn: list_ended_turns(conn, project, turns, older_seconds=older))

    async def _describe(self, turn: AuditedTurn) -> _Workflow:
        handle = self.client.get_workflow_handle(options.turn_workflow_id(turn.agent_turn_id))
        try:
            execution = await handle.describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return _Workflow("is missing", is_open=False, closed_at=None)
            raise
        status = "unknown" if execution.status is None else execution.status.name.lower()
        return _Workflow(f"is {status}", execution.status is WorkflowExecutionStatus.RUNNING, execution.close_time)


def _violation(rule: str, turn: AuditedTurn, detail: str) -> Violation:
    ids = {"project_id": turn.project_id, "agent_id": turn.agent_id, "agent_turn_id": turn.agent_turn_id}
    workflow = options.turn_workflow_id(turn.agent_turn_id)
    return Violation(rule=rule, section=_SECTION, ids=ids | {"workflow_id": workflow}, detail=detail)
