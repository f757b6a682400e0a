"""Approvals and chats in Chromium: decided by keys, streamed, and gone on with where they are."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import expect

from tests.e2e.console.conftest import Seats
from tests.e2e.console.test_chat_pages import script
from tests.e2e.people.asking import PAY, asked
from tests.support.tenants import Tenant
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.schema.access import GatewayRole
from turnstile.schema.ids import AgentTurnId

SLOW: dict[str, Any] = {"text": "one **two** three ", "chunks": 3, "delay_seconds": 2.0}
"""Slow enough that a busy browser has opened the page before it is over."""


@pytest.fixture
async def hand(tenant: Tenant) -> AsyncIterator[Hand]:
    """An agent that calls tools, whose payments wait for people."""
    how: dict[str, Any] = {"interrupt_on": {"pay": True}, "allowed_tools": ["search", "pay"]}
    async with hand_of(tenant, definition(), PAY, **how) as made:
        await tenant.profile(f"{made.agent}-profile", "talks", **how)
        yield made


async def test_a_chat_streams_and_goes_on_without_loading_the_page_again(hand: Hand, people: Seats) -> None:
    desk = await people.seat()
    page = await desk.open("/console/conversations")
    await page.keyboard.press("c")
    await page.get_by_label("With").select_option(f"agent:{hand.agent}")
    await page.get_by_label("Message").fill(script(SLOW))
    await page.get_by_label("Message").press("Enter")
    await expect(page.locator("#now")).to_contain_text("running")
    await expect(page.locator(".stream")).to_contain_text("one **two**")
    await expect(page.locator("#chat .by-model")).to_have_text("one two three")
    await expect(page.locator("#chat strong")).to_have_text("two")
    await expect(page.locator(".stream")).to_be_empty()
    await page.evaluate("window.same = true")
    message = page.get_by_label("Message")
    await message.fill(script(calling("search"), {"text": "Found it."}))
    await message.press("Enter")
    await expect(message).to_have_value("")
    await expect(page.get_by_role("button", name="Steer now")).to_be_visible()
    await hand.heard()
    await message.fill("look in the cellar")
    await message.press("Enter")
    await expect(page.locator("#chat")).to_contain_text("waits for the next step")
    await message.fill("half a sent")
    await hand.report(hand.commands[0].call, "the cellar")
    await expect(page.locator("#chat")).to_contain_text("Found it.")
    await expect(page.locator("#chat")).to_contain_text("said while it ran")
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await expect(message).to_have_value("half a sent")
    await page.locator("summary", has_text="search").click()
    await expect(page.locator(".pair")).to_contain_text("the cellar")
    assert await page.evaluate("window.same")
    await page.context.clear_cookies()
    await message.press("Enter")
    await desk.shows("The session has ended.")
    await expect(message).to_have_value("half a sent")


async def test_keys_decide_and_lead_to_the_next_question(hand: Hand, people: Seats) -> None:
    turn = await hand.start(calling(*(("pay", {"amount": n}) for n in (1, 2))))
    await asked(hand, turn, 2)
    desk = await people.seat(GatewayRole.APPROVER)
    page = await desk.open("/console/approvals")
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await desk.shows("1 of 2 open")
    await page.keyboard.press("e")
    await expect(page.get_by_label("amount")).to_be_visible()
    await page.get_by_label("amount").fill("20000")
    await page.get_by_role("button", name="Approve as edited").click()
    await desk.shows("20000 is greater than the maximum of 10000")
    await page.get_by_label("amount").fill("7")
    await page.get_by_label("amount").press("Enter")
    await desk.shows("Approved with your changes", "Look at the next open question")
    await page.locator("h1").click()
    await page.keyboard.press("n")
    await desk.shows("1 of 1 open")
    await page.keyboard.press("a")
    await desk.shows("Approved: the call is sent to its tool.", "Nothing else is open")
    amounts = [number["amount"] for number in [await sent(hand, n) for n in range(2)]]
    assert 7 in amounts
    await finished(hand, turn)


async def sent(hand: Hand, number: int) -> dict[str, Any]:
    """The arguments of a call that its tool has received."""
    command = (await hand.heard(number + 1))[number]
    [row] = await hand.tenant.rows(
        "SELECT content -> 'arguments' ->> 'amount' AS amount FROM public.cards WHERE card_id = $1 AND tenant_id = $2",
        *(command.payload["tool_call_card_id"], hand.tenant.project),
    )
    return {"amount": float(row["amount"])}


async def finished(hand: Hand, turn: AgentTurnId) -> None:
    """Answer what the turn has called, and wait for its end."""
    for command in await hand.heard():
        await hand.answer(command.call, "paid")
    await hand.ended(turn)
