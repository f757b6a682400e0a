"""Budgets on a whole stack (protocol §6, §12): who asks for one, who has one, and how a tree ends for want."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.delegation import answer, chief_says, fork, result, says, staff, task
from tests.support.gateway import client, serving, token_of
from tests.support.ledger.budgets import budget, charged_turn, limit
from tests.support.tenants import ALICE, CHANNEL, Tenant
from tests.support.tools import calling
from tests.turnstile.support import turnstile
from turnstile import Client, Refused
from turnstile.ledger.roster import add_agent
from turnstile.schema.base import JsonObject
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack

HOSTILE: list[Any] = [
    *(3, [], {"warn_percent": 50}, {"max_tokens": -1}, {"max_tokens": 10**30}, {"max_tokens": 0.5}),
    *(
        {"max_cost_usd": "NaN"},
        {"max_cost_usd": 0.0000001},
        {"max_cost_usd": 1e300},
        {"max_seconds": -1},
        {"max_turns": True},
        {"tokens": 1},
    ),
]


async def own(tenant: Tenant, turn: AgentTurnId) -> dict[str, Any]:
    """The limits of the turn's own budget that it has."""
    row = await budget(tenant.pool, turn)
    return {name: row[name] for name in ("max_tokens", "max_cost", "max_turns") if row[name] is not None}


async def test_a_tree_of_which_some_have_budgets_of_their_own(tenant: Tenant) -> None:
    """One that asks for more than there is fails alone, and says what is left."""
    await staff(tenant)
    tasks = [
        task(budget={"max_tokens": 60_000}, label="own"),
        task(label="none"),
        task(budget={"max_tokens": 60_000}, label="too much"),
    ]
    ended = await chief_says(tenant, fork(tasks), budget={"max_tokens": 100_000})
    told = result(ended)["results"]
    assert [each["status"] for each in told] == ["success", "success", "failed"]
    assert [each["error"] for each in told] == [None, None, "budget_exceeded"]
    assert told[2]["error_detail"]["asked"] == 60_000
    first, second, third = (each["agent_turn_id"] for each in told)
    assert third is None
    assert await own(tenant, first) == {"max_tokens": 60_000}
    carried = await charged_turn(tenant.pool, second)
    assert carried is not None
    assert carried["tokens"] == [ended.view.agent_turn_id]


async def test_a_runaway_recursion_ends_at_its_turns(tenant: Tenant) -> None:
    """Of a tree that would have a million turns there are seven."""
    policy: JsonObject = {"target_profiles": ["runaway"], "target_tags": []}
    await tenant.profile("runaway", "runaway", delegation_policy=policy, allowed_tools=["fork_join"])
    await add_agent(tenant.pool, tenant.project, ALICE, "runaway")
    ended = await tenant.turn(ALICE, "go on", budget={"max_turns": 7})
    assert ended.view.status == "success"
    assert await tenant.count("state.turn_outcomes") == 7
    refused = await tenant.count("state.pmo_batch_tasks", "error_code = 'budget_exceeded'")
    assert refused == 2 * 7 - 6  # each of seven asks two, and six are made


async def test_a_projects_day_refuses_the_next_enqueue(tenant: Tenant) -> None:
    await tenant.agent("echo")
    await limit(tenant.pool, project=tenant.project, max_turns=2)
    for _ in range(2):
        await tenant.turn(ALICE)
    refused = await tenant.ask({"agent_id": ALICE, "instruction": "hello"})
    assert (refused.status, refused.error_code) == ("rejected", "budget_exceeded")
    assert "not enough turns: had 2, spent 2" in (refused.error or "")
    assert await tenant.count("state.turn_outcomes") == 2


@pytest.mark.parametrize("given", HOSTILE, ids=repr)
async def test_what_is_no_budget_is_a_bad_request(tenant: Tenant, given: Any) -> None:
    await tenant.agent("echo")
    refused = await tenant.ask({"agent_id": ALICE, "instruction": "hello", "budget": given})
    assert (refused.status, refused.error_code) == ("rejected", "bad_request")
    assert "budget" in (refused.error or "")
    assert await tenant.count("state.agent_inbox") == 0


async def test_a_model_that_writes_nonsense_is_told_so(tenant: Tenant) -> None:
    await staff(tenant)
    ended = await chief_says(tenant, fork([task(budget={"max_tokens": -5})]), budget={"max_tokens": 100_000})
    assert ended.view.status == "success"
    told = answer(ended)
    assert told.error is not None
    assert (told.error.code, told.status) == ("invalid_arguments", "failed")
    assert "max_tokens" in told.error.message
    nothing = await chief_says(tenant, fork([task(budget={"max_turns": 0})]), budget={"max_tokens": 100_000})
    assert result(nothing)["results"][0]["error"] == "budget_exceeded"


async def test_a_delegated_task_and_an_expert_have_theirs(tenant: Tenant) -> None:
    await staff(tenant)
    budget_: JsonObject = {"max_tokens": 40_000}
    asked = [
        ("delegate_async", {**task(), "wait": True, "budget": budget_}),
        ("delegate_async", {**task(), "budget": budget_}),
        ("ask_expert", {"expert_profile": "worker", "question": says("yes"), "budget": budget_}),
        ("launch_principal", {"profile_name": "worker", "instruction": says("yes"), "budget": budget_}),
    ]
    for tool, arguments in asked:
        ended = await chief_says(tenant, calling((tool, arguments)), budget={"max_tokens": 50_000})
        child = AgentTurnId(result(ended)["agent_turn_id"])
        assert await own(tenant, child) == {"max_tokens": 40_000}
    refused = await chief_says(tenant, calling(asked[1]), budget={"max_tokens": 39_999})
    told = answer(refused)
    assert told.error is not None
    assert (told.error.code, told.status) == ("budget_exceeded", "failed")
    assert "had 39999" in told.error.message
    assert "asked 40000" in told.error.message
    await tenant.all_ended([refused.view.agent_turn_id] * 9, 20)


async def test_a_profiles_budget_is_its_agents(tenant: Tenant) -> None:
    """Also of a child whose task asks for none."""
    await staff(tenant, budget={"max_tokens": 70_000})
    await tenant.profile("worker", "player", budget={"max_turns": 2})
    ended = await chief_says(tenant, fork([task(), task(budget={"max_tokens": 10})]))
    assert await own(tenant, ended.view.agent_turn_id) == {"max_tokens": 70_000}
    first, second = (AgentTurnId(each["agent_turn_id"]) for each in result(ended)["results"])
    assert (await own(tenant, first), await own(tenant, second)) == (
        {"max_turns": 2},
        {"max_turns": 2, "max_tokens": 10},
    )


async def test_clients_ask_for_budgets_over_nats_and_http(tenant: Tenant) -> None:
    await tenant.agent("echo")
    limits = {"max_tokens": 90_000, "max_turns": 5}
    nats = tenant.stack.endpoints.nats_url
    async with serving(tenant.stack) as url:
        token = await token_of(tenant.stack, tenant.project)
        ways = [Client(nats, project=tenant.project, channel=CHANNEL), Client(url, token=token)]
        for way in ways:
            async with way as asked:
                turn = asked.ask(ALICE, "hello", budget=limits)
                assert (await turn.result(20)).ok
                assert await own(tenant, await turn.start()) == limits
                again = await turn.rerun(budget=BudgetLimits(max_turns=3))
                assert (await again.result(20)).ok
                assert await own(tenant, await again.start()) == {"max_turns": 3}
                with pytest.raises(Refused) as refused:
                    await asked.ask(ALICE, "hello", budget={"max_tokens": 0}).start()
                assert refused.value.code == "budget_exceeded"


async def test_the_command_line_asks_for_one(tenant: Tenant, tmp_path: Path) -> None:
    await tenant.agent("echo")
    named = ("--config", str(tenant.stack.config), "--project", tenant.project, "--json")
    asked = await turnstile("enqueue", ALICE, "hello", "--budget", "tokens=5000,usd=0.10", *named, cwd=tmp_path)
    assert asked.code == 0, asked.err
    turn = AgentTurnId(asked.json()["agent_turn_id"])
    assert await own(tenant, turn) == {"max_tokens": 5000, "max_cost": 100_000}
    await tenant.ended(turn)
    again = await turnstile("turn", "rerun", turn, "--no-wait", "--budget", "turns=2", *named, cwd=tmp_path)
    assert again.code == 0, again.err
    assert await own(tenant, turn_of_json(again.json())) == {"max_turns": 2}
    wrong = await turnstile("enqueue", ALICE, "hello", "--budget", "tokens=lots", *named, cwd=tmp_path)
    assert (wrong.code, wrong.json()["error"]["code"]) == (2, "bad_request")


def turn_of_json(reply: JsonObject) -> AgentTurnId:
    return AgentTurnId(str(reply["agent_turn_id"]))


async def test_over_http_a_refusal_says_what_is_left(tenant: Tenant) -> None:
    await tenant.agent("echo")
    await limit(tenant.pool, project=tenant.project, max_cost_usd=0.5)
    body: JsonObject = {"agent_id": ALICE, "instruction": "hello"}
    async with serving(tenant.stack) as url, client(url, await token_of(tenant.stack, tenant.project)) as web:
        refused = await web.post("/v1/turns", json={**body, "budget": {"max_cost_usd": 0.500001}})
        assert (refused.status_code, refused.json()["code"]) == (402, "budget_exceeded")
        assert "had $0.5" in refused.json()["detail"]
        wrong = await web.post("/v1/turns", json={**body, "budget": {"max_cost_usd": "lots"}})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")
        assert "budget" in wrong.json()["param"]
        made = await web.post(
            "/v1/turns", json={**body, "budget": {"max_cost_usd": 0.5}}, headers={"Prefer": "wait=20"}
        )
        assert made.status_code == 201, made.text
    assert await own(tenant, AgentTurnId(made.json()["agent_turn_id"])) == {"max_cost": 500_000}
