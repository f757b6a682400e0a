"""Children that do not end by themselves, and losers that go on: what their parent is told (protocol §6, join)."""

from collections.abc import AsyncIterator

import pytest

from tests.support.conditions import until
from tests.support.delegation import CHIEF, chief_says, fork, result, says, staff, steps, task
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.net import AT_ONCE, STILL, Net, net_of, pass_time, sign_on, status_of, terminate
from tests.support.processes.stack import Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.bridge.safety.reconciler import MAX_RESTARTS
from turnstile.ledger.operations.sweep import touch_worker
from turnstile.ledger.roster import put_profile
from turnstile.ledger.trees.tree_views import tree
from turnstile.ledger.turns.waiting import request_stop
from turnstile.schema.ids import AgentTurnId, InboxId, uuid7
from turnstile.schema.profiles import LlmConfig, Profile
from turnstile.schema.wire.descriptions import TreeTurn

NEVER = says("It began thus, and", chunks=2, delay_seconds=3600)
NOWHERE = "nowhere"
"""A worker target that has a live worker by its word alone: nobody begins what is leased there."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge in this process, whose own net does not look."""
    async with stacks.open(STILL) as opened, running_here(opened):
        yield opened


@pytest.fixture
async def tenant(stack: Stack) -> AsyncIterator[Tenant]:
    """A project of this test alone; what protocol §2 says holds when it ends."""
    yield new_tenant(stack)
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)


@pytest.fixture
async def net(stack: Stack) -> Net:
    """The net of a bridge more, which serves `NOWHERE` too."""
    await sign_on(stack)
    await stack.pool.run(lambda conn: touch_worker(conn, "nobody", [NOWHERE]))
    return net_of(stack, AT_ONCE, NOWHERE)


async def nodes(tenant: Tenant, turn: AgentTurnId) -> list[TreeTurn]:
    return await tenant.pool.run(lambda conn: tree(conn, tenant.project, turn))


async def children_of(tenant: Tenant, turn: AgentTurnId, *statuses: str) -> list[AgentTurnId]:
    """The turn's children in the order of their tasks, once they stand so."""

    async def there() -> bool:
        return [node.status for node in (await nodes(tenant, turn))[1:]] == list(statuses)

    await until(there, 25, f"the children are {statuses}")
    return [node.agent_turn_id for node in (await nodes(tenant, turn))[1:]]


async def test_children_that_are_reaped_fenced_or_never_begun_settle_their_tasks(tenant: Tenant, net: Net) -> None:
    await staff(tenant)
    lost = Profile(name="lost", worker_target=NOWHERE, llm_config=LlmConfig(model="scripted/player"))
    await put_profile(tenant.pool, tenant.project, lost)
    tasks = [task(instruction=NEVER), task(instruction=NEVER), task("lost"), task()]
    parent = turn_of(await tenant.enqueue(CHIEF, steps(fork(tasks))))
    reaped, fenced, begun_by_nobody, _ = await children_of(
        tenant, parent, "running", "running", "dispatched", "success"
    )

    await terminate(tenant.stack, fenced)
    await tenant.pool.run(lambda conn: request_stop(conn, tenant.project, fenced, "enough", InboxId(uuid7())))
    assert (await net.finds("stop", fenced)).mended == 1

    await pass_time(tenant)
    assert (await net.finds("dispatched_reap", begun_by_nobody)).mended == 0  # it was never started: now it is
    await terminate(tenant.stack, begun_by_nobody)
    await pass_time(tenant)
    assert (await net.finds("dispatched_reap", begun_by_nobody)).mended == 1

    for restarts in range(MAX_RESTARTS + 1):
        await pass_time(tenant)
        assert (await net.finds("running_reap", reaped)).mended == 1, restarts
    told = result(await tenant.ended(parent))
    assert told["status"] == "partial"
    assert [(each["status"], each["error"]) for each in told["results"]] == [
        ("failed", "timeout_reaped_by_watchdog"),
        ("canceled", "stopped"),
        ("timeout", "dispatch_timeout"),
        ("success", None),
    ]
    assert await tenant.task_events() == dict.fromkeys(
        [parent, *(n.agent_turn_id for n in await nodes(tenant, parent))], 1
    )
    assert str(await status_of(tenant.stack, reaped)) != "RUNNING"


async def test_losers_that_finish_change_nothing_of_the_answer(tenant: Tenant) -> None:
    """They go on after their parent was answered and has ended: well, failed, or with children of their own."""
    await staff(tenant)
    forks = steps({**fork([task()]), "delay_seconds": 1}, {"text": "late and forked"})
    fails = steps({"error": {"code": "model_error", "message": "no"}, "delay_seconds": 1.5})
    late = [says("late", delay_seconds=1.5), fails]
    tasks = [task(instruction=says("first")), *(task(instruction=each) for each in late), task("chief", forks)]
    ended = await chief_says(tenant, fork(tasks, join="any", losers="finish"))
    before = result(ended)
    assert (before["status"], [each["status"] for each in before["results"]]) == (
        "success",
        ["success", *["running"] * 3],
    )
    turns = [each["agent_turn_id"] for each in before["results"]]
    assert [(await tenant.ended(turn)).view.status for turn in turns] == ["success", "success", "failed", "success"]
    assert result(await tenant.ended(ended.view.agent_turn_id)) == before
    [batch] = await tenant.rows(
        "SELECT status, open_count, success_count, failed_count FROM state.pmo_batches WHERE parent_agent_turn_id = $1",
        ended.view.agent_turn_id,
    )
    assert tuple(batch.values()) == ("success", 0, 3, 1)
    assert [node.stopping for node in await nodes(tenant, ended.view.agent_turn_id)] == [False] * 6
