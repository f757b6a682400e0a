"""The verbs of budgets: `budget.list`, `budget.get`, `raise_budget` and `limit_project` (protocol §6).

The subject's end names the caller, whom NATS permissions fix: a caller that does not operate may read only, and the
ledger keeps who changed a limit. Nothing is published: no turn waits for a higher limit. What ran out of budget has
ended, and what runs asks the ledger before each request to a model.
"""

from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget, list_budgets, list_project_limits
from turnstile.ledger.budgets.steering import More, limit_project, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetRaiseRequest,
    BudgetReply,
    BudgetRequest,
    ProjectLimitRequest,
)
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId, ProjectId, uuid7
from turnstile.schema.states import ReplyStatus


class BudgetVerbs:
    """The verbs over one ledger; each sees the project's budgets, and those of the turns of its subject's channel."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def budget_list(self, request: VerbRequest) -> BudgetListReply:
        """A page of budgets."""
        body = request.parse(BudgetListRequest)
        return await budget_page(self._pool, request.project_id, request.channel_id, body)

    async def budget_get(self, request: VerbRequest) -> BudgetReply:
        """A budget; raises `Refused` (unknown_budget)."""
        name = request.parse(BudgetRequest).budget_id
        budget_id = await self._pool.run(lambda conn: budget_id_of(conn, request.project_id, name))
        budget = await self._pool.run(
            lambda conn: get_budget(conn, request.project_id, budget_id, channel=request.channel_id)
        )
        if budget is None:
            raise Refused("unknown_budget", "the channel has no such budget")
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=budget)

    async def raise_budget(self, request: VerbRequest) -> BudgetReply:
        """Give a budget more, or take back what is free; answers it as it is then.

        Raises `Refused` (forbidden, unknown_budget, budget_closed, budget_unlimited, budget_in_use, budget_exceeded).
        """
        caller, body = request.operator(), request.parse(BudgetRaiseRequest)
        project, channel = request.project_id, request.channel_id
        budget = await self._pool.run(lambda conn: budget_id_of(conn, project, body.budget_id))
        if await self._pool.run(lambda conn: get_budget(conn, project, budget, channel=channel)) is None:
            raise Refused("unknown_budget", "the channel has no such budget")
        more = More(body.max_tokens, body.max_cost, body.max_turns)
        name = body.correlation_id or uuid7()  # the pool repeats a statement whose answer was lost
        await self._pool.run(lambda conn: raise_budget(conn, project, budget, more, caller.name, name))
        view = await self._pool.run(lambda conn: get_budget(conn, project, budget))
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=view)

    async def limit_project(self, request: VerbRequest) -> BudgetReply:
        """Set what the project may spend in a day or month; answers the budget of this one. Raises as above."""
        caller, body = request.operator(), request.parse(ProjectLimitRequest)
        limits = None if body.limits is None else body.limits.limits
        project = request.project_id
        budget = await self._pool.run(lambda conn: limit_project(conn, project, body.period, limits, caller.name))
        view = await self._pool.run(lambda conn: get_budget(conn, project, budget))
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=view)


async def budget_page(
    pool: Pool, project: ProjectId, channel: ChannelId | None, body: BudgetListRequest
) -> BudgetListReply:
    """A page of the budgets of the channel's turns, or of all, and of the project's own."""
    rows = await pool.run(
        lambda conn: list_budgets(
            conn,
            project,
            channel=channel,
            kind=body.kind,
            status=body.status,
            after=body.after,
            row_limit=body.limit + 1,
        )
    )
    limits = await pool.run(lambda conn: list_project_limits(conn, project))
    page = tuple(rows[: body.limit])
    more = page[-1].budget_id if len(rows) > len(page) else None
    return BudgetListReply(status=ReplyStatus.ACCEPTED, budgets=page, limits=tuple(limits), next=more)
