"""What a turn may spend is taken from where it comes from at the enqueue, and what is left goes back at its end."""

from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, ask, begin, rows, start, stop, value
from tests.support.ledger.budgets import (
    budget,
    child_of,
    commit_uses,
    end,
    enqueued,
    figures,
    limit,
    payload,
    reserve,
    spender,
    uses,
)
from tests.support.waiting import overtaken
from turnstile.ledger.budgets.steering import More, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, FaultStruckError
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.errors import Refused
from turnstile.schema.ids import uuid7


async def raised(pool: Pool, name: str, **more: int) -> None:
    await raised_with(pool, uuid7(), name, **more)


async def raised_with(pool: Pool, key: str, name: str, **more: int) -> None:
    await pool.run(lambda conn: raise_budget(conn, PROJECT, BudgetId(name), More(**more), "user.test", key))


async def test_nobody_s_budget_writes_no_row(spending: Pool) -> None:
    await ask(spending)
    assert await value(spending, "SELECT count(*) FROM state.budgets") == 0
    assert await value(spending, "SELECT state.plan_budget('p1', 't', '{}', NULL)") is None


async def test_a_turn_that_does_not_fit_is_not_enqueued(spending: Pool) -> None:
    await limit(spending, max_tokens=1000, max_turns=2)
    await enqueued(spending, {"max_tokens": 800})
    with pytest.raises(Refused) as refused:
        await enqueued(spending, {"max_tokens": 300}, BOB)
    assert refused.value.code == "budget_exceeded"
    assert str(refused.value).endswith("has not enough tokens: had 1000, spent 0, reserved 800, asked 300")
    assert await value(spending, "SELECT count(*) FROM state.agent_inbox") == 1
    await enqueued(spending, {"max_tokens": 200}, BOB)
    with pytest.raises(Refused) as refused:
        await enqueued(spending, None, CAROL)
    assert "turns: had 2, spent 2, reserved 0, asked 1" in str(refused.value)


async def test_nothing_means_nothing(spending: Pool) -> None:
    with pytest.raises(Refused) as refused:
        await enqueued(spending, {"max_turns": 0})
    assert "the turn's own budget has not enough turns: had 0" in str(refused.value)
    turn = await spender(spending, {"max_tokens": 0})
    made = await reserve(spending, turn)
    assert (made.verdict, made.dimension, made.had, made.wanted) == ("exhausted", "tokens", 0, 150)
    late = await spender(spending, {"max_seconds": 0}, BOB)
    assert (await reserve(spending, late)).dimension == "seconds"
    costly = await spender(spending, {"max_cost": 100}, CAROL)
    assert (await reserve(spending, costly, model="nobody/knows")).verdict == "unpriced"


async def test_grants_go_back_upwards_when_the_last_below_has_ended(spending: Pool) -> None:
    await limit(spending, max_tokens=10_000)
    day = await value(spending, "SELECT budget_id FROM state.budgets")
    top = await spender(spending, {"max_tokens": 5000, "max_cost": 100_000, "max_turns": 5})
    below = await child_of(spending, top, {"max_tokens": 2000, "max_turns": 2}, BOB)
    name, child = top.agent_turn_id, below.agent_turn_id
    assert await figures(spending, day) == (10_000, 0, 5000)
    assert await figures(spending, name) == (5000, 0, 2000)
    assert await figures(spending, name, "turns") == (5, 1, 2)
    assert (await payload(spending, below))["cost"] == [name]
    await reserve(spending, below)
    assert await figures(spending, child) == (2000, 0, 150)
    assert await figures(spending, name, "cost") == (100_000, 0, 700)
    await end(spending, top)
    assert (await budget(spending, name))["closed_at"] is None
    await commit_uses(spending, below, uses((1, 2500, 900)))
    assert await figures(spending, child) == (2000, 2500, 0)
    assert (await budget(spending, child))["beyond_tokens"] == 2350
    await end(spending, below, step=2)
    closed = await budget(spending, name)
    assert closed["closed_at"] is not None
    assert (closed["spent_tokens"], closed["beyond_tokens"], closed["returned_tokens"]) == (2500, 500, 2500)
    assert (closed["spent_cost"], closed["spent_turns"], closed["returned_turns"]) == (900, 2, 3)
    assert await figures(spending, day) == (10_000, 2500, 0)
    assert (await budget(spending, day))["beyond_tokens"] == 0


async def test_what_nobody_knows_is_booked_whole_until_the_truth_comes(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 1000, "max_cost": 10_000})
    name = turn.agent_turn_id
    await reserve(spending, turn)
    await reserve(spending, turn, attempt=2)
    assert await figures(spending, name) == (1000, 150, 150)
    assert (await budget(spending, name))["unsettled_tokens"] == 150
    await commit_uses(spending, turn, uses((1, 20, None), (2, None, 30)))
    row = await budget(spending, name)
    assert (row["spent_tokens"], row["unsettled_tokens"], row["reserved_tokens"]) == (170, 150, 0)
    assert (row["spent_cost"], row["unsettled_cost"]) == (730, 700)
    states = await rows(
        spending, "SELECT status, used_tokens, used_cost FROM state.budget_reservations ORDER BY attempt"
    )
    assert [tuple(state.values()) for state in states] == [("unsettled", 20, None), ("unsettled", None, 30)]


async def test_the_same_attempt_reserves_once_and_one_that_reached_nobody_is_released(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 200})
    assert (await reserve(spending, turn)).verdict == "reserved"
    assert (await reserve(spending, turn)).verdict == "reserved"
    assert await figures(spending, turn.agent_turn_id) == (200, 0, 150)
    await commit_uses(spending, turn, uses((1, 0, 0)))
    assert await figures(spending, turn.agent_turn_id) == (200, 0, 0)
    assert await value(spending, "SELECT status FROM state.budget_reservations") == "released"


async def test_a_turn_that_ends_without_a_word_spends_what_it_reserved(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 1000})
    await reserve(spending, turn)
    await end(spending, turn)
    row = await budget(spending, turn.agent_turn_id)
    assert (row["spent_tokens"], row["unsettled_tokens"], row["returned_tokens"]) == (150, 150, 850)


async def test_an_end_says_what_its_last_step_used(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 1000})
    await reserve(spending, turn)
    await reserve(spending, turn, attempt=2)
    await end(spending, turn, uses((1, 10, 0), (2, 30, 0)))
    row = await budget(spending, turn.agent_turn_id)
    assert (row["spent_tokens"], row["unsettled_tokens"], row["returned_tokens"]) == (40, 0, 960)


async def test_a_turn_stopped_in_the_queue_gives_all_back(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    day = await value(spending, "SELECT budget_id FROM state.budgets")
    await spender(spending, {"max_tokens": 100})
    waiting = await enqueued(spending, {"max_tokens": 500})
    assert await figures(spending, day) == (1000, 0, 600)
    await stop(spending, ALICE, waiting)
    assert await figures(spending, day) == (1000, 0, 100)


async def test_who_goes_on_after_the_holder_is_charged_above_it(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    day = await value(spending, "SELECT budget_id FROM state.budgets")
    top = await spender(spending, {"max_tokens": 400, "max_cost": 9000})
    below = await child_of(spending, top, None, BOB)
    await end(spending, top)
    assert (await budget(spending, top.agent_turn_id))["closed_at"] is not None
    assert await figures(spending, day) == (1000, 0, 0)
    await reserve(spending, below)
    assert await figures(spending, day) == (1000, 0, 150)
    assert await figures(spending, top.agent_turn_id, "cost") == (9000, 0, 700)  # nobody is above that
    grandchild = await child_of(spending, below, {"max_tokens": 300}, CAROL)
    assert await figures(spending, day) == (1000, 0, 450)
    await end(spending, below, uses((1, 100, 500)))
    await end(spending, grandchild)
    assert await figures(spending, day) == (1000, 100, 0)
    row = await budget(spending, top.agent_turn_id)
    assert (row["spent_cost"], row["returned_cost"], row["spent_tokens"]) == (500, 8500, 0)


async def test_the_soft_limit_is_told_once(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 400, "warn_percent": 50})
    assert (await reserve(spending, turn)).warned is None
    told = (await reserve(spending, turn, attempt=2)).warned
    assert told is not None
    assert (told.budget_id, told.dimension, told.percent) == (turn.agent_turn_id, "tokens", 50)
    assert (told.spent, told.reserved, told.max) == (150, 150, 400)
    await raised(spending, turn.agent_turn_id, tokens=1000)
    assert (await reserve(spending, turn, attempt=3)).warned is None


async def test_a_budget_is_raised_from_where_it_came_and_lowered_to_what_is_used(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    day = await value(spending, "SELECT budget_id FROM state.budgets")
    turn = await spender(spending, {"max_tokens": 400})
    name = turn.agent_turn_id
    await reserve(spending, turn)
    await raised(spending, name, tokens=500)
    assert (await figures(spending, day), await figures(spending, name)) == ((1000, 0, 900), (900, 0, 150))
    for more, code in (
        ({"tokens": 200}, "budget_exceeded"),
        ({"tokens": -800}, "budget_in_use"),
        ({"cost": 1}, "budget_unlimited"),
    ):
        with pytest.raises(Refused) as refused:
            await raised(spending, name, **more)
        assert refused.value.code == code
    await raised(spending, name, tokens=-750)
    assert (await figures(spending, day), await figures(spending, name)) == ((1000, 0, 150), (150, 0, 150))
    await raised(spending, day, tokens=-100)
    await end(spending, turn)
    with pytest.raises(Refused, match="closed"):
        await raised(spending, name, tokens=1)
    with pytest.raises(Refused, match="has no budget"):
        await raised(spending, "nobody", tokens=1)


async def test_a_raise_is_made_once_however_many_came_between(spending: Pool) -> None:
    turn, other = await spender(spending, {"max_tokens": 400}), await spender(spending, {"max_tokens": 400}, BOB)
    name = turn.agent_turn_id
    steps = [("a", 100), ("b", 50), ("c", -30)]
    for key, tokens in [*steps, *steps, *reversed(steps)]:
        await raised_with(spending, key, name, tokens=tokens)
        await raised_with(spending, key, name, tokens=tokens)
    assert await figures(spending, name) == (520, 0, 0)
    for budget_id, tokens in ((name, 101), (other.agent_turn_id, 100)):
        with pytest.raises(Refused) as refused:
            await raised_with(spending, "a", budget_id, tokens=tokens)
        assert refused.value.code == "correlation_conflict"
    await end(spending, turn)
    await raised_with(spending, "a", name, tokens=100)  # what was done stays done
    assert (await budget(spending, name))["max_tokens"] == 520
    assert await value(spending, "SELECT sum(max_tokens) FROM state.budget_raises") == 120


async def test_two_budgets_are_not_raised_with_one_key_at_once(spending: Pool) -> None:
    turns = [await spender(spending, {"max_tokens": 400}, agent) for agent in (ALICE, BOB)]
    names = [BudgetId(turn.agent_turn_id) for turn in turns]
    more = More(tokens=10)
    with pytest.raises(Refused, match="another raise's"):
        await overtaken(
            spending,
            lambda conn: raise_budget(conn, PROJECT, names[0], more, "user.test", "one"),
            spending.run(lambda conn: raise_budget(conn, PROJECT, names[1], more, "user.test", "one")),
        )
    assert [(await figures(spending, name))[0] for name in names] == [410, 400]


async def test_a_project_s_limit_holds_at_once(spending: Pool) -> None:
    await limit(spending, max_tokens=1000)
    day = await value(spending, "SELECT budget_id FROM state.budgets")
    turn = await spender(spending)
    await reserve(spending, turn)
    await limit(spending, max_tokens=100)
    made = await reserve(spending, turn, attempt=2)
    assert (made.verdict, made.budget_id, made.had, made.spent) == ("exhausted", day, 100, 150)
    assert (await budget(spending, day))["lowered_at"] is not None
    await limit(spending)
    assert (await reserve(spending, turn, attempt=3)).verdict == "reserved"
    await enqueued(spending, None, BOB)
    await begin(spending, await start(spending, BOB))
    assert await payload_of(spending, BOB) is None


async def payload_of(pool: Pool, agent: str) -> Any:
    return await value(pool, "SELECT payload ->> 'budget' FROM state.agent_inbox WHERE agent_id = $1", agent)


async def test_a_project_has_no_limit_of_time(spending: Pool) -> None:
    with pytest.raises(Exception, match="max_seconds"):
        await limit(spending, **BudgetLimits(max_seconds=3).model_dump(exclude_none=True))


async def test_what_an_operator_changed_is_changed_although_its_bridge_dies(
    spending: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = await spender(spending, {"max_tokens": 400})
    monkeypatch.setenv("TURNSTILE_FAULTS", f"{Fault.BUDGET_RAISED}=throw,{Fault.PROJECT_LIMITED}=throw")
    with pytest.raises(FaultStruckError, match=Fault.BUDGET_RAISED):
        await raised(spending, turn.agent_turn_id, tokens=100)
    with pytest.raises(FaultStruckError, match=Fault.PROJECT_LIMITED):
        await limit(spending, max_tokens=1000)
    assert await figures(spending, turn.agent_turn_id) == (500, 0, 0)
    assert await value(spending, "SELECT max_tokens FROM state.budgets WHERE kind = 'day'") == 1000
