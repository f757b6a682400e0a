"""The console without JavaScript: pages are read, and forms are sent."""

from collections.abc import AsyncIterator

import pytest

from lab.pictures.camera import PHONE
from tests.e2e.console.conftest import Seats, Windows
from tests.support.people import Person
from tests.support.tenants import ALICE
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.people.approvals import ApprovalRule


@pytest.fixture
async def hand(people: Seats) -> AsyncIterator[Hand]:
    """An agent whose calls of `search` wait for a person."""
    rule = ApprovalRule(description="Search for this?", requester_may_decide=True)
    async with hand_of(people.tenant, definition(), interrupt_on={"search": rule}) as made:
        yield made


async def test_a_day_without_script(windows: Windows, people: Seats, hand: Hand) -> None:
    """On a phone: sign in, begin a chat, edit and approve its call, read the answer, run the turn again, sign out."""
    line = '{"steps": [{"tool_calls": [{"name": "search", "arguments": {"q": "rye"}}]}, {"text": "It is **baked**."}]}'
    async with windows(None, script=False, size=PHONE) as window:
        page = await window.open("/console/conversations/new")
        await page.get_by_label("Token").fill(await people.token())
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_label("With").select_option(label=ALICE)
        await page.get_by_label("Message").fill(line)
        await page.get_by_role("button", name="Send").click()
        [asked] = await Person(hand.tenant).asked()
        await page.get_by_role("link", name="Refresh").first.click()
        await page.get_by_role("link", name="Decide").first.click()
        await window.shows("Search for this?", '"q": "rye"')
        await page.locator("summary", has_text="Edit the arguments").click()
        await page.get_by_label("q optional").fill("wheat")
        await page.get_by_role("button", name="Approve as edited").click()
        [heard] = await hand.called(call_of(asked.agent_turn_id))
        await hand.report(heard.call)
        await hand.ended(asked.agent_turn_id)
        await window.open(f"/console/turns/{asked.agent_turn_id}")
        await window.shows("It is baked.", "wheat", "edit")
        await page.get_by_text("Run again", exact=True).first.click()
        await page.get_by_label("From step").fill("2")
        await page.get_by_role("button", name="Run again").click()
        await window.shows("Runs again", "from step 2")
        [again] = await Person(hand.tenant).asked()  # its model begins the script anew
        await window.open(f"/console/approvals/{again.interrupt_id}")
        await page.get_by_role("button", name="Reject").click()
        await hand.ended(again.agent_turn_id)
        await window.open(f"/console/turns/{again.agent_turn_id}")
        await window.shows("success", "reject")
        await page.get_by_role("button", name="Sign out").click()
        assert page.url == f"{window.url}/console/enter"
        await window.open("/console")
        assert page.url.startswith(f"{window.url}/console/enter")


async def test_an_agent_is_paused_and_a_turn_stopped(windows: Windows, people: Seats, hand: Hand) -> None:
    turn = await hand.start(calling("search"))
    async with windows(await people.token(), script=False) as window:
        page = await window.open(f"/console/agents/{ALICE}")
        await page.get_by_role("button", name="Pause").click()
        await window.shows("paused")
        await window.open(f"/console/turns/{turn}")
        await page.get_by_text("Stop", exact=True).first.click()
        await page.get_by_role("button", name="Stop this turn").click()
        await hand.ended(turn)
        await window.open(f"/console/turns/{turn}")
        await window.shows("canceled")
        await window.open("/console")
        await window.shows("canceled")
