"""Storms of trees whose turns have budgets, on 16 connections: they ask models, end, are marked and raised at once.

It takes a third of `--hammer-seconds`; the long ones `--tree-hammer-seconds`, and 50,000 requests of models.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.ledger.trees.test_tree_hammer import HAPPENS, PARENTS, SHARED, WATCH, Storms, hammer
from tests.support.ledger.agents import PROJECT, add_agents, ask, begin, rows, start, value
from tests.support.ledger.budgets import commit_uses, end, limit, price, reserve, uses
from tests.support.waiting import Counting
from turnstile.ledger.budgets.steering import More, limit_project, raise_budget
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod
from turnstile.schema.ids import AgentId
from turnstile.schema.turns import TurnRef

PLENTY = 10**9
WRONG = {
    "a budget that is open, or reserves something": """
        SELECT budget_id FROM state.budgets
        WHERE (kind = 'turn' AND closed_at IS NULL) OR reserved_tokens + reserved_cost + reserved_turns > 0""",
    "a grant that is not spent or returned": """
        SELECT budget_id FROM state.budgets WHERE kind = 'turn' AND (
            spent_tokens + returned_tokens NOT BETWEEN max_tokens AND max_tokens + beyond_tokens
            OR spent_cost + returned_cost NOT BETWEEN max_cost AND max_cost + beyond_cost
            OR spent_turns + returned_turns <> max_turns)""",
    "a day that has not spent what its attempts used": """
        SELECT b.budget_id FROM state.budgets b CROSS JOIN (
            SELECT sum(coalesce(r.used_tokens, r.tokens)) AS tokens FROM state.budget_reservations r) r
        WHERE b.kind = 'day' AND b.max_tokens IS NOT NULL AND b.spent_tokens <> r.tokens""",
}


class Spending(Storms):
    """Storms in which most turns may spend something, and operators change what."""

    happens = (*HAPPENS, "reserved", "exhausted", "steered")

    def budget(self) -> JsonObject | None:
        if self.chance(0.4):
            return None
        some: JsonObject = {
            "max_tokens": self.dice.choice((100, 500, 5_000)),
            "max_turns": self.dice.choice((1, 3, 20)),
        }
        if self.chance(0.5):
            some["max_cost_usd"] = self.dice.choice((0.001, 0.05))
        return {name: some[name] for name in some if self.chance(0.7)} or None

    async def think(self, turn: TurnRef) -> None:
        """Some requests of the model, of which some are told; some are left to the end."""
        for attempt in range(1, self.dice.randrange(4)):
            amount = (self.dice.randrange(60), self.dice.randrange(1, 60))
            made = await self.tried(lambda: reserve(self.pool, turn, 1, attempt, amount))  # noqa: B023 -- at once
            if made is None:
                return
            self.count[made.verdict] += 1
        if self.chance(0.3):
            await self.steer(turn.agent_turn_id)
        if self.chance(0.4):
            told = uses((1, self.dice.choice((None, 3, 90)), self.dice.choice((None, 0, 40))))
            await self.tried(lambda: commit_uses(self.pool, turn, told))

    async def steer(self, turn: str) -> None:
        """An operator gives more or takes what is free, or tells what a day has."""
        more = More(tokens=self.dice.choice((-200, 200)))
        if self.chance(0.2):
            plenty = BudgetLimits(max_tokens=PLENTY, max_turns=PLENTY // 10)
            await self.pool.run(lambda c: limit_project(c, PROJECT, BudgetPeriod.DAY, plenty, "user.test"))
        key = f"{turn}-{self.dice.randrange(4)}-{more.tokens}"  # the same again, after others
        await self.tried(
            lambda: self.pool.run(lambda c: raise_budget(c, PROJECT, BudgetId(turn), more, "user.test", key))
        )
        self.count["steered"] += 1


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[Counting]:
    """The agents behind a counting pool of 16 connections, in a project that may spend much."""
    pool = Counting(database_url, size=16)
    await add_agents(pool, *PARENTS, *SHARED)
    await price(pool)
    await limit(pool, max_tokens=PLENTY, max_turns=PLENTY // 10)
    async with pool.connection() as conn:
        await conn.execute(WATCH)
    yield pool
    await pool.close()


async def test_storms_of_spenders_never_deadlock_and_every_token_is_accounted_for(
    counting: Counting, hammer_seconds: float
) -> None:
    await spend(counting, hammer_seconds / 3)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_long_storms_of_spenders_never_deadlock(counting: Counting, tree_hammer_seconds: float) -> None:
    await spend(counting, tree_hammer_seconds)


async def spend(counting: Counting, seconds: float) -> None:
    await hammer(counting, seconds, Spending)
    assert await wrong(counting) == {}


async def wrong(pool: Counting) -> dict[str, Any]:
    return {what: found for what, sql in WRONG.items() if (found := await rows(pool, sql))}


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_fifty_thousand_requests_of_one_budget_are_exact(counting: Counting) -> None:
    await requests(counting, 50_000)


async def test_some_requests_of_one_budget_are_exact(counting: Counting) -> None:
    await requests(counting, 150)


async def requests(pool: Counting, many: int) -> None:
    """So many requests by turns that are charged to one day alone; some are told, and some are not."""
    left = [many]

    async def client(agent: AgentId) -> None:
        while left[0] > 0:
            await ask(pool, agent)
            turn = await start(pool, agent)
            await begin(pool, turn)
            for attempt in range(1, 11):
                left[0] -= 1
                assert (await reserve(pool, turn, 1, attempt, (1, 9))).verdict == "reserved"
            await end(pool, turn, uses(*((n, n, 0) for n in range(1, 11, 2))))

    await asyncio.gather(*map(client, [*PARENTS, *SHARED]))
    assert pool.deadlocks == 0
    turns = await value(pool, "SELECT count(*) FROM state.turn_outcomes")
    [day] = await rows(pool, "SELECT spent_tokens, unsettled_tokens, reserved_tokens, spent_turns FROM state.budgets")
    assert tuple(day.values()) == (turns * (25 + 50), turns * 50, 0, turns)
    assert await wrong(pool) == {}
