"""What attempts used: what is known, what is free, and what nobody can say."""

from typing import Any

import pytest

from turnstile.activities.budgets.gate import NOT_SENT, step_budget
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.prices import ModelPrice

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
