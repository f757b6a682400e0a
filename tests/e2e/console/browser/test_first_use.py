"""docs/console.md, from `turnstile up` to the first approval, as somebody does it who has never been there."""

import asyncio
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest
from playwright.async_api import Browser

from tests.support.console.windows import window
from tests.support.paths import ROOT
from tests.turnstile.support import ENVIRONMENT, launch, read_until, turnstile

pytestmark = pytest.mark.long


async def test_from_up_to_the_first_approval(browser: Browser, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "approvals", tmp_path, dirs_exist_ok=True)
    up = await launch("up", cwd=tmp_path)
    try:
        printed = await read_until(up.stdout, "console: ", timeout=90)
        link = re.findall(r"http://\S+/console/enter\?once=\S+", printed)[-1]
        url = link.partition("/console/")[0]
        async with window(browser, url, None) as seen:
            page = seen.page
            await page.goto(link)
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url(f"{url}/console")
            await seen.shows("Nothing runs now", "conversation")
            for words in (
                ("profile", "put", "clerk.yaml"),
                ("tool", "put", "pay.yaml"),
                ("agent", "add", "clerk", "--profile", "clerk"),
            ):
                ran = await turnstile(*words, cwd=tmp_path)
                assert ran.code == 0, ran.err
            paying = (sys.executable, tmp_path / "pay.py")
            tool = await asyncio.create_subprocess_exec(
                *paying, cwd=tmp_path, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
            )
            for key in "gc":
                await page.keyboard.press(key)
            await page.wait_for_url(f"{url}/console/conversations")
            await page.keyboard.press("c")
            await page.wait_for_url(f"{url}/console/conversations/new")
            await page.get_by_label("With").select_option(label="clerk")
            await page.get_by_label("Message").fill("the baker")
            await page.get_by_role("button", name="Send").click()
            await seen.shows("I must know whose bill it is.")
            await page.get_by_role("link", name="Answer").click()
            await seen.shows("Whose bill is it?", "ours", "theirs")
            await page.keyboard.press("1")
            await seen.shows("Then I pay it, and the postage.", "waits for a person")
            await page.get_by_role("link", name="Decide").click()
            await seen.shows("Shall this be paid?", '"amount": 500', "the baker", "Digest")
            await page.keyboard.press("a")
            await seen.shows("It came to this", "euros were paid to")
            await page.get_by_role("link", name="turn", exact=True).first.click()
            await seen.shows("Timeline", "a person is asked", "success")
            tool.send_signal(signal.SIGTERM)
            await tool.wait()
        async with window(browser, url, None) as late:
            await late.page.goto(link)
            await late.page.get_by_role("button", name="Sign in").click()
            await late.shows("This link has been used")
            assert "/console/enter" in late.page.url
    finally:
        up.send_signal(signal.SIGINT)
        await up.wait()
