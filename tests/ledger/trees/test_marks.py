"""Marks: no gate opens below a stop, and what is marked and not over is found (protocol §6, join)."""

import pytest

from tests.support.ledger.agents import (
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    begin,
    commit,
    finish,
    lease,
    start,
    stop,
    value,
)
from tests.support.ledger.calls import sleeper, suspend
from tests.support.ledger.trees import child, forks, in_hand, marked, parent, succeed
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import Batch, delegate, open_batch
from turnstile.ledger.trees.marks import MarkedTree, mark_tree, rings_of
from turnstile.ledger.turns.ends import end_by_fallback, recall_step
from turnstile.ledger.turns.steps import retry_step
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import TurnStatus


async def mark(pool: Pool, turn: AgentTurnId, *, whole: bool = False) -> MarkedTree:
    return await mark_tree(pool, PROJECT, turn, "enough", whole=whole)


async def end(pool: Pool, turn: AgentTurnId | None) -> None:
    await end_by_fallback(pool, await in_hand(pool, turn), TurnStatus.CANCELED, "stopped", "stopped")


async def test_a_mark_reaches_children_at_any_depth_and_closes_their_gates(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2)
    middle = await in_hand(agents, made.tasks[0].agent_turn_id)
    await begin(agents, middle)
    await suspend(agents, middle, "c2")
    below = (await forks(agents, "c2", 1)).tasks[0].agent_turn_id
    done = await mark(agents, top.agent_turn_id)
    everyone = {top.agent_turn_id, below, *(task.agent_turn_id for task in made.tasks)}
    assert set(done.turns) == everyone == await marked(agents)
    assert done.on_their_way == 0  # held calls are no commands that left
    with pytest.raises(StaleTurn):
        await begin(agents, await in_hand(agents, below))
    rung = {ring.agent_turn_id for ring in await agents.run(lambda conn: rings_of(conn, [top.agent_turn_id]))}
    assert rung == everyone - {top.agent_turn_id}
    assert (await mark(agents, top.agent_turn_id)).turns == ()
    for turn in (below, *(task.agent_turn_id for task in made.tasks), top.agent_turn_id):
        await end(agents, turn)
    assert await marked(agents) == set()
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches WHERE status = 'running'") == 0


async def test_a_turn_that_is_being_stopped_gets_no_children(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    await mark(agents, top.agent_turn_id)
    with pytest.raises(Refused, match="being stopped"):
        await forks(agents, "c1", 1)
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches") == 0
    await end(agents, top.agent_turn_id)


async def test_what_had_passed_a_gate_is_counted_and_commits_no_calls(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2)
    one, two = [await in_hand(agents, task.agent_turn_id) for task in made.tasks]
    await begin(agents, one)
    await begin(agents, two)
    await suspend(agents, two, "c2")
    done = await mark(agents, top.agent_turn_id)
    assert done.on_their_way == 2
    with pytest.raises(StaleTurn):
        await suspend(agents, one, "c3")
    with pytest.raises(StaleTurn):
        await agents.run(lambda conn: retry_step(conn, one, 1))
    found = await agents.run(lambda conn: recall_step(conn, one, 1))
    assert (found.gate, found.stopping) == (True, True)
    silent = await agents.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=0, row_limit=9))
    assert silent == []
    await finish(agents, one)  # its answer was on its way
    await end(agents, two.agent_turn_id)
    await end(agents, top.agent_turn_id)


async def test_a_step_without_calls_may_still_be_committed(agents: Pool) -> None:
    top = await lease(agents)
    await begin(agents, top)
    await mark(agents, top.agent_turn_id)
    await commit(agents, top)
    with pytest.raises(StaleTurn):
        await begin(agents, top, 2)
    await end(agents, top.agent_turn_id)


async def test_children_that_nobody_waits_for_go_on_unless_all_are_meant(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    free = await delegate(agents, call, child(call, 0, CAROL))
    await mark(agents, top.agent_turn_id)
    assert await marked(agents) == {top.agent_turn_id}
    await mark(agents, top.agent_turn_id, whole=True)
    assert await marked(agents) == {top.agent_turn_id, free.agent_turn_id}
    await end(agents, top.agent_turn_id)
    await end(agents, free.agent_turn_id)


async def test_all_reaches_below_a_turn_that_is_over(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    free = await delegate(agents, call, child(call, 0, CAROL))
    await end(agents, top.agent_turn_id)
    assert (await mark(agents, top.agent_turn_id)).turns == ()
    assert (await mark(agents, top.agent_turn_id, whole=True)).turns == [free.agent_turn_id]
    await end(agents, free.agent_turn_id)


async def test_marked_turns_in_a_queue_and_in_hand_are_found(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    made = await forks(agents, "c1", tasks=[child(call, 0, CAROL), child(call, 1, CAROL)])
    await mark(agents, top.agent_turn_id)
    queued = await agents.run(lambda conn: sweep.list_marked_queued(conn, [TARGET], older_seconds=0, row_limit=9))
    assert [turn.agent_turn_id for turn in queued] == [made.tasks[1].agent_turn_id]
    in_hand_ = await agents.run(lambda conn: sweep.list_marked_in_hand(conn, [TARGET], older_seconds=0, row_limit=9))
    assert {turn.agent_turn_id for turn in in_hand_} == {top.agent_turn_id, made.tasks[0].agent_turn_id}
    await stop(agents, CAROL, queued[0].agent_turn_id)
    await end(agents, made.tasks[0].agent_turn_id)
    await end(agents, top.agent_turn_id)


async def test_pending_tasks_and_undecided_batches_are_found(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    tasks = [child(call, 0)]
    await agents.run(lambda conn: open_batch(conn, call, Batch(900.0), tasks))
    again = await agents.run(lambda conn: sweep.retry_forks(conn, [TARGET], older_seconds=0, row_limit=9))
    assert [each.tool_call_id for each in again] == ["c1"]
    made = await forks(agents, "c1", tasks=tasks)
    assert made.tasks[0].status == "dispatched"
    assert await agents.run(lambda conn: sweep.retry_forks(conn, [TARGET], older_seconds=0, row_limit=9)) == []
    await end(agents, top.agent_turn_id)
    due = await agents.run(lambda conn: sweep.list_undecided(conn, [TARGET], older_seconds=0, row_limit=9))
    assert [each.batch_id for each in due] == ["batch-c1"]
    await end(agents, made.tasks[0].agent_turn_id)


async def test_an_end_without_a_tree_rings_nobody(agents: Pool) -> None:
    turn = await lease(agents, BOB)
    await begin(agents, turn)
    assert not (await finish(agents, turn)).in_tree
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 1)
    ref = await start(agents, made.tasks[0].agent_id)
    await begin(agents, ref)
    assert (await finish(agents, ref)).in_tree
    rung = await agents.run(lambda conn: rings_of(conn, [ref.agent_turn_id]))
    assert [ring.agent_id for ring in rung] == ["alice"]


@pytest.mark.parametrize("count", [16, 1000])
async def test_a_fork_of_many_is_joined_on_a_connection_that_planned_for_few(agents: Pool, count: int) -> None:
    await sleeper(agents, "c1")
    small = await forks(agents, "c1", 16, join="any", losers="finish")
    await succeed(agents, small.tasks[0].agent_turn_id)
    await sleeper(agents, "c2", agent=BOB)
    made = await forks(agents, "c2", count)
    assert [task.task_index for task in made.tasks] == list(range(count))
    assert all(task.lease is not None for task in made.tasks)
