"""Where a turn is charged: `TurnBudget`, its inbox row's `payload.budget` (protocol §15)."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, NewType

from pydantic import BeforeValidator

from turnstile.schema.base import Tolerant, read_column

BudgetId = NewType("BudgetId", str)
"""Of a turn's own grant its `agent_turn_id`; of a project's `{project}/day/2026-11-23` or `{project}/month/2026-11`."""


class Dimension(StrEnum):
    """What a budget counts."""

    TOKENS = "tokens"
    COST = "cost"
    """In micro-dollars."""
    TURNS = "turns"
    SECONDS = "seconds"
    """A moment, `until`; only a limit, never reserved."""


class BudgetPeriod(StrEnum):
    """The times for which a project may have limits; both begin in UTC."""

    DAY = "day"
    MONTH = "month"


class TurnBudget(Tolerant):
    """The rows that are charged for a turn, by dimension; none: nothing limits it there."""

    tokens: tuple[BudgetId, ...] = ()
    """The budgets that its tokens are charged to."""
    cost: tuple[BudgetId, ...] = ()
    """The budgets that its cost is charged to."""
    turns: tuple[BudgetId, ...] = ()
    """The budgets in which it counts as a turn."""
    until: datetime | None = None
    """When its time is over."""


StoredTurnBudget = Annotated[TurnBudget | None, BeforeValidator(read_column)]
"""As a column, or as the object in a reply."""
