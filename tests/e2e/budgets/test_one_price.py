"""A price of the settings is one price: attempts, usage, *Costs* and budgets have the same sum (protocol §15)."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.e2e.budgets.test_spending import MODEL, USES, script
from tests.support.ledger.budgets import figures
from tests.support.processes.stack import running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import new_tenant
from turnstile.ledger.access.costs import sum_costs
from turnstile.ledger.turns.usage import sum_usage
from turnstile.schema.budgets.prices import ModelPrice

PRICE = ModelPrice.model_validate({"input_per_million": 2, "output_per_million": 10})
SPENT = (300 * 2 + 100 * 10) / 1_000_000


async def test_every_sum_of_a_turn_is_by_the_price_that_the_settings_have(stacks: Stacks) -> None:
    async with stacks.open() as opened:
        model = opened.settings.model.model_copy(update={"prices": {MODEL: PRICE}})
        priced = replace(opened, settings=opened.settings.model_copy(update={"model": model}))
        async with running_here(priced):
            tenant = new_tenant(priced)
            agent = await tenant.agent("player", llm={"max_tokens": 200})
            line = {"text": "done", "usage": USES, "response_cost": 77.0}  # what the provider says is no second price
            granted = await tenant.turn(agent, script(line), budget={"max_cost_usd": 1})
            free = await tenant.turn(agent, script(line))
            project, pool = tenant.project, priced.pool
            since = datetime.now(UTC) - timedelta(days=1)
            usage = await pool.run(lambda conn: sum_usage(conn, project, "agent"))
            costs = await pool.run(lambda conn: sum_costs(conn, project, channel=None, since=since))
            assert [ended.steps[0].metadata["llm_response_cost"] for ended in (granted, free)] == [SPENT, SPENT]
            assert (usage[-1].response_cost, costs.total.cost) == (2 * SPENT, 2 * SPENT)
            assert (await figures(pool, granted.view.agent_turn_id, "cost"))[1] == round(SPENT * 1_000_000)
