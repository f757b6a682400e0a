"""Agents, profiles, tools, calls that wait, dead letters and rejections, as people see them, and what they do there."""

import asyncio
import html
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx

from tests.e2e.console.conftest import Seats
from tests.support.console.letters import dead_letter
from tests.support.console.visiting import forms_of, send, visiting, words_of
from tests.support.gateway import token_of
from tests.support.people import Person
from tests.support.tenants import ALICE, Tenant, new_tenant
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.roster import put_tool
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.sdk.tools.service import ToolService

HOSTILE = "<script>alert(1)</script>\u202e/x"
SECOND = json.dumps({"steps": [{"text": "the second"}]})


async def words(web: httpx.AsyncClient, page: str, status: int = 200) -> str:
    """What a page says; nothing on it runs."""
    shown = await web.get(page)
    assert shown.status_code == status, (page, shown.status_code, words_of(shown.text))
    assert "<script>alert" not in shown.text
    assert "\u202e" not in shown.text
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", shown.text)
    return html.unescape(words_of(shown.text))


@asynccontextmanager
async def viewer(
    url: str, tenant: Tenant, role: GatewayRole = GatewayRole.VIEWER, channel: str | None = None
) -> AsyncGenerator[httpx.AsyncClient]:
    """Somebody else, signed in."""
    async with visiting(url, await token_of(tenant.stack, tenant.project, role, channel)) as web:
        yield web


async def test_what_is_another_projects_is_answered_as_what_nobody_has(
    operator: httpx.AsyncClient, tenant: Tenant
) -> None:
    """Every address with a name in it, and every form: as for a name that nobody has."""
    other = new_tenant(tenant.stack)
    async with hand_of(other, agent=AgentId("its-agent")) as hand:
        turn = await hand.suspended(calling("search"), budget={"max_tokens": 100_000})
        daily: JsonObject = {"schedule_id": "its-daily", "agent_id": "its-agent", "every_seconds": 9999}
        await other.client.request("schedule.put", daily | {"instruction": "x"}, caller=Caller("ada"))
        call = call_of(turn)
        for own, none in (
            ("agents/its-agent", "agents/none"),
            ("profiles/its-agent-profile", "profiles/none"),
            ("schedules/its-daily", "schedules/none"),
            (f"calls/{call}", "calls/none"),
            (f"budgets/{turn}", "budgets/none"),
        ):
            its, nobodys = [await words(operator, f"/console/{page}", 404) for page in (own, none)]
            assert its == nobodys
        csrf = forms_of((await operator.get("/console/session")).text)[0].hidden["csrf"]
        for own, none, fields in (
            ("agents/its-agent/status", "agents/none/status", {"action": "pause"}),
            ("schedules/its-daily/change", "schedules/none/change", {"action": "pause"}),
            (f"calls/{call}/report", "calls/none/report", {"status": "success"}),
            (f"budgets/{turn}/raise", "budgets/none/raise", {"tokens": "5"}),
        ):
            its, nobodys = [
                await operator.post(f"/console/{page}", data={"csrf": csrf, **fields}) for page in (own, none)
            ]
            assert (its.status_code, words_of(its.text)) == (404, words_of(nobodys.text))
        for page in ("agents", "profiles", "tools", "schedules", "calls", "letters", "costs", "budgets", "health"):
            shown = (await operator.get(f"/console/{page}")).text
            assert "its-agent" not in shown, page
            assert turn[:13] not in shown, page
        assert not re.search("its-agent", (await operator.get("/console/costs.csv?by=agent")).text)
        await hand.report(call)
        await hand.ended(turn)


async def test_an_empty_project_says_what_to_do(operator: httpx.AsyncClient) -> None:
    for page, said in {
        "agents": "turnstile agent add",
        "agents?shown=busy": "Show all agents",
        "profiles": "turnstile profile put",
        "tools": "turnstile tool put",
        "schedules": "turnstile schedule put",
        "calls": "No call is waiting",
        "calls?waits_for=overdue": "Show all calls",
        "letters": "There are no dead letters. Rejections",
    }.items():
        assert said in await words(operator, f"/console/{page}"), page


async def test_a_schedule_is_paused_resumed_and_run_now_by_its_owner(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    await tenant.agent("plain")
    asked: JsonObject = {"schedule_id": "daily", "agent_id": ALICE, "instruction": HOSTILE, "cron": "0 9 * * *"}
    await tenant.client.request("schedule.put", asked, caller=Caller("ada"))
    page, change = "/console/schedules/daily", "/console/schedules/daily/change"
    assert "daily alice 0 9 * * * UTC in" in await words(operator, "/console/schedules")
    ran = await send(operator, page, change, {"action": "trigger"})
    assert ran.status_code == 303
    turn = ran.headers["location"].split("/")[3].partition("?")[0]
    await tenant.ended(AgentTurnId(turn))
    paused = await send(operator, page, change, {"action": "pause"})
    assert "fires no more" in await words(operator, paused.headers["location"])
    await tenant.rows(
        "INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, code, error)"
        " VALUES ('x', $1, 'daily', now(), 'queue_full', 'too many turns wait')",
        tenant.project,
    )
    shown = await words(operator, page)
    assert "State paused" in shown
    assert f"{turn[:13]}… triggered by" in shown
    assert "queue full too many turns wait" in shown
    resumed = await send(operator, page, change, {"action": "resume"})
    assert "from its next time on" in await words(operator, resumed.headers["location"])
    async with viewer(url, tenant, GatewayRole.CLIENT) as other:
        assert change not in (await other.get(page)).text, "it is another caller's"
        csrf = forms_of((await other.get("/console/session")).text)[0].hidden["csrf"]
        refused = await other.post(change, data={"csrf": csrf, "action": "pause"})
        assert refused.status_code == 403
    async with viewer(url, tenant, GatewayRole.OPERATOR, "elsewhere") as other:
        assert "daily" not in await words(other, "/console/schedules")
        await words(other, page, 404)


async def test_agents_are_paused_and_resumed_and_the_ledger_says_by_whom(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        page, change = f"/console/agents/{ALICE}", f"/console/agents/{ALICE}/status"
        assert f"{ALICE} suspended {turn[:13]}" in await words(operator, "/console/agents")
        assert f"Lease {turn} , epoch 1" in await words(operator, page)
        paused = await send(operator, page, change, {"action": "pause"})
        assert (paused.status_code, paused.headers["location"]) == (303, f"{page}?told=paused")
        assert "No further turn starts" in await words(operator, paused.headers["location"])
        await tenant.enqueue(ALICE, SECOND)
        shown = await words(operator, page)
        assert "State paused suspended" in shown
        assert "1 turn waits, in this order" in shown
        assert "the second" in shown, "the beginning of what is asked"
        assert f"{ALICE} paused suspended" in await words(operator, "/console/agents?shown=queued")
        [edge] = await tenant.rows(
            "SELECT metadata ->> 'sender' AS sender FROM state.identity_edges"
            " WHERE action = 'pause' AND project_id = $1",
            tenant.project,
        )
        assert edge["sender"].startswith("token.")
        async with viewer(url, tenant) as other:
            shown = await other.get(page)
            assert change not in shown.text, "no form to change it"
            csrf = forms_of(shown.text)[0].hidden["csrf"]
            assert (await other.post(change, data={"csrf": csrf, "action": "resume"})).status_code == 403
        async with viewer(url, tenant, GatewayRole.OPERATOR, "elsewhere") as other:
            assert "Lease none" in await words(other, page)
            csrf = forms_of((await other.get(page)).text)[0].hidden["csrf"]
            refused = await other.post(change, data={"csrf": csrf, "action": "resume"})
            assert (refused.status_code, "agents belong to the whole project" in html.unescape(refused.text)) == (
                403,
                True,
            )
        await send(operator, page, change, {"action": "resume"})
        await hand.report(call_of(turn))
        await hand.ended(turn)
        assert (await operator.get("/console/agents?find=nobody")).headers["location"] == "/console/agents/nobody"
        await words(operator, "/console/agents/nobody", 404)


async def test_what_changed_between_versions_is_shown_to_whom_it_concerns(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    page = f"/console/profiles/{quote(HOSTILE, safe='')}"
    await tenant.profile(HOSTILE, "echo", system_prompt_template="Be kind.\nBe brief.", max_steps=3)
    assert "There is no version before this one" in await words(operator, page)
    await tenant.profile(HOSTILE, "player", system_prompt_template="Be kind.\nBe quick.", max_steps=3)
    shown = await words(operator, page)
    assert "2 versions, newest first" in shown
    assert "llm_config.model changed before: scripted/echo → after: scripted/player" in shown
    assert "− Be brief. + Be quick." in shown
    versions = re.findall(r"\?new=([0-9a-f-]{36})", (await operator.get(page)).text)
    assert len(versions) == 1
    old = await words(operator, f"{page}?new={versions[0]}")
    assert "There is no version before this one" in old
    assert "scripted/echo" in old
    await words(operator, f"{page}?new={'0' * 8}-0000-0000-0000-{'0' * 12}", 404)
    await words(operator, "/console/profiles/none", 404)
    async with viewer(url, tenant) as other:
        shown = await words(other, page)
        assert "scripted/player" in shown
        assert "Be quick" not in shown
        assert "system_prompt_template changed Only operators of the project see this field." in shown
    assert "[U+202E]" in await words(operator, "/console/profiles")


async def test_tools_say_who_serves_them_and_who_offers_them(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    served, told = definition("unserved"), definition("search", description=HOSTILE)
    async with hand_of(tenant, served, told):
        shown = await words(operator, "/console/tools")
        assert f"{ALICE}-profile" in shown
        assert "nobody" in shown
        assert "no process serves it" in shown
        assert "[U+202E]" in shown


async def test_a_tool_that_a_process_serves_says_so(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    service = ToolService(tenant.project)

    @service.tool(target="console", suffix="count")
    async def count_words(text: str) -> int:
        """Count words."""
        return len(text.split())

    del count_words  # the service has it
    for tool in service.definitions():
        await put_tool(tenant.pool, tenant.project, tool)
    stop, ready = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(service.run(tenant.stack.endpoints.nats_url, stop=stop, ready=ready.set))
    await asyncio.wait_for(ready.wait(), 25)
    assert "listens a process serves it" in await words(operator, "/console/tools")
    stop.set()
    await running
    assert "nobody no process serves it" in await words(operator, "/console/tools")


async def test_a_call_that_waits_is_answered_by_hand(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        page = f"/console/calls/{call}"
        assert f"1 call, oldest first Tool Agent, turn Sent Deadline Waits for search {call[:10]}" in await words(
            operator, "/console/calls"
        )
        shown = await words(operator, page)
        assert '"q": "search it"' in shown
        assert "Answer the call by hand" in shown
        wrong = await send(operator, page, f"{page}/report", {"status": "success", "kind": "json", "result": "{no"})
        assert wrong.status_code == 400
        assert "is not valid JSON" in words_of(wrong.text)
        assert ">{no</textarea>" in wrong.text, "what was typed stays"
        fields = {"status": "success", "kind": "json", "result": '{"found": [1, 2]}'}
        done = await send(operator, page, f"{page}/report", fields)
        assert (done.status_code, done.headers["location"]) == (303, f"{page}?told=reported")
        ended = await hand.ended(turn)
        assert ended.view.status == "success"
        shown = await words(operator, page)
        assert re.search(r"Answered .* by token\.[0-9a-f]{20}, read by its turn", shown)
        assert '"found": [ 1, 2 ]' in shown
        assert "Answer the call by hand" not in shown


async def test_what_one_types_stays_while_the_page_follows_and_the_other_sees_the_answer(
    people: Seats, tenant: Tenant
) -> None:
    """In two windows: a call is answered by hand with the keyboard alone."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search", "search"))
        call = call_of(turn)
        one, other = await people.seat(), await people.seat(GatewayRole.VIEWER)
        page = await one.open(f"/console/calls/{call}")
        await other.open(f"/console/calls/{call}")
        assert await other.page.locator("main form[method=post]").count() == 0
        await page.get_by_label("Result", exact=True).fill("found by hand")
        await hand.report(call_of(turn, 1))  # the page is told, and follows
        await tenant.enqueue(ALICE, SECOND)
        await page.get_by_label("Result", exact=True).focus()
        assert await page.get_by_label("Result", exact=True).input_value() == "found by hand"
        await page.keyboard.press("Tab")
        await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        await one.shows("The call is answered", "found by hand")
        await other.shows("found by hand", "by token.")
        await hand.ended(turn)
        await tenant.all_ended([turn, turn], 20)


async def test_only_an_operator_answers_and_only_once(operator: httpx.AsyncClient, url: str, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        page = f"/console/calls/{call_of(turn)}"
        async with viewer(url, tenant, GatewayRole.CLIENT) as other:
            shown = await other.get(page)
            assert f"{page}/report" not in shown.text
            csrf = forms_of(shown.text)[0].hidden["csrf"]
            refused = await other.post(f"{page}/report", data={"csrf": csrf, "status": "success"})
            assert refused.status_code == 403
        async with viewer(url, tenant, GatewayRole.OPERATOR, "elsewhere") as other:
            await words(other, page, 404)
            assert "No call is waiting" in await words(other, "/console/calls")
        first = await operator.get(page)
        hidden = next(form.hidden for form in forms_of(first.text) if form.action.endswith("/report"))
        await hand.report(call_of(turn))
        late = await operator.post(f"{page}/report", data={**hidden, "status": "failed", "message": "never"})
        assert late.status_code == 409
        assert "the first answer counts" in words_of(late.text)
        assert (await hand.ended(turn)).results() == [("success", None, "")]


async def test_a_call_that_fails_by_hand_says_why_to_the_model(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        page = f"/console/calls/{call_of(turn)}"
        await send(operator, page, f"{page}/report", {"status": "failed", "message": "the shop is closed"})
        assert (await hand.ended(turn)).results() == [("failed", "tool_failed", "the shop is closed")]


async def test_a_held_call_leads_to_whom_it_waits_for(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    async with hand_of(tenant, interrupt_on={"search": True}) as hand:
        turn = await hand.start(calling("search"))
        [question] = await Person(tenant).asked()
        shown = (await operator.get("/console/calls?waits_for=held")).text
        assert f'href="/console/approvals/{question.interrupt_id}"' in shown
        page = f"/console/calls/{call_of(turn)}"
        shown = await words(operator, page)
        assert "This call was not sent to its tool" in shown
        assert "Answer the call by hand" not in shown
        await Person(tenant).decide(question)
        await hand.called(call_of(turn))
        await hand.report(call_of(turn))
        await hand.ended(turn)


async def test_refused_reports_are_listed_with_the_way_back(
    operator: httpx.AsyncClient, url: str, tenant: Tenant
) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        call = call_of(turn)
        assert (await hand.answer(call, tool_result_card_id="no-card")).error_code == "unknown_card"
        shown = await operator.get("/console/letters")
        assert f'href="/console/calls/{call}"' in shown.text
        assert "store the card first" in await words(operator, "/console/letters")
        async with viewer(url, tenant, channel="elsewhere") as other:
            assert "unknown card" not in await words(other, "/console/letters")
        await send(operator, f"/console/calls/{call}", f"/console/calls/{call}/report", {"status": "success"})
        assert (await hand.ended(turn)).view.status == "success"


async def test_a_dead_letter_leads_to_its_turn(operator: httpx.AsyncClient, tenant: Tenant) -> None:
    """A row that another writer wrote wrong: the turn that it names fails, and can be run again."""
    await tenant.agent("echo")
    async with dead_letter(tenant, ALICE, "tool.of-another") as turn:
        shown = await operator.get("/console/letters")
        assert f'href="/console/turns/{turn}"' in shown.text
        assert "The turn is over and can be run again." in await words(operator, "/console/letters")
        again = [await send(operator, "/console/letters", f"/console/turns/{turn}/rerun") for _ in range(2)]
        assert {each.status_code for each in again} == {303}
        assert len({each.headers["location"] for each in again}) == 1, "once, however often it is asked for"
        assert turn not in again[0].headers["location"]
        await tenant.all_ended([turn, turn], 20)
