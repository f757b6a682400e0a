"""Budgets as programs see and steer them (protocol §6, docs/budgets.md).

    budget = await client.budget(turn_id)
    print(budget.tokens.left, budget.cost_usd.spent)
    await client.raise_budget(turn_id, tokens=10_000)

Anybody of the project reads; operators alone raise and limit, and the ledger keeps who did.
"""

from decimal import Decimal

from turnstile.schema import verbs
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.budget_requests import (
    BudgetListRequest,
    BudgetRaiseRequest,
    BudgetReply,
    ProjectLimitRequest,
)
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.errors import Refused
from turnstile.schema.ids import uuid7
from turnstile.sdk.requests import parse_request
from turnstile.sdk.turn import Backend

PAGE = 100
Dollars = Decimal | float | int


async def find_budgets(backend: Backend, query: BudgetListRequest, limit: int) -> list[BudgetView]:
    """The budgets, the newest first; at most `limit`."""
    budgets: list[BudgetView] = []
    while len(budgets) < limit:
        request = query.model_copy(update={"limit": min(PAGE, limit - len(budgets))})
        page = await backend.call(verbs.BUDGET_LIST, request)
        budgets += page.budgets
        if page.next is None:
            break
        query = query.model_copy(update={"after": page.next})
    return budgets


async def find_limits(backend: Backend) -> list[ProjectLimits]:
    """What the project may spend in a day or month."""
    return list((await backend.call(verbs.BUDGET_LIST, BudgetListRequest(limit=1))).limits)


def budget_in(reply: BudgetReply) -> BudgetView:
    """The budget that a reply shows."""
    if reply.budget is None:
        raise Refused("internal_error", "the bridge found a budget and showed none")
    return reply.budget


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
