"""The console by keys alone: no pointer is used, and what has the focus can be seen."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.async_api import Page

from tests.e2e.console.conftest import Seats, Windows
from tests.support.console.windows import Window
from tests.support.people import Person
from tests.support.tenants import ALICE
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.schema.people.approvals import ApprovalRule

_FOCUS = """
() => {
  const held = document.activeElement, look = getComputedStyle(held), box = held.getBoundingClientRect();
  return {
    tag: held.localName,
    name: (held.getAttribute('aria-label') || held.innerText || held.name || '').trim(),
    seen: look.outlineStyle !== 'none' && parseFloat(look.outlineWidth) >= 2 && box.width > 0 && box.height > 0,
  };
}
"""
_MOST_TABS = 60
_NEVER_DRAWN = """
const frames = [];
window.requestAnimationFrame = (drawn) => frames.push(drawn);
window.drawNow = () => { while (frames.length) frames.shift()(performance.now()); };
"""


async def tabbed_to(page: Page, *names: str) -> None:
    """Press Tab until something of this name or tag has the focus, each on the way visibly so."""
    for _ in range(_MOST_TABS):
        await page.keyboard.press("Tab")
        held = await page.evaluate(_FOCUS)
        assert held["seen"] or held["tag"] == "body", held
        if any(held["tag"] == name or held["name"].startswith(name) for name in names):
            return
    raise AssertionError(f"no Tab leads to {names} on {page.url}")


async def gone_to(window: Window, keys: str, path: str) -> None:
    """Press keys one after the other; they lead to this address."""
    for key in keys:
        await window.page.keyboard.press(key)
    await window.page.wait_for_url(f"{window.url}{path}")


@pytest.fixture
async def hand(people: Seats) -> AsyncIterator[Hand]:
    """An agent whose calls of `search` wait for a person."""
    rule = ApprovalRule(description="Search for this?", requester_may_decide=True)
    fields: dict[str, Any] = {"interrupt_on": {"search": rule}, "allowed_tools": ["search", "ask_human"]}
    async with hand_of(people.tenant, definition(), **fields) as made:
        yield made


async def test_from_signing_in_to_a_decision(windows: Windows, people: Seats, hand: Hand) -> None:
    """Sign in, open a question, look up the keys, write a note, reject it; answer the next with one key."""
    asks = ("ask_human", {"question": "Which one?", "choices": ["left", "right"]})
    turn = await hand.start(calling("search"), calling(asks), {"text": "so be it"})
    person = Person(hand.tenant)
    [first] = await person.asked()
    async with windows(None) as window:
        page = await window.open("/console")
        await page.wait_for_url(f"{window.url}/console/enter?next=%2Fconsole")
        await tabbed_to(page, "input")
        await page.keyboard.type(await people.token())
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{window.url}/console")
        await page.keyboard.press("Tab")
        assert (await page.evaluate(_FOCUS))["name"] == "Skip to the content"
        await gone_to(window, "ga", "/console/approvals")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{window.url}/console/approvals/{first.interrupt_id}")
        await page.keyboard.press("?")
        await page.get_by_role("dialog").wait_for()
        await page.keyboard.press("Escape")
        await page.get_by_role("dialog").wait_for(state="hidden")
        await page.keyboard.press("m")
        await page.wait_for_function("document.activeElement.matches('input, textarea')")
        await page.keyboard.type("are you sure")  # letters are text here, not keys
        await page.keyboard.press("Escape")
        await page.keyboard.press("r")
        await window.shows("Rejected")
        [second] = await person.asked()
        await window.open("/console/approvals")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await window.shows("Which one?")
        await page.keyboard.press("2")
        await hand.ended(turn)
        assert (await person.closed())[1].interrupt_id == second.interrupt_id
    [closed, answered] = await person.closed()
    assert (closed.decision, closed.comment) == ("reject", "are you sure")
    assert answered.decision == "respond"


async def test_a_chat_is_begun_steered_and_stopped(people: Seats, hand: Hand) -> None:
    window = await people.seat()
    page = await window.open("/console")
    await gone_to(window, "gc", "/console/conversations")
    await gone_to(window, "c", "/console/conversations/new")
    await tabbed_to(page, "select")
    await page.keyboard.type(ALICE)
    await tabbed_to(page, "textarea")
    await page.keyboard.type('{"steps": [{"text": "I take a while", "chunks": 2, "delay_seconds": 30}]}')
    await page.keyboard.press("Enter")
    await window.shows("running")
    await page.keyboard.press("m")
    await page.keyboard.type("hurry up")
    await tabbed_to(page, "Steer now")
    await page.keyboard.press("Enter")
    await window.shows("hurry up")
    await tabbed_to(page, "Stop")
    await page.keyboard.press("Enter")
    await window.shows("stopped")


async def test_lists_are_walked_line_by_line(people: Seats, hand: Hand) -> None:
    for text in ("one", "two", "three"):
        await hand.ended(await hand.start({"text": text}))
    window = await people.seat()
    page = await window.open("/console")
    rows = page.locator("main [data-row]")
    assert await rows.count() == 3
    for key, place in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        await page.keyboard.press(key)
        assert await rows.nth(place).evaluate("(row) => row.contains(document.activeElement)"), (key, place)
        assert (await page.evaluate(_FOCUS))["seen"]
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console/turns/*")


async def test_keys_do_nothing_where_somebody_types(people: Seats, hand: Hand) -> None:
    await hand.ended(await hand.start({"text": "one"}))
    window = await people.seat()
    page = await window.open("/console")
    await tabbed_to(page, "input")
    await page.keyboard.type("gaj?")
    assert page.url == f"{window.url}/console"
    assert await page.get_by_role("dialog").count() == 0
    await page.keyboard.press("Escape")
    await page.keyboard.press("Control+a")
    assert page.url == f"{window.url}/console"


async def test_a_key_that_is_pressed_twice_decides_one_question(people: Seats, hand: Hand) -> None:
    """After a decision the page shows what was decided; the next question takes its own look, and its own key."""
    await hand.start(calling(*["search"] * 4), {"text": "so be it"})
    person = Person(hand.tenant)
    newest = (await person.asked())[0]
    window = await people.seat()
    page = await window.open(f"/console/approvals/{newest.interrupt_id}")
    await page.keyboard.press("a", delay=0)
    for _ in range(5):
        await page.keyboard.press("a", delay=20)
    await window.shows("Approved: the call is sent to its tool.", "Look at the next open question")
    assert len(await person.asked()) == 3
    await page.keyboard.press("n")
    await window.shows("of 3 open")
    await page.keyboard.down("r")
    for _ in range(5):
        await page.keyboard.down("r")  # held down: a browser repeats the key
    await page.keyboard.up("r")
    await window.shows("Rejected: the model reads the rejection.")
    assert len(await person.asked()) == 2


async def test_what_was_pressed_before_a_page_was_drawn_sends_nothing(people: Seats, hand: Hand) -> None:
    await hand.start(calling("search"), {"text": "so be it"})
    person = Person(hand.tenant)
    [asked] = await person.asked()
    window = await people.seat()
    await window.page.add_init_script(_NEVER_DRAWN)
    page = await window.open(f"/console/approvals/{asked.interrupt_id}")
    await page.keyboard.press("a")
    await page.get_by_role("button", name="Approve a").click()
    assert len(await person.asked()) == 1
    assert page.url.endswith(asked.interrupt_id)
    await page.evaluate("() => drawNow()")
    await page.keyboard.press("a")
    await window.shows("Approved: the call is sent to its tool.")
