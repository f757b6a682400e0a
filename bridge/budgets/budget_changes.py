"""The verbs `raise_budget` and `limit_project`: operators say how much may be spent (protocol §6).

The subject's end names the caller, whom NATS permissions fix: one that does not operate is refused, and the ledger
keeps who changed a limit. Nothing is published: no turn waits for a higher limit. What ran out of budget has ended, and
what runs asks the ledger before each request to a model.
"""

from collections.abc import Mapping

from turnstile.bridge.verbs.micro_service import VerbHandler, VerbRequest
from turnstile.ledger.budgets.budget_views import budget_id_of, get_budget
from turnstile.ledger.budgets.steering import More, limit_project, raise_budget
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Caller
from turnstile.schema.budgets.budget_requests import BudgetRaiseRequest, BudgetReply, ProjectLimitRequest
from turnstile.schema.errors import Refused
from turnstile.schema.ids import uuid7
from turnstile.schema.states import ReplyStatus


class BudgetChanges:
    """The verbs over one ledger."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def handlers(self) -> Mapping[str, VerbHandler]:
        """The handlers by verb."""
        return {"raise_budget": self.raise_budget, "limit_project": self.limit_project}

    async def raise_budget(self, request: VerbRequest) -> BudgetReply:
        """Give a budget more, or take back what is free; answers it as it is then.

        Raises `Refused` (forbidden, unknown_budget, budget_closed, budget_unlimited, budget_in_use, budget_exceeded).
        """
        caller, wanted = _operator(request), request.parse(BudgetRaiseRequest)
        project, channel = request.project_id, request.channel_id
        budget = await self._pool.run(lambda conn: budget_id_of(conn, project, wanted.budget_id))
        if await self._pool.run(lambda conn: get_budget(conn, project, budget, channel=channel)) is None:
            raise Refused("unknown_budget", "the channel has no such budget")
        more = More(wanted.max_tokens, wanted.max_cost, wanted.max_turns)
        name = wanted.correlation_id or uuid7()  # the pool repeats a statement whose answer was lost
        await self._pool.run(lambda conn: raise_budget(conn, project, budget, more, caller.name, name))
        found = await self._pool.run(lambda conn: get_budget(conn, project, budget))
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=found)

    async def limit_project(self, request: VerbRequest) -> BudgetReply:
        """Set what the project may spend in a day or month; answers the budget of this one. Raises as above."""
        caller, wanted = _operator(request), request.parse(ProjectLimitRequest)
        limits = None if wanted.limits is None else wanted.limits.limits
        project = request.project_id
        budget = await self._pool.run(lambda conn: limit_project(conn, project, wanted.period, limits, caller.name))
        found = await self._pool.run(lambda conn: get_budget(conn, project, budget))
        return BudgetReply(status=ReplyStatus.ACCEPTED, budget=found)


def _operator(request: VerbRequest) -> Caller:
    """The caller, who operates; raises `Refused` (forbidden), and `BadRequest` if the subject names nobody."""
    caller = request.named_caller()
    if not caller.operates:
        raise Refused("forbidden", f"operators alone may: ask req.sys.bridge.{request.verb}.operator.{{principal}}")
    return caller
