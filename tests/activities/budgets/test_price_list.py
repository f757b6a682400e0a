"""Prices of models: read without loading litellm, and what a request costs by them."""

import subprocess
import sys
from decimal import Decimal

import pytest

from turnstile.activities.models.price_list import list_version, listed_prices
from turnstile.schema.budgets.prices import ModelPrice
from turnstile.schema.profiles import LlmConfig

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
