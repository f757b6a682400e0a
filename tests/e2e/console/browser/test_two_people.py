"""Two people at once, each in a window of their own: what one does the other sees; of two decisions one counts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page

from tests.e2e.console.conftest import Seats
from tests.support.people import Person
from tests.support.tenants import ALICE
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.access import GatewayRole
from turnstile.schema.people.approvals import ApprovalRule
from turnstile.schema.people.interrupts import InterruptStatus


@pytest.fixture
async def hand(people: Seats) -> AsyncIterator[Hand]:
    """An agent whose calls of `search` wait for a person."""
    rule = ApprovalRule(description="Search for this?", requester_may_decide=True)
    fields: dict[str, Any] = {"interrupt_on": {"search": rule}, "allowed_tools": ["search", "ask_human"]}
    async with hand_of(people.tenant, definition(), **fields) as made:
        yield made


async def pressed(page: Page, name: str) -> None:
    """Press a button of the page's main part, whose name begins so."""
    await page.locator("main").get_by_role("button", name=name).first.click()


async def test_of_two_who_approve_and_reject_one_counts_and_the_other_is_told(hand: Hand, people: Seats) -> None:
    turn = await hand.start(calling("search"), {"text": "found it"})
    person = Person(hand.tenant)
    [asked] = await person.asked()
    nadia, sam = await people.seat(), await people.seat(GatewayRole.APPROVER)
    path = f"/console/approvals/{asked.interrupt_id}"
    await nadia.open(path)
    await sam.open(path)
    await sam.page.get_by_label("Note").first.fill("not without the manager")
    await pressed(nadia.page, "Approve")
    await sam.shows("approved")  # without a reload, and what was typed is still there
    assert await sam.page.get_by_label("Note").first.input_value() == "not without the manager"
    [closed] = await person.closed()
    assert (closed.status, closed.decision) == (InterruptStatus.RESOLVED, "approve")
    await hand.report(call_of(turn))
    await hand.ended(turn)


async def test_who_decides_too_late_is_told_by_whom_and_overwrites_nothing(hand: Hand, people: Seats) -> None:
    await hand.start(calling("search"), {"text": "found nothing"})
    person = Person(hand.tenant)
    [asked] = await person.asked()
    path = f"/console/approvals/{asked.interrupt_id}"
    first = await people.seat()
    async with people.windows(await people.token(), script=False) as second:
        await second.open(path)
        await first.open(path)
        await first.page.get_by_label("Note").first.fill("no")
        await pressed(first.page, "Reject")
        await first.shows("the model reads")
        await pressed(second.page, "Approve")
        await second.shows("does not count", "rejected")
    [closed] = await person.closed()
    assert (closed.decision, closed.comment) == ("reject", "no")


async def test_both_see_what_is_said_in_a_conversation_as_it_streams(hand: Hand, people: Seats) -> None:
    ended = await hand.start({"text": "Good morning."}, conversation_id="desk")
    await hand.ended(ended)
    one, other = await people.seat(), await people.seat(GatewayRole.CLIENT)
    for each in (one, other):
        await each.open(f"/console/conversations/{ALICE}/desk")
        await each.shows("Good morning.")
    line = '{"steps": [{"text": "This is said slowly, word by word", "chunks": 30, "delay_seconds": 0.05}]}'
    await one.page.get_by_label("Message").fill(line)
    await pressed(one.page, "Send")
    for each in (one, other):
        await each.shows("word by word")


async def test_what_one_stops_the_other_sees_stopped(hand: Hand, people: Seats) -> None:
    turn = await hand.start({"text": "never mind", "delay_seconds": 60})
    one, other = await people.seat(), await people.seat(GatewayRole.VIEWER)
    await other.open(f"/console/turns/{turn}")
    await other.shows("running")
    assert await other.page.locator("main form[method=post]").count() == 0
    page = await one.open(f"/console/turns/{turn}")
    await page.get_by_text("Stop", exact=True).click()
    await page.get_by_label("Reason").fill("seen enough")
    await pressed(page, "Stop this turn")
    for each in (one, other):
        await each.shows("canceled")
    ended = await hand.ended(turn)
    assert ended.view.status == "canceled"


async def test_an_agent_that_one_pauses_is_paused_for_the_other(hand: Hand, people: Seats) -> None:
    one, other = await people.seat(), await people.seat(GatewayRole.VIEWER)
    for each in (one, other):
        await each.open(f"/console/agents/{ALICE}")
    assert await other.page.locator("main form[method=post]").count() == 0
    await pressed(one.page, "Pause")
    await other.shows("paused")
    queued = await hand.start({"text": "later"})
    await other.open(f"/console/agents/{ALICE}")
    await other.shows("1 turn waits")
    await pressed(one.page, "Resume")
    await hand.ended(queued)
