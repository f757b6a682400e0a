"""Batches that a tool has under the call that it runs: they neither hold nor answer it (protocol §12)."""

from typing import Any

import pytest

from tests.support.ledger.agents import PROJECT, TARGET, begin, finish, finish_on, head, rows, value
from tests.support.ledger.calls import end, request, sleeper, tell
from tests.support.ledger.trees import asks, child, forks, in_hand, marked, own_batch, parent, succeed
from tests.support.waiting import in_flight, overtaken
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.trees.batches import Batch, BatchAnswerForm, Forked, expire_batch, open_batch
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.waiting import report_call
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InboxId, uuid7
from turnstile.schema.turns import TurnRef


async def answered(conn: Connection) -> Any:
    """The report of call `c1`, as a transition."""
    return await report_call(conn, PROJECT, request("c1"), '{"status": "success"}', InboxId(uuid7()), {})


async def undecided(pool: Pool) -> list[str]:
    found = await pool.run(lambda conn: sweep.list_undecided(conn, [TARGET], older_seconds=0, row_limit=9))
    return [each.batch_id for each in found]


async def begun(pool: Pool, made: Forked) -> list[TurnRef]:
    turns = [await in_hand(pool, task.agent_turn_id) for task in made.tasks]
    for turn in turns:
        await begin(pool, turn)
    return turns


async def test_two_keys_are_two_batches_and_the_tool_still_reports_its_call(agents: Pool) -> None:
    await sleeper(agents, "c1")
    deadline = (await head(agents))["resume_deadline"]
    first, second = await asks(agents, "c1", "one", 2), await asks(agents, "c1", "two", answer=BatchAnswerForm.CHILD)
    assert (first.batch_id, second.batch_id) == ("batch-c1/one", "batch-c1/two")
    assert (await head(agents))["resume_deadline"] == deadline
    await succeed(agents, second.tasks[0].agent_turn_id)
    told = await own_batch(agents, "c1", "two")
    assert (told.status, told.result and told.result["value"]) == ("success", "so be it")
    assert (await own_batch(agents, "c1", "one")).result is None
    for task in first.tasks:
        await succeed(agents, task.agent_turn_id)
    told = await own_batch(agents, "c1", "one")
    assert told.result is not None
    assert [each["summary"] for each in told.result["results"]] == ["so be it"] * 2  # pyright: ignore[reportGeneralTypeIssues, reportOptionalIterable, reportUnknownVariableType, reportIndexIssue, reportCallIssue, reportArgumentType]
    assert not (await tell(agents, "c1")).reply.duplicate
    assert await value(agents, "SELECT count(*) FROM cards WHERE card_id = 'c1-result'") == 1
    edges = await rows(agents, "SELECT edge_phase FROM state.execution_edges WHERE primitive = 'join' ORDER BY 1")
    assert [edge["edge_phase"] for edge in edges] == ["request"] * 2 + ["response"] * 2


async def test_a_repeat_finds_the_same_children(agents: Pool) -> None:
    await sleeper(agents, "c1")
    first, again = await asks(agents, "c1", count=2), await asks(agents, "c1", count=2)
    assert [task.agent_turn_id for task in again.tasks] == [task.agent_turn_id for task in first.tasks]
    assert await value(agents, "SELECT count(*) FROM state.turn_nodes") == 3


async def test_a_batch_that_was_cut_off_is_gone_on_with_by_the_tool_alone(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = (await parent(agents, "c1")).under("1", "fork_join", {})
    await agents.run(lambda conn: open_batch(conn, call, Batch(900.0), [child(call, 0)]))
    assert (await own_batch(agents, "c1")).pending
    assert await agents.run(lambda conn: sweep.retry_forks(conn, [TARGET], older_seconds=0, row_limit=9)) == []
    made = await asks(agents, "c1")
    assert (await own_batch(agents, "c1")).pending is False
    assert [task.status for task in made.tasks] == ["dispatched"]


async def test_a_call_that_waits_for_its_batch_has_no_others(agents: Pool) -> None:
    await sleeper(agents, "c1")
    await forks(agents, "c1", 1)
    with pytest.raises(Refused, match="waits for something else"):
        await asks(agents, "c1")


async def test_what_a_deadline_decided_stays_whatever_comes_late(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await asks(agents, "c1", count=2, partial_at_deadline=True, deadline_seconds=0)
    [one, two] = await begun(agents, made)
    await finish(agents, one)
    assert await undecided(agents) == ["batch-c1/1"]
    assert await expire_batch(agents, "batch-c1/1")
    told = await own_batch(agents, "c1")
    assert told.status == "partial"
    assert await marked(agents) == {two.agent_turn_id}
    await finish(agents, two)
    assert await own_batch(agents, "c1") == told
    assert await undecided(agents) == []


async def test_a_call_that_is_answered_withdraws_what_runs_under_it(agents: Pool) -> None:
    await sleeper(agents, "c1", "c2")
    made = await asks(agents, "c1")
    assert await undecided(agents) == []
    await tell(agents, "c1")
    assert await undecided(agents) == ["batch-c1/1"]
    assert await expire_batch(agents, "batch-c1/1")
    told = await own_batch(agents, "c1")
    assert (told.status, told.result) == ("withdrawn", None)
    assert await marked(agents) == {made.tasks[0].agent_turn_id}


async def test_the_last_children_of_two_batches_at_once_decide_both(agents: Pool) -> None:
    await sleeper(agents, "c1")
    [one], [two] = (
        await begun(agents, await asks(agents, "c1", "1")),
        await begun(agents, await asks(agents, "c1", "2")),
    )
    await overtaken(agents, lambda conn: finish_on(conn, one), finish(agents, two))
    assert [(await own_batch(agents, "c1", key)).status for key in ("1", "2")] == ["success"] * 2


async def test_a_child_that_waited_for_its_calls_report_tells_nobody(agents: Pool) -> None:
    await sleeper(agents, "c1")
    [one] = await begun(agents, await asks(agents, "c1"))
    await overtaken(agents, answered, finish(agents, one))
    assert (await own_batch(agents, "c1")).status == "withdrawn"


async def test_a_report_that_waited_for_the_last_child_is_taken(agents: Pool) -> None:
    await sleeper(agents, "c1")
    [one] = await begun(agents, await asks(agents, "c1"))
    done = await overtaken(agents, lambda conn: finish_on(conn, one), tell(agents, "c1"))
    assert not done.reply.duplicate
    assert (await own_batch(agents, "c1")).status == "success"


async def test_a_deadline_passes_by_a_batch_that_an_end_decides(agents: Pool) -> None:
    await sleeper(agents, "c1")
    [one] = await begun(agents, await asks(agents, "c1", deadline_seconds=0))
    async with in_flight(agents, lambda conn: finish_on(conn, one)):
        assert not await expire_batch(agents, "batch-c1/1")
    assert (await own_batch(agents, "c1")).status == "success"


async def test_of_two_runs_that_ask_at_once_one_makes_the_batch(agents: Pool) -> None:
    await sleeper(agents, "c1")
    call = (await parent(agents, "c1")).under("1", "fork_join", {})
    tasks = [child(call, 0)]
    await overtaken(agents, lambda conn: open_batch(conn, call, Batch(900.0), tasks), asks(agents, "c1"))
    assert await value(agents, "SELECT count(*) FROM state.pmo_batch_tasks") == 1
    assert await value(agents, "SELECT count(*) FROM state.turn_nodes WHERE parent_turn_id IS NOT NULL") == 1


@pytest.mark.parametrize("stops", [True, False])
async def test_what_waited_for_a_stop_or_a_report_makes_nothing(agents: Pool, *, stops: bool) -> None:
    top = await sleeper(agents, "c1")
    named = {"project_id": PROJECT, "agent_turn_id": top.agent_turn_id, "reason": "enough", "whole": False}
    with pytest.raises(Refused, match="being stopped" if stops else "waits no more"):
        await overtaken(
            agents, (lambda conn: query("mark_tree").one(conn, **named)) if stops else answered, asks(agents, "c1")
        )
    assert await value(agents, "SELECT count(*) FROM state.pmo_batches") == 0
    await end(agents, top)


async def test_a_stop_that_waited_for_a_request_marks_its_children(agents: Pool) -> None:
    top = await sleeper(agents, "c1")
    call = (await parent(agents, "c1")).under("1", "fork_join", {})
    stop = mark_tree(agents, PROJECT, top.agent_turn_id, "enough", whole=False)
    await overtaken(agents, lambda conn: open_batch(conn, call, Batch(900.0), [child(call, 0)]), stop)
    with pytest.raises(Refused, match="being stopped"):
        await asks(agents, "c1")
    await end(agents, top)
    assert await undecided(agents) == ["batch-c1/1"]
    assert await expire_batch(agents, "batch-c1/1")
    assert (await own_batch(agents, "c1")).status == "withdrawn"
