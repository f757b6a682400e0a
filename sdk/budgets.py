"""Budgets as programs see and steer them (protocol §6, docs/budgets.md).

    budget = await client.budget(turn_id)
    print(budget.tokens.left, budget.cost_usd.spent)
    await client.raise_budget(turn_id, tokens=10_000)

Anybody of the project reads; operators alone raise and limit, and the ledger keeps who did.
"""

from decimal import Decimal
from typing import Protocol

from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    ProjectLimitRequest,
)
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.ids import ChannelId, uuid7
from turnstile.sdk.requests import parse_request

PAGE = 100
Dollars = Decimal | float | int


class Budgeting(Protocol):
    """A way to the budget verbs."""

    async def list_budgets(self, wanted: BudgetListRequest) -> BudgetListReply:
        """A page of budgets, and what the project may spend."""
        ...

    async def get_budget(self, budget_id: BudgetId) -> BudgetView:
        """The budget; raises `Refused` (unknown_budget) or `ServerUnavailable`."""
        ...

    async def raise_budget(self, wanted: BudgetRaiseRequest, channel: ChannelId | None) -> BudgetView:
        """The budget, of this channel if one is given, with its new limits.

        Raises `Refused` with the code of the refusal, or `ServerUnavailable`.
        """
        ...

    async def limit_project(self, wanted: ProjectLimitRequest) -> BudgetView:
        """The budget of this day or month; raises as `raise_budget`."""
        ...


async def find_budgets(backend: Budgeting, wanted: BudgetListRequest, limit: int) -> list[BudgetView]:
    """The budgets, the newest first; at most `limit`."""
    found: list[BudgetView] = []
    while len(found) < limit:
        page = await backend.list_budgets(wanted.model_copy(update={"limit": min(PAGE, limit - len(found))}))
        found += page.budgets
        if page.next is None:
            break
        wanted = wanted.model_copy(update={"after": page.next})
    return found


async def find_limits(backend: Budgeting) -> list[ProjectLimits]:
    """What the project may spend in a day or month."""
    return list((await backend.list_budgets(BudgetListRequest(limit=1))).limits)


def raise_request(
    budget_id: str, tokens: int | None, cost_usd: Dollars | None, turns: int | None, correlation_id: str | None
) -> BudgetRaiseRequest:
    """The request; raises `BadRequest`."""
    named: JsonObject = {"budget_id": budget_id, "correlation_id": correlation_id or uuid7()}
    return parse_request(BudgetRaiseRequest, {**named, **_given(tokens, cost_usd, turns)})


def limit_request(period: str, tokens: int | None, cost_usd: Dollars | None, turns: int | None) -> ProjectLimitRequest:
    """The request; without any number it removes the limits. Raises `BadRequest`."""
    return parse_request(ProjectLimitRequest, {"period": period, "limits": _given(tokens, cost_usd, turns) or None})


def _given(tokens: int | None, cost_usd: Dollars | None, turns: int | None) -> JsonObject:
    cost = float(cost_usd) if isinstance(cost_usd, Decimal) else cost_usd
    named: JsonObject = {"max_tokens": tokens, "max_cost_usd": cost, "max_turns": turns}
    return {name: value for name, value in named.items() if value is not None}
