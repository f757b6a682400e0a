"""What the script does to an open page, in Chromium: it renews what changed, and keeps what a reader did."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from playwright.async_api import Browser, Request

from lab.pictures.camera import CHROMIUM
from tests.e2e.console.conftest import Seats, Windows
from tests.support.console.windows import window
from tests.support.gateway import serving
from tests.support.tenants import ALICE
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.embedded.ports import free_port
from turnstile.gateway.http import bearers
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import read_secret

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
_HIDE = """
(hidden) => {
  Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event('visibilitychange'));
}
"""
_STATE = """
() => {
  const said = document.getElementById('steer');
  return {
    said: said.value, focus: document.activeElement.id, from: said.selectionStart, to: said.selectionEnd,
    open: [...document.querySelectorAll('details[open]')].map((each) => each.id).filter(Boolean).sort(),
    scroll: Math.round(scrollY),
  };
}
"""


@pytest.fixture
async def hand(people: Seats) -> AsyncIterator[Hand]:
    """An agent with a tool that answers when the test says so."""
    async with hand_of(people.tenant, definition()) as made:
        yield made


async def test_what_a_reader_did_outlives_the_renewal_of_a_page(hand: Hand, people: Seats) -> None:
    turn = await hand.suspended(calling("search"), calling("search"), {"text": "The end of it."})
    seat = await people.seat()
    page = await seat.open(f"/console/turns/{turn}")
    await page.get_by_text("The same as a table").click()
    await page.get_by_text("Steer", exact=True).click()
    await page.locator("#steer").fill("half a sentence")
    await page.locator("#steer").evaluate("(each) => each.setSelectionRange(5, 6)")
    await page.evaluate("scrollTo(0, 40)")
    await page.evaluate("document.getElementById('turn-steps').dataset.old = '1'")
    before = await page.evaluate(_STATE)
    assert (before["focus"], before["from"], before["open"]) == ("steer", 5, ["say", "timeline-table"])
    await hand.answer(call_of(turn))
    await page.locator("#turn-steps:not([data-old])").wait_for()
    await hand.called(call_of(turn, step=2))
    assert await page.evaluate(_STATE) == before
    await hand.answer(call_of(turn, step=2))
    await hand.ended(turn)
    await seat.shows("The end of it.")


async def test_moments_are_in_the_readers_zone(hand: Hand, people: Seats) -> None:
    turn = await hand.start({"text": "done"})
    await hand.ended(turn)
    seat = await people.seat()
    page = await seat.open(f"/console/turns/{turn}")
    shown = await page.locator("main time").evaluate_all(
        "(all) => all.map((each) => [each.dateTime, each.title, each.className, each.textContent])"
    )
    assert shown
    for at, title, kind, text in shown:
        there = await page.evaluate("(at) => new Date(at).toLocaleTimeString('en-GB')", at)  # Berlin's, as the window's
        assert there in title
        assert "UTC" in title
        assert kind == "ago" or there in text


async def test_an_open_page_says_that_its_session_has_ended(
    hand: Hand, people: Seats, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    token = await people.token()
    held = read_secret(token)
    assert held is not None
    async with windows(token) as opened:
        page = await opened.open("/console")
        await hand.tenant.pool.run(lambda conn: revoke_token(conn, hand.tenant.project, held.token_id))
        await hand.start({"text": "something to tell"})
        await opened.shows("The session has ended.")
        await page.get_by_role("link", name="Load the page again").click()
        await page.wait_for_url(f"{opened.url}/console/enter?next=%2Fconsole")


async def test_a_page_that_nobody_sees_asks_for_nothing(hand: Hand, people: Seats) -> None:
    seat = await people.seat()
    asked: list[str] = []

    def on_request(request: Request) -> None:
        asked.append(request.url.removeprefix(f"{seat.url}/console"))

    page = await seat.open("/console")
    await hand.ended(await hand.start({"text": "while it is seen"}))
    await seat.shows("success")
    await page.evaluate(_HIDE, True)
    page.on("request", on_request)
    await hand.ended(await hand.start({"text": "while it is not"}))
    await page.wait_for_timeout(1500)  # a page that is seen would have asked by now
    assert asked == []
    await page.evaluate(_HIDE, False)
    await page.locator("#ended [data-row]").nth(1).wait_for()
    assert asked[0] == "/changes"


@pytest.mark.long  # streams that a gateway ends when it stops are read on by every client of /v1
async def test_an_open_page_goes_on_when_its_gateway_was_started_again(
    hand: Hand, people: Seats, browser: Browser
) -> None:
    stack, port, token = people.tenant.stack, free_port(), await people.token()
    async with AsyncExitStack() as first, AsyncExitStack() as windows:
        url = await first.enter_async_context(serving(stack, port=port))
        opened = await windows.enter_async_context(window(browser, url, token))
        await opened.open("/console")
        await opened.shows("Nothing runs now")
        await first.aclose()
        async with serving(stack, port=port):
            await hand.ended(await hand.start({"text": "said to the second"}))
            await opened.shows("success", ALICE)
            await windows.aclose()
