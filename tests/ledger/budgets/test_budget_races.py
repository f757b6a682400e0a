"""Two who want of one budget at the same moment: one waits, and what it then finds is what the other has left."""

import asyncio
from collections import Counter

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, add_agents, ask, begin, start
from tests.support.ledger.budgets import (
    budget,
    commit_uses,
    end,
    end_on,
    figures,
    limit,
    payload,
    reserve,
    reserving,
    settled_now,
    uses,
)
from tests.support.ledger.calls import ending, sleeper
from tests.support.ledger.trees import child, forks, in_hand, parent, task_states
from tests.support.waiting import overtaken
from turnstile.ledger.budgets.steering import More, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.batches import delegate
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.uses import StepBudget
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId
from turnstile.schema.turns import TurnRef

SIBLINGS = [AgentId(f"sibling-{n}") for n in range(10)]


async def siblings(pool: Pool, max_tokens: int) -> tuple[TurnRef, list[TurnRef]]:
    """A turn that has so much, and ten children that have none of their own, each in its first step."""
    await add_agents(pool, *SIBLINGS)
    top = await sleeper(pool, "c1", budget={"max_tokens": max_tokens})
    call = await parent(pool, "c1")
    made = await forks(pool, "c1", tasks=[child(call, n, agent) for n, agent in enumerate(SIBLINGS)])
    turns = [await in_hand(pool, task.agent_turn_id) for task in made.tasks]
    for turn in turns:
        await begin(pool, turn)
    return top, turns


async def stopped_on(conn: Connection, turn: TurnRef) -> None:
    """The end of a turn by force, with what it means for budgets, on this connection."""
    await ending(turn)(conn)
    await settled_now(conn)


async def spent_on(conn: Connection, turn: TurnRef, used: StepBudget | None = None) -> None:
    await end_on(conn, turn, used)
    await settled_now(conn)


async def below(pool: Pool, top: TurnRef) -> TurnRef:
    """A turn that another one has asked for and does not wait for, in its first step."""
    call = await parent(pool, "c1")
    made = await delegate(pool, call, child(call, 0, BOB))
    turn = await in_hand(pool, made.agent_turn_id)
    assert (await payload(pool, turn))["tokens"] == [top.agent_turn_id]
    await begin(pool, turn)
    return turn


async def spending_turn(pool: Pool, agent: AgentId = ALICE, **limits: int) -> TurnRef:
    await ask(pool, agent, budget=limits or None)
    turn = await start(pool, agent)
    await begin(pool, turn)
    return turn


async def test_of_ten_siblings_at_one_rest_no_more_are_let_through_than_fit(spending: Pool) -> None:
    top, turns = await siblings(spending, 500)
    made = await asyncio.gather(*(reserve(spending, turn) for turn in turns))
    assert Counter(each.verdict for each in made) == {"reserved": 3, "exhausted": 7}
    assert await figures(spending, top.agent_turn_id) == (500, 0, 450)
    winners = [turn for turn, each in zip(turns, made, strict=True) if each.verdict == "reserved"]
    await asyncio.gather(*(commit_uses(spending, turn, uses((1, 10, 0))) for turn in winners))
    assert await figures(spending, top.agent_turn_id) == (500, 30, 0)
    again = await asyncio.gather(
        *(reserve(spending, turn, step=2 if turn in winners else 1, attempt=1) for turn in turns if turn not in winners)
    )
    assert Counter(each.verdict for each in again) == {"reserved": 3, "exhausted": 4}


async def test_of_many_enqueues_no_more_come_in_than_a_day_has(spending: Pool) -> None:
    await add_agents(spending, *SIBLINGS)
    await limit(spending, max_turns=4)

    async def tried(agent: AgentId) -> str:
        try:
            await ask(spending, agent)
        except Refused as refused:
            return refused.code
        return "accepted"

    done = Counter(await asyncio.gather(*map(tried, SIBLINGS)))
    assert done == {"accepted": 4, "budget_exceeded": 6}


async def test_forks_of_two_branches_share_what_is_above_them(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    for agent, call in ((ALICE, "a"), (BOB, "b")):
        await sleeper(spending, call, agent=agent)
    calls = [await parent(spending, call) for call in ("a", "b")]
    asked = [
        forks(spending, call.origin, tasks=[child(call, n, budget={"max_tokens": 300}) for n in (0, 1)])
        for call in calls
    ]
    await asyncio.gather(*asked)
    found = [*await task_states(spending, "a"), *await task_states(spending, "b")]
    states = Counter(code for _, _, code in found)
    assert states == {None: 3, "budget_exceeded": 1}


async def test_a_reservation_that_waits_for_a_close_is_charged_above(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    top = await sleeper(spending, "c1", budget={"max_tokens": 400})
    late = await below(spending, top)
    done = await overtaken(spending, lambda conn: stopped_on(conn, top), reserve(spending, late))
    assert done.verdict == "reserved"
    row = await budget(spending, top.agent_turn_id)
    assert (row["closed_at"] is not None, row["spent_tokens"], row["reserved_tokens"]) == (True, 0, 0)


async def test_a_close_that_waits_for_a_reservation_stays_open(spending: Pool) -> None:
    top = await sleeper(spending, "c1", budget={"max_tokens": 400})
    late = await below(spending, top)
    await overtaken(spending, lambda conn: reserving(conn, late), spending.run(ending(top)))
    assert (await budget(spending, top.agent_turn_id))["closed_at"] is None
    await end(spending, late, uses((1, 30, 0)))
    assert (await budget(spending, top.agent_turn_id))["returned_tokens"] == 370


async def test_a_raise_and_a_reservation_wait_for_each_other(spending: Pool) -> None:
    turn = await spending_turn(spending, max_tokens=100)
    more = More(tokens=100)
    name = BudgetId(turn.agent_turn_id)
    done = await overtaken(
        spending, lambda conn: raise_budget(conn, PROJECT, name, more, "user.test", "a"), reserve(spending, turn)
    )
    assert done.verdict == "reserved"
    less = More(tokens=-100)
    with pytest.raises(Refused, match="less tokens"):
        await overtaken(
            spending,
            lambda conn: reserving(conn, turn, attempt=2, tokens=(1, 1)),
            spending.run(lambda conn: raise_budget(conn, PROJECT, name, less, "user.test", "b")),
        )


async def test_settling_and_ending_at_once_book_once(spending: Pool) -> None:
    turn = await spending_turn(spending, max_tokens=1000)
    await reserve(spending, turn)
    await overtaken(spending, lambda conn: spent_on(conn, turn, uses((1, 70, 0))), spending.run(ending(turn)))
    row = await budget(spending, turn.agent_turn_id)
    assert (row["spent_tokens"], row["unsettled_tokens"], row["returned_tokens"]) == (70, 0, 930)


async def test_a_reservation_that_waits_for_the_end_is_stale(spending: Pool) -> None:
    turn = await spending_turn(spending, CAROL, max_tokens=1000)
    with pytest.raises(Exception, match="gate of step 1 is closed"):
        await overtaken(spending, lambda conn: spent_on(conn, turn), reserve(spending, turn))
    assert (await budget(spending, turn.agent_turn_id))["returned_tokens"] == 1000
