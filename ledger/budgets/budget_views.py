"""Budgets as people look at them: pages, one, those of a turn, and whose spending each has. Reads only."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from turnstile.ledger.queries import Connection, query
from turnstile.schema.budgets.budget_requests import budget_named
from turnstile.schema.budgets.limits import dollars_of
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView, ProjectLimits
from turnstile.schema.ids import AgentTurnId, ChannelId, ProjectId

Kind = Literal["turn", "day", "month"]
Status = Literal["open", "ended", "closed"]


async def list_budgets(
    conn: Connection,
    project: ProjectId,
    *,
    channel: ChannelId | None = None,
    with_project: bool = True,
    kind: Kind | None = None,
    status: Status | None = None,
    after: BudgetId | None = None,
    row_limit: int,
) -> list[BudgetView]:
    """The newest first; of a `channel` those of its turns and, `with_project`, the project's own."""
    rows = await query("list_budgets").many(
        conn,
        project_id=project,
        channel_id=channel,
        with_project=with_project,
        kind=kind,
        status=status,
        after_id=after,
        row_limit=row_limit,
    )
    return [BudgetView.of(row) for row in rows]


async def budget_id_of(conn: Connection, project: ProjectId, name: str) -> BudgetId:
    """The budget that a name stands for: `day` and `month` are those of now by the ledger's clock, which charges them.

    Raises `BadRequest` as `budget_named` does.
    """
    return budget_named(project, name, (await query("ledger_time").one(conn))["now"])


async def get_budget(
    conn: Connection,
    project: ProjectId,
    budget: BudgetId,
    *,
    channel: ChannelId | None = None,
    with_project: bool = True,
) -> BudgetView | None:
    """The budget; None if the project, or the channel, has no such one."""
    row = await query("get_budget").opt(
        conn, project_id=project, budget_id=budget, channel_id=channel, with_project=with_project
    )
    return None if row is None else BudgetView.of(row)


async def list_budgets_of_turn(conn: Connection, project: ProjectId, turn: AgentTurnId) -> list[BudgetView]:
    """The budgets that the turn is charged to, the nearest first; none if nothing limits it."""
    rows = await query("list_budgets_of_turn").many(conn, project_id=project, agent_turn_id=turn)
    return [BudgetView.of(row) for row in rows]


async def list_project_limits(conn: Connection, project: ProjectId) -> list[ProjectLimits]:
    """What the project's turns may spend in a day or month; none if nothing limits them."""
    rows = await query("list_project_limits").many(conn, project_id=project)
    return [ProjectLimits.model_validate(_in_dollars(row)) for row in rows]


async def is_raised(conn: Connection, project: ProjectId, correlation_id: str) -> bool:
    """Whether a request of this name has raised a budget of the project."""
    row = await query("is_raised").one(conn, project_id=project, correlation_id=correlation_id)
    return bool(row["raised"])


async def list_charged_turns(conn: Connection, project: ProjectId, budget: BudgetId) -> Sequence[AgentTurnId]:
    """The turns whose spending the budget has, in no order; none if the project has no such budget."""
    rows = await query("list_charged_turns").many(conn, project_id=project, budget_id=budget)
    return [AgentTurnId(row["agent_turn_id"]) for row in rows]


async def list_turns_of_tree(conn: Connection, project: ProjectId, turn: AgentTurnId) -> Sequence[AgentTurnId]:
    """The turns of the tree that the turn is in, itself among them, in no order."""
    rows = await query("list_turns_of_tree").many(conn, project_id=project, agent_turn_id=turn)
    return [AgentTurnId(row["agent_turn_id"]) for row in rows]


def _in_dollars(row: Mapping[str, Any]) -> dict[str, Any]:
    cost = row["max_cost"]
    return {**row, "max_cost_usd": None if cost is None else dollars_of(cost)}
