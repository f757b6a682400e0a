"""Budgets as people look at them: pages, one, those of a turn, and the turns whose spending each has."""

from decimal import Decimal

from tests.support.ledger.agents import ALICE, BOB, CAROL, CHANNEL, PROJECT, ask
from tests.support.ledger.budgets import commit_uses, end, reserve, spender, uses
from turnstile.ledger.budgets.budget_views import (
    get_budget,
    list_budgets,
    list_budgets_of_turn,
    list_charged_turns,
    list_project_limits,
    list_turns_of_tree,
)
from turnstile.ledger.budgets.steering import More, limit_project, raise_budget
from turnstile.ledger.operations.monitor import measure_spending
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.usage import sum_usage
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.ids import ChannelId, ProjectId

OTHER = ProjectId("other")


async def seen(pool: Pool, budget: str) -> BudgetView:
    """A budget that there is."""
    found = await pool.run(lambda conn: get_budget(conn, PROJECT, BudgetId(budget)))
    assert found is not None
    return found


async def test_a_budget_says_what_is_spent_reserved_and_left(spending: Pool) -> None:
    """An open reservation is reserved; what is settled is spent; what nobody knows is booked whole, and said."""
    turn = await spender(spending, {"max_tokens": 1000, "max_cost": 2_000_000, "max_turns": 3})
    await reserve(spending, turn)
    view = await seen(spending, turn.agent_turn_id)
    assert (view.status, view.kind, view.channel_id) == ("open", "turn", CHANNEL)
    assert (view.tokens.max, view.tokens.spent, view.tokens.reserved, view.tokens.left) == (1000, 0, 150, 850)
    assert (view.cost_usd.max, view.cost_usd.reserved) == (Decimal(2), Decimal("0.0007"))
    assert (view.turns.max, view.turns.spent, view.turns.left) == (3, 1, 2)
    await commit_uses(spending, turn, uses((1, 200, None)))
    view = await seen(spending, turn.agent_turn_id)
    assert (view.tokens.spent, view.tokens.reserved, view.tokens.beyond) == (200, 0, 50)
    assert (view.cost_usd.spent, view.cost_usd.unsettled) == (Decimal("0.0007"), Decimal("0.0007"))


async def test_the_grant_of_an_ended_turn_is_closed(spending: Pool) -> None:
    """What was left has gone back."""
    turn = await spender(spending, {"max_tokens": 1000})
    await reserve(spending, turn)
    await end(spending, turn, uses((1, 120, 0)))
    view = await seen(spending, turn.agent_turn_id)
    assert (view.status, view.tokens.spent, view.tokens.returned) == ("closed", 120, 880)
    assert (view.cost_usd.max, view.turns.max) == (None, None)
    assert view.closed_at is not None


async def test_pages_have_the_newest_first_and_those_that_are_wanted(spending: Pool) -> None:
    """By kind, status and channel; `after` goes on."""
    limits = BudgetLimits(max_tokens=10_000)
    day = await spending.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.DAY, limits, "alice"))
    made = [await spender(spending, {"max_tokens": 100}, agent) for agent in (ALICE, BOB, CAROL)]
    await end(spending, made[0])
    newest = [turn.agent_turn_id for turn in reversed(made)]

    async def page(**wanted: object) -> list[str]:
        found = await spending.run(lambda conn: list_budgets(conn, PROJECT, **{"row_limit": 10, **wanted}))  # pyright: ignore[reportArgumentType] -- of a test
        return [each.budget_id for each in found]

    assert await page() == [*newest, day]
    assert await page(kind="day") == [day]
    assert await page(status="closed") == [made[0].agent_turn_id]
    assert await page(row_limit=2) == newest[:2]
    assert await page(after=newest[1]) == [newest[2], day]
    assert await page(channel=ChannelId("elsewhere")) == [day]
    assert await page(channel=ChannelId("elsewhere"), with_project=False) == []
    assert await page(channel=CHANNEL, with_project=False) == newest
    assert await page(after="nobody's") == []
    assert await spending.run(lambda conn: list_budgets(conn, OTHER, row_limit=10)) == []
    assert await spending.run(lambda conn: get_budget(conn, OTHER, BudgetId(newest[0]))) is None
    await spending.run(lambda conn: raise_budget(conn, PROJECT, BudgetId(newest[0]), More(tokens=5), "bob", "a"))
    assert (await seen(spending, newest[0])).updated_by == "bob"


async def test_limits_of_a_project_are_read_as_they_were_set(spending: Pool) -> None:
    """With who did; removed ones are gone."""
    limits = BudgetLimits.model_validate({"max_cost_usd": 1.5, "max_turns": 7})
    await spending.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.MONTH, limits, "token.1"))
    [found] = await spending.run(lambda conn: list_project_limits(conn, PROJECT))
    assert (found.period, found.max_cost_usd, found.max_turns, found.max_tokens) == ("month", Decimal("1.5"), 7, None)
    assert found.updated_by == "token.1"
    assert await spending.run(lambda conn: list_project_limits(conn, OTHER)) == []
    await spending.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.MONTH, None, "token.1"))
    assert await spending.run(lambda conn: list_project_limits(conn, PROJECT)) == []


async def test_a_turn_names_the_budgets_that_it_is_charged_to(spending: Pool) -> None:
    """Its own, and the project's where it has no limit of that kind itself; a turn without a budget has none."""
    free = (await ask(spending, BOB)).reply.agent_turn_id
    assert free is not None
    limits = BudgetLimits.model_validate({"max_tokens": 10_000, "max_cost_usd": 1})
    day = await spending.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.DAY, limits, "alice"))
    turn = await spender(spending, {"max_tokens": 100})
    found = await spending.run(lambda conn: list_budgets_of_turn(conn, PROJECT, turn.agent_turn_id))
    assert [each.budget_id for each in found] == [turn.agent_turn_id, day]
    assert found[0].taken_from == (day,)
    view = await spending.run(lambda conn: describe_turn(conn, PROJECT, turn.agent_turn_id))
    assert view is not None
    assert view.budget is not None
    assert (view.budget.tokens, view.budget.cost, view.budget.until) == ((turn.agent_turn_id,), (day,), None)
    assert await spending.run(lambda conn: list_budgets_of_turn(conn, OTHER, turn.agent_turn_id)) == []
    view = await spending.run(lambda conn: describe_turn(conn, PROJECT, free))
    assert view is not None
    assert view.budget is None


async def test_the_turns_of_a_budget_and_of_a_tree_are_found(spending: Pool) -> None:
    """A grant has its turn's spending; a project's day that of the turns that it is charged for."""
    other = (await ask(spending, CAROL)).reply.agent_turn_id
    assert other is not None
    limits = BudgetLimits(max_tokens=10_000)
    day = await spending.run(lambda conn: limit_project(conn, PROJECT, BudgetPeriod.DAY, limits, "alice"))
    holder = await spender(spending, {"max_tokens": 100}, ALICE)
    inherits = await spender(spending, None, BOB)

    async def charged(budget: str) -> set[str]:
        return set(await spending.run(lambda conn: list_charged_turns(conn, PROJECT, BudgetId(budget))))

    assert await charged(holder.agent_turn_id) == {holder.agent_turn_id}
    assert await charged(day) == {holder.agent_turn_id, inherits.agent_turn_id}
    assert await charged("nobody's") == set()
    assert await spending.run(lambda conn: list_charged_turns(conn, OTHER, day)) == []
    assert await spending.run(lambda conn: list_turns_of_tree(conn, PROJECT, other)) == [other]
    await commit_uses(spending, holder, uses((1, 10, 0)))
    lines = await spending.run(lambda conn: sum_usage(conn, PROJECT, "model", turns=[inherits.agent_turn_id]))
    assert [(line.name, line.steps) for line in lines] == [(None, 0)]


async def test_what_all_projects_have_spent_is_summed_for_metrics(spending: Pool) -> None:
    """Of those with limits alone; the sums say nothing of a kind that is not limited."""
    assert await spending.run(measure_spending) == []
    for project in (PROJECT, OTHER):
        limits = BudgetLimits(max_tokens=10_000)
        await spending.run(lambda conn, p=project, of=limits: limit_project(conn, p, BudgetPeriod.DAY, of, "alice"))
    turn = await spender(spending, {"max_tokens": 100})
    [day] = await spending.run(measure_spending)
    assert (day.period, day.max_tokens, day.reserved_tokens, day.max_cost) == ("day", 20_000, 100, 0)
    await end(spending, turn)
    [day] = await spending.run(measure_spending)
    assert (day.reserved_tokens, day.spent_cost) == (0, 0)
