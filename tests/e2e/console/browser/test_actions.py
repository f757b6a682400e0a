"""What operators do on pages, pressed in a browser; other tests here and in the areas' own files press the rest."""

from tests.e2e.console.conftest import Seats
from tests.support.conditions import until
from tests.support.console.letters import dead_letter
from tests.support.tenants import ALICE
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.schema.base import JsonObject


async def test_a_turn_is_told_something_and_run_again_with_another_model(people: Seats) -> None:
    async with hand_of(people.tenant, definition()) as hand:
        turn = await hand.suspended(calling("search"), {"text": "found"}, {"text": "and minded"})
        one = await people.seat()
        page = await one.open(f"/console/turns/{turn}")
        progress: JsonObject = {"tool_call_id": call_of(turn), "progress": 3, "total": 8, "message": "reading"}

        async def reported() -> bool:  # again, as tools do: what comes before the page listens is lost
            await people.tenant.client.request("progress", progress)
            return "3 of 8: reading" in await one.text()

        await until(reported, 25, "the page shows the progress")
        await page.get_by_text("Steer", exact=True).click()
        await page.get_by_label("What the model should read next").fill("and mind the gap")
        await page.get_by_label("When").select_option("when_idle")
        await page.get_by_role("button", name="Steer the turn").click()
        await one.shows("and mind the gap")
        await hand.report(call_of(turn))
        await hand.ended(turn)
        await one.shows("success")
        assert await page.locator(".progress").count() == 0
        await page.get_by_text("Run again", exact=True).first.click()
        await page.get_by_label("From step").fill("1")
        await page.get_by_role("button", name="Run again").click()
        await page.wait_for_url(lambda url: url.partition("?")[0].endswith(turn) is False)
        again = page.url.partition("?")[0].rpartition("/")[2]
        await one.shows("suspended")
        await people.tenant.client.request("stop", {"agent_turn_id": again, "reason": "seen"})
        await one.shows("canceled")


async def test_a_budget_is_raised_and_an_agent_retired(people: Seats) -> None:
    one = await people.seat()
    page = await one.open("/console/budgets")
    await page.get_by_text("Change the daily limit").click()
    day = page.locator("section", has=page.get_by_role("heading", name="Per day"))
    await day.get_by_label("Turns").fill("3")
    await day.get_by_role("button", name="Set the limit").click()
    await one.shows("At most 3 turns")
    await people.tenant.agent("echo")
    await people.tenant.turn(ALICE)
    await one.open("/console/budgets/day")
    await page.get_by_label("Turns").fill("4")
    await page.get_by_role("button", name="Change the budget").click()
    await one.shows("The budget has been changed", "7")

    await one.open(f"/console/agents/{ALICE}")
    await page.get_by_role("button", name="Retire").click()
    await one.shows("The agent is retired", "retired")


async def test_a_dead_letters_turn_is_run_again_and_an_hour_is_audited(people: Seats) -> None:
    tenant = people.tenant
    await tenant.agent("echo")
    async with dead_letter(tenant, ALICE, "tool.of-another") as turn:
        one = await people.seat()
        page = await one.open("/console/letters")
        await page.get_by_role("button", name="Run it again").click()
        await page.wait_for_url("**/console/turns/*")
        await one.shows("success")
        assert turn not in page.url
        await tenant.all_ended([turn, turn], 20)
        await one.open("/console/health")
        await page.get_by_role("button", name="Audit the last hour").click()
        await page.wait_for_url("**/console/health/audit?since=1h")
        await one.shows("Audit")
