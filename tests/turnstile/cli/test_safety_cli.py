"""`turnstile watchdog` and `turnstile rebuild-engine`: the safety net by hand, on a stack whose bridge does not run."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.agents import begin, finish
from tests.support.ledger.calls import suspend
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import (
    OPEN,
    claim,
    in_hand,
    pass_time,
    repairs,
    status_of,
    terminate,
    unheard,
)
from tests.support.processes.stack import Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.turnstile.support import Ran, turnstile
from turnstile.ledger.operations.recovery import record_repairs
from turnstile.schema.ids import AgentTurnId


@pytest.fixture
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """A stack of which nothing runs."""
    async with stacks.open() as opened:
        yield opened
        async with opened.pool.connection() as conn:
            await assert_invariants(conn)


@pytest.fixture
async def tenant(stack: Stack) -> Tenant:
    """A project with an agent."""
    tenant = new_tenant(stack)
    await tenant.agent("plain")
    return tenant


async def run(stack: Stack, *words: str, **variables: str) -> Ran:
    """A command with the stack's settings."""
    return await turnstile(*words, "--config", stack.config, cwd=stack.directory, **variables)


async def ended(tenant: Tenant) -> AgentTurnId:
    """A turn that ended in the ledger alone, an hour ago."""
    turn = await unheard(tenant)
    [claimed] = await claim(tenant)
    await begin(tenant.pool, claimed.turn())
    await finish(tenant.pool, claimed.turn())
    await pass_time(tenant)
    return turn


async def asleep(tenant: Tenant) -> AgentTurnId:
    """A turn that waits for a call, and of which the engine knows nothing: it has lost its data."""
    turn = await unheard(tenant)
    [claimed] = await claim(tenant)
    await begin(tenant.pool, claimed.turn())
    await suspend(tenant.pool, claimed.turn(), f"call-{turn}")
    return turn


async def written(stack: Stack) -> list[str]:
    """Every row that the rules may change."""
    tables = ("agent_inbox", "agent_state_head", "turn_waiting_tools", "turn_outcomes", "duties", "repairs")
    async with stack.pool.connection() as conn:
        found = [await conn.fetch(f"SELECT x.*, x.xmin::text FROM state.{table} x") for table in tables]  # noqa: S608 -- above
    return [str(row) for rows in found for row in rows]


def rows(ran: Ran) -> list[list[str]]:
    """The cells of the table that it printed."""
    lines = [line.replace("┃", "│").split("│")[1:-1] for line in ran.out.splitlines()]
    return [[cell.strip() for cell in line] for line in lines if line]


async def test_what_was_mended_is_shown_by_rule(stack: Stack) -> None:
    ran = await run(stack, "watchdog")
    assert (ran.code, ran.out, ran.err.strip()) == (0, "", "no repairs")
    await stack.pool.run(lambda conn: record_repairs(conn, {"engine": 3, "doorbell": 12}))
    ran, told = await asyncio.gather(run(stack, "watchdog"), run(stack, "watchdog", "--json"))
    assert (ran.code, told.code) == (0, 0)
    assert [row[:2] for row in rows(ran)] == [["rule", "mended"], ["doorbell", "12"], ["engine", "3"]]
    assert [(each["rule"], each["repaired"]) for each in told.json()] == [("doorbell", 12), ("engine", 3)]


async def test_a_dry_run_says_what_would_be_mended_and_changes_nothing(tenant: Tenant, stack: Stack) -> None:
    turn, lost = await ended(tenant), await asleep(tenant)
    await pass_time(tenant)
    before = await written(stack)
    dry = ("watchdog", "--once", "--dry-run")
    ran, told = await asyncio.gather(run(stack, *dry), run(stack, *dry, "--json"))
    assert (ran.code, told.code) == (0, 0), ran.err
    assert "the safety net, dry" in ran.out
    for line in (f"unannounced  agent_turn_id={turn}", f"engine  agent_turn_id={lost}"):
        assert line in ran.out.splitlines()
    swept = told.json()
    assert swept["unannounced"] == {"found": [f"agent_turn_id={turn}"], "mended": 0, "failed": None}
    assert {rule for rule, each in swept.items() if each["found"]} == {"unannounced", "engine"}
    assert await written(stack) == before


async def test_a_dry_run_without_a_run_says_what_to_add(stack: Stack) -> None:
    ran = await run(stack, "watchdog", "--dry-run")
    assert ran.code == 2
    assert "needs --once" in ran.err


async def test_each_rule_is_run_once(tenant: Tenant, stack: Stack) -> None:
    turn = await ended(tenant)
    ran = await run(stack, "watchdog", "--once")
    assert ran.code == 0, ran.err
    shown = {row[0]: row[1:] for row in rows(ran)}
    assert shown["rule"] == ["found", "mended", "so far", "failed"]
    assert shown["unannounced"] == ["1", "1", "1", ""]
    assert set(shown["claims"][:3]) == {"0"}
    assert f"unannounced  agent_turn_id={turn}" in ran.out.splitlines()
    assert await tenant.task_events() == {turn: 1}
    assert await repairs(stack.pool) == {"unannounced": 1}


async def test_a_rule_that_cannot_look_makes_the_exit_code_1(tenant: Tenant, stack: Stack) -> None:
    turn = await ended(tenant)
    async with stack.pool.connection() as conn:
        await conn.execute("ALTER TABLE state.workers RENAME TO workers_of_before")
    ran = await run(stack, "watchdog", "--once", "--json")
    async with stack.pool.connection() as conn:
        await conn.execute("ALTER TABLE state.workers_of_before RENAME TO workers")
    assert ran.code == 1
    failed = {rule: swept["failed"] for rule, swept in ran.json().items() if swept["failed"] is not None}
    assert failed == dict.fromkeys(("resume", "clock", "dispatched_reap", "running_reap"), "UndefinedTableError")
    assert await tenant.task_events() == {turn: 1}


async def test_a_server_that_is_away_is_named_and_not_waited_for_without_end(stack: Stack) -> None:
    away = {"TURNSTILE__TEMPORAL__ADDRESS": "127.0.0.1:1", "TURNSTILE__DATABASE__PATIENCE_SECONDS": "1"}
    for ran in await asyncio.gather(run(stack, "watchdog", "--once", **away), run(stack, "rebuild-engine", **away)):
        assert ran.code == 3
        assert "Temporal at 127.0.0.1:1 did not answer within 1 s" in ran.err


async def test_an_engine_that_lost_its_data_is_rebuilt(tenant: Tenant, stack: Stack) -> None:
    turn = await asleep(tenant)
    before = await written(stack)
    ran = await run(stack, "rebuild-engine", "--dry-run", "--json")
    assert ran.json() == {"lost": [turn], "started": 0}
    assert (ran.code, await status_of(stack, turn), await written(stack)) == (0, None, before)
    ran = await run(stack, "rebuild-engine")
    assert rows(ran)[1][:4] == [turn, ALICE, tenant.project, "suspended"]
    assert "1 of 1 started again" in ran.out
    assert (ran.code, await status_of(stack, turn)) == (0, OPEN)
    assert (await in_hand(tenant, turn)).restart_count == 0
    ran = await run(stack, "rebuild-engine")
    assert "no turns without a workflow" in ran.err
    assert (ran.code, ran.out) == (0, "")
    await terminate(stack, turn)
