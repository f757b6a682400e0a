"""The runaway recursion of examples/budget ends at its limit, and the commands tell what it cost."""

import tomllib
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.processes.stack import QUICK, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Ended, Tenant
from tests.turnstile.support import Ran, turnstile
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.settings.yaml_files import read_profile

EXAMPLE = ROOT / "examples" / "budget"
SETTINGS: dict[str, Any] = tomllib.loads((EXAMPLE / "config.toml").read_text())
DIGGER = AgentId("digger")


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """With the scripts of the example."""
    [scripts] = SETTINGS["model"]["scripts"]
    async with stacks.open(QUICK, [EXAMPLE / scripts]) as opened:
        yield opened


@pytest.fixture
async def digger(tenant: Tenant) -> AgentId:
    """The agent of the example, whose model has the price of its settings."""
    [(model, price)] = SETTINGS["model"]["prices"].items()
    await tenant.rows(
        "INSERT INTO state.model_prices VALUES ($1, $2, $3, NULL, NULL, 'test') ON CONFLICT DO NOTHING",
        *(model, Decimal(str(price["input_per_million"])), Decimal(str(price["output_per_million"]))),
    )
    [target] = tenant.stack.settings.worker.worker_targets
    profile = read_profile(EXAMPLE / "digger.yaml").model_copy(update={"worker_target": target})
    await put_profile(tenant.pool, tenant.project, profile)
    await add_agent(tenant.pool, tenant.project, DIGGER, "digger")
    return DIGGER


async def dug(tenant: Tenant, **budget: Any) -> Ended:
    """A recursion that ended, with all turns below it."""
    ended = await tenant.turn(DIGGER, "How deep does it go?", budget=budget)
    total = await tenant.count("state.agent_inbox", "message_type = 'turn'")
    await tenant.all_ended([ended.view.agent_turn_id] * total, 20)
    return ended


async def test_a_recursion_ends_where_its_turns_end_and_all_above_answer(tenant: Tenant, digger: AgentId) -> None:
    ended = await dug(tenant, max_turns=6)
    assert ended.view.status == "success"
    assert await tenant.count("state.turn_outcomes") == 6
    assert await tenant.count("state.pmo_batch_tasks", "error_code = 'budget_exceeded'") == 1


async def test_a_recursion_ends_where_its_tokens_end_and_says_what_it_cost(tenant: Tenant, digger: AgentId) -> None:
    ended = await dug(tenant, max_tokens=3000, max_cost_usd=1)
    turn = ended.view.agent_turn_id
    assert (ended.view.status, ended.view.error_code) == ("partial", "budget_exhausted")
    ends = "SELECT DISTINCT error_code FROM state.turn_outcomes WHERE project_id = $1"
    assert await tenant.rows(ends, tenant.project) == [{"error_code": "budget_exhausted"}]

    async def run(*arguments: str, code: int = 0) -> Ran:
        ran = await turnstile(*arguments, "--config", str(tenant.stack.config), "--project", tenant.project, cwd=ROOT)
        assert ran.code == code, ran.err
        return ran

    shown = (await run("budget", "show", turn[:30], "--json")).json()
    tokens, dollars = shown["tokens"], shown["cost_usd"]
    assert (shown["status"], tokens["max"], tokens["reserved"], tokens["beyond"]) == ("closed", 3000, 0, 0)
    assert 2500 < tokens["spent"] <= 3000
    assert dollars["spent"] == pytest.approx(tokens["spent"] / 300 * 0.00285)
    assert f"{tokens['spent']:,} of 3,000 spent" in (await run("budget", "show", turn)).out
    assert f"{tokens['spent']:,} of 3,000 tokens" in (await run("budget", "list")).out
    for option in ("--tree", "--budget"):
        *_, total = (await run("usage", option, turn, "--json")).json()
        assert total["total_tokens"] == tokens["spent"]
    assert f"budget {tokens['spent']:,} of 3,000 tokens" in (await run("turn", "tree", turn)).out
    told = (await run("turn", "show", turn)).out
    assert f"{tokens['spent']:,} of 3,000 tokens" in told
    assert "(its own)" in told
    [budget] = (await run("turn", "show", turn, "--json")).json()["budgets"]
    assert budget == shown
    refused = await run("budget", "raise", turn, "--tokens", "10", "--json", code=1)
    assert refused.json()["error"]["code"] == "budget_closed"


async def test_operators_limit_a_project_and_raise_its_day(tenant: Tenant, digger: AgentId) -> None:
    async def run(*arguments: str, code: int = 0) -> Ran:
        ran = await turnstile(*arguments, "--config", str(tenant.stack.config), "--project", tenant.project, cwd=ROOT)
        assert ran.code == code, ran.err
        return ran

    assert "has no limits" in (await run("budget", "limit")).err
    assert "0 of 1 turns" in (await run("budget", "limit", "day", "--turns", "1", "--usd", "0.25")).out
    assert "at most $0.25, 1 turns a day (UTC)" in (await run("budget", "limit")).out
    asked: JsonObject = {"agent_id": digger, "instruction": "x", "budget": {"max_turns": 2}}
    refused = await tenant.ask(asked)
    assert refused.error_code == "budget_exceeded"
    raised = (await run("budget", "raise", "day", "--turns", "2", "--usd", "-0.05", "--json")).json()
    assert (raised["turns"]["max"], raised["cost_usd"]["max"]) == (3, 0.2)
    assert (await tenant.ask(asked)).error_code is None
    turns = (await run("budget", "show", "day", "--json")).json()["turns"]
    assert turns["spent"] + turns["reserved"] in (1, 2)  # the grant of an ended turn gives back what it did not use
    *_, total = (await run("usage", "--budget", "day", "--json")).json()
    assert total["name"] is None
    for wrong, code in (("limit --turns 1", 2), ("limit day --turns 1 --none", 2), ("raise day", 2), ("show x", 1)):
        await run("budget", *wrong.split(), code=code)
    assert "the project has no limit" in (await run("budget", "limit", "day", "--none")).out
