"""Batches: forked, settled by the ends of their children, and decided once (protocol §6, join)."""

import pytest

from tests.support.ledger.agents import BOB, CAROL, PROJECT, TARGET, head, rows, stop, value
from tests.support.ledger.calls import expire, settle, sleeper, tell
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.trees import (
    answer,
    batch_of_call,
    child,
    forks,
    in_hand,
    marked,
    parent,
    succeed,
    task_states,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.batches import BatchAnswerForm, RefusedTask, delegate, expire_batch
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.ends import end_by_fallback
from turnstile.ledger.turns.waiting import apply_reports
from turnstile.schema.delegation.arguments import Join
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, InboxId
from turnstile.schema.states import HeadStatus, TurnStatus


async def fail(pool: Pool, turn: AgentTurnId | None) -> None:
    await end_by_fallback(pool, await in_hand(pool, turn), TurnStatus.FAILED, "broken", "it broke")


async def test_a_fork_of_two_is_answered_once_in_the_order_of_its_tasks(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2)
    assert [task.status for task in made.tasks] == ["dispatched", "dispatched"]
    assert all(task.lease is not None for task in made.tasks)
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "running"
    await fail(agents, made.tasks[0].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "partial"
    told = await answer(agents, "c1")
    assert told["status"] == "partial"
    assert told["error"] == {"code": "batch_failed", "message": "batch finished with status=partial"}
    results = told["result"]["results"]
    assert [(result["task_index"], result["status"], result["error"]) for result in results] == [
        (0, "failed", "broken"),
        (1, "success", None),
    ]
    assert results[1]["summary"] == "so be it"
    edges = await rows(agents, "SELECT edge_phase FROM state.execution_edges WHERE primitive = 'join' ORDER BY 1")
    assert [edge["edge_phase"] for edge in edges] == ["request", "response"]
    applied = await agents.run(lambda conn: apply_reports(conn, ref, [InboxId("join-batch-c1")]))
    assert applied.status is HeadStatus.RUNNING


async def test_a_repeat_of_a_fork_finds_its_batch(agents: Pool) -> None:
    await sleeper(agents, "c1")
    first = await forks(agents, "c1", 2)
    again = await forks(agents, "c1", 2)
    assert [task.agent_turn_id for task in again.tasks] == [task.agent_turn_id for task in first.tasks]
    assert all(task.lease is None for task in again.tasks)
    assert await value(agents, "SELECT count(*) FROM state.turn_nodes") == 3


async def test_a_forked_call_is_neither_reported_nor_timed_out(agents: Pool) -> None:
    await sleeper(agents, "c1", wait_seconds=-1)
    await forks(agents, "c1", 1)
    assert (await head(agents))["resume_deadline"] is None
    with pytest.raises(Refused, match="waits for something else"):
        await tell(agents, "c1")


async def test_a_call_that_is_being_timed_out_gets_no_batch(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", wait_seconds=-1)
    call = await parent(agents, "c1")
    [ring] = await expire(agents, ref)
    with pytest.raises(Refused, match="waits no more"):
        await forks(agents, "c1", tasks=[child(call, 0)])
    assert (await settle(agents, ref, ring.inbox_id)).status is HeadStatus.RUNNING
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches") == 0


async def test_the_first_success_of_any_decides_and_marks_the_losers(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3, join="any")
    await fail(agents, made.tasks[0].agent_turn_id)
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "success"
    assert await marked(agents) == {made.tasks[2].agent_turn_id}
    statuses = [each["status"] for each in (await answer(agents, "c1"))["result"]["results"]]
    assert statuses == ["failed", "success", "canceled"]
    await end_by_fallback(
        agents, await in_hand(agents, made.tasks[2].agent_turn_id), TurnStatus.CANCELED, "stopped", "stopped"
    )
    assert (await batch_of_call(agents, "c1"))["open_count"] == 0
    assert await marked(agents) == set()


async def test_losers_that_finish_are_not_marked(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2, join="any", losers="finish")
    await succeed(agents, made.tasks[0].agent_turn_id)
    assert await marked(agents) == set()
    assert [each["status"] for each in (await answer(agents, "c1"))["result"]["results"]] == ["success", "running"]
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert [status for _, status, _ in await task_states(agents, "c1")] == ["success", "success"]


async def test_losers_that_finish_outlive_their_parent(agents: Pool) -> None:
    """Once it is decided nobody waits for them: an end or a stop of the parent passes them by, unless all are meant."""
    ref = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3, join="any", losers="finish")
    await succeed(agents, made.tasks[0].agent_turn_id)
    assert set((await mark_tree(agents, PROJECT, ref.agent_turn_id, "enough", whole=False)).turns) == {
        ref.agent_turn_id
    }
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    assert await marked(agents) == set()
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert set((await mark_tree(agents, PROJECT, ref.agent_turn_id, "all", whole=True)).turns) == {
        made.tasks[2].agent_turn_id
    }
    await end_by_fallback(
        agents, await in_hand(agents, made.tasks[2].agent_turn_id), TurnStatus.CANCELED, "stopped", "stopped"
    )
    assert [status for _, status, _ in await task_states(agents, "c1")] == ["success", "success", "canceled"]


async def test_losers_that_would_finish_end_with_a_parent_that_still_waits(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2, join="any", losers="finish")
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    assert await marked(agents) == {task.agent_turn_id for task in made.tasks}
    assert await expire_batch(agents, "batch-c1")
    for task in made.tasks:
        await end_by_fallback(agents, await in_hand(agents, task.agent_turn_id), TurnStatus.CANCELED, "stopped", "")


@pytest.mark.parametrize(("mode", "k"), [("first_k", 2), ("quorum", 2)])
async def test_k_successes_decide(agents: Pool, mode: Join, k: int) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3, join=mode, k=k, losers="finish")
    await succeed(agents, made.tasks[0].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "running"
    await succeed(agents, made.tasks[2].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "success"


async def test_k_that_cannot_be_reached_any_more_decides(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3, join="first_k", k=2)
    await fail(agents, made.tasks[0].agent_turn_id)
    await fail(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "failed"


async def test_fail_fast_ends_a_batch_as_failed_whatever_succeeded(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 3, fail_fast=True)
    await succeed(agents, made.tasks[0].agent_turn_id)
    await fail(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "failed"
    assert await marked(agents) == {made.tasks[2].agent_turn_id}


@pytest.mark.parametrize(("partial", "status"), [(False, "timeout"), (True, "partial")])
async def test_a_deadline_decides(agents: Pool, *, partial: bool, status: str) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2, partial_at_deadline=partial)
    await succeed(agents, made.tasks[0].agent_turn_id)
    assert not await expire_batch(agents, "batch-c1")
    await rows(agents, "UPDATE state.pmo_batches SET deadline_at = now()")
    assert await expire_batch(agents, "batch-c1")
    assert not await expire_batch(agents, "batch-c1")
    assert (await batch_of_call(agents, "c1"))["status"] == status
    told = await answer(agents, "c1")
    assert [each["status"] for each in told["result"]["results"]] == ["success", "timeout"]
    assert await marked(agents) == {made.tasks[1].agent_turn_id}


async def test_a_refused_task_fails_alone_and_all_refused_decide_at_once(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    bad = RefusedTask(0, "unknown_profile", "there is none")
    made = await forks(agents, "c1", tasks=[bad, child(call, 1)])
    assert [task.status for task in made.tasks] == ["failed", "dispatched"]
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "partial"
    await sleeper(agents, "c2", agent=BOB)
    none = await forks(agents, "c2", tasks=[bad])
    assert none.status == "failed"
    assert [ring.agent_id for ring in none.rings] == [BOB]


async def test_a_child_that_cannot_be_enqueued_fails_its_task(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    made = await forks(agents, "c1", tasks=[child(call, 0, "nobody"), child(call, 1, CAROL)])
    assert await task_states(agents, "c1") == [(0, "failed", "unknown_agent"), (1, "dispatched", None)]
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "partial"


async def test_children_of_one_agent_run_one_after_the_other(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    made = await forks(agents, "c1", tasks=[child(call, 0, CAROL), child(call, 1, CAROL)])
    assert [task.lease is not None for task in made.tasks] == [True, False]
    await succeed(agents, made.tasks[0].agent_turn_id)
    await succeed(agents, made.tasks[1].agent_turn_id)
    assert (await batch_of_call(agents, "c1"))["status"] == "success"


async def test_the_stop_of_a_queued_child_settles_its_task(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    made = await forks(agents, "c1", tasks=[child(call, 0, CAROL), child(call, 1, CAROL)])
    queued = made.tasks[1].agent_turn_id
    assert queued is not None
    await stop(agents, CAROL, queued)
    assert await task_states(agents, "c1") == [(0, "dispatched", None), (1, "canceled", "stopped")]
    await succeed(agents, made.tasks[0].agent_turn_id)


async def test_the_end_of_a_parent_marks_its_children_and_withdraws_its_batch(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2)
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    assert await marked(agents) == {task.agent_turn_id for task in made.tasks}
    for task in made.tasks:
        await end_by_fallback(agents, await in_hand(agents, task.agent_turn_id), TurnStatus.CANCELED, "stopped", "it")
    assert (await batch_of_call(agents, "c1"))["status"] == "withdrawn"
    assert (await forks(agents, "c1", 2)).status == "withdrawn"


async def test_a_batch_that_outlives_its_parent_is_decided_at_once_and_is_nothing_wrong(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    await forks(agents, "c1", 2)
    none = await agents.run(lambda conn: sweep.list_undecided(conn, [TARGET], older_seconds=0, row_limit=9))
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    assert (await batch_of_call(agents, "c1"))["status"] == "running"
    async with agents.connection() as conn:
        await assert_invariants(conn)
    assert await agents.run(lambda conn: sweep.retry_forks(conn, [TARGET], older_seconds=0, row_limit=9)) == []
    due = await agents.run(lambda conn: sweep.list_undecided(conn, [TARGET], older_seconds=0, row_limit=9))
    assert (none, [each.batch_id for each in due]) == ([], ["batch-c1"])
    assert await expire_batch(agents, "batch-c1")
    assert (await batch_of_call(agents, "c1"))["status"] == "withdrawn"


async def test_a_call_that_waits_no_more_gets_no_children(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    with pytest.raises(Refused, match="waits no more"):
        await forks(agents, "c1", tasks=[child(call, 0)])
    with pytest.raises(Refused, match="waits no more"):
        await delegate(agents, call, child(call, 0))


async def test_the_child_form_answers_with_the_childs_value(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 1, answer=BatchAnswerForm.CHILD)
    await succeed(agents, made.tasks[0].agent_turn_id)
    told = (await answer(agents, "c1"))["result"]
    assert (told["status"], told["value"], told["agent_turn_id"]) == (
        "success",
        "so be it",
        made.tasks[0].agent_turn_id,
    )


async def test_a_child_inherits_cards_once_and_in_order(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    boxes = [call.context_box_id, call.output_box_id, call.context_box_id]
    made = await forks(agents, "c1", tasks=[child(call, 0, inherits=boxes)])
    found = await rows(
        agents,
        "SELECT c.metadata ->> 'type' AS type FROM box_cards p JOIN cards c USING (card_id)"
        " WHERE p.box_id = $1::text::uuid ORDER BY p.position",
        made.tasks[0].context_box_id,
    )
    assert [each["type"] for each in found] == [
        "task.instruction",
        "agent.thought",
        "tool.call",
        "task.instruction",
        "meta.parent_pointer",
    ]
    await succeed(agents, made.tasks[0].agent_turn_id)


async def test_a_delegated_child_is_nobodys_task_and_a_repeat_finds_it(agents: Pool) -> None:
    ref = await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    first = await delegate(agents, call, child(call, 0, CAROL))
    again = await delegate(agents, call, child(call, 0, CAROL))
    assert (first.agent_turn_id, first.lease is not None) == (again.agent_turn_id, True)
    await tell(agents, "c1")
    await end_by_fallback(agents, ref, TurnStatus.CANCELED, "stopped", "stopped")
    assert await marked(agents) == set()
    await succeed(agents, first.agent_turn_id)


async def test_a_fork_of_another_project_finds_no_call(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = (await parent(agents, "c1")).model_copy(update={"project_id": "p2"})
    with pytest.raises(Refused, match="no such call"):
        await delegate(agents, call, child(call, 0, CAROL))
    assert await value(agents, "SELECT count(*) FROM state.turn_nodes WHERE project_id <> $1", PROJECT) == 0
