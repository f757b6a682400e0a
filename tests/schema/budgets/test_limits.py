"""Limits as strangers write them: exact in micro-dollars, and refused where they could not be."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from turnstile.schema.budgets.limits import BudgetLimits, dollars_of

LIMITS = st.builds(
    BudgetLimits,
    max_tokens=st.none() | st.integers(0, 10**15),
    max_cost_usd=st.none() | st.integers(0, 10**15).map(dollars_of),
    max_turns=st.none() | st.integers(0, 10**9),
    max_seconds=st.none() | st.integers(0, 10**8),
)


@given(LIMITS)
def test_limits_are_the_same_after_the_wire_and_the_ledger(limits: BudgetLimits) -> None:
    assert BudgetLimits.model_validate_json(limits.model_dump_json()) == limits
    assert BudgetLimits.from_stored(limits.stored()) == limits
    assert limits.limits_anything == bool(limits.stored())


@pytest.mark.parametrize(
    ("text", "micro"),
    [("0.1", 100_000), ("0.000001", 1), ("3", 3_000_000), ("1e-6", 1), ("999999999.999999", 10**15 - 1)],
)
def test_dollars_are_converted_exactly(text: str, micro: int) -> None:
    assert BudgetLimits.model_validate_json(f'{{"max_cost_usd": {text}}}').stored() == {"max_cost": micro}
    assert BudgetLimits(max_cost_usd=Decimal(text)).max_cost == micro


@pytest.mark.parametrize(
    "asked",
    [
        *({"max_cost_usd": each} for each in (-1, 0.0000001, 1e10, float("nan"), float("inf"), "1", True, [1], 1e400)),
        *({"max_tokens": each} for each in (-1, 1.5, "1", True, 10**16)),
        *({"max_turns": each} for each in (-1, 10**10, "2")),
        *({"max_seconds": each} for each in (-1, 10**10, 0.5)),
        *({"max_tokens": 1, "warn_percent": each} for each in (0, 101, "80")),
        {"warn_percent": 80},
        {"max_token": 1},
    ],
)
def test_what_cannot_be_kept_exactly_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        BudgetLimits.model_validate(asked)


def test_nothing_is_nothing_and_no_limit_is_none() -> None:
    assert BudgetLimits(max_tokens=0, max_cost_usd=Decimal(0)).stored() == {"max_tokens": 0, "max_cost": 0}
    assert BudgetLimits().stored() == {}
