"""Budgets as people see and steer them, over NATS and HTTP: who sees which, who changes them, what is refused."""

import asyncio
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import httpx
import pytest

from tests.support.gateway import client, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import CHANNEL, Tenant, granted
from turnstile import BadRequest, Client, Refused, SyncClient
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.sdk.nats_turns import NatsBackend

pytestmark = pytest.mark.shared_stack


@pytest.fixture(scope="module")
async def url(here: Stack) -> AsyncIterator[str]:
    """Where the module's gateway serves."""
    async with serving(here) as address:
        yield address


@pytest.fixture
def operator(tenant: Tenant) -> Client:
    """An operator over NATS: the user of this system."""
    return Client.over(NatsBackend(tenant.stack.conn, tenant.client))


async def test_an_operator_raises_a_grant_and_the_ledger_keeps_who_did(tenant: Tenant, operator: Client) -> None:
    turn = await granted(tenant, max_tokens=1000, max_turns=2)
    assert [budget.budget_id for budget in await operator.budgets()] == [turn]
    view = await operator.raise_budget(turn, tokens=500)
    assert (view.tokens.max, view.tokens.left, view.turns.max) == (1500, 1500, 2)
    assert view.updated_by == tenant.client.caller.name
    for _ in range(2):  # as one who heard no answer
        view = await operator.raise_budget(turn, tokens=200, correlation_id="once")
        assert view.tokens.max == 1700
    view = await operator.raise_budget(view, tokens=-1700)
    assert view.tokens.max == 0
    assert (await operator.budget(turn)).tokens.left == 0


async def refused(client: Client, budget: str, **more: Any) -> str:
    """The code with which a raise is refused."""
    with pytest.raises(Refused) as error:
        await client.raise_budget(budget, **more)
    return error.value.code


async def test_what_cannot_be_raised_says_why(tenant: Tenant, operator: Client) -> None:
    day = await operator.limit_project("day", tokens=2000)
    turn = await granted(tenant, max_tokens=1000)
    assert await refused(operator, turn, tokens=1500) == "budget_exceeded"
    assert await refused(operator, turn, cost_usd=1) == "budget_unlimited"
    assert await refused(operator, turn, tokens=-2000) == "budget_in_use"
    assert await refused(operator, "day", tokens=-1500) == "budget_in_use"
    assert await refused(operator, "nobody", tokens=1) == "unknown_budget"
    assert (await operator.budget(day.budget_id)).tokens.reserved == 1000
    for cost, tokens in ((None, None), (None, 0), (0.0000001, None), (float("nan"), None), (None, 10**16)):
        with pytest.raises(BadRequest):
            await operator.raise_budget(turn, tokens=tokens, cost_usd=cost)
    told = await tenant.client.request("raise_budget", {"budget_id": "x" * 300, "max_tokens": 1})
    assert (told["status"], told["error_code"]) == ("rejected", "bad_request")
    plain = await tenant.client.request("raise_budget", {"budget_id": turn, "max_tokens": 1}, caller=Caller("mallory"))
    assert (plain["status"], plain["error_code"]) == ("rejected", "forbidden")
    assert (await operator.budget(turn)).tokens.max == 1000


async def test_a_project_is_limited_by_day_and_month(tenant: Tenant, operator: Client) -> None:
    assert await operator.limits() == []
    day = await operator.limit_project("day", cost_usd=Decimal("2.5"))
    await operator.limit_project("month", tokens=10, turns=3)
    assert day.budget_id.startswith(f"{tenant.project}/day/")
    assert day.cost_usd.left == Decimal("2.5")
    found = {limit.period.value: limit for limit in await operator.limits()}
    assert (found["day"].max_cost_usd, found["month"].max_turns) == (Decimal("2.5"), 3)
    assert {budget.kind for budget in await operator.budgets()} == {"day", "month"}
    assert [budget.kind for budget in await operator.budgets(kind="month")] == ["month"]
    none = await operator.limit_project("month")
    assert (none.tokens.max, [limit.period for limit in await operator.limits()]) == (None, ["day"])
    with pytest.raises(BadRequest):
        await operator.limit_project("year", tokens=1)
    with pytest.raises(BadRequest):
        await operator.limit_project("day", tokens=-1)


async def test_over_http_all_see_and_operators_change(url: str, tenant: Tenant, operator: Client) -> None:
    await operator.limit_project("day", tokens=5000)
    turn = await granted(tenant, max_tokens=1000)
    more: JsonObject = {"max_tokens": 10, "max_cost_usd": None}
    for role in GatewayRole:
        token = await token_of(tenant.stack, tenant.project, role)
        async with client(url, token) as web:
            page = (await web.get("/v1/budgets")).json()
            assert {each["kind"] for each in page["budgets"]} == {"turn", "day"}
            assert [each["period"] for each in page["limits"]] == ["day"]
            assert (await web.get("/v1/budgets/day")).json()["tokens"]["reserved"] >= 1000
            raised = await web.post(f"/v1/budgets/{turn}/raise", json=more)
            limited = await web.post("/v1/budgets/month/limit", json={"limits": {"max_turns": 9}})
            if role is GatewayRole.OPERATOR:
                assert (raised.status_code, limited.status_code) == (200, 200), (raised.text, limited.text)
                assert raised.json()["tokens"]["max"] == 1010
                assert limited.json()["updated_by"] == f"token.{token.split('_')[1]}"
            else:
                assert (raised.json()["code"], limited.json()["code"]) == ("forbidden", "forbidden")
    async with client(url, await token_of(tenant.stack, tenant.project)) as web:

        async def code(path: str, body: JsonObject | None = None) -> tuple[int, str]:
            answer = await (web.get(path) if body is None else web.post(path, json=body))
            return answer.status_code, answer.json()["code"]

        assert await code("/v1/budgets/nobody") == (404, "unknown_budget")
        assert await code("/v1/budgets/year/limit", {"limits": None}) == (400, "bad_request")
        assert await code("/v1/budgets/day/limit", {}) == (400, "bad_request")
        assert await code(f"/v1/budgets/{turn}/raise", {}) == (400, "bad_request")
        assert (await code(f"/v1/budgets/{turn}/raise", {"max_tokens": 10_000}))[1] == "budget_exceeded"


async def test_a_token_of_a_channel_sees_that_channels_grants_alone(url: str, tenant: Tenant, operator: Client) -> None:
    await operator.limit_project("day", tokens=5000)
    turn = await granted(tenant, max_tokens=1000)
    async with client(url, await token_of(tenant.stack, tenant.project, channel="u_ada")) as web:
        page = (await web.get("/v1/budgets")).json()
        assert (page["budgets"], page["limits"]) == ([], [])
        for path in (turn, "day", "month"):
            assert (await web.get(f"/v1/budgets/{path}")).status_code == 404
        for path, body in (
            (f"{turn}/raise", {"max_tokens": 1}),
            ("day/raise", {"max_tokens": 1}),
            ("day/limit", {"limits": None}),
        ):
            answer: httpx.Response = await web.post(f"/v1/budgets/{path}", json=body)
            assert answer.json()["code"] in ("unknown_budget", "forbidden"), answer.text
        other = await web.get("/v1/budgets", params={"channel_id": CHANNEL})
        assert other.json()["code"] == "forbidden"
    async with client(url, await token_of(tenant.stack, tenant.project, channel=CHANNEL)) as web:
        assert [each["budget_id"] for each in (await web.get("/v1/budgets")).json()["budgets"]] == [turn]
        assert (await web.post(f"/v1/budgets/{turn}/raise", json={"max_tokens": 1})).json()["tokens"]["max"] == 1001


async def test_programs_see_and_steer_the_same_both_ways(url: str, tenant: Tenant) -> None:
    turn = await granted(tenant, max_tokens=1000)
    token = await token_of(tenant.stack, tenant.project)
    for number, (address, more) in enumerate(((url, {"token": token}), (None, {"project": str(tenant.project)})), 1):
        where = address or tenant.stack.endpoints.nats_url

        def steer(where: str = where, more: dict[str, Any] = more) -> tuple[Any, ...]:
            with SyncClient(where, **more) as own:
                raised = own.raise_budget(turn, tokens=100)
                limited = own.limit_project("day", cost_usd=0.25)
                again = own.budget(limited.budget_id)
                assert own.budget("day") == again
                names = [budget.budget_id for budget in own.budgets(kind="turn", status="open")]
                return raised.tokens.max, again.cost_usd.max, names, [limit.max_cost_usd for limit in own.limits()]

        found = await asyncio.to_thread(steer)
        assert found == (1000 + 100 * number, Decimal("0.25"), [turn], [Decimal("0.25")])
