"""Costs, budgets and health, as people see them, and what operators change there."""

import csv
import html
import io
import json
import re
import time

import httpx

from tests.e2e.console.conftest import Seats
from tests.support.console.visiting import forms_of, send, visiting, words_of
from tests.support.gateway import composed, token_of
from tests.support.tenants import ALICE, Tenant, granted, turn_of
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.budgets.model_queues import swap_model_queue
from turnstile.rules.model_queue import Join, ModelQueue, Refuse, changed
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import ProjectId

SAID = json.dumps({"steps": [{"text": "done"}]})


async def words(web: httpx.AsyncClient, page: str, status: int = 200) -> str:
    """What a page says."""
    shown = await web.get(page)
    assert shown.status_code == status, (page, shown.status_code, words_of(shown.text))
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", shown.text)
    return html.unescape(words_of(shown.text))


async def test_costs_are_drawn_and_listed(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    assert "No model was called in this period" in await words(operator, "/console/costs")
    await tenant.agent("player")
    for _ in range(2):
        await tenant.turn(ALICE, SAID)
    shown = await operator.get("/console/costs?measure=turns")
    assert shown.text.count('role="img"') == 6, "days for a desk and a phone, agents, models, channels, profiles"
    said = html.unescape(words_of(shown.text))
    for line in ("By agent", "By model", "By channel", "By profile", f"{ALICE}: 2", "scripted/player", "public: 2"):
        assert line in said, line
    sheet = await operator.get("/console/costs.csv?by=agent&days=7")
    assert sheet.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in sheet.headers["content-disposition"]
    [line] = csv.DictReader(io.StringIO(sheet.text))
    assert (line["agent"], line["turns"], line["attempts"]) == (ALICE, "2", "2")
    days = list(csv.DictReader(io.StringIO((await operator.get("/console/costs.csv?days=7")).text)))
    assert len(days) == 7
    assert [day["turns"] for day in days] == ["0"] * 6 + ["2"]
    assert (await operator.get("/console/costs?days=0")).status_code == 400


async def test_a_channel_sees_its_own_costs_and_no_health_of_others(url: str, tenant: Tenant) -> None:
    await tenant.agent("player")
    await tenant.turn(ALICE, SAID)
    token = await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR, "elsewhere")
    async with visiting(url, token) as web:
        assert "No model was called" in await words(web, "/console/costs")
        said = await words(web, "/console/health")
        assert "PostgreSQL" in said
        assert "Processes" not in said
        assert "an audit is of the whole project" in await words(web, "/console/health/audit", 403)


async def test_a_script_that_asks_for_parts_does_not_sum_again(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    await tenant.turn(ALICE, SAID)
    for page in ("costs", "health", "health/audit", "profiles", "budgets", "tools", f"profiles/{ALICE}-profile"):
        part = await operator.get(f"/console/{page}", headers={"x-console-fragment": "nav"})
        assert part.status_code == 200
        assert 'id="nav"' in part.text
        assert "<h1>" not in part.text


async def test_an_operator_limits_the_project_and_says_when_it_is_wrong(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    page, change = "/console/budgets", "/console/budgets/day/limit"
    assert "No budget yet" in await words(operator, page)
    wrong = await send(operator, page, change, {"usd": "much", "tokens": "5"})
    assert wrong.status_code == 400
    assert "US dollars: must be a number" in words_of(wrong.text)
    assert 'value="much"' in wrong.text, "what was typed stays"
    assert (await send(operator, page, change)).status_code == 400
    done = await send(operator, page, change, {"usd": "$2.50", "tokens": "1,000,000"})
    assert (done.status_code, done.headers["location"]) == (303, f"{page}?told=limited")
    said = await words(operator, page)
    assert "At most 1,000,000 tokens, $2.50. Set" in said
    assert "$0 of $2.50" in said
    one = await words(operator, "/console/budgets/day")
    assert "Cost $2.50 $0 $0 $2.50" in one
    async with visiting(url, await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)) as other:
        shown = await other.get(page)
        assert change not in shown.text
        csrf = forms_of(shown.text)[0].hidden["csrf"]
        assert (await other.post(change, data={"csrf": csrf, "usd": "9"})).status_code == 403
    async with visiting(url, await token_of(tenant.stack, tenant.project, channel="elsewhere")) as other:
        assert "$2.50" not in await words(other, page)
        await words(other, "/console/budgets/day", 404)
    gone = await send(operator, page, change, {"action": "none"})
    assert gone.headers["location"] == f"{page}?told=unlimited"
    assert "No limit is set." in await words(operator, page)


async def test_a_limit_is_set_and_charts_are_read_in_a_browser(people: Seats, tenant: Tenant) -> None:
    one = await people.seat()
    page = await one.open("/console/budgets")
    await page.get_by_text("Change the monthly limit").click()
    month = page.locator("section", has=page.get_by_role("heading", name="Per month"))
    await month.get_by_label("Turns").fill("1000")
    await month.get_by_role("button", name="Set the limit").click()
    await one.shows("The limit applies from now on", "At most 1,000 turns")
    await tenant.agent("player")
    await tenant.turn(ALICE, SAID)
    page = await one.open("/console/costs?measure=turns")
    assert await page.get_by_role("img", name="Turns by agent").is_visible()
    assert await page.get_by_role("img", name="Turns by day").count() == 1, "the one for a desk"
    await page.locator("section", has=page.get_by_role("heading", name="By agent")).get_by_text("The figures").click()
    assert await page.get_by_role("region", name="Figures by agent").get_by_role("row").count() == 2


async def test_a_budget_is_raised_once_however_often_the_form_is_sent(
    operator: httpx.AsyncClient, tenant: Tenant
) -> None:
    turn = await granted(tenant, max_tokens=1000, max_turns=2)
    page = f"/console/budgets/{turn}"
    shown = await operator.get(page)
    hidden = next(form.hidden for form in forms_of(shown.text) if form.action.endswith("/raise"))
    for _ in range(2):
        done = await operator.post(f"{page}/raise", data={**hidden, "tokens": "500"})
        assert done.headers["location"] == f"{page}?told=raised"
    assert "Tokens 1,500 0 0 1,500" in await words(operator, page)
    stale = await operator.post(f"{page}/raise", data={**hidden, "key": "another", "tokens": "500"})
    assert (stale.status_code, "has changed since this page was loaded" in words_of(stale.text)) == (409, True)
    assert 'value="500"' in stale.text
    again = next(form.hidden for form in forms_of(stale.text) if form.action.endswith("/raise"))
    assert again["key"] not in ("another", hidden["key"])
    assert (await operator.post(f"{page}/raise", data={**again, "tokens": "400"})).status_code == 303
    assert "Tokens 1,900 0 0 1,900" in await words(operator, page)
    lacks = await send(operator, page, f"{page}/raise", {"tokens": "-9000"})
    assert lacks.status_code == 409
    assert 'value="-9000"' in lacks.text
    assert turn[:10] in await words(operator, "/console/budgets?kind=turn&status=open")
    assert "No budget matches" in await words(operator, "/console/budgets?kind=month")
    await words(operator, "/console/budgets/none", 404)


async def test_health_shows_processes_and_servers_without_addresses(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    await tenant.agent("echo")
    said = await words(operator, "/console/health")
    for line in (
        "PostgreSQL serving version 18",
        "NATS serving this gateway is connected",
        "bridge",
        "What the safety net",
    ):
        assert line in said, line
    [target] = tenant.stack.settings.worker.worker_targets
    assert f"{target} 1 1 1" in said
    for secret in ("postgres://", "postgresql://", "nats://", "@127.0.0.1", "password"):
        assert secret not in (await operator.get("/console/health")).text
    now = time.time()
    waiting = [Join("mine", tenant.project, 1), Join("theirs", ProjectId("others"), 1)]
    queue, model = changed(ModelQueue(), [Refuse(None, now + 3600), *waiting], now, "w"), f"m/{tenant.project}"
    await tenant.pool.run(lambda conn: swap_model_queue(conn, "m:12", model, queue, version=1, expected=None))
    assert re.search(rf"{model} m:12 .{{5,40}} 2 1 ", await words(operator, "/console/health"))
    async with visiting(url, await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER)) as other:
        shown = await other.get("/console/health")
        assert "/console/health/audit" not in shown.text
        assert "others" not in shown.text
        await words(other, "/console/health/audit", 403)


async def test_an_operator_audits_the_project(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    await tenant.turn(ALICE, SAID)
    said = await words(operator, "/console/health/audit?since=1h")
    assert re.search(r"All \d+ rules hold", said)


async def test_a_page_takes_as_many_statements_for_many_rows_as_for_few(tenant: Tenant) -> None:
    """Beside the look at the token and the count of open questions, which are remembered for a moment."""
    pages = {"agents": 1, f"agents/{ALICE}": 3, "profiles": 1, f"profiles/{ALICE}-profile": 3, "tools": 2, "calls": 1}
    pages |= {"schedules": 1, "letters": 2, "costs": 1, "budgets": 2, "health": 4}
    async with composed(tenant.stack) as gateway:
        transport, url = httpx.ASGITransport(app=gateway.app), "http://localhost"
        own = {"origin": url, "sec-fetch-site": "same-origin"}
        async with httpx.AsyncClient(transport=transport, base_url=url, headers=own) as web:
            token = await token_of(tenant.stack, tenant.project)
            entered = await web.post("/console/enter", data={"token": token, "next": "/console"})
            assert entered.status_code == 303
            async with hand_of(tenant, *(definition(f"tool_{number}") for number in range(3))) as hand:
                for rows in (1, 3):
                    turns = [await hand.suspended(calling("tool_0"))]
                    turns += [turn_of(await tenant.enqueue(ALICE, SAID)) for _ in range(rows)]
                    await hand.answer(call_of(turns[0]), tool_result_card_id="none")
                    await tenant.profile(f"{ALICE}-profile", "player", max_steps=rows + 5, allowed_tools=["tool_0"])
                    for page, most in pages.items():
                        await web.get("/console/session")  # token and count are known from here on
                        before = gateway.pool.round_trips
                        assert (await web.get(f"/console/{page}")).status_code == 200
                        assert gateway.pool.round_trips - before <= most + 2, page
                    await hand.report(call_of(turns[0]))
                    await tenant.all_ended(turns, 20)
