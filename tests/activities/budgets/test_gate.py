"""The gate before a model: what it reserves, what it sends, and that it needs no provider for that."""

import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.activities.scripted_model import request
from tests.support.ledger.agents import ALICE, add_agents
from tests.support.ledger.budgets import figures, hook, spender
from turnstile.activities.budgets.gate import BudgetExhausted, BudgetGate, answer_tokens
from turnstile.ledger.budgets.attempts import SoftLimit
from turnstile.ledger.budgets.prices import store_prices
from turnstile.ledger.pool import Pool
from turnstile.runtime.ports import ModelEvent, ModelRequest, TokenCount
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.errors import ModelError
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.turns import TurnRef

MODEL = "openai/gpt-4o"
PRICE = ModelPrice.model_validate({"input_per_million": 2, "output_per_million": 10, "max_output_tokens": 1000})


class Nobody:
    """A model that no provider answers for; it counts what it is given, or cannot."""

    def __init__(self, counted: TokenCount | None = None) -> None:
        self._counted = counted

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Nobody shall be asked."""
        raise AssertionError(request.config.model)

    async def count(self, request: ModelRequest) -> TokenCount:
        """As it was told to."""
        if self._counted is None:
            raise ModelError("model_unknown", request.config.model, retryable=False)
        return self._counted

    async def check(self, model: str) -> None:
        """Nobody shall be asked."""
        raise AssertionError(model)

    async def close(self) -> None:
        """Do nothing."""


async def _told(_: str, passed: SoftLimit) -> None:
    """Where nobody listens."""


def gate_of(pool: Pool, turn: TurnRef, model: Nobody | None = None, **more: Any) -> BudgetGate:
    """The gate of the turn's first step."""
    return BudgetGate(turn, 1, model or Nobody(), pool.run, _told, **more)


@pytest.fixture
async def spending(pool: Pool) -> Pool:
    """A ledger in which the model has a price."""
    await add_agents(pool, ALICE)
    await hook(pool)
    await pool.run(lambda conn: store_prices(conn, "test", {MODEL: PRICE}))
    return pool


async def test_a_reservation_needs_no_provider_and_no_litellm(spending: Pool) -> None:
    loaded = "litellm" in sys.modules
    turn = await spender(spending, {"max_tokens": 9000, "max_cost": 90_000})
    gate = gate_of(spending, turn)
    asked = request(MODEL)
    tokens = await gate.tokens(asked)
    assert 10 < tokens < 100
    admitted = await gate.admit(asked, tokens)
    assert admitted.config.max_tokens == 1000  # the model has no more
    assert await figures(spending, turn.agent_turn_id) == (9000, 0, tokens + 4096)
    assert await figures(spending, turn.agent_turn_id, "cost") == (90_000, 0, 2 * tokens + 40_960)
    assert gate.prices == {MODEL: PRICE}
    assert ("litellm" in sys.modules) == loaded


async def test_an_estimate_has_a_tenth_more(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 9000})
    counts = [TokenCount(101, exact=True), TokenCount(101, exact=False)]
    assert [await gate_of(spending, turn, Nobody(count)).tokens(request()) for count in counts] == [101, 112]


async def test_a_summary_reserves_beside_the_request_that_was_refused(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 9000})
    gate = gate_of(spending, turn)
    asked = replace(request("scripted/x"), config=LlmConfig(model="scripted/x", max_tokens=100))
    await gate.admit(asked, 10)
    await gate.admit(asked, 20, summary=True)
    _, spent, reserved = await figures(spending, turn.agent_turn_id)
    assert (spent, reserved) == (110, 120)  # of the first, whose use nobody has told yet, all is booked


async def test_time_that_is_over_lets_nothing_through(spending: Pool) -> None:
    turn = await spender(spending, {"max_tokens": 9000})
    until = datetime.now(UTC)
    over = gate_of(spending, turn, until=until, expires=time.monotonic())
    with pytest.raises(BudgetExhausted) as refused:
        await over.admit(request(), 10)
    assert refused.value.lack.model_dump(mode="json").keys() == {"dimension", "until"}
    assert await figures(spending, turn.agent_turn_id) == (9000, 0, 0)
    soon = gate_of(spending, turn, until=until, expires=time.monotonic() + 2)
    assert 1 < (await soon.admit(request(), 10)).timeout_seconds <= 2
    assert soon.within(1) == 1
    assert 1 < soon.within(600) <= 2


async def test_what_a_ledger_refuses_is_told_in_dollars(spending: Pool) -> None:
    turn = await spender(spending, {"max_cost": 5_000})
    with pytest.raises(BudgetExhausted, match=r"the budget of \$0.005 was exhausted: \$0 spent, .* take \$0.04098$"):
        await gate_of(spending, turn).admit(request(MODEL), 10)


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({}, 4096),
        ({"max_tokens": 5}, 5),
        ({"params": {"max_completion_tokens": 6}}, 6),
        ({"max_tokens": 5, "params": {"max_completion_tokens": 6}}, 6),
        ({"params": {"max_completion_tokens": None}}, 4096),
        ({"params": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}, 5120),
        ({"params": {"thinking": {"budget_tokens": "many"}}}, 4096),
    ],
)
def test_the_most_that_a_model_may_answer(config: dict[str, Any], most: int) -> None:
    assert answer_tokens(LlmConfig.model_validate({"model": MODEL, **config}), 4096) == most
