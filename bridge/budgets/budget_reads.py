"""The verbs `budget.list` and `budget.get`: what turns and the project may spend, and have (protocol §6)."""

from collections.abc import Mapping

from turnstile.bridge.verbs.micro_service import VerbHandler, VerbRequest
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget, list_budgets, list_project_limits
from turnstile.ledger.pool import Pool
from turnstile.schema.budgets.budget_requests import (
    BudgetListReply,
    BudgetListRequest,
    BudgetReply,
    BudgetRequest,
)
from turnstile.schema.errors import Refused
from turnstile.schema.states import ReplyStatus


class BudgetReads:
    """The verbs over one ledger; each sees the project's budgets, and those of the turns of its subject's channel."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def handlers(self) -> Mapping[str, VerbHandler]:
        """The handlers by verb."""
        return {"budget.list": self.list, "budget.get": self.get}

    async def list(self, request: VerbRequest) -> BudgetListReply:
        """A page of budgets."""
        wanted = request.parse(BudgetListRequest)
        project = request.project_id
        rows = await self._pool.run(
            lambda conn: list_budgets(
                conn,
                project,
                channel=request.channel_id,
                kind=wanted.kind,
                status=wanted.status,
                after=wanted.after,
                row_limit=wanted.limit + 1,
            )
        )
        limits = await self._pool.run(lambda conn: list_project_limits(conn, project))
        shown = tuple(rows[: wanted.limit])
        more = shown[-1].budget_id if len(rows) > len(shown) else None
        return BudgetListReply(status=ReplyStatus.ACCEPTED, budgets=shown, limits=tuple(limits), next=more)

    async def get(self, request: VerbRequest) -> BudgetReply:
        """A budget; raises `Refused` (unknown_budget)."""
        name = request.parse(BudgetRequest).budget_id
        wanted = await self._pool.run(lambda conn: budget_id_of(conn, request.project_id, name))
        found = await self._pool.run(
            lambda conn: get_budget(conn, request.project_id, wanted, channel=request.channel_id)
        )
        if found is None:
            raise Refused("unknown_budget", "the channel has no such budget")
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=found)
