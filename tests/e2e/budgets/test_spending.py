"""Turns that spend budgets on a whole stack: what is reserved, booked and told, and how they end (protocol §15).

A price of the settings is one price: attempts, usage, *Costs* and budgets have the same sum.
"""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from tests.e2e.people.asking import Person, asked
from tests.support.conditions import until
from tests.support.faults.points import DONE, GUESS
from tests.support.ledger.budgets import budget, figures
from tests.support.tenants import Ended, Tenant
from tests.support.tools import ANYTHING, call_of, calling, definition, hand_of, shown
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack

LLM: JsonObject = {"max_tokens": 200}
USES: JsonObject = {"prompt_tokens": 300, "completion_tokens": 100, "total_tokens": 400}
MODEL = "scripted/player"
TEN_WORDS = "one two three four five six seven eight nine ten"
SUMS_UP: JsonObject = {
    "keep": "conversation",
    "max_context_tokens": 60,
    "keep_last_turns": 1,
    "when_full": "summarize",
    "summary_model": "scripted/echo",
}
MORE: tuple[dict[str, Any], ...] = ({}, {"budget": {"max_tokens": 9000}})


def script(*lines: Mapping[str, Any]) -> str:
    """An instruction that is a script."""
    return json.dumps({"steps": lines})


async def priced(tenant: Tenant, cost: int = 2) -> None:
    """Give the model a price: so many micro-dollars for a token, in and out."""
    await tenant.rows(
        "INSERT INTO state.model_prices VALUES ($1, $2::int, $2::int, NULL, NULL, 'test')"
        " ON CONFLICT (model) DO UPDATE SET input_per_million = $2::int, output_per_million = $2::int",
        *(MODEL, cost),
    )


async def reservations(tenant: Tenant, turn: AgentTurnId) -> list[tuple[Any, ...]]:
    """Step, attempt, status and the tokens used of each, in order."""
    found = await tenant.rows(
        "SELECT step, attempt, status, used_tokens FROM state.budget_reservations WHERE agent_turn_id = $1"
        " ORDER BY step, created_at",
        turn,
    )
    return [tuple(row.values()) for row in found]


def lack(ended: Ended) -> dict[str, Any]:
    """What the turn had too little of, as deliverable and statistics say it."""
    told = ended.deliverable()
    assert isinstance(told, dict)
    said = (ended.view.stats or {})["budget"]
    assert isinstance(said, dict)
    assert told["budget"] == said
    return dict(said)


def first(ended: Ended, name: str) -> dict[str, Any]:
    """What the row of the turn's first step says under this name."""
    return cast("dict[str, Any]", ended.steps[0].metadata[name])


async def warnings(tenant: Tenant) -> list[dict[str, Any]]:
    """The soft limits that step events say were passed."""
    told = [event.payload["metadata"] for event in await tenant.events("agent.*.step")]
    return [cast("dict[str, Any]", each["budget"]) for each in told if isinstance(each, dict) and "budget" in each]


async def test_a_step_that_does_not_fit_any_more_ends_the_turn(tenant: Tenant) -> None:
    agent = await tenant.agent("player", llm=LLM)
    ended = await tenant.turn(
        agent, script(*[{**GUESS, "usage": USES}] * 2, DONE), budget={"max_tokens": 1000, "warn_percent": 60}
    )
    turn = ended.view.agent_turn_id
    assert (ended.view.status, ended.view.error_code) == ("partial", "budget_exhausted")
    told = lack(ended)
    assert told.pop("wanted") > 200
    assert told == {"dimension": "tokens", "budget_id": turn, "had": 1000, "spent": 800, "reserved": 0}
    deliverable = ended.deliverable()
    assert isinstance(deliverable, dict)
    assert deliverable["last_thought"] == "First a guess."
    assert "the budget of 1000 tokens was exhausted: 800 spent" in str(deliverable["reason"])
    assert [(s.status, s.metadata.get("error_code")) for s in ended.steps] == [
        ("completed", None),
        ("completed", None),
        ("completed", "budget_exhausted"),
    ]
    assert [s.metadata.get("budget") for s in ended.steps] == [
        *[{"uses": [{"attempt": 1, "tokens": 400, "cost": 0}]}] * 2,
        None,
    ]
    assert await reservations(tenant, turn) == [(step, 1, "settled", 400) for step in (1, 2)]
    row = await budget(tenant.pool, turn)
    assert (row["spent_tokens"], row["reserved_tokens"], row["returned_tokens"]) == (800, 0, 200)
    assert row["closed_at"] is not None
    [passed] = await warnings(tenant)
    assert (passed["dimension"], passed["percent"], passed["max"]) == ("tokens", 60, 1000)


async def test_every_attempt_reserves_and_a_refused_one_gives_back(tenant: Tenant) -> None:
    """One that was refused used nothing; of one that broke in its midst nobody knows what it used."""
    refused: JsonObject = {"error": {"code": "model_overloaded"}}
    broken: JsonObject = {"text": "Half of it", "error": {"code": "model_stream_broken", "after_chunks": 1}}
    agent = await tenant.agent("player", llm=LLM)
    await priced(tenant)
    text = json.dumps({"steps": [{"attempts": [refused, broken, {**DONE, "usage": USES}]}]})
    ended = await tenant.turn(agent, text, budget={"max_tokens": 5000, "max_cost_usd": 0.01})
    turn = ended.view.agent_turn_id
    assert ended.view.status == "success"
    assert await reservations(tenant, turn) == [
        (1, 1, "released", 0),
        (1, 2, "unsettled", None),
        (1, 3, "settled", 400),
    ]
    row = await budget(tenant.pool, turn)
    whole = row["unsettled_tokens"]
    assert whole > 200
    assert (row["spent_tokens"], row["reserved_tokens"]) == (400 + whole, 0)
    assert (row["spent_cost"], row["unsettled_cost"]) == (2 * (400 + whole), 2 * whole)
    assert row["closed_at"] is not None


async def test_no_attempt_goes_out_that_does_not_fit(tenant: Tenant) -> None:
    """A second attempt that does not fit ends the turn, with the text of the first."""
    broken: JsonObject = {"text": "Half of it", "error": {"code": "model_stream_broken", "after_chunks": 1}}
    agent = await tenant.agent("player", llm=LLM)
    ended = await tenant.turn(agent, script({"attempts": [broken, DONE]}), budget={"max_tokens": 300})
    assert ended.view.error_code == "budget_exhausted"
    told = ended.deliverable()
    assert isinstance(told, dict)
    assert told["last_thought"] == "Half of it"
    assert lack(ended)["spent"] == (await figures(tenant.pool, ended.view.agent_turn_id))[1]
    nothing = await tenant.turn(agent, script(DONE), budget={"max_tokens": 150})
    assert (nothing.view.status, nothing.view.error_code) == ("partial", "budget_exhausted")
    assert await reservations(tenant, nothing.view.agent_turn_id) == []


async def test_what_a_provider_takes_beyond_is_booked(tenant: Tenant) -> None:
    agent = await tenant.agent("player", llm=LLM)
    await priced(tenant)
    much: JsonObject = {"prompt_tokens": 900, "completion_tokens": 900, "total_tokens": 1800}
    ended = await tenant.turn(
        agent,
        script({**DONE, "usage": much, "response_cost": 0.0100001}),
        budget={"max_tokens": 500, "max_cost_usd": 0.005},
    )
    assert ended.view.status == "success"
    row = await budget(tenant.pool, ended.view.agent_turn_id)
    assert (row["spent_tokens"], row["spent_cost"]) == (1800, 10_001)
    assert row["beyond_tokens"] > 1300
    assert row["beyond_cost"] > 5000


async def test_the_cost_of_a_model_without_a_price_is_not_limited(tenant: Tenant) -> None:
    agent = await tenant.agent("instant")
    ended = await tenant.turn(agent, budget={"max_cost_usd": 1})
    assert (ended.view.status, ended.view.error_code) == ("failed", "unpriced_model")
    assert "[model.prices." in (ended.view.error or "")
    assert (await tenant.turn(agent, budget={"max_tokens": 9000})).view.status == "success"


async def test_a_profile_without_a_limit_sends_one(tenant: Tenant) -> None:
    """The model hears of the limit that was reserved for its answer; without a budget it hears of none."""
    agent = await tenant.agent("mirror")
    asked = [shown((await tenant.turn(agent, **more)).deliverable()) for more in MORE]
    assert [each["config"].get("max_tokens") for each in asked] == [None, 4096]


async def test_the_time_of_a_turn_cuts_its_model(tenant: Tenant) -> None:
    """What the model had said by then is kept."""
    agent = await tenant.agent("player")
    began = time.monotonic()
    slow: JsonObject = {"text": "one two three four", "chunks": 4, "delay_seconds": 0.9}
    ended = await tenant.turn(agent, script(slow), budget={"max_seconds": 2})
    assert time.monotonic() - began < 10
    assert (ended.view.status, ended.view.error_code) == ("partial", "budget_exhausted")
    told = lack(ended)
    assert told.keys() == {"dimension", "until"}
    assert told["dimension"] == "seconds"
    assert datetime.fromisoformat(told["until"]) <= datetime.now(UTC)
    deliverable = ended.deliverable()
    assert isinstance(deliverable, dict)
    assert str(deliverable["last_thought"]).startswith("one")


async def test_the_time_of_a_turn_bounds_its_calls_and_questions(tenant: Tenant) -> None:
    """The turn sleeps no longer than until then, whatever it waits for, and asks no model any more."""
    slow = definition("slow", options={"suspend_timeout_seconds": 600})
    held = definition("held", parameters=ANYTHING)
    async with hand_of(tenant, slow, held, interrupt_on={"held": True}) as hand:
        for tool in ("slow", "held"):
            ended = await hand.ended(await hand.start(calling(tool), DONE, budget={"max_seconds": 1}))
            assert (ended.view.status, ended.view.error_code) == ("partial", "budget_exhausted")
            assert lack(ended)["dimension"] == "seconds"
            [(status, _, _)] = ended.results()
            assert status in {"failed", "timeout"}
            assert len(ended.steps) == 2


async def test_a_stopped_model_is_booked_whole(tenant: Tenant) -> None:
    async with hand_of(tenant, llm=LLM) as hand:
        slow: JsonObject = {"text": "one two three", "chunks": 3, "delay_seconds": 5}
        turn = await hand.start(slow, budget={"max_tokens": 1000})

        async def reserved() -> bool:
            return bool(await reservations(tenant, turn))

        await until(reserved, 25, "the model is asked")
        await tenant.client.request("stop", {"agent_turn_id": turn})
        await hand.ended(turn)
    assert [reservation[2] for reservation in await reservations(tenant, turn)] == ["unsettled"]
    row = await budget(tenant.pool, turn)
    assert row["spent_tokens"] == row["unsettled_tokens"] > 200
    assert row["closed_at"] is not None


async def test_a_summary_reserves_too_and_one_that_does_not_fit_is_dropped(tenant: Tenant) -> None:
    agent = await tenant.agent("chat", memory=SUMS_UP, llm={"max_tokens": 50})

    async def cut(limit: int) -> Ended:
        """A turn whose first step cuts the memory."""
        for _ in range(9):
            ended = await tenant.turn(agent, TEN_WORDS, budget={"max_tokens": limit})
            if len(ended.steps) == 2:
                return ended
        raise AssertionError("no turn cut the memory")

    summed = await cut(5000)
    assert first(summed, "compaction")["when_full"] == "summarize"
    [summary, answer] = await reservations(tenant, summed.view.agent_turn_id)
    assert (summary[:3], answer[:3]) == ((1, -1, "settled"), (2, 1, "settled"))
    assert first(summed, "budget")["uses"][0]["attempt"] == -1
    short = await cut(200)  # a summary alone may have 256
    told = first(short, "compaction")
    assert (told["when_full"], told["error_code"]) == ("drop", "budget_exhausted")
    assert [reservation[:3] for reservation in await reservations(tenant, short.view.agent_turn_id)] == [
        (2, 1, "settled")
    ]
    assert short.view.status == "success"


async def test_a_call_that_a_person_lets_go_late_has_no_more_time_than_its_turn(tenant: Tenant) -> None:
    held = definition("held", parameters=ANYTHING, options={"suspend_timeout_seconds": 600})
    async with hand_of(tenant, held, interrupt_on={"held": True}) as hand:
        turn = await hand.start(calling("held"), DONE, budget={"max_seconds": 4})
        [question] = await asked(hand, turn)
        await Person(tenant, "ben").decides(question, "approve")
        [command] = await hand.called(call_of(turn))
        assert command.call == call_of(turn)
        ended = await hand.ended(turn)
    assert lack(ended)["dimension"] == "seconds"
    assert ended.results() == [("timeout", "tool_timeout", ended.results()[0][2])]


PRICE = ModelPrice.model_validate({"input_per_million": 2, "output_per_million": 10})
SPENT = (300 * 2 + 100 * 10) / 1_000_000
