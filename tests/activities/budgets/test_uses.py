"""What attempts used: what is known, what is free, and what nobody can say; and prices of models.

Prices are read without loading litellm.
"""

import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest

from turnstile.activities.budgets.gate import NOT_SENT, step_budget
from turnstile.activities.models.price_list import list_version, listed_prices
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.profiles import LlmConfig

PRICE = ModelPrice.model_validate({"input_per_million": 2, "output_per_million": 10, "cached_input_per_million": 1})
COUNTS: JsonObject = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
FREE: dict[str, ModelPrice | None] = {"m": None}
PRICED: dict[str, ModelPrice | None] = {"m": PRICE}


def record(usage: Any = COUNTS, cost: float | None = None, code: str | None = None, **more: Any) -> JsonObject:
    """A record of an attempt, as the worker makes it."""
    made: JsonObject = {"attempt": 1, "model": "m", "first_token_ms": 5, "usage": usage, "response_cost": cost, **more}
    return made if code is None else {**made, "error_code": code}


CASES: list[tuple[JsonObject, dict[str, ModelPrice | None], tuple[int | None, int | None]]] = [
    (record(), PRICED, (110, 300)),
    (record({**COUNTS, "cached_tokens": 60}), PRICED, (110, 240)),
    (record({**COUNTS, "cached_tokens": 10**9}), PRICED, (110, 200)),
    (record(cost=0.0000001), PRICED, (110, 1)),
    (record(cost=0.25), FREE, (110, 250_000)),
    (record(), FREE, (110, 0)),
    (record(), {}, (110, None)),
    (record({"prompt_tokens": 4, "completion_tokens": 5}), PRICED, (9, 58)),
    (record({"total_tokens": 9}), PRICED, (9, None)),
    (record({"prompt_tokens": "4"}), PRICED, (None, None)),
    (record({"total_tokens": -4}), PRICED, (None, None)),
    (record({}), PRICED, (None, None)),
    (record({}), FREE, (None, None)),
    (record(None), PRICED, (None, None)),
    (record({}, code="attempt_lost"), PRICED, (None, None)),
    (record({}, code="canceled", first_token_ms=None), PRICED, (None, None)),
    (record({}, code="model_timeout", first_token_ms=None), PRICED, (None, None)),
    (record({}, code="rate_limited", first_token_ms=None), PRICED, (0, 0)),
    (record({}, code="rate_limited"), PRICED, (None, None)),
    (record({}, code=NOT_SENT, first_token_ms=None), PRICED, (0, 0)),
    (record(code="content_filtered"), PRICED, (110, 300)),
]


@pytest.mark.parametrize(("given", "prices", "used"), CASES)
def test_an_attempt_used(
    given: JsonObject, prices: dict[str, ModelPrice | None], used: tuple[int | None, int | None]
) -> None:
    [use] = step_budget([given], prices).uses
    assert (use.attempt, use.tokens, use.cost) == (1, *used)


def test_a_summary_has_a_number_of_its_own() -> None:
    uses = step_budget([record(), record(summary=True), {"model": "m"}], PRICED).uses
    assert [use.attempt for use in uses] == [1, -1]


_READS = """
import sys
import socket
socket.socket.connect = None
from turnstile.activities.models.price_list import listed_prices
assert listed_prices()["openai/gpt-4o"].input_per_million == 2.5
assert "litellm" not in sys.modules
"""


def test_the_list_is_read_without_loading_litellm_or_asking_anybody() -> None:
    subprocess.run([sys.executable, "-c", _READS], check=True)


def test_models_are_found_by_the_ids_of_profiles() -> None:
    found = listed_prices()
    for model in ("gpt-4o", "openai/gpt-4o", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"):
        assert found[model].output_per_million > found[model].input_per_million > 0, model
        LlmConfig(model=model)
    assert found["openai/gpt-4o"] == ModelPrice(
        input_per_million=Decimal("2.5"),
        output_per_million=Decimal(10),
        cached_input_per_million=Decimal("1.25"),
        max_output_tokens=16384,
    )
    assert not [model for model in found if "embedding-3" in model or len(model) > 256]
    assert (list_version() or "").startswith("litellm 1.")


def test_every_price_is_one_that_operators_might_write() -> None:
    """The list is read without validation, since it has thousands of entries."""
    for price in listed_prices().values():
        assert ModelPrice.model_validate(dict(price)) == price


@pytest.mark.parametrize(
    ("prompt", "completion", "cached", "cost"),
    [(0, 0, 0, 0), (1, 0, 0, 1), (10, 0, 0, 2), (1000, 0, 0, 150), (1000, 100, 0, 210), (1000, 0, 1000, 75)],
)
def test_a_cost_is_rounded_up_to_a_micro_dollar(prompt: int, completion: int, cached: int, cost: int) -> None:
    price = ModelPrice(
        input_per_million=Decimal("0.15"),
        output_per_million=Decimal("0.6"),
        cached_input_per_million=Decimal("0.075"),
    )
    assert price.cost(prompt, completion, cached) == cost
