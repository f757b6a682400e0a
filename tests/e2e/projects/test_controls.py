"""A request may tighten what a profile says, and never loosen it (protocol §6, enqueue).

Who names another profile, another budget or another model keeps the agent's approvals and the smaller of all limits,
and names only what profile or token let it, by every verb that makes a turn.
"""

import json
from typing import Any

import pytest

from tests.e2e.people.asking import PAY, Person, asked
from tests.support.delegation import answer, staff, steps, task
from tests.support.tenants import ALICE, Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from turnstile.ledger.access.tokens import add_token
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId

pytestmark = pytest.mark.shared_stack

CLIENT, OPERATOR = Caller("ann"), Caller("root", operates=True)
PAYS = json.dumps({"steps": [calling(("pay", {"amount": 500})), {"text": "done"}]})


async def made(tenant: Tenant, caller: Caller, **fields: Any) -> JsonObject:
    """The reply to an enqueue of this caller."""
    asking: JsonObject = {"agent_id": ALICE, "instruction": json.dumps({"steps": [{"text": "hi"}]}), **fields}
    return await tenant.client.request("enqueue", asking, caller=caller)


async def test_another_profile_keeps_the_approvals_of_the_agents_own(tenant: Tenant) -> None:
    async with hand_of(
        tenant, PAY, interrupt_on={"pay": {"when": {"properties": {"amount": {"minimum": 100}}}}}
    ) as hand:
        await tenant.profile("loose", "player", allowed_tools=["pay"], free=True)
        await tenant.profile(
            "strict",
            "player",
            allowed_tools=["pay"],
            free=True,
            interrupt_on={"pay": {"allowed_decisions": ["approve"]}},
        )
        for profile, allowed in (("loose", ["approve", "edit", "reject", "respond"]), ("strict", ["approve"])):
            asking: JsonObject = {"agent_id": hand.agent, "instruction": PAYS, "profile_name": profile}
            reply = await tenant.client.request("enqueue", asking, caller=OPERATOR)
            turn = AgentTurnId(str(reply["agent_turn_id"]))
            [held] = await asked(hand, turn)
            assert [allowed_decision.value for allowed_decision in held.view.allowed_decisions] == allowed
            await Person(tenant, "ben").decides(held, "approve")
            await hand.called(call_of(turn))
            await hand.report(call_of(turn), "paid")
            await hand.ended(turn)


@pytest.mark.parametrize(
    ("asked_for", "of_profile", "holds"),
    [
        ({"max_tokens": 10}, {"max_tokens": 1000, "max_turns": 3}, {"max_tokens": 10, "max_turns": 3}),
        ({"max_tokens": 5000}, {"max_tokens": 1000}, {"max_tokens": 1000}),
        ({}, {"max_tokens": 1000}, {"max_tokens": 1000}),
        ({"max_cost_usd": 1, "max_turns": 9}, {"max_cost_usd": 0.5}, {"max_cost": 500_000, "max_turns": 9}),
        (None, {"max_tokens": 1000}, {"max_tokens": 1000}),
    ],
)
async def test_of_each_limit_the_smaller_counts(
    tenant: Tenant, asked_for: JsonObject | None, of_profile: JsonObject, holds: dict[str, int]
) -> None:
    await tenant.agent("player", budget=of_profile)
    reply = await made(tenant, OPERATOR, **({} if asked_for is None else {"budget": asked_for}))
    assert reply["status"] == "accepted", reply
    rows = await tenant.rows("SELECT * FROM state.budgets WHERE budget_id = $1", reply["agent_turn_id"])
    assert {name: rows[0][name] for name in holds} == holds


async def test_a_profile_beside_the_agents_own_has_the_smaller_budget_of_both(tenant: Tenant) -> None:
    await tenant.agent("player", budget={"max_tokens": 700, "max_turns": 5})
    await tenant.profile("other", "player", budget={"max_tokens": 1000, "max_turns": 2})
    reply = await made(tenant, OPERATOR, profile_name="other", budget={"max_turns": 9})
    [row] = await tenant.rows("SELECT * FROM state.budgets WHERE budget_id = $1", reply["agent_turn_id"])
    assert (row["max_tokens"], row["max_turns"]) == (700, 2)


async def test_a_task_of_a_delegation_tightens_its_profiles_budget(tenant: Tenant) -> None:
    await staff(tenant)
    await tenant.profile("worker", "player", budget={"max_tokens": 1000})
    call = calling(("delegate_async", task("worker", budget={"max_tokens": 9_000, "max_turns": 2})))
    ended = await tenant.turn(AgentId("chief"), steps(call, {"text": "done"}))
    child = answer(ended).result
    assert isinstance(child, dict)
    [row] = await tenant.rows("SELECT * FROM state.budgets WHERE budget_id = $1", child["agent_turn_id"])
    assert (row["max_tokens"], row["max_turns"]) == (1000, 2)


NAMED: dict[str, tuple[JsonObject, str]] = {
    "a profile": ({"profile_name": "other"}, "profile_not_allowed"),
    "a model": ({"runtime_config": {"model": "scripted/echo"}}, "model_not_allowed"),
}


@pytest.mark.parametrize("what", NAMED)
async def test_what_nobody_lets_a_client_name_is_refused_and_writes_nothing(tenant: Tenant, what: str) -> None:
    await tenant.agent("player")
    await tenant.profile("other", "player")
    named, code = NAMED[what]
    for caller in (CLIENT, Caller("token.nobody")):
        reply = await made(tenant, caller, **named)
        assert (reply["status"], reply["error_code"]) == ("rejected", code)
    assert await tenant.count("state.agent_inbox") == 0
    assert (await made(tenant, OPERATOR, **named))["status"] == "accepted"


async def test_what_is_its_own_may_be_named(tenant: Tenant) -> None:
    await tenant.agent("player")
    reply = await made(tenant, CLIENT, profile_name=f"{ALICE}-profile", runtime_config={"model": "scripted/player"})
    assert reply["status"] == "accepted", reply


@pytest.mark.parametrize(
    ("says", "model", "code"),
    [
        ({"models": ["scripted/echo"]}, "scripted/echo", None),
        ({"models": ["scripted/*"]}, "scripted/echo", None),
        ({"models": ["*"]}, "openai/gpt-5", None),
        ({"free": True}, "openai/gpt-5", None),
        ({"models": ["scripted/e"]}, "scripted/echo", "model_not_allowed"),
        ({"models": ["openai/*"]}, "scripted/echo", "model_not_allowed"),
    ],
)
async def test_a_profile_says_which_models_may_be_named(
    tenant: Tenant, says: dict[str, Any], model: str, code: str | None
) -> None:
    await tenant.agent("player", **says)
    assert (await made(tenant, CLIENT, runtime_config={"model": model}))["error_code"] == code


@pytest.mark.parametrize(
    ("lists", "fields", "code"),
    [
        ({"profiles": ["Other"]}, {"profile_name": "other"}, None),
        ({"profiles": ["third"]}, {"profile_name": "other"}, "profile_not_allowed"),
        ({"profiles": ["third"]}, {"profile_name": "free"}, "profile_not_allowed"),
        ({"models": ["scripted/e*"]}, {"runtime_config": {"model": "scripted/echo"}}, None),
        ({"models": ["openai/*"]}, {"runtime_config": {"model": "scripted/echo"}}, "model_not_allowed"),
        ({"models": ["openai/*"]}, {"profile_name": "free", "runtime_config": {"model": "a/b"}}, "model_not_allowed"),
    ],
)
async def test_a_token_says_what_it_may_name_in_place_of_profiles(
    tenant: Tenant, lists: dict[str, Any], fields: JsonObject, code: str | None
) -> None:
    await tenant.agent("player")
    await tenant.profile("other", "player")
    await tenant.profile("free", "player", free=True)
    secret, _ = await tenant.pool.run(lambda conn: add_token(conn, tenant.project, GatewayRole.CLIENT, **lists))
    assert (await made(tenant, Caller(f"token.{secret.token_id}"), **fields))["error_code"] == code


async def test_a_rerun_names_no_model_that_its_caller_may_not(tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = turn_of(await tenant.ask({"agent_id": ALICE, "instruction": json.dumps({"steps": [{"text": "hi"}]})}))
    await tenant.ended(turn)
    mine = AgentTurnId(str((await made(tenant, CLIENT))["agent_turn_id"]))
    await tenant.ended(mine)
    asking: JsonObject = {"agent_turn_id": mine, "model": "scripted/echo"}
    refused = await tenant.client.request("rerun", asking, caller=CLIENT)
    assert refused["error_code"] == "model_not_allowed"
    assert (await tenant.client.request("rerun", asking, caller=OPERATOR))["status"] == "accepted"
    assert (await tenant.client.request("rerun", {"agent_turn_id": mine}, caller=CLIENT))["status"] == "accepted"


async def test_a_repeat_is_answered_although_the_profile_has_changed(tenant: Tenant) -> None:
    await tenant.agent("player", models=["scripted/echo"])
    fields: JsonObject = {"runtime_config": {"model": "scripted/echo"}, "correlation_id": "one"}
    first = await made(tenant, CLIENT, **fields)
    await tenant.profile(f"{ALICE}-profile", "player")
    again = await made(tenant, CLIENT, **fields)
    assert (again["duplicate"], again["agent_turn_id"]) == (True, first["agent_turn_id"])
