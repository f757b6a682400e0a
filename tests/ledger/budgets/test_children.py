"""Budgets of children: what a fork's tasks take of their parent's, and who fails for want (protocol §12)."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import BOB, ask, command, rows, send, value
from tests.support.ledger.budgets import budget, charged_turn, limit
from tests.support.ledger.calls import sleeper
from tests.support.ledger.trees import WORKER, answer, batch_of_call, child, forks, parent, succeed, task_states
from tests.support.waiting import overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.batches import (
    Batch,
    BatchAnswerForm,
    Forked,
    ForkLimits,
    delegate,
    enqueue_children,
    open_batch,
)
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused


async def forked(pool: Pool, call: str, *asked: JsonObject | None, **plan: Any) -> Forked:
    """A fork of the call with a task for each of these budgets."""
    given = await parent(pool, call)
    tasks = [child(given, index, budget=each) for index, each in enumerate(asked)]
    return await forks(pool, call, tasks=tasks, **plan)


async def test_each_task_has_what_it_asks_for_and_one_that_does_not_fit_fails_alone(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", budget={"max_tokens": 1000})
    made = await forked(agents, "c1", {"max_tokens": 600}, {"max_tokens": 600}, {"max_tokens": 400}, None)
    assert await task_states(agents, "c1") == [
        (0, "dispatched", None),
        (1, "failed", "budget_exceeded"),
        (2, "dispatched", None),
        (3, "dispatched", None),
    ]
    turns = [task.agent_turn_id for task in made.tasks]
    assert (await budget(agents, turns[0]))["max_tokens"] == 600
    carried = [await charged_turn(agents, turn) for turn in turns if turn is not None]
    assert [each and each["tokens"] for each in carried] == [[turns[0]], [turns[2]], [ref.agent_turn_id]]
    for turn in (turns[0], turns[2], turns[3]):
        await succeed(agents, turn)
    [_, refused, *_] = (await answer(agents, "c1"))["result"]["results"]
    assert (refused["error"], refused["agent_turn_id"]) == ("budget_exceeded", None)
    assert refused["error_detail"]["dimension"] == "tokens"
    assert (refused["error_detail"]["asked"], refused["error_detail"]["left"]) == (600, 400)


async def test_a_new_agent_whose_first_task_does_not_fit_is_made_by_its_second(agents: Pool) -> None:
    await sleeper(agents, "c1", budget={"max_tokens": 1000})
    call = await parent(agents, "c1")
    named: dict[str, Any] = {"agent": "new", "new_agent": WORKER}
    tasks = [child(call, 0, budget={"max_tokens": 2000}, **named), child(call, 1, budget=None, **named)]
    made = await forks(agents, "c1", tasks=tasks)
    assert [task.error_code for task in made.tasks] == ["budget_exceeded", None]
    assert await value(agents, "SELECT count(*) FROM resource.project_agents WHERE agent_id = 'new'") == 1


async def test_children_of_a_turn_without_a_budget_carry_none(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forks(agents, "c1", 2)
    assert [await charged_turn(agents, task.agent_turn_id) for task in made.tasks] == [None, None]
    assert await value(agents, "SELECT count(*) FROM state.budgets") == 0


async def test_a_child_may_have_a_budget_where_its_parent_has_none(agents: Pool) -> None:
    await sleeper(agents, "c1")
    made = await forked(agents, "c1", {"max_tokens": 10**9}, None)
    first, second = (task.agent_turn_id for task in made.tasks)
    assert (await budget(agents, first))["max_tokens"] == 10**9
    assert await charged_turn(agents, second) is None


async def test_0_is_nothing(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", budget={"max_tokens": 1000})
    nothing: list[JsonObject] = [{"max_tokens": 0}, {"max_cost": 0}, {"max_turns": 0}, {"max_seconds": 0}]
    made = await forked(agents, "c1", *nothing, {"max_tokens": 1})
    assert [task.error_code for task in made.tasks] == ["budget_exceeded"] * 4 + [None]
    assert (await budget(agents, ref.agent_turn_id))["reserved_tokens"] == 1


async def test_turns_below_count_in_the_order_of_the_tasks(agents: Pool) -> None:
    await sleeper(agents, "c1", budget={"max_turns": 3})  # itself and two more
    made = await forks(agents, "c1", 4)
    assert [task.error_code for task in made.tasks] == [None, None, "budget_exceeded", "budget_exceeded"]


async def test_money_is_told_in_dollars(agents: Pool) -> None:
    await sleeper(agents, "c1", budget={"max_cost_usd": 0.5})
    await forked(agents, "c1", {"max_cost": 500_001}, answer=BatchAnswerForm.CHILD)
    told = (await answer(agents, "c1"))["result"]
    assert told["error"] == "budget_exceeded"
    assert told["error_detail"]["dimension"] == "cost_usd"
    assert (told["error_detail"]["asked"], told["error_detail"]["left"]) == (0.500001, 0.5)


async def test_a_delegation_that_does_not_fit_is_refused_with_what_is_left(agents: Pool) -> None:
    await sleeper(agents, "c1", budget={"max_tokens": 100})
    call = await parent(agents, "c1")
    with pytest.raises(Refused, match="had 100, spent 0, reserved 0, asked 101") as refused:
        await delegate(agents, call, child(call, 0, budget={"max_tokens": 101}))
    assert refused.value.code == "budget_exceeded"
    assert await value(agents, "SELECT count(*) FROM state.turn_nodes WHERE parent_turn_id IS NOT NULL") == 0
    made = await delegate(agents, call, child(call, 0, budget={"max_tokens": 100}))
    assert (await budget(agents, made.agent_turn_id))["max_tokens"] == 100


async def test_no_child_and_no_batch_outlasts_its_parent(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", budget={"max_seconds": 60})
    until = (await budget(agents, ref.agent_turn_id))["until"]
    made = await forked(agents, "c1", {"max_seconds": 3600}, {"max_seconds": 5}, None)
    ends = [(await charged_turn(agents, task.agent_turn_id) or {})["until"] for task in made.tasks]
    deadline = (await batch_of_call(agents, "c1"))["deadline_at"]
    assert abs(deadline - until) < timedelta(milliseconds=2)
    [first, second, third] = ends
    assert first == third
    assert datetime.fromisoformat(str(second)) < datetime.fromisoformat(str(first))


async def test_two_forks_at_one_rest_get_no_more_than_fits(agents: Pool) -> None:
    await sleeper(agents, "c1", "c2", budget={"max_tokens": 1000})
    asked: list[JsonObject] = [{"max_tokens": 300}] * 3
    both = await asyncio.gather(forked(agents, "c1", *asked), forked(agents, "c2", *asked))
    codes = [task.error_code for made in both for task in made.tasks]
    assert sorted(map(str, codes)) == ["None"] * 3 + ["budget_exceeded"] * 3
    [row] = await rows(agents, "SELECT sum(max_tokens) AS granted FROM state.budgets WHERE max_tokens = 300")
    assert row["granted"] == 900


async def test_forks_of_two_turns_at_one_rest_get_no_more_than_fits(agents: Pool) -> None:
    """Their heads are two: nothing but the budget stands between them."""
    await limit(agents, max_tokens=1000)
    await sleeper(agents, "c1")
    await sleeper(agents, "c2", agent=BOB)
    asked: list[JsonObject] = [{"max_tokens": 200}] * 4
    both = await asyncio.gather(forked(agents, "c1", *asked), forked(agents, "c2", *asked))
    codes = [task.error_code for made in both for task in made.tasks]
    assert sorted(map(str, codes)) == ["None"] * 5 + ["budget_exceeded"] * 3


async def test_a_fork_that_waits_for_another_charge_takes_what_that_left(agents: Pool) -> None:
    await limit(agents, max_tokens=1000)
    await sleeper(agents, "c1")

    async def charge(conn: Connection) -> None:
        await send(conn, command(BOB, budget={"max_tokens": 700}))
        await conn.fetch("SET CONSTRAINTS ALL IMMEDIATE")

    made = await overtaken(agents, charge, forked(agents, "c1", {"max_tokens": 600}, {"max_tokens": 300}))
    assert [task.error_code for task in made.tasks] == ["budget_exceeded", None]
    assert await value(agents, "SELECT reserved_tokens FROM state.budgets WHERE kind = 'day'") == 1000


async def test_an_enqueue_that_waits_for_a_fork_is_refused_what_that_took(agents: Pool) -> None:
    await limit(agents, max_tokens=1000)
    await sleeper(agents, "c1")
    call = await parent(agents, "c1")
    tasks = [child(call, 0, budget={"max_tokens": 700})]
    await agents.run(lambda conn: open_batch(conn, call, Batch(900), tasks))
    fork: Callable[[Connection], Awaitable[object]] = lambda conn: enqueue_children(  # noqa: E731 -- a name for it
        conn, call, tasks, "batch-c1", ForkLimits()
    )
    with pytest.raises(Refused, match="had 1000, spent 0, reserved 700, asked 600"):
        await overtaken(agents, fork, ask(agents, BOB, budget={"max_tokens": 600}))
    assert await value(agents, "SELECT reserved_tokens FROM state.budgets WHERE kind = 'day'") == 700


async def test_a_repeat_of_a_fork_is_granted_nothing_more(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", budget={"max_tokens": 1000})
    first = await forked(agents, "c1", {"max_tokens": 600})
    second = await forked(agents, "c1", {"max_tokens": 600})
    assert first.tasks[0].agent_turn_id == second.tasks[0].agent_turn_id
    assert (await budget(agents, ref.agent_turn_id))["reserved_tokens"] == 600


async def test_a_child_that_is_refused_for_another_reason_is_granted_nothing(agents: Pool) -> None:
    ref = await sleeper(agents, "c1", budget={"max_tokens": 1000})
    made = await forked(agents, "c1", {"max_tokens": 600}, {"max_tokens": 600}, limits=ForkLimits(max_live_turns=1))
    assert [task.error_code for task in made.tasks] == ["project_full"] * 2
    assert (await budget(agents, ref.agent_turn_id))["reserved_tokens"] == 0
