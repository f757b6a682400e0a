"""`audit --engine` on real servers: quiet while turns run, and told where ledger and engine have come apart."""

import asyncio
import json

from temporalio.client import WorkflowHandle

from tests.support.conditions import until
from tests.support.processes.stack import Stack, running_here
from tests.support.tenants import Tenant, new_tenant, turn_of
from tests.support.tools import Hand, call_of, calling, hand_of
from tests.turnstile.support import turnstile
from turnstile.bridge.safety.engine_audit import LOST, OVER, EngineBounds, audit_engine
from turnstile.ledger.operations.audit import Bounds, Scope, Violation, audit
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.views import locate_turn
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn

AT_ONCE = EngineBounds(fresh_seconds=0, claimed_seconds=5, closed_seconds=0, over_seconds=0)
SOON = EngineBounds(fresh_seconds=0, claimed_seconds=5, closed_seconds=0, over_seconds=5)
"""A workflow closes a moment after its turn's end."""


async def found(stack: Stack, scope: Scope | None = None, bounds: EngineBounds = AT_ONCE) -> list[Violation]:
    """What the audit finds in ledger and engine, of all projects unless the scope names one."""
    scope = scope or Scope()
    ledger = await audit(stack.pool, scope, Bounds(), row_limit=20)
    engine = await audit_engine(stack.pool, stack.temporal, scope, bounds, row_limit=20)
    assert {rule.rule for rule in engine.rules} == {LOST, OVER}
    return [*ledger.violations, *engine.violations]


async def test_an_audit_is_quiet_while_turns_run(stack: Stack) -> None:
    tenant = new_tenant(stack)
    async with running_here(stack):
        agents = await tenant.agents("plain", 4)
        async with hand_of(tenant) as hand:
            turning = asyncio.create_task(_turn(tenant, hand, agents))
            audits = 0
            while not turning.done():
                assert await found(stack, bounds=SOON) == []
                audits += 1
            await turning
    assert audits > 2
    assert await found(stack) == []


async def _turn(tenant: Tenant, hand: Hand, agents: list[AgentId]) -> None:
    """Turns one after the other and at once, a call answered at its leisure, and a turn that is stopped."""
    for _ in range(3):
        asleep = await hand.suspended(calling("search"))
        asked = [turn_of(await tenant.enqueue(agent)) for agent in agents for _ in range(3)]
        await tenant.client.request("stop", {"agent_turn_id": asked[-1]})
        for turn in asked:
            await tenant.ended(turn)
        await hand.report(call_of(asleep))
        await tenant.ended(asleep)


async def _sleepers(stack: Stack, count: int) -> tuple[Tenant, list[AgentTurnId]]:
    """Turns that sleep while neither worker nor bridge is there."""
    tenant = new_tenant(stack)
    turns: list[AgentTurnId] = []
    async with running_here(stack):
        for number in range(count):
            async with hand_of(tenant, agent=AgentId(f"sleeper-{number}")) as hand:
                turns.append(await hand.suspended(calling("search")))
    return tenant, turns


def _workflow(stack: Stack, turn: AgentTurnId) -> WorkflowHandle[AgentTurn, object]:
    return stack.temporal.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn))


async def test_ledger_and_engine_apart_are_told(stack: Stack) -> None:
    tenant, (kept, terminated, ended) = await _sleepers(stack, 3)
    project = Scope(tenant.project)
    assert await found(stack, project) == []
    await _workflow(stack, terminated).terminate()
    turn = await stack.pool.run(lambda conn: locate_turn(conn, tenant.project, ended))
    assert turn is not None
    await fence(stack.pool, turn, TurnStatus.FAILED, "reaped", "reaped")
    await _stranger(stack)

    async def apart() -> list[Violation] | None:
        told = [each for each in await found(stack, project) if each.rule in {LOST, OVER}]
        return told if len(told) == 2 else None

    lost, over = await until(apart, 25, "both are told")  # visibility lags
    assert (lost.rule, lost.ids["agent_turn_id"], lost.ids["agent_id"]) == (LOST, terminated, "sleeper-1")
    assert lost.detail == "the head is suspended, and the workflow is terminated"
    assert (over.rule, over.ids["workflow_id"]) == (OVER, f"turn-{ended}")
    assert over.detail == "the turn ended as failed, and its workflow is open"
    assert kept not in {each.ids["agent_turn_id"] for each in (lost, over)}
    assert await found(stack, Scope(ProjectId("another"))) == []
    assert await found(stack, project, EngineBounds()) == []  # the safety net still has its time

    config = ("--config", stack.config, "--project", tenant.project)
    ran = await turnstile("audit", "--engine", "--json", *config, cwd=stack.directory)
    report = json.loads(ran.out)
    assert (ran.code, report["clean"], report["violations"]) == (0, True, [])
    assert {LOST, OVER} < {each["rule"] for each in report["rules"]}
    await _mend(stack, ended)


async def _stranger(stack: Stack) -> None:
    """The open workflow of a turn that this ledger does not know."""
    turn = dict.fromkeys(("channel_id", "inbox_id", "profile_box_id", "context_box_id", "output_box_id"), "x")
    turn |= {"project_id": "another", "agent_id": "a", "agent_turn_id": uuid7(), "trace_id": "x", "worker_target": "x"}
    workflow = options.turn_workflow_id(AgentTurnId(turn["agent_turn_id"]))
    await stack.temporal.start_workflow("AgentTurn", {**turn, "turn_epoch": 1}, id=workflow, task_queue="nobody")


async def _mend(stack: Stack, ended: AgentTurnId) -> None:
    await _workflow(stack, ended).terminate()
    async with stack.pool.connection() as conn:
        await conn.execute("UPDATE state.turn_outcomes SET announced_at = now()")
