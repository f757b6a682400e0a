"""Requests and replies of the budget verbs (protocol §15), and the short names of a project's budgets. Pure."""

import re
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, WithJsonSchema, model_validator

from turnstile.schema.base import IdOf, Reply, Strict
from turnstile.schema.budgets.limits import (
    MAX_DOLLARS,
    MAX_TOKENS,
    MAX_TURNS,
    BudgetLimits,
    Dollars,
    json_number,
    micro_dollars,
)
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.errors import BadRequest
from turnstile.schema.ids import ProjectId

ID_LIMIT: Final = 256
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_MONTH = re.compile(r"\d{4}-\d{2}")
_DOLLARS: TypeAdapter[Decimal] = TypeAdapter(Dollars, config=ConfigDict(defer_build=True))


def _difference(value: object) -> Decimal:
    match value:
        case int() | float() | Decimal() if value < 0:
            return -_DOLLARS.validate_python(-value)
        case _:
            return _DOLLARS.validate_python(value)


DollarDifference = Annotated[
    Decimal,
    BeforeValidator(_difference),
    PlainSerializer(json_number, return_type=int | float, when_used="json"),
    WithJsonSchema({"type": "number", "minimum": -MAX_DOLLARS, "maximum": MAX_DOLLARS, "multipleOf": 0.000001}),
]
"""US dollars more, or with a minus fewer; at most 6 decimal places."""


def budget_named(project: ProjectId, name: str, now: datetime) -> BudgetId:
    """The budget that a name stands for.

    `day` and `month` are the project's of now, `2026-11-23` and `2026-11` those of then, in UTC; any other name is an
    id. Raises `BadRequest` for one that is too long, or cannot be stored.
    """
    if not 0 < len(name) <= ID_LIMIT or not name.isascii() or not name.isprintable():
        raise BadRequest(f"a budget's id has 1 to {ID_LIMIT} ASCII characters")
    if name == "day" or _DAY.fullmatch(name):
        return BudgetId(f"{project}/day/{name if name != 'day' else f'{now:%Y-%m-%d}'}")
    if name == "month" or _MONTH.fullmatch(name):
        return BudgetId(f"{project}/month/{name if name != 'month' else f'{now:%Y-%m}'}")
    return BudgetId(name)


class SpendingLimits(Strict):
    """What may be spent in a day or month; what is absent has no limit, and 0 is nothing."""

    max_tokens: int | None = Field(default=None, ge=0, le=MAX_TOKENS, strict=True)
    """Tokens that models read and write."""
    max_cost_usd: Dollars | None = None
    """What models cost, in US dollars with at most 6 decimal places."""
    max_turns: int | None = Field(default=None, ge=0, le=MAX_TURNS, strict=True)
    """Turns that are enqueued."""

    @model_validator(mode="after")
    def _limits(self) -> Self:
        if self.max_tokens is None and self.max_cost_usd is None and self.max_turns is None:
            raise ValueError("needs at least one of max_tokens, max_cost_usd and max_turns")
        return self

    @property
    def limits(self) -> BudgetLimits:
        """The same, as of a turn."""
        return BudgetLimits(max_tokens=self.max_tokens, max_cost_usd=self.max_cost_usd, max_turns=self.max_turns)


class BudgetChange(Strict):
    """How much more a budget shall have; with a minus, how much less."""

    max_tokens: int | None = Field(default=None, ge=-MAX_TOKENS, le=MAX_TOKENS, strict=True)
    """Tokens more."""
    max_cost_usd: DollarDifference | None = None
    """US dollars more, with at most 6 decimal places."""
    max_turns: int | None = Field(default=None, ge=-MAX_TURNS, le=MAX_TURNS, strict=True)
    """Turns more."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=ID_LIMIT)
    """The request's own name in the project: repeated with it, whenever, it changes nothing more. Null: each counts."""

    @model_validator(mode="after")
    def _changes(self) -> Self:
        if not (self.max_tokens or self.max_cost_usd or self.max_turns):
            raise ValueError("needs at least one of max_tokens, max_cost_usd and max_turns, other than 0")
        return self

    @property
    def max_cost(self) -> int | None:
        """The cost in micro-dollars."""
        return None if self.max_cost_usd is None else micro_dollars(self.max_cost_usd)


class BudgetListRequest(Strict):
    """Arguments of `budget.list`: which budgets of the channel and of the project."""

    kind: Literal["turn", "day", "month"] | None = None
    """Only these: turns' own grants, or the project's by day or month."""
    status: Literal["open", "ended", "closed"] | None = None
    """Only those with this status."""
    after: IdOf[BudgetId] | None = Field(default=None, min_length=1, max_length=ID_LIMIT)
    """Only those older than this one: `next` of the reply before."""
    limit: int = Field(default=100, ge=1, le=1000)
    """At most this many."""


class BudgetListReply(Reply):
    """Reply to `budget.list`."""

    budgets: tuple[BudgetView, ...] = ()
    """The budgets, the newest first."""
    limits: tuple[ProjectLimits, ...] = ()
    """What the project may spend in a day or month."""
    next: BudgetId | None = None
    """`after` of the next request; null if there are no more."""


class BudgetRequest(Strict):
    """Arguments of `budget.get`."""

    budget_id: IdOf[BudgetId] = Field(min_length=1, max_length=ID_LIMIT)
    """The budget; `day` or `month` for the project's of now."""


class BudgetReply(Reply):
    """Reply to `budget.get`, `raise_budget` and `limit_project`."""

    budget: BudgetView | None = None
    """The budget as it is now."""


class BudgetRaiseRequest(BudgetChange):
    """Arguments of `raise_budget`: how much more a budget shall have."""

    budget_id: IdOf[BudgetId] = Field(min_length=1, max_length=ID_LIMIT)
    """The budget; `day` or `month` for the project's of now."""


class ProjectLimitRequest(Strict):
    """Arguments of `limit_project`: what the project may spend in each day or month from now on."""

    period: BudgetPeriod
    """How long, in UTC."""
    limits: SpendingLimits | None
    """The limits, which take the place of those before; null: there are none any more."""
