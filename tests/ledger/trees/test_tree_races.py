"""Two transitions of one tree at once: whichever comes second sees what the first has done (protocol §6, join)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, PROJECT, begin, claim, command, finish, finish_on, lease, send, value
from tests.support.ledger.calls import ask_to_stop, became, call_record, end, ending, request, sleeper, suspend, tell
from tests.support.ledger.trees import answer, batch_of_call, child, forks, in_hand, marked, parent, task_states
from tests.support.waiting import in_flight, overtaken, until_waiting
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.trees.batches import Batch, ForkLimits, enqueue_children, expire_batch, open_batch
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.steps import begin_step, commit_step, retry_step
from turnstile.ledger.turns.waiting import report_call
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import InboxId, uuid7
from turnstile.schema.turns import TurnRef

Transition = Callable[[Connection], Awaitable[Any]]


def marking(turn: TurnRef) -> Transition:
    """The mark of a tree, as a transition."""
    named = {"project_id": PROJECT, "agent_turn_id": turn.agent_turn_id, "reason": "enough", "whole": False}
    return lambda conn: query("mark_tree").one(conn, **named)


async def begun(pool: Pool, call: str, count: int, **plan: Any) -> tuple[TurnRef, list[TurnRef]]:
    """A parent that has forked, and its children in their first step."""
    top = await sleeper(pool, call)
    made = await forks(pool, call, count, **plan)
    children = [await in_hand(pool, task.agent_turn_id) for task in made.tasks]
    for each in children:
        await begin(pool, each)
    return top, children


async def end_all(pool: Pool, *turns: TurnRef) -> None:
    for turn in turns:
        await end(pool, turn)


async def test_the_last_two_children_at_once_decide_once_and_both_are_in_the_answer(agents: Pool) -> None:
    _, [one, two] = await begun(agents, "c1", 2)
    await overtaken(agents, lambda conn: finish_on(conn, one), finish(agents, two))
    assert (await batch_of_call(agents, "c1"))["decided_by"] == two.agent_turn_id
    assert [each["status"] for each in (await answer(agents, "c1"))["result"]["results"]] == ["success", "success"]


async def test_a_deadline_passes_by_a_batch_that_an_end_decides(agents: Pool) -> None:
    _, [one] = await begun(agents, "c1", 1, deadline_seconds=0)
    async with in_flight(agents, lambda conn: finish_on(conn, one)):
        assert not await expire_batch(agents, "batch-c1")
    assert (await batch_of_call(agents, "c1"))["status"] == "success"


async def test_an_end_settles_its_task_after_the_deadline_that_it_waited_for(agents: Pool) -> None:
    _, [one] = await begun(agents, "c1", 1, deadline_seconds=0)
    expiring: Transition = lambda conn: query("expire_batch").one(conn, batch_id="batch-c1")  # noqa: E731 -- a name for it
    await overtaken(agents, expiring, finish(agents, one))
    assert (await batch_of_call(agents, "c1"))["status"] == "timeout"
    assert await task_states(agents, "c1") == [(0, "success", None)]
    assert [each["status"] for each in (await answer(agents, "c1"))["result"]["results"]] == ["timeout"]


async def test_a_child_that_waited_for_its_parents_stop_tells_nobody(agents: Pool) -> None:
    top, [one] = await begun(agents, "c1", 1)
    await overtaken(agents, ending(top), finish(agents, one))
    assert (await batch_of_call(agents, "c1"))["status"] == "withdrawn"
    assert await task_states(agents, "c1") == [(0, "success", None)]


async def test_a_parents_stop_that_waited_for_the_last_child_finds_its_call_answered(agents: Pool) -> None:
    top, [one] = await begun(agents, "c1", 1)
    await overtaken(agents, lambda conn: finish_on(conn, one), end(agents, top))
    assert (await batch_of_call(agents, "c1"))["status"] == "success"
    await claim(agents, top.agent_id)  # the end does not see the answer; whoever claims it does
    assert await became(agents, InboxId("join-batch-c1")) == ("consumed", "already_settled")


async def test_a_fork_that_waited_for_a_stop_makes_nothing(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    with pytest.raises(Refused, match="being stopped"):
        await overtaken(agents, marking(top), forks(agents, "c1", 2))
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches") == 0
    await end(agents, top)


async def test_a_batch_that_a_stop_waited_for_gets_no_children(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    tasks = [child(call, 0)]
    stop = mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False)
    done = await overtaken(agents, lambda conn: open_batch(conn, call, Batch(900.0), tasks), stop)
    assert done.turns == [top.agent_turn_id]
    with pytest.raises(Refused, match="being stopped"):
        await forks(agents, "c1", tasks=tasks)
    assert await task_states(agents, "c1") == [(0, "pending", None)]
    await end(agents, top)


async def test_a_stop_that_waited_for_children_marks_them(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    tasks = [child(call, 0), child(call, 1)]
    await agents.run(lambda conn: open_batch(conn, call, Batch(900.0), tasks))
    enqueuing: Transition = lambda conn: enqueue_children(conn, call, tasks, "batch-c1", ForkLimits())  # noqa: E731
    await overtaken(agents, enqueuing, mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False))
    turns = {task.agent_turn_id for task in tasks}
    assert await marked(agents) == {top.agent_turn_id, *turns}
    await end_all(agents, *[await in_hand(agents, turn) for turn in turns], top)


async def test_a_level_of_a_cascade_is_locked_in_the_order_of_ids(agents: Pool) -> None:
    """Two cascades that meet at two children come to the same one first, however these lie in the table."""
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    low, high = tasks = sorted((child(call, 0), child(call, 1)), key=lambda each: each.agent_turn_id)
    await agents.run(lambda conn: open_batch(conn, call, Batch(900.0), tasks))
    for each in (high, low):  # so that the table has them in the other order
        await agents.run(lambda conn, each=each: enqueue_children(conn, call, [each], "batch-c1", ForkLimits()))
    lock = "SELECT FROM state.turn_nodes WHERE agent_turn_id = $1 FOR UPDATE NOWAIT"
    async with agents.connection() as conn, conn.transaction():
        await conn.fetch(lock, low.agent_turn_id)
        stop = asyncio.ensure_future(mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False))
        await until_waiting(agents)
        await conn.fetch(lock, high.agent_turn_id)  # the cascade, which waits for the first one, has not got it
    assert len((await stop).turns) == 3
    await end_all(agents, *[await in_hand(agents, task.agent_turn_id) for task in tasks], top)


async def test_a_cascade_does_not_wait_for_the_end_of_a_child_that_was_asked_to_stop(agents: Pool) -> None:
    """That end has its own stop in hand, and may wait for the batch that a deciding cascade holds."""
    top, [one, two] = await begun(agents, "c1", 2)
    asked = await ask_to_stop(agents, one.agent_turn_id)
    ended = (
        "UPDATE state.agent_inbox SET status = 'consumed', archived_at = now() WHERE inbox_id = $1 RETURNING inbox_id"
    )
    async with agents.connection() as conn, conn.transaction():
        assert await conn.fetch(ended, asked.inbox_id)
        async with asyncio.timeout(25):
            await mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False)
    for each in (one, two):
        assert await became(agents, InboxId(f"cascade-{each.agent_turn_id}")) == ("pending", None)
    await end_all(agents, one, two, top)


async def test_a_ring_for_a_child_that_ended_meanwhile_is_settled_by_its_claim(agents: Pool) -> None:
    _, [one, two] = await begun(agents, "c1", 2, join="any")
    await overtaken(agents, lambda conn: finish_on(conn, one), finish(agents, two))
    ring = InboxId(f"cascade-{two.agent_turn_id}")
    assert await became(agents, ring) == ("pending", None)
    await claim(agents, two.agent_id)
    assert (await became(agents, ring))[0] in {"consumed", "skipped"}


async def test_a_begin_that_waited_for_a_mark_finds_its_gate_closed(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    one = await in_hand(agents, (await forks(agents, "c1", 1)).tasks[0].agent_turn_id)
    with pytest.raises(StaleTurn):
        await overtaken(agents, marking(top), begin(agents, one))
    await end_all(agents, one, top)


async def test_a_mark_that_waited_for_a_begin_counts_it(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    one = await in_hand(agents, (await forks(agents, "c1", 1)).tasks[0].agent_turn_id)
    stop = mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False)
    done = await overtaken(agents, lambda conn: begin_step(conn, one, 1, BoxCache(0)), stop)
    assert done.on_their_way == 1
    await end_all(agents, one, top)


async def test_calls_that_waited_for_a_mark_are_not_committed(agents: Pool) -> None:
    top, [one] = await begun(agents, "c1", 1)
    with pytest.raises(StaleTurn):
        await overtaken(agents, marking(top), suspend(agents, one, "c2"))
    assert await value(agents, "SELECT count(*) FROM state.turn_waiting_tools") == 1
    await end_all(agents, one, top)


async def test_a_mark_that_waited_for_calls_counts_them(agents: Pool) -> None:
    top, [one] = await begun(agents, "c1", 1)
    stop = mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False)
    done = await overtaken(agents, lambda conn: commit_step(conn, one, call_record(one, 1, "c2")), stop)
    assert done.on_their_way == 1
    await end_all(agents, one, top)


async def test_a_first_step_that_waited_for_the_mark_of_a_turn_in_no_tree_does_not_begin(agents: Pool) -> None:
    alone = await lease(agents)
    with pytest.raises(StaleTurn):
        await overtaken(agents, marking(alone), begin(agents, alone))
    await end(agents, alone)


async def test_calls_that_waited_for_the_mark_of_a_turn_in_no_tree_are_not_committed(agents: Pool) -> None:
    alone = await lease(agents)
    await begin(agents, alone)
    with pytest.raises(StaleTurn):
        await overtaken(agents, marking(alone), suspend(agents, alone, "c1"))
    assert await value(agents, "SELECT count(*) FROM state.turn_waiting_tools") == 0
    await end(agents, alone)


async def test_a_retry_that_waited_for_the_mark_of_a_turn_in_no_tree_is_refused(agents: Pool) -> None:
    alone = await lease(agents)
    await begin(agents, alone)
    retrying = agents.run(lambda conn: retry_step(conn, alone, 1))
    with pytest.raises(StaleTurn):
        await overtaken(agents, marking(alone), retrying)
    await end(agents, alone)


async def test_an_enqueue_leaves_the_gate_of_a_step_that_waited_for_it_open(agents: Pool) -> None:
    alone = await lease(agents)
    await overtaken(agents, lambda conn: send(conn, command(ALICE)), begin(agents, alone))
    await finish(agents, alone)


async def test_a_report_that_waited_for_a_fork_is_refused(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    opening: Transition = lambda conn: open_batch(conn, call, Batch(900.0), [child(call, 0)])  # noqa: E731
    with pytest.raises(Refused, match="waits for something else"):
        await overtaken(agents, opening, tell(agents, "c1"))
    await end(agents, top)


async def test_a_fork_that_waited_for_a_report_makes_nothing(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    reporting: Transition = lambda conn: report_call(  # noqa: E731
        conn, PROJECT, request("c1"), '{"status": "success"}', InboxId(uuid7()), {}
    )
    with pytest.raises(Refused, match="waits no more"):
        await overtaken(agents, reporting, forks(agents, "c1", 2))
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches") == 0
    await end(agents, top)
