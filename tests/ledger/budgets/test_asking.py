"""Budgets that enqueues, profiles and reruns ask for: what a turn carries, and what is refused (protocol §6)."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, ask, begin, play, profile, start, value
from tests.support.ledger.budgets import budget, charged, end, limit, reserve, uses
from tests.support.ledger.reruns import again
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId

CAPPED = AgentId("capped")


async def capped(pool: Pool, **limits: Any) -> None:
    """An agent whose profile has these limits."""
    await put_profile(pool, PROJECT, profile("capped", budget=limits))
    await add_agent(pool, PROJECT, CAPPED, "capped")


async def written(pool: Pool) -> int:
    """The turns that there are, with their boxes and budgets."""
    return await value(
        pool,
        "SELECT (SELECT count(*) FROM state.agent_inbox) + (SELECT count(*) FROM state.budgets)"
        " + (SELECT count(*) FROM public.box_cards)",
    )


async def test_a_turn_without_a_budget_carries_none(agents: Pool) -> None:
    made = await ask(agents)
    assert await charged(agents, made) is None
    assert await value(agents, "SELECT count(*) FROM state.budgets") == 0


async def test_what_is_asked_for_is_the_turns_own(agents: Pool) -> None:
    made = await ask(agents, budget={"max_tokens": 1000, "max_cost_usd": 0.25, "max_turns": 3, "max_seconds": 60})
    turn = made.reply.agent_turn_id
    carried = await charged(agents, made)
    assert carried is not None
    assert (carried["tokens"], carried["cost"], carried["turns"]) == ([turn], [turn], [turn])
    row = await budget(agents, turn)
    assert (row["max_tokens"], row["max_cost"], row["max_turns"], row["spent_turns"]) == (1000, 250_000, 3, 1)
    assert row["until"] is not None


async def test_a_profiles_budget_holds_for_who_asks_for_none_and_is_tightened_by_others(agents: Pool) -> None:
    await capped(agents, max_tokens=500)
    made = await ask(agents, CAPPED)
    assert (await budget(agents, made.reply.agent_turn_id))["max_tokens"] == 500
    other = await ask(agents, CAPPED, budget={"max_turns": 2})
    row = await budget(agents, other.reply.agent_turn_id)
    assert (row["max_tokens"], row["max_turns"]) == (500, 2), "a request may tighten, never loosen"
    for_once = await ask(agents, ALICE, profile_name="capped")
    assert (await budget(agents, for_once.reply.agent_turn_id))["max_tokens"] == 500


async def test_a_profile_that_is_put_later_changes_nothing_for_turns_that_wait(agents: Pool) -> None:
    await capped(agents, max_tokens=500)
    await ask(agents, CAPPED)
    waits = await ask(agents, CAPPED)
    await put_profile(agents, PROJECT, profile("capped"))
    assert (await budget(agents, waits.reply.agent_turn_id))["max_tokens"] == 500
    assert await charged(agents, await ask(agents, CAPPED)) is None


@pytest.mark.parametrize("name", ["max_tokens", "max_cost_usd", "max_turns", "max_seconds"])
async def test_0_is_nothing(agents: Pool, name: str) -> None:
    before = await written(agents)
    with pytest.raises(Refused) as refused:
        await ask(agents, budget={name: 0})
    assert refused.value.code == "budget_exceeded"
    assert await written(agents) == before


async def test_the_same_request_with_another_budget_is_a_conflict(agents: Pool) -> None:
    first = await ask(agents, correlation_id="c1", budget={"max_cost_usd": 1.5})
    repeat = await ask(agents, correlation_id="c1", budget={"max_cost_usd": Decimal("1.50")})
    assert repeat.reply.duplicate
    assert repeat.reply.agent_turn_id == first.reply.agent_turn_id
    others: list[dict[str, Any]] = [{"budget": {"max_cost_usd": 1.51}}, {}]
    for other in others:
        with pytest.raises(Refused) as refused:
            await ask(agents, correlation_id="c1", **other)
        assert refused.value.code == "correlation_conflict"
    assert await value(agents, "SELECT count(*) FROM state.budgets") == 1


async def test_a_projects_day_refuses_what_does_not_fit_and_says_what_is_left(agents: Pool) -> None:
    await limit(agents, max_tokens=1000)
    fits = await ask(agents, budget={"max_tokens": 700})
    before = await written(agents)
    with pytest.raises(Refused) as refused:
        await ask(agents, BOB, budget={"max_tokens": 301})
    assert refused.value.code == "budget_exceeded"
    assert "not enough tokens: had 1000, spent 0, reserved 700, asked 301" in str(refused.value)
    assert await written(agents) == before
    assert (await ask(agents, BOB, budget={"max_tokens": 300})).is_new
    without = await ask(agents)  # it spends the day's itself
    carried = await charged(agents, without)
    assert carried is not None
    assert carried["tokens"] == [await value(agents, "SELECT budget_id FROM state.budgets WHERE kind = 'day'")]
    assert fits.is_new


async def test_of_many_at_once_as_many_fit_as_there_is(agents: Pool) -> None:
    await limit(agents, max_tokens=1000)

    async def one(number: int) -> str:
        try:
            await ask(agents, (ALICE, BOB)[number % 2], budget={"max_tokens": 300})
        except Refused as refusal:
            return refusal.code
        return "accepted"

    told = await asyncio.gather(*(one(number) for number in range(10)))
    assert sorted(told) == ["accepted"] * 3 + ["budget_exceeded"] * 7


async def test_turns_of_a_day_are_counted_and_given_back_to_nobody(agents: Pool) -> None:
    await limit(agents, max_turns=2)
    await ask(agents)
    await play(agents)
    await ask(agents)
    with pytest.raises(Refused) as refused:
        await ask(agents)
    assert refused.value.code == "budget_exceeded"


async def test_a_rerun_has_the_budget_that_it_asks_for_within_the_profiles(agents: Pool) -> None:
    await capped(agents, max_tokens=500)
    await ask(agents, CAPPED, budget={"max_tokens": 900})
    turn = await play(agents, CAPPED)
    of_profile = await again(agents, turn)
    assert (await budget(agents, of_profile.reply.agent_turn_id))["max_tokens"] == 500
    own = await again(agents, turn, budget={"max_turns": 4}, correlation_id="c1")
    row = await budget(agents, own.reply.agent_turn_id)
    assert (row["max_tokens"], row["max_turns"]) == (500, 4)
    assert (await again(agents, turn, budget={"max_turns": 4}, correlation_id="c1")).reply.duplicate
    with pytest.raises(Refused) as refused:
        await again(agents, turn, budget={"max_turns": 5}, correlation_id="c1")
    assert refused.value.code == "correlation_conflict"


async def test_a_profile_is_read_as_it_was_put(agents: Pool) -> None:
    await capped(agents, max_cost_usd=0.1, max_seconds=60)
    settings = json.loads(await value(agents, "SELECT settings FROM resource.profiles WHERE name = 'capped'"))
    assert settings["budget"] == {"max_cost": 100_000, "max_seconds": 60}


async def test_a_day_that_is_spent_refuses_whatever_is_asked_for(spending: Pool) -> None:
    await limit(spending, max_tokens=200)
    await ask(spending)
    turn = await start(spending)
    await begin(spending, turn)
    assert (await reserve(spending, turn, tokens=(100, 100))).verdict == "reserved"
    await ask(spending, BOB)  # what is reserved may come back
    await end(spending, turn, uses((1, 200, 0)))
    with pytest.raises(Refused, match="had 200, spent 200") as refused:
        await ask(spending, CAROL)
    assert refused.value.code == "budget_exceeded"
