"""`/v1/budgets` and `/v1/webhooks`: what turns and the project may spend, and where events are sent (protocol §14.1).

They are read from the ledger: a token of a channel sees the grants of its channel's turns, and neither those of others
nor what the whole project spends.
"""

from dataclasses import dataclass
from typing import Any

from turnstile.gateway.asking import Asking
from turnstile.gateway.http.endpoints import Answer, Call
from turnstile.gateway.http.problems import Forbidden
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget, list_budgets, list_project_limits
from turnstile.ledger.operations.deletion import get_deletion
from turnstile.ledger.pool import Pool
from turnstile.ledger.pushes.webhooks import list_webhooks
from turnstile.schema.access import Principal
from turnstile.schema.api import BudgetPage, BudgetsQuery, EndUserQuery, WebhookPage
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.plans import BudgetId
from turnstile.schema.budgets.views import BudgetView
from turnstile.schema.errors import Refused
from turnstile.schema.ids import ChannelId


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

    async def lookup(self, call: Call[Any, Any]) -> tuple[ChannelId, JsonObject]:
        """The channel of the budget that the path names, and the budget; raises as `get`."""
        view = await self._seen(call.principal, call.path["budget_id"])
        return self.asking.channel(call.principal, view.channel_id), {"budget_id": view.budget_id}

    async def webhooks(self, call: Call[object, object]) -> Answer:
        """The project's webhooks; raises `Forbidden` for a token of one channel."""
        await self.lookup_project(call)
        return Answer(
            WebhookPage(webhooks=await self.pool.run(lambda conn: list_webhooks(conn, call.principal.project_id)))
        )

    async def deletion(self, call: Call[object, object]) -> Answer:
        """How far a deletion is; raises `Forbidden` for a token of one channel, and `Refused` (unknown_deletion)."""
        await self.lookup_project(call)
        named, project = call.path["deletion_id"], call.principal.project_id
        deletion = await self.pool.run(lambda conn: get_deletion(conn, project, named))
        if deletion is None:
            raise Refused("unknown_deletion", "the project has no such deletion")
        return Answer(deletion)

    async def lookup_project(self, call: Call[Any, Any]) -> tuple[ChannelId, JsonObject]:
        """What the path names of the project; raises `Forbidden` for a token of one channel."""
        if not _whole(call.principal):
            raise Forbidden("the token is for one channel: only a token of the whole project may ask for that")
        return self.asking.channel(call.principal, None), dict(call.path)

    async def lookup_end_user(self, call: Call[EndUserQuery, Any]) -> tuple[ChannelId, JsonObject]:
        """The end user that the query names; raises as `lookup_project`: their turns may be in every channel."""
        channel, _ = await self.lookup_project(call)
        return channel, {"end_user": call.query.end_user}

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
