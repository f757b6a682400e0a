"""What a turn, a profile, a task of a fork or a project may spend: `BudgetLimits` (protocol §15). Pure.

An absent field is no limit of its own: what the asking turn has, holds. 0 is nothing. Outside, a cost is a decimal
number of US dollars; inside, whole micro-dollars: what cannot be converted exactly is refused.
"""

from decimal import Decimal
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from turnstile.schema.base import Strict

MAX_TOKENS = 10**15
MAX_DOLLARS = 10**9
MAX_TURNS = 10**9
MAX_SECONDS = 10 * 366 * 86_400
WARN_PERCENT = 80
MICRO = 1_000_000
"""Micro-dollars in a dollar."""


def _dollars(value: object) -> Decimal:
    """The number, exactly as it was written: a float has the digits that it prints."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ValueError("must be a number of US dollars")  # noqa: TRY004 -- pydantic makes a problem of it
    number = value if isinstance(value, Decimal) else Decimal(str(value))
    if not number.is_finite() or not 0 <= number <= MAX_DOLLARS:
        raise ValueError(f"must be between 0 and {MAX_DOLLARS} US dollars")
    if number * MICRO != int(number * MICRO):
        raise ValueError("must have at most 6 decimal places: costs are counted in whole micro-dollars")
    return number


def json_number(value: Decimal) -> int | float:
    """The number as JSON has it: whole ones without a point."""
    return int(value) if value == int(value) else float(value)


Dollars = Annotated[
    Decimal,
    BeforeValidator(_dollars),
    PlainSerializer(json_number, return_type=int | float, when_used="json"),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_DOLLARS, "multipleOf": 0.000001}),
]
"""US dollars, with at most 6 decimal places."""


def micro_dollars(dollars: Decimal) -> int:
    """The dollars in whole micro-dollars, exactly."""
    return int(dollars * MICRO)


def dollars_of(micro: int) -> Decimal:
    """Micro-dollars in dollars, exactly."""
    return Decimal(micro) / MICRO


class BudgetLimits(Strict):
    """What may be spent; each limit that is absent is that of the turn that asks."""

    max_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS, strict=True)
    """Tokens that models read and write, those of turns below included."""
    max_cost_usd: Dollars | None = None
    """What models cost, in US dollars with at most 6 decimal places; 0 allows only what costs nothing."""
    max_turns: int | None = Field(default=None, ge=0, le=MAX_TURNS, strict=True)
    """Turns, this one and those below it."""
    max_seconds: int | None = Field(default=None, ge=0, le=MAX_SECONDS, strict=True)
    """Time from the enqueue to the end, waiting for people included."""
    warn_percent: int | None = Field(default=None, ge=1, le=100, strict=True)
    """Percent of a limit. Passing it publishes one warning and changes nothing else; 80 if it is absent."""

    @model_validator(mode="after")
    def _warns_of_something(self) -> Self:
        if self.warn_percent is not None and not self.limits_anything:
            raise ValueError("warn_percent needs a limit to warn of")
        return self

    @property
    def limits_anything(self) -> bool:
        """Whether there is a limit at all."""
        return any(x is not None for x in (self.max_tokens, self.max_cost_usd, self.max_turns, self.max_seconds))

    @property
    def max_cost(self) -> int | None:
        """The cost in micro-dollars."""
        return None if self.max_cost_usd is None else micro_dollars(self.max_cost_usd)

    def stored(self) -> dict[str, int]:
        """As the ledger takes it (`own` of `state.plan_budget`): whole numbers, the cost as `max_cost`."""
        values = {
            "max_tokens": self.max_tokens,
            "max_cost": self.max_cost,
            "max_turns": self.max_turns,
            "max_seconds": self.max_seconds,
            "warn_percent": self.warn_percent,
        }
        return {name: value for name, value in values.items() if value is not None}

    @classmethod
    def from_stored(cls, stored: dict[str, Any]) -> Self:
        """The limits that `stored` gave."""
        fields = {name: value for name, value in stored.items() if name != "max_cost" and value is not None}
        cost = stored.get("max_cost")
        return cls.model_validate(fields | ({} if cost is None else {"max_cost_usd": dollars_of(cost)}))
