"""Every page of the console as a reader finds it: whole, readable by everybody, on a phone and in the dark."""

import re
from collections.abc import AsyncIterator

import pytest

from lab.pictures.camera import PHONE, WIDE
from lab.pictures.seed import CUSTOMER, DESK, Shop
from tests.e2e.console.conftest import Windows
from tests.support.console.windows import Window
from tests.support.gateway import composed
from tests.support.processes.stack import Stack

PAGES = {
    "now": "/console",
    "search": "/console/turns?q=mira",
    "filtered": "/console?state=suspended",
    "turn": "/console/turns/{refund}",
    "streaming": "/console/turns/{report}",
    "waiting": "/console/turns/{labels}",
    "queued": "/console/turns/{queued}",
    "tree": "/console/turns/{printers}/tree",
    "live-tree": "/console/turns/{paper}/tree",
    "approvals": "/console/approvals",
    "approval": "/console/approvals/{invoice_question}",
    "question": "/console/approvals/{shortlist_question}",
    "decided": "/console/approvals/{refund_question}",
    "conversations": "/console/conversations",
    "conversation": f"/console/conversations/{DESK}/{CUSTOMER}",
    "calls": "/console/calls",
    "call": "/console/calls/{labels_call}",
    "letters": "/console/letters",
    "agents": "/console/agents",
    "agent": "/console/agents/mira",
    "paused-agent": "/console/agents/otto",
    "profiles": "/console/profiles",
    "profile": "/console/profiles/support",
    "tools": "/console/tools",
    "schedules": "/console/schedules",
    "schedule": "/console/schedules/stocktaking",
    "costs": "/console/costs",
    "budgets": "/console/budgets",
    "budget": "/console/budgets/day",
    "health": "/console/health",
    "audit": "/console/health/audit",
    "session": "/console/session",
}
"""The pages, with the names of the demo project's turns, calls and questions."""
MORE = {"filtered", "waiting", "queued", "live-tree", "decided", "paused-agent"}
"""Pages in a further state, which only the long run reads."""
DARK = {"turn", "tree", "approval", "conversation", "costs", "health"}
"""Pages that the usual run reads in the dark, too."""
_SHAPE = """
() => {
  const main = document.querySelector('main');
  const own = (query) => [...main.querySelectorAll(query)].filter((each) => !each.closest('.prose'));
  const ids = [...document.querySelectorAll('[id]')].map((each) => each.id);
  return {
    'one h1': document.querySelectorAll('h1').length === 1,
    'one main': document.querySelectorAll('main').length === 1,
    'a title of its own': !document.title.startsWith('Console'),
    'navs have names': [...document.querySelectorAll('nav')].every((each) => each.ariaLabel),
    'tables have captions': own('table').every((each) => each.caption || each.ariaLabel),
    'headers have scopes': own('th').every((each) => each.scope),
    'nothing inline': !document.querySelector('[style], script:not([src]), style'),
    'each id once': new Set(ids).size === ids.length,
    'no bare template': !/\\{[{%]|\\bNone\\b|undefined|\\[object /.test(main.innerText),
  };
}
"""


async def test_every_page_is_looked_at(here: Stack) -> None:
    """One that is added is added here, too; what streams, or is no page, is tested elsewhere."""
    no_pages = {"changes", "turn_events", "conversation_events", "costs_csv", "turn_card", "new_chat"}
    paths = {path.partition("?")[0] for path in PAGES.values()}
    async with composed(here) as gateway:
        shown = [page for page in gateway.pages if page.method == "GET" and page.name not in no_pages]
    patterns = {page.name: re.sub(r"\{\w+(:path)?\}", "[^/]+", page.path) for page in shown}
    assert [name for name, each in patterns.items() if not any(re.fullmatch(each, path) for path in paths)] == []


@pytest.fixture(scope="module")
async def reader(windows: Windows, shop: Shop) -> AsyncIterator[Window]:
    """A window of an operator of the demo project."""
    async with windows(shop.tokens["nadia"]) as opened:
        yield opened


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in MORE else name for name in PAGES]
)
async def test_a_page_is_whole_readable_and_fits(reader: Window, shop: Shop, name: str) -> None:
    """Landmarks and labels, axe-core in the light, no sideways scrolling on a phone."""
    page = await reader.open(shop.address(PAGES[name]))
    shape: dict[str, bool] = await page.evaluate(_SHAPE)
    assert [what for what, holds in shape.items() if not holds] == []
    assert await reader.faults() == []
    await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    try:
        assert await reader.wider() == []
        assert await reader.small_targets() == []
    finally:
        await page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    await reader.check()


@pytest.mark.parametrize(
    "name", [name if name in DARK else pytest.param(name, marks=pytest.mark.long) for name in PAGES]
)
async def test_a_page_can_be_read_in_the_dark(reader: Window, shop: Shop, name: str) -> None:
    """The palette is one for all pages, so the usual run reads those with the most of it."""
    page = await reader.open(shop.address(PAGES[name]))
    await page.emulate_media(color_scheme="dark")
    try:
        assert await reader.faults("color-contrast") == []
    finally:
        await page.emulate_media(color_scheme="light")
