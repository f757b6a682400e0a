"""`/v1/budgets`: what turns and the project may spend, and have spent (protocol §6, §14.1).

Reading is the ledger's: a token of a channel sees the grants of its channel's turns, and neither those of others nor
what the whole project spends. Raising and limiting are the bridge's verbs, for operators: the token is the caller.
"""

from dataclasses import dataclass

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Forbidden
from turnstile.gateway.v1.turn_handlers import key_in, seen_channel
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget, list_budgets, list_project_limits
from turnstile.ledger.pool import Pool
from turnstile.schema import verbs
from turnstile.schema.access import Principal
from turnstile.schema.api import BudgetLimitation, BudgetPage, BudgetRaise, BudgetsQuery
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.budget_requests import BudgetReply
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.errors import BadRequest, Refused


@dataclass(frozen=True, slots=True)
class Budgets:
    """The handlers, over one ledger and one bridge."""

    pool: Pool
    asking: Asking

    async def list(self, call: Call[BudgetsQuery, object]) -> Answer:
        """A page of budgets."""
        principal, query = call.principal, call.query
        project, channel, whole = principal.project_id, seen_channel(principal, query.channel_id), _whole(principal)
        budgets = await self.pool.run(
            lambda conn: list_budgets(
                conn,
                project,
                channel=channel,
                with_project=whole and query.channel_id is None,
                kind=query.kind,
                status=query.status,
                after=None if query.cursor is None else BudgetId(query.cursor),
                row_limit=query.limit + 1,
            )
        )
        limits = await self.pool.run(lambda conn: list_project_limits(conn, project)) if whole else []
        page = budgets[: query.limit]
        more = page[-1].budget_id if len(budgets) > len(page) else None
        return Answer(BudgetPage(budgets=page, limits=limits, next=more))

    async def get(self, call: Call[object, object]) -> Answer:
        """A budget."""
        return Answer(await self._seen(call.principal, call.path["budget_id"]))

    async def raise_budget(self, call: Call[object, BudgetRaise]) -> Answer:
        """Give a budget more, or take back what is free."""
        view = await self._seen(call.principal, call.path["budget_id"])
        payload: JsonObject = {
            **call.body.model_dump(mode="json", exclude_unset=True),
            "budget_id": view.budget_id,
        }
        if (key := key_in(call.headers)) is not None:
            if call.body.correlation_id not in (None, key):
                raise BadRequest("correlation_id and Idempotency-Key differ: send only one of them")
            payload["correlation_id"] = key
        channel = self.asking.channel(call.principal, view.channel_id)
        reply = await self.asking.ask(call.principal, channel, verbs.RAISE_BUDGET, payload, call.headers)
        return Answer(_shown(reply))

    async def limit(self, call: Call[object, BudgetLimitation]) -> Answer:
        """Say what the project may spend in a day or month; answers the budget of this one."""
        principal = call.principal
        if not _whole(principal):
            raise Forbidden(
                "the token is for one channel: only a token of the whole project may set limits of the project"
            )
        payload: JsonObject = {**call.body.model_dump(mode="json", exclude_unset=True), "period": call.path["period"]}
        channel = self.asking.channel(principal, None)
        reply = await self.asking.ask(principal, channel, verbs.LIMIT_PROJECT, payload, call.headers)
        return Answer(_shown(reply))

    async def _seen(self, principal: Principal, name: str) -> BudgetView:
        """A budget that the token may see; raises `Refused` (unknown_budget)."""
        project, channel = principal.project_id, principal.channel_id
        budget = await self.pool.run(lambda conn: budget_id_of(conn, project, name))
        view = await self.pool.run(
            lambda conn: get_budget(conn, project, budget, channel=channel, with_project=_whole(principal))
        )
        if view is None:
            raise Refused("unknown_budget", "the project has no such budget")
        return view


def _whole(principal: Principal) -> bool:
    """Whether the token is of the whole project."""
    return principal.channel_id is None


def _shown(reply: BudgetReply) -> BudgetView:
    if reply.budget is None:
        raise Refused("internal_error", "the bridge changed a budget and showed none")
    return reply.budget
