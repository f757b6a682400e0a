"""Changes of budgets by operators, and refusals (protocol §15): `raise_budget`, `limit_project`, `refusal_of`.

Guarantees: what a budget has is never less than what is spent and reserved of it, but for a project's that was
lowered: of that nothing more is given. A grant is raised from what it came from, or not at all. One round trip each;
never publishes. The database role of a worker has no right to any of them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import asyncpg

from turnstile.ledger.queries import Connection, query
from turnstile.runtime.faults import Fault, hit
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits, dollars_of
from turnstile.schema.budgets.plans import BudgetId, BudgetPeriod, Dimension
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import ProjectId

EXCEEDED = "budget_exceeded"
"""The code of a request that does not fit into a budget."""
_STATE = "TB001"
"""The SQLSTATE with which the charge of an enqueue undoes its transaction."""
_CAP = 10**15


@dataclass(frozen=True, slots=True)
class More:
    """What a budget gets more, or less: tokens, micro-dollars, turns."""

    tokens: int | None = None
    cost: int | None = None
    turns: int | None = None


async def raise_budget(
    conn: Connection, project: ProjectId, budget: BudgetId, more: More, caller: str, key: str
) -> None:
    """Give a budget more, or take back what is free; recorded as the caller's.

    The raise is a row of its own, by its key: the same again, whenever, changes nothing. Raises `Refused`:
    unknown_budget, correlation_conflict (the key was another raise's), budget_closed, budget_unlimited (it has no limit
    of that dimension), budget_in_use (less than is spent and reserved), budget_exceeded (what it was taken from has not
    so much left).
    """
    named = {"max_tokens": more.tokens, "max_cost": more.cost, "max_turns": more.turns}
    limits = {name: value for name, value in named.items() if value}
    if not limits or any(abs(value) > _CAP for value in limits.values()):
        raise BadRequest("say by how much tokens, cost or turns change")
    row = await query("raise_budget").one(
        conn, project_id=project, budget_id=budget, more=json.dumps(limits | {"request": key}), caller=caller
    )
    if row["verdict"] != "raised":
        raise Refused(row["verdict"], _why_not_raised(row["verdict"], budget, json.loads(row["detail"] or "{}")))
    hit(Fault.BUDGET_RAISED)


def _why_not_raised(verdict: str, budget: BudgetId, detail: Mapping[str, Any]) -> str:
    match verdict:
        case "unknown_budget":
            return f"the project has no budget {budget}"
        case "correlation_conflict":
            return "this correlation_id was another raise's: name each raise anew"
        case "budget_closed":
            return f"budget {budget} is closed: what was left of it went back when its turn was over"
        case "budget_unlimited":
            return f"budget {budget} has no limit of {detail['dimension']} that could change"
        case "budget_in_use":
            return (
                f"budget {budget} cannot have less {detail['dimension']} than is spent and reserved: {_state(detail)}"
            )
        case _:
            return exceeded(detail)


async def limit_project(
    conn: Connection, project: ProjectId, period: BudgetPeriod, limits: BudgetLimits | None, caller: str
) -> BudgetId:
    """Set what the turns of a project may spend together in a day or month; None: nothing limits them.

    It holds at once, also in this day or month: where more is spent and reserved already, nothing more is given.
    Returns the budget of this day or month. Raises `BadRequest` for `max_seconds` and `warn_percent`: only turns have
    these.
    """
    stored = {} if limits is None else limits.stored()
    if stored.keys() & {"max_seconds", "warn_percent"}:
        raise BadRequest("a project has limits of tokens, cost and turns; max_seconds and warn_percent are of a turn")
    row = await query("limit_project").one(
        conn, project_id=project, period=period.value, limits=json.dumps(stored), caller=caller
    )
    hit(Fault.PROJECT_LIMITED)
    return BudgetId(row["budget_id"])


def refusal_of(error: BaseException) -> Refused | None:
    """The refusal that an error of the database stands for: an enqueue that does not fit into a budget; else None.

    The charge is made at the commit: the error leaves `Pool.run` and `Pool.transact`, not the statement.
    """
    if not isinstance(error, asyncpg.PostgresError) or getattr(error, "sqlstate", None) != _STATE:
        return None
    detail = cast("str | None", getattr(error, "detail", None)) or "{}"
    return Refused(EXCEEDED, exceeded(json.loads(detail)))


def exceeded(detail: Mapping[str, Any]) -> str:
    """What a `budget_exceeded` says: of what there is not enough, and how much was asked."""
    where = f"budget {detail['budget_id']}" if detail.get("budget_id") else "the turn's own budget"
    return f"{where} has not enough {detail['dimension']}: {_state(detail)}"


def _state(detail: Mapping[str, Any]) -> str:
    figures: JsonObject = {name: detail.get(name) for name in ("had", "spent", "reserved", "asked")}
    return ", ".join(f"{name} {_told(detail['dimension'], value)}" for name, value in figures.items())


def _told(dimension: str, value: object) -> str:
    if dimension == Dimension.COST and isinstance(value, int):
        return f"${dollars_of(value):f}"
    return str(value)
