"""The front end of examples/agui in Chromium: text as it comes, calls, approvals, stop, and a gateway that dies."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from lab.pictures.camera import CHROMIUM
from tests.e2e.gateway.agui.test_runs import LONG, SLOW, WORDS, script
from tests.e2e.people.asking import PAY
from tests.support.conditions import until
from tests.support.console.windows import Window, launched, window
from tests.support.gateway import serving, token_of
from tests.support.paths import ROOT
from tests.support.processes.piped import Piped, piped
from tests.support.tenants import ALICE, Tenant
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.embedded.ports import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
HOSTILE = "<img src=x onerror=__ran.push(1)><script>__ran.push(2)</script>"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with launched() as opened:
        yield opened


@pytest.fixture
async def page_at() -> AsyncIterator[str]:
    """Where the front end is served, by Python's own server."""
    port = free_port()
    folder = str(ROOT / "examples" / "agui")
    command = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", folder)
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)

    async def serves() -> bool:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await until(serves, 25, "the page is served")
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    await server.wait()


@contextlib.asynccontextmanager
async def fronted(
    browser: Browser, page_at: str, gateway: str, tenant: Tenant, name: str = "index.html"
) -> AsyncGenerator[Window]:
    """A window of the front end for the project's agent `alice`."""
    async with window(browser, page_at, None) as opened:
        page = opened.page
        await page.goto(f"{page_at}/{name}")
        await page.fill("#url", gateway)
        await page.fill("#agent", ALICE)
        await page.fill("#token", await token_of(tenant.stack, tenant.project))
        yield opened


async def say(page: Page, text: str) -> None:
    await page.fill("#text", text)
    await page.click("#send")


@pytest.fixture
async def seen(browser: Browser, page_at: str, tenant: Tenant) -> AsyncIterator[Window]:
    """A window of the front end, whose page may ask the gateway."""
    async with (
        serving(tenant.stack, allowed_origins=(page_at,)) as url,
        fronted(browser, page_at, url, tenant) as opened,
    ):
        yield opened


@contextlib.asynccontextmanager
async def paying(tenant: Tenant) -> AsyncGenerator[Hand]:
    rule: dict[str, Any] = {"requester_may_decide": True}
    names = ["pay", "search", "ask_human"]
    async with hand_of(tenant, PAY, definition(), interrupt_on={"pay": rule}, allowed_tools=names) as hand:
        yield hand


async def test_text_comes_as_it_is_written_and_a_turn_is_stopped(seen: Window, tenant: Tenant) -> None:
    await tenant.agent("talks")
    page = seen.page
    await say(page, LONG)
    said, state = page.locator("li.assistant"), page.locator("#state")
    await expect(said).to_contain_text("word-3 ")
    assert "word-59" not in await said.inner_text()
    await expect(state).to_have_text("success")
    assert await said.inner_text() == WORDS
    await say(page, SLOW)
    await expect(said.nth(1)).to_contain_text("All")
    await page.click("#stop")
    await expect(state).to_have_text("cancelled")


async def test_calls_are_shown_and_approved_edited_and_rejected_by_buttons(seen: Window, tenant: Tenant) -> None:
    async with paying(tenant) as hand:
        page = seen.page
        await say(page, script(calling(("pay", {"amount": 5}), ("pay", {"amount": 6})), {"text": HOSTILE}))
        await seen.shows('pay {"amount": 5}', "wants to call the tool pay")
        first = page.locator("fieldset").first
        assert '"account": "of' in await first.locator("textarea").input_value()
        await first.locator("textarea").fill('{"amount": 7}')
        await expect(first.get_by_role("button", name="approve")).to_be_disabled()
        await first.locator("textarea").fill("{")
        await first.get_by_role("button", name="edit").click()
        await expect(page.locator("#state")).to_have_text("That is no JSON.")
        await first.locator("textarea").fill('{"amount": 7}')
        await first.get_by_role("button", name="edit").click()
        await page.locator("fieldset").get_by_role("button", name="reject").click()
        [command] = await hand.heard()
        await hand.report(command.call, HOSTILE)
        await seen.shows("success", "rejected")
        told = [inner_text.strip() for inner_text in await page.locator("li.tool, li.assistant").all_inner_texts()]
        assert told.count(HOSTILE) == 2
        assert await page.locator("li img").count() == 0


async def test_a_question_is_answered_by_its_choice(seen: Window, tenant: Tenant) -> None:
    async with paying(tenant):
        page = seen.page
        await say(
            page, script(calling(("ask_human", {"question": "Which?", "choices": ["a", "b"]})), {"text": "so be it"})
        )
        await seen.shows("Which?")
        await page.get_by_role("button", name="b", exact=True).click()
        await seen.shows('{"value":"b"}', "so be it", "success")


async def test_a_gateway_that_dies_is_asked_again(
    browser: Browser, page_at: str, tenant: Tenant, tmp_path: Path
) -> None:
    """The page repeats the run at whatever serves the address then, and shows the text once."""
    await tenant.agent("player")
    port, stack = free_port(), tenant.stack
    config = tmp_path / "gateway.toml"
    config.write_text(f'{stack.config.read_text()}\n[gateway]\nport = {port}\nallowed_origins = ["{page_at}"]\n')

    async def started() -> Piped:
        process = await piped(("gateway", "--config", config), os.environ, cwd=stack.directory)
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while "gateway serves" not in (line := (await process.stderr.readline()).decode()):
                assert line, "the gateway ended"
        return process

    first = await started()
    async with fronted(browser, page_at, f"http://127.0.0.1:{port}", tenant) as seen:
        await say(seen.page, json.dumps({"steps": [{"text": WORDS, "chunks": 30, "delay_seconds": 0.2}]}))
        said = seen.page.locator("li.assistant")
        await expect(said).to_contain_text("word-5 ")
        first.send_signal(signal.SIGKILL)
        await first.wait()
        second = await started()
        await expect(seen.page.locator("#state")).to_have_text("success", timeout=40_000)
        assert await said.all_inner_texts() == [WORDS]
    second.send_signal(signal.SIGTERM)
    await second.wait()


async def test_an_agent_moves_things_on_the_page_by_a_tool_of_the_page(
    browser: Browser, page_at: str, tenant: Tenant
) -> None:
    await tenant.profile("mover", "talks", instances=True)
    async with (
        serving(tenant.stack, allowed_origins=(page_at,)) as url,
        fronted(browser, page_at, url, tenant, "board.html") as opened,
    ):
        page = opened.page
        await page.fill("#agent", "profile:mover")
        lamp: dict[str, Any] = {"thing": "lamp", "place": "right"}
        steps = calling(("move", lamp), ("move", {"thing": "sofa", "place": "left"})), calling(("move", lamp))
        await say(page, script(*steps, {"text": "It was there already."}))
        await expect(page.locator("#state")).to_have_text("success")
        await expect(page.locator("#lamp")).to_have_class("right")
        await expect(page.locator("li.assistant")).to_have_text("It was there already.")
    results = await tenant.rows(
        "SELECT content ->> 'status' AS status, content #>> '{error,code}' AS code FROM public.cards"
        " WHERE tenant_id = $1 AND metadata ->> 'type' = 'tool.result' ORDER BY created_at, card_id",
        tenant.project,
    )
    found = sorted((row["status"], row["code"] or "") for row in results)
    assert found == [("failed", "client_tool_failed"), ("failed", "invalid_arguments"), ("success", "")]
