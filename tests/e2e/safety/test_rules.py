"""Every rule of the safety net by name: what it finds, what it mends, and that it counts (protocol §8).

The stack's own net does not look; each test does, when something was left behind. What the engine lost (the rules
*engine*, *engine_over*, *engine_unknown* and both reaps) is in `test_reconciler.py` and `test_looks.py`; *outcome*, of
a tool that died, in `tests/sdk/tools/test_unknown_outcomes.py`.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.support.conditions import until
from tests.support.ledger import agents
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.trees import child, parent
from tests.support.people import Person
from tests.support.processes.net import (
    STILL,
    Net,
    claim,
    claimed_report,
    in_hand,
    net_of,
    pass_time,
    repairs,
    sign_on,
    status_of,
    terminate,
    unheard,
)
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import ALICE, Tenant, new_tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile.bridge.safety.watchdog import RuleReport
from turnstile.ledger.trees.batches import Batch, Forked, fork, open_batch
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.waiting import request_stop
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId, InboxId, uuid7
from turnstile.schema.states import TurnStatus

BOB = AgentId("bob")
TEXT: JsonObject = {"text": "done"}
SAID = json.dumps({"steps": [TEXT]})
HERE = {
    *("claims", "dispatched_retry", "resume", "suspended", "stop", "command", "stranded", "doorbell", "unannounced"),
    "orphans",
    *("batch", "batch_due", "interrupts", "marked_queued", "marked", "clock"),
}
ELSEWHERE = {
    *("engine", "engine_over", "engine_unknown", "dispatched_reap", "running_reap", "outcome", "era", "beyond"),
    *("file", "deletion"),
}
THREADS = {"thread", "thread_turn", "thread_reply", "thread_engine"}
"""Of the message pump: in its own tests."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge in this process, whose own net looks once, when they start, and not again."""

    async def has_looked() -> bool:
        async with opened.pool.connection() as conn:
            return bool(await conn.fetch("SELECT FROM state.duties WHERE duty LIKE 'thread_engine:%'"))

    async with stacks.open(STILL) as opened, running_here(opened):
        await until(has_looked, 25, "the bridge's own net took the last of its duties")
        yield opened


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """A project of this test alone; what protocol §2 says holds when it ends.

    Marks of announced ends are gathered for a moment, in which the rule *unannounced* finds an earlier test's turn.
    """
    tenant = new_tenant(stack)

    async def marked() -> bool:
        return not await tenant.rows("SELECT FROM state.turn_outcomes WHERE announced_at IS NULL")

    await until(marked, 25, "all ends of earlier tests are marked")
    yield tenant
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


async def unannounced(tenant: Tenant) -> AgentTurnId:
    """A turn that ended in the ledger alone."""
    turn = await unheard(tenant, instruction=SAID)
    [claimed] = await claim(tenant)
    await agents.begin(tenant.pool, claimed.turn())
    await agents.finish(tenant.pool, claimed.turn())
    return turn


async def mends(net: Net, rule: str, *found: str) -> None:
    """The rule finds these, twice where the first was a dry run, mends each of them, and counts that."""
    before = await repairs(net.rules.pool)
    assert await net.look(rule, dry_run=True) == RuleReport(rule, [*found])
    assert await repairs(net.rules.pool) == before
    assert await net.look(rule) == RuleReport(rule, [*found], len(found))
    assert await repairs(net.rules.pool) == {**before, rule: before.get(rule, 0) + len(found)}


def agent(tenant: Tenant, name: AgentId = ALICE) -> str:
    """An agent as a rule names it."""
    return f"{tenant.project}/{name}"


def test_every_rule_has_its_test(net: Net) -> None:
    assert {rule.name for rule in net.rules.all()} == HERE | ELSEWHERE | THREADS


@pytest.mark.parametrize("rule", ["claims", "dispatched_retry"])
async def test_a_turn_that_a_bridge_claimed_and_did_not_start(tenant: Tenant, net: Net, rule: str) -> None:
    await tenant.agent("player")
    turn = await unheard(tenant, instruction=SAID)
    assert [each.verdict for each in await claim(tenant)] == ["start"]
    await mends(net, rule, agent(tenant))
    assert (await tenant.ended(turn)).view.status == "success"
    assert (await net.look(rule)).ids == []


async def test_a_turn_that_a_tree_took_along_before_it_began_needs_no_workflow(tenant: Tenant, net: Net) -> None:
    """Its row was claimed by a bridge that died; then the batch that it was a task of was decided."""
    await tenant.agent("player")
    turn = await unheard(tenant, instruction=SAID)
    assert [each.verdict for each in await claim(tenant)] == ["start"]
    await tenant.rows(
        "INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES ($1, $2, $1)",
        *(turn, tenant.project),
    )
    await tenant.rows("SELECT state.mark_subtrees(ARRAY[$1], 'batch_decided', 'batch-c1', false, NULL)", turn)
    await mends(net, "doorbell", agent(tenant))
    ended = await tenant.ended(turn)
    assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
    assert await status_of(tenant.stack, turn) is None
    assert await tenant.task_events() == {turn: 1}


async def test_a_turn_whose_doorbell_was_lost(tenant: Tenant, net: Net) -> None:
    await tenant.agent("player")
    turn = await unheard(tenant, instruction=SAID)
    await mends(net, "doorbell", agent(tenant))
    assert (await tenant.ended(turn)).view.status == "success"
    assert (await net.look("doorbell")).ids == []


async def test_a_row_for_an_agent_that_no_roster_has(
    tenant: Tenant, net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    await tenant.rows(
        "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,"
        " turn_epoch, context_headers) VALUES ($1, $1, 'nobody', 'turn', $1, $1, 1, '{\"CG-Sender\": \"mallory\"}')",
        tenant.project,
    )
    await mends(net, "orphans", f"inbox_id={tenant.project}")
    assert (await net.look("orphans")).ids == []
    [row] = await tenant.rows("SELECT * FROM state.agent_inbox WHERE project_id = $1", tenant.project)
    assert (row["status"], row["last_error"]) == ("error", "unknown_agent")
    assert await tenant.count("state.rejections", "source = 'sql:mallory' AND error_code = 'unknown_agent'") == 1
    assert f"by 'mallory' is for agent {tenant.project}/nobody, which no roster has" in caplog.text


async def test_a_report_that_a_bridge_claimed_and_did_not_pass_on(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await claimed_report(tenant, call_of(turn))
        await sign_on(tenant.stack)
        await mends(net, "resume", agent(tenant))
        assert (await hand.ended(turn)).view.status == "success"
        assert (await net.look("resume")).ids == []


async def test_a_deadline_that_the_turns_own_timer_did_not_see_to(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        assert (await net.look("suspended")).ids == []
        for deadline in ("state.turn_waiting_tools SET deadline", "state.agent_state_head SET resume_deadline"):
            await tenant.rows(f"UPDATE {deadline} = now() WHERE project_id = $1", tenant.project)
        await mends(net, "suspended", f"agent_turn_id={turn}")
        [row] = await hand.inbox(call_of(turn), "timeout")
        assert (row["status"], row["defer_reason"]) == ("deferred", "workflow_ended")
        assert (await hand.head())["resume_deadline"] is None
        await pass_time(tenant)
        assert (await net.look("engine")).mended == 1

        async def over() -> bool:
            await net.look("doorbell")  # it was given back for a second: nobody was there to hear it
            return await tenant.count("state.turn_outcomes", "announced_at IS NOT NULL") == 1

        await until(over, 25, "the turn ended")
        ended = await hand.ended(turn)
    assert (ended.view.status, [result[0] for result in ended.results()]) == ("success", ["timeout"])


async def test_a_turn_that_does_not_stop(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        await tenant.pool.run(lambda conn: request_stop(conn, tenant.project, turn, "enough", InboxId(uuid7())))
        await mends(net, "stop", f"agent_turn_id={turn}")
        ended = await hand.ended(turn)
        assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
        assert (await net.look("stop")).ids == []
    assert await tenant.task_events() == {turn: 1}


async def test_a_call_that_nobody_answers(tenant: Tenant, net: Net, caplog: pytest.LogCaptureFixture) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        call = call_of(turn)
        with caplog.at_level("INFO", "turnstile.bridge.safety.watchdog"):
            await mends(net, "command", f"tool_call_id={call}")
        of = f"(call {call}, turn {turn} of {agent(tenant, ALICE)})"
        assert f"safety net: search has not answered for 0 s; sent again {of}" in caplog.messages
        first, second = await hand.called(call, times=2)
        assert first.payload == second.payload
        await hand.report(call)
        assert (await hand.ended(turn)).view.status == "success"
        assert (await net.look("command")).ids == []


async def test_an_agent_whose_box_became_free(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        box = str((await hand.head())["output_box_id"])
        waiting = turn_of(await tenant.enqueue(await tenant.agent("plain", BOB), output_box_id=box))
        assert (await net.look("stranded")).ids == []
        await hand.report(call_of(turn))
        await hand.ended(turn)
        await mends(net, "stranded", agent(tenant, BOB))
        assert (await tenant.ended(waiting)).view.status == "success"
        assert (await net.look("stranded")).ids == []


async def test_children_that_nobody_enqueued(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        call = await parent(tenant.pool, call_of(turn), tenant.project)
        tasks = [child(call, 0, ALICE)]
        await tenant.pool.run(lambda conn: open_batch(conn, call, Batch(900.0), tasks))
        await mends(net, "batch", f"tool_call_id={call.tool_call_id}")
        first, second = await hand.called(call.tool_call_id, times=2)
        assert first.payload == second.payload
        await ended_by_hand(tenant, net, turn)
        assert (await net.look("batch")).ids == []
        assert (await net.look("batch_due")).mended == 1


async def test_a_batch_whose_deadline_passed(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        made = await forked(tenant, turn, deadline_seconds=0)
        await mends(net, "batch_due", f"batch_id={made.batch_id}")
        ended = await hand.ended(turn)
        assert (ended.view.status, [result[0] for result in ended.results()]) == ("success", ["timeout"])
        assert (await net.look("batch_due")).ids == []
        await all_over(tenant, net)


async def test_a_question_whose_time_is_over(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant, interrupt_on={"search": True}) as hand:
        turn = await hand.start(calling("search"), TEXT)
        [asked] = await Person(tenant).asked()
        assert (await net.look("interrupts")).ids == []
        await tenant.rows("UPDATE state.interrupts SET expires_at = now() WHERE project_id = $1", tenant.project)
        await mends(net, "interrupts", f"interrupt_id={asked.interrupt_id}")
        ended = await hand.ended(turn)
        assert [result[1] for result in ended.results()] == ["approval_expired"]
        assert hand.commands == []
        assert (await net.look("interrupts")).ids == []


async def test_a_batch_whose_parent_is_over(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        made = await forked(tenant, turn)
        assert (await net.look("batch_due")).ids == []
        await ended_by_hand(tenant, net, turn)
        await mends(net, "batch_due", f"batch_id={made.batch_id}")
        assert await tenant.count("state.pmo_batches", "status = 'withdrawn'") == 1
        await all_over(tenant, net)


async def test_marked_turns_in_a_queue_and_in_hand(tenant: Tenant, net: Net) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), TEXT)
        await terminate(tenant.stack, turn)
        made = await forked(tenant, turn)
        first, second = [task.agent_turn_id for task in made.tasks]
        await mark_tree(tenant.pool, tenant.project, turn, "enough", whole=False)
        await mends(net, "marked_queued", f"agent_turn_id={second}")
        found = sorted(f"agent_turn_id={each}" for each in (turn, first))
        assert sorted((await net.look("marked", dry_run=True)).ids) == found
        looked = await net.look("marked")
        # the end of the turn rings for its child, which the bridge may end before the rule does
        assert (sorted(looked.ids), looked.mended in (1, 2)) == (found, True)
        ended = await hand.ended(turn)
        assert (ended.view.status, ended.view.error_code) == ("canceled", "stopped")
        await all_over(tenant, net)
        assert await tenant.count("state.turn_outcomes", "status = 'canceled'") == 3

        async def told() -> bool:
            return await tenant.task_events() == dict.fromkeys([turn, first, second], 1)

        await until(told, 25, "each end is told once")


async def forked(tenant: Tenant, turn: AgentTurnId, deadline_seconds: float = 900.0) -> Forked:
    """A fork of the turn's call into two turns of Bob's: one leased, which nobody hears of, and one in the queue."""
    await tenant.agent("player", BOB)
    call = await parent(tenant.pool, call_of(turn), tenant.project)
    tasks = [child(call, 0, BOB), child(call, 1, BOB)]
    return await fork(tenant.pool, call, Batch(deadline_seconds), tasks)


async def ended_by_hand(tenant: Tenant, net: Net, turn: AgentTurnId) -> None:
    """End the turn in the ledger alone; its `task` event follows."""
    await fence(tenant.pool, await in_hand(tenant, turn), TurnStatus.FAILED, "reaped", "reaped")
    assert (await net.look("unannounced")).ids == [f"agent_turn_id={turn}"]


async def all_over(tenant: Tenant, net: Net) -> None:
    """The children, which are marked, are ended by themselves or by the net."""

    async def over() -> bool:
        await net.look("marked_queued")
        await net.look("marked")
        return await tenant.count("state.turn_nodes", "NOT ended") == 0

    await until(over, 25, "the tree is over")


async def test_an_end_that_nobody_was_told_of(tenant: Tenant, net: Net) -> None:
    await tenant.agent("player")
    turn = await unannounced(tenant)
    assert await tenant.task_events() == {}
    await mends(net, "unannounced", f"agent_turn_id={turn}")
    assert await tenant.task_events() == {turn: 1}
    assert (await net.look("unannounced")).ids == []


async def test_a_turn_of_before_the_clock_was_set_back(tenant: Tenant, net: Net) -> None:
    await tenant.agent("player")
    turn = await unheard(tenant, instruction=SAID)
    assert (await net.look("clock")).ids == []
    for later in (
        "UPDATE state.duties SET taken_at = taken_at + interval '1 h' WHERE duty = 'clock' AND $1::text <> ''",
        "UPDATE state.agent_inbox SET next_retry_at = next_retry_at + interval '1 h' WHERE project_id = $1",
    ):
        await tenant.rows(later, tenant.project)
    assert (await net.look("doorbell")).ids == []
    await mends(net, "clock", agent(tenant))
    assert (await tenant.ended(turn)).view.status == "success"


async def test_a_rule_with_a_bug_leaves_the_others_running(
    tenant: Tenant, stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises, and wherever: the first two cannot be asked whose turn they are, the third raises at once."""
    await tenant.agent("player")
    turn = await unannounced(tenant)
    watchdog = net_of(stack).watchdog()

    async def buggy(_: object) -> int:
        raise RuntimeError("a bug")

    watchdog._rules = [replace(rule, find=buggy) if rule.name == "claims" else rule for rule in watchdog._rules]
    async with stack.pool.connection() as conn:
        await conn.execute("ALTER TABLE state.duties RENAME TO duties_of_before")
        try:
            await watchdog.tick()
        finally:
            await conn.execute("ALTER TABLE state.duties_of_before RENAME TO duties")
    assert watchdog.repairs == {"unannounced": 1}
    assert await tenant.task_events() == {turn: 1}
    failed = [record.args[0] for record in caplog.records if "failed" in record.msg and isinstance(record.args, tuple)]
    assert failed == [
        "claims",
        "orphans",
        "clock",
        "era",
        "beyond",
        "engine",
        "engine_over",
        "engine_unknown",
        "dispatched_reap",
        "running_reap",
        "thread_turn",
        "thread_engine",
        "file",
    ]


async def test_an_engine_that_is_slow_keeps_no_other_rule_waiting(tenant: Tenant, net: Net) -> None:
    await tenant.agent("player")
    stop, asked = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> list[object]:
        asked.set()
        await stop.wait()
        return []

    watchdog = net.watchdog("engine", "unannounced")
    watchdog._rules = [replace(rule, find=slow) if rule.name == "engine" else rule for rule in watchdog._rules]
    running = asyncio.create_task(watchdog.run(stop))
    await asyncio.wait_for(asked.wait(), 25)
    turn = await unannounced(tenant)
    await tenant.ended(turn)
    assert watchdog.repairs == {"unannounced": 1}
    stop.set()
    await running
