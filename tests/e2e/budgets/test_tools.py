"""A user's tool gives the agents that it asks budgets out of its caller's (protocol §12.10)."""

from typing import Any

import pytest

from tests.e2e.delegation.test_tools_that_ask import serving
from tests.support.delegation import chief_says, result, says
from tests.support.ledger.budgets import budget
from tests.support.tenants import Tenant
from tests.support.tools import calling
from turnstile import ChildTask, Refused, ToolCall, ToolService
from turnstile.schema.base import JsonObject

pytestmark = pytest.mark.shared_stack


def spending(tenant: Tenant) -> ToolService:
    """A tool that asks twice, and says what became of it."""
    service = ToolService(tenant.project)
    named: dict[str, Any] = {"target": "spending", "timeout_seconds": 30}

    @service.tool(suffix="spend", **named)
    async def spend(call: ToolCall, tokens: int) -> JsonObject:
        """Ask one agent, and an expert, and two of which one may have nothing."""
        try:
            first = await call.delegate(says("one"), profile="worker", budget={"max_tokens": tokens})
        except Refused as refused:
            return {"refused": refused.code, "why": str(refused)}
        expert = await call.ask_expert("worker", says("two"), budget={"max_turns": 1})
        tasks = [
            ChildTask(instruction=says("three"), profile="worker", budget={"max_tokens": each}) for each in (6000, 0)
        ]
        both = await call.fork(tasks)
        turns: list[Any] = [first.agent_turn_id, expert.agent_turn_id, both.results[0].agent_turn_id]
        return {"turns": turns, "errors": [r.error for r in both.results]}

    del spend  # the service has it
    return service


async def test_a_tool_gives_its_children_budgets_of_its_callers(tenant: Tenant) -> None:
    async with serving(tenant, spending(tenant)):
        ended = await chief_says(tenant, calling(("spend", {"tokens": 20_000})), budget={"max_tokens": 50_000})
        told = result(ended)
        assert told["errors"] == [None, "budget_exceeded"]
        limits = [(await budget(tenant.pool, turn))["max_tokens"] for turn in told["turns"]]
        assert limits == [20_000, None, 6000]
        refused = await chief_says(tenant, calling(("spend", {"tokens": 50_001})), budget={"max_tokens": 50_000})
        assert result(refused)["refused"] == "budget_exceeded"
        assert '"asked": 50001' in result(refused)["why"]
