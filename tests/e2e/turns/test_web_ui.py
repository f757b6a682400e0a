"""What an operator sees of turns in the Temporal Web UI, in a real browser.

`--pictures docs/images` renews the pictures of the documents.
"""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.async_api import Browser, Error, Page, async_playwright

from lab.pictures.camera import CHROMIUM
from tests.support.conditions import until
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, definition, hand_of
from tests.turnstile.support import turnstile
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.workflows.options import turn_workflow_id

# Quiet: a browser that reports home hangs where there is no way out.
ARGS = ("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")
PATIENCE = 20.0
REFUSED: JsonObject = {"error": {"code": "context_too_long", "retryable": False}}
PICTURES = ("suspended-turn", "tool-turn", "failed-turn", "turns")
BOB = AgentId("bob")
_TURN = re.compile(r"\bturn-[0-9a-f-]{36}")

pytestmark = [
    pytest.mark.long,  # test_states.py asks the engine for the same in each run
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    """Chromium without a window."""
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGS)
        yield launched
        await launched.close()


@dataclass(frozen=True)
class WebUi:
    """One page of the Web UI of the tenant's namespace."""

    page: Page
    url: str
    pictures: Path | None
    """Where the documents keep theirs, if they are to be renewed."""

    async def open(self, path: str) -> None:
        """Go to `workflows/...`."""
        await self.page.goto(f"{self.url}/{path}")

    async def open_turn(self, turn: AgentTurnId) -> None:
        """Go to the page of a turn, where its details are."""
        await self.open(f"workflows/{turn_workflow_id(turn)}")
        await self.page.get_by_text("User Metadata").first.click()

    async def words(self) -> str:
        """What can be read there; Markdown lies in frames of its own, which the page replaces now and then."""
        try:
            return "\n".join([await frame.locator("body").inner_text() for frame in self.page.frames])
        except Error:
            return ""

    async def shows(self, *words: str) -> None:
        """Returns when all of these can be read."""

        async def seen() -> bool:
            text = await self.words()
            return all(word in text for word in words)

        await until(seen, PATIENCE, f"the page shows {words}", pause=0.2)

    async def finds(self, query: str, *turns: AgentTurnId) -> None:
        """Returns when the list shows these turns for a query, and no other; the engine indexes with a delay."""

        async def found() -> bool:
            await self.open("workflows?query=" + quote(query))
            await self.page.get_by_text("Refresh", exact=True).wait_for()
            text = await self.words()
            return set(_TURN.findall(text)) == {turn_workflow_id(turn) for turn in turns}

        await until(found, PATIENCE, f"{query} finds {turns}", pause=0.5)

    async def picture(self, name: str) -> None:
        """Renew a picture of the documents, if asked to and if they show it."""
        if self.pictures is not None and name in PICTURES:
            await self.page.screenshot(path=self.pictures / f"{name}.png")


@pytest.fixture
async def ui(browser: Browser, tenant: Tenant, request: pytest.FixtureRequest) -> AsyncIterator[WebUi]:
    """A fresh page."""
    endpoints, where = tenant.stack.endpoints, request.config.getoption("--pictures")
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    url = f"{endpoints.web_ui_url}/namespaces/{endpoints.temporal_namespace}"
    yield WebUi(page, url, Path(str(where)) if where else None)
    await page.close()


async def test_a_suspended_turn_shows_whom_it_waits_for_and_until_when(ui: WebUi, tenant: Tenant) -> None:
    search = definition("search", options={"suspend_timeout_seconds": 900})
    async with hand_of(tenant, search) as hand:
        turn = await hand.suspended(calling("search", "search"))
        head = await hand.until_head(status="suspended")
        await ui.open_turn(turn)
        deadline = head["resume_deadline"].isoformat(timespec="seconds")
        calls = [call_of(turn, 0), call_of(turn, 1)]
        await ui.shows(f"{hand.agent} in {tenant.project}", "epoch 1: suspended", "search, search", deadline, *calls)
        await ui.picture("suspended-turn")
        await ui.page.get_by_text("Search Attributes").first.click()
        target = tenant.stack.settings.worker.worker_targets[0]
        await ui.shows(f'"TurnProject": "{tenant.project}"', '"TurnStatus": "suspended"', f'"WorkerTarget": "{target}"')
        for call in calls:
            await hand.report(call)
        await hand.ended(turn)


async def test_a_turn_with_a_tool_shows_its_activities_signal_and_timer(ui: WebUi, tenant: Tenant) -> None:
    """What the workflow is made of: a step that calls, a wait with a deadline, a report, a step that answers."""
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"), {"text": "It is done."})
        await hand.report(call_of(turn))
        await hand.ended(turn)
        assert await tenant.stack.activities(turn) == ["run_step", "run_step"]
        await ui.open(f"workflows/{turn_workflow_id(turn)}")
        await ui.shows("COMPLETED", "run_step", "step next", "step 2", "resume deadline", "doorbell")
        await ui.page.get_by_role("heading", name="Timeline").scroll_into_view_if_needed()
        await ui.page.get_by_text("doorbell").last.scroll_into_view_if_needed()
        await ui.picture("tool-turn")


async def test_a_running_turn_shows_its_step(ui: WebUi, tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.start({"text": "never mind", "delay_seconds": 60})
        await hand.until_head(status="running")
        await ui.open_turn(turn)
        await ui.shows("RUNNING", "epoch 1: running", "step next")
        await tenant.client.request("stop", {"agent_turn_id": turn, "reason": "seen"})
        ended = await hand.ended(turn)
        await ui.open_turn(turn)
        await ui.shows("outcome canceled (stopped)", f"card {ended.view.deliverable_card_id}")


@pytest.mark.parametrize(
    ("line", "headline", "outcome"),
    [
        ({"text": "It is done."}, "✅ success", "outcome success"),
        (REFUSED, "❌ failed: context_too_long", "outcome failed (context_too_long)"),
    ],
    ids=["finished", "failed"],
)
async def test_a_turn_that_is_over_shows_its_outcome(
    ui: WebUi, tenant: Tenant, line: JsonObject, headline: str, outcome: str
) -> None:
    """The first thing under *Result* is the status; the details begin with it."""
    async with hand_of(tenant) as hand:
        ended = await hand.ended(turn := await hand.start(line))
        status, code = ended.view.status, ended.view.error_code
        await ui.open(f"workflows/{turn_workflow_id(turn)}")
        await ui.shows("COMPLETED", f'"status": "{status}"', f'"error_code": {json.dumps(code)}')
        await ui.open_turn(turn)
        details = (headline, f"{hand.agent} in {tenant.project}", outcome, str(ended.view.deliverable_card_id))
        await ui.shows("COMPLETED", *details)
        await ui.picture(f"{ended.view.status}-turn")


async def test_the_list_finds_turns_by_what_they_are(ui: WebUi, tenant: Tenant) -> None:
    [target] = tenant.stack.settings.worker.worker_targets
    async with hand_of(tenant) as hand:
        asleep, done = await hand.suspended(calling("search")), await hand.start({"text": "queued behind"})
        other = hand_of(tenant, agent=BOB)
        async with other as second:
            failed = await second.start(REFUSED)
            await second.ended(failed)
        await ui.finds(f'TurnProject="{tenant.project}" AND WorkerTarget="{target}"', asleep, failed)
        await ui.picture("turns")
        await ui.finds(f'TurnProject="{tenant.project}" AND TurnAgent="{BOB}"', failed)
        await ui.finds(f'TurnProject="{tenant.project}" AND TurnStatus="suspended"', asleep)
        await ui.finds(f'TurnProject="{tenant.project}" AND TurnStatus="failed"', failed)
        command = ("turn", "list", "--config", tenant.stack.config, "--project", tenant.project)
        web_ui = str(tenant.stack.endpoints.web_ui_url)
        told = await turnstile(*command, cwd=Path.cwd(), TURNSTILE__TEMPORAL__WEB_UI_URL=web_ui)
        _, found, link = told.err.strip().partition("workflows?query=")
        assert found, told
        await ui.finds(unquote(link), failed)
        await hand.report(call_of(asleep))
        await hand.ended(done)
        await ui.finds(f'TurnProject="{tenant.project}" AND TurnStatus="success"', asleep, done)
