"""Why a turn ended for want of budget: `BudgetLack`, in its deliverable and its `stats` (protocol §15)."""

from datetime import datetime
from decimal import Decimal
from typing import assert_never

from pydantic import Field

from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.limits import dollars_of, json_number
from turnstile.schema.budgets.plans import BudgetId, Dimension

BUDGET_EXHAUSTED = "budget_exhausted"
"""`error_code` of a turn of which the next request to a model did not fit into its budget."""
UNPRICED_MODEL = "unpriced_model"
"""`error_code` of a turn whose cost is limited and whose model has no price."""


class BudgetLack(Tolerant):
    """The limit that the next request to a model was over."""

    dimension: Dimension
    """What was exhausted; `seconds` is the turn's time."""
    budget_id: BudgetId | None = Field(default=None, exclude_if=lambda value: value is None)
    """The budget: the turn's own, one above it, or the project's."""
    had: int | float | None = Field(default=None, exclude_if=lambda value: value is None)
    """The limit: tokens, or for `cost` US dollars; so the others."""
    spent: int | float | None = Field(default=None, exclude_if=lambda value: value is None)
    """What was used of it."""
    reserved: int | float | None = Field(default=None, exclude_if=lambda value: value is None)
    """For requests in hand, and for turns below that have budgets of their own."""
    wanted: int | float | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the request might have used."""
    until: datetime | None = Field(default=None, exclude_if=lambda value: value is None)
    """When the turn's time was over."""

    @classmethod
    def of(
        cls, dimension: Dimension, budget_id: BudgetId | None, until: datetime | None, **figures: int | None
    ) -> "BudgetLack":
        """The lack of a ledger row, which counts costs in micro-dollars."""
        is_time = dimension is Dimension.SECONDS
        amounts = {
            name: figure if figure is None or dimension is not Dimension.COST else json_number(dollars_of(figure))
            for name, figure in figures.items()
        }
        return cls.model_validate(
            {"dimension": dimension, "budget_id": budget_id, "until": until if is_time else None, **amounts}
        )

    def __str__(self) -> str:
        """A sentence for people."""
        match self.dimension:
            case Dimension.SECONDS:
                moment = "" if self.until is None else f" at {self.until:%Y-%m-%d %H:%M:%S} UTC"
                return f"the time that the turn was given was over{moment}"
            case Dimension.TOKENS:
                unit = ("", " tokens")
            case Dimension.COST:
                unit = ("$", "")
            case Dimension.TURNS:
                unit = ("", " turns")
            case _:
                assert_never(self.dimension)
        had, spent, reserved, needed = (
            f"{unit[0]}{figure:f}" if isinstance(figure, Decimal) else f"{unit[0]}{figure}"
            for figure in (_plain(self.had), _plain(self.spent), _plain(self.reserved), _plain(self.wanted))
        )
        return (
            f"the budget of {had}{unit[1]} was exhausted: {spent} spent, {reserved} reserved, "
            f"and the next request may take {needed}"
        )


def _plain(value: float | None) -> Decimal | int | None:
    """Without an exponent."""
    return Decimal(str(value)) if isinstance(value, float) else value
