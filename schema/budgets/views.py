"""Budgets as people and programs see them (protocol §15): what a row had, has spent, holds and has left. Pure.

Numbers are those of one row, which has everything below it: an open grant stands in `reserved` of the row that it was
taken from, a closed one in `spent`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import from_json

from turnstile.schema.base import Tolerant
from turnstile.schema.budgets.limits import Dollars, dollars_of
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod, TurnBudget
from turnstile.schema.ids import AgentTurnId, ChannelId

Counted = Literal["tokens", "cost", "turns"]


class TurnSums(Tolerant):
    """Turns of a budget."""

    max: int | None
    """The limit; null: this budget has none of this kind."""
    spent: int
    """Turns that were enqueued; they are never returned to the budget."""
    reserved: int
    """What open grants below hold."""
    left: int | None
    """What is neither spent nor reserved; null without a limit."""
    returned: int
    """Of a closed budget: what went back to where it came from."""


class TokenSums(TurnSums):
    """Tokens of a budget."""

    spent: int
    """Tokens of attempts at models, those of closed grants below included."""
    reserved: int
    """What open reservations, and open grants below, hold."""
    unsettled: int
    """The part of `spent` that was booked whole, since nobody knows what the attempt used."""
    beyond: int
    """The part of `spent` that the reservations did not cover: a provider took more than was reserved."""


class CostSums(Tolerant):
    """US dollars of a budget; each number as that of the tokens."""

    max: Dollars | None
    """The limit; null: this budget has none of this kind."""
    spent: Dollars
    """Cost of attempts at models, that of closed grants below included."""
    reserved: Dollars
    """What open reservations, and open grants below, hold."""
    left: Dollars | None
    """What is neither spent nor reserved; null without a limit."""
    returned: Dollars
    """Of a closed budget: what went back to where it came from."""
    unsettled: Dollars
    """The part of `spent` that was booked whole, since nobody knows what the attempt used."""
    beyond: Dollars
    """The part of `spent` that the reservations did not cover."""


class BudgetView(Tolerant):
    """A budget: a turn's own grant, or what a project may spend in a day or month (UTC)."""

    budget_id: BudgetId
    """Of a turn's grant the turn's id."""
    kind: Literal["turn", "day", "month"]
    """Whose it is."""
    channel_id: ChannelId | None
    """The channel of its turn; null for a project's."""
    agent_turn_id: AgentTurnId | None
    """Its turn; null for a project's."""
    status: Literal["open", "ended", "closed"]
    """`ended`: its turn is over, and something of it is still reserved. `closed`: what was left has gone back."""
    tokens: TokenSums
    """Tokens."""
    cost_usd: CostSums
    """US dollars."""
    turns: TurnSums
    """Turns."""
    taken_from: tuple[BudgetId, ...]
    """The budgets that the grant was taken from; none for a project's, and where nothing above limits it."""
    until: datetime | None
    """When its time is over."""
    warn_percent: int
    """Percent of a limit. Passing it publishes one warning."""
    warned_at: datetime | None
    """When that was."""
    ended_at: datetime | None
    """When its turn ended."""
    closed_at: datetime | None
    """When it closed."""
    created_at: datetime
    """When it was granted."""
    updated_by: str | None
    """Who changed its limits last."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "BudgetView":
        """The view of a row of `state.budgets`."""
        sources = [row[f"from_{unit}"] or () for unit in ("tokens", "cost", "turns")]
        status = "closed" if row["closed_at"] else "ended" if row["ended_at"] else "open"
        cost = {name: None if value is None else dollars_of(value) for name, value in _sums(row, "cost").items()}
        return cls.model_validate(
            {
                **row,
                "status": status,
                "tokens": _sums(row, "tokens"),
                "cost_usd": cost,
                "turns": _sums(row, "turns"),
                "taken_from": tuple(dict.fromkeys(i for ids in sources for i in ids)),
            }
        )


def _sums(row: Mapping[str, Any], dimension: Counted) -> dict[str, int | None]:
    names = ("max", "spent", "reserved", "returned", "unsettled", "beyond")
    sums: dict[str, int | None] = {name: row.get(f"{name}_{dimension}") for name in names}
    had = sums["max"]
    left = None if had is None else max(had - (sums["spent"] or 0) - (sums["reserved"] or 0), 0)
    return {**sums, "left": left}


def _read(value: object) -> object:
    """A column of JSON has a row of `state.budgets`; what is a view, or null, stays."""
    return BudgetView.of(from_json(value)) if isinstance(value, str) else value


BudgetColumn = Annotated[BudgetView | None, BeforeValidator(_read)]
"""A budget that a statement returns as `to_jsonb` of its row."""


def ids_of(budget: TurnBudget) -> tuple[BudgetId, ...]:
    """The budgets that a turn is charged to, each once."""
    return tuple(dict.fromkeys((*budget.tokens, *budget.cost, *budget.turns)))


class ProjectLimits(Tolerant):
    """What the turns of a project that are enqueued in a day or month (UTC) may spend together."""

    period: BudgetPeriod
    """How long."""
    max_tokens: int | None
    """Tokens; null: no limit."""
    max_cost_usd: Dollars | None
    """US dollars; null: no limit."""
    max_turns: int | None
    """Turns; null: no limit."""
    updated_at: datetime
    """When it was set."""
    updated_by: str | None
    """Who set it."""
