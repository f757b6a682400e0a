"""The console in Chromium: windows of people who are signed in, and what must never happen in one."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Dialog, Error, Page, Response, expect

from lab.pictures.camera import WIDE, Scheme, Size, chromium, signed_in
from tests.support.conditions import until

_ARGS = ("--js-flags=--expose-gc", "--enable-precise-memory-info")
PATIENCE = 15.0
expect.set_options(timeout=PATIENCE * 1000)
_WATCH = """
window.__ran = [];
window.__violations = [];
document.addEventListener('securitypolicyviolation', (event) => {
  window.__violations.push(event.violatedDirective + ' ' + event.blockedURI + ' ' + (event.sample || ''));
});
"""
_SERIOUS = frozenset({"serious", "critical"})
_WIDER = """
() => {
  const page = document.scrollingElement;
  if (page.scrollWidth <= page.clientWidth) return [];
  const most = page.clientWidth;
  const within = (each) => {
    for (let up = each.parentElement; up && up !== document.body; up = up.parentElement) {
      if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(up).overflowX)) return true;
    }
    return false;
  };
  return [...document.querySelectorAll('body *')]
    .filter((each) => each.getBoundingClientRect().right > most + 1 && !within(each))
    .map((each) => each.outerHTML.slice(0, 160)).slice(0, 5).concat([page.scrollWidth + ' > ' + most]);
}
"""
_LEAST_TARGET = 24
_SMALL = f"""
() => [...document.querySelectorAll('button, input:not([type=hidden]), select, textarea, summary, nav a')]
  .filter((each) => each.checkVisibility() && !each.closest('.hidden'))
  .filter((each) => Math.min(each.getBoundingClientRect().height, each.getBoundingClientRect().width) < {_LEAST_TARGET})
  .filter((each) => !['checkbox', 'radio'].includes(each.type) || !each.closest('label'))
  .map((each) => each.outerHTML.slice(0, 160)).slice(0, 5)
"""


@dataclass
class Window:
    """A window of somebody; `trouble` has what a test fails for when it ends."""

    page: Page
    url: str
    trouble: list[str] = field(default_factory=list[str])

    async def open(self, path: str, status: int = 200) -> Page:
        """Go to an address of the console, which answers so."""
        answer = await self.page.goto(f"{self.url}{path}")
        assert answer is not None
        assert answer.status == status, f"{path} is {answer.status}: {(await answer.text())[:2000]}"
        return self.page

    async def text(self) -> str:
        """What can be read in the page's main part; empty while it is replaced."""
        try:
            return await self.page.locator("main").inner_text()
        except Error:
            return ""

    async def shows(self, *words: str, timeout: float = PATIENCE) -> None:
        """Returns when all of these can be read."""

        async def seen() -> bool:
            text = await self.text()
            return all(word in text for word in words)

        try:
            await until(seen, timeout, f"the page shows {words}", pause=0.05)
        except AssertionError:
            raise AssertionError(f"{self.page.url} lacks one of {words}:\n{(await self.text())[:3000]}") from None

    async def faults(self, *rules: str) -> list[str]:
        """What axe-core finds on the page that is serious or critical, by these rules or by all."""
        options: dict[str, Any] = {"resultTypes": ["violations"]}
        if rules:
            options["runOnly"] = [*rules]
        await self.page.evaluate(f"if (!window.axe) {{ {AXE} }}")
        found: dict[str, Any] = await self.page.evaluate("(options) => axe.run(document, options)", options)
        return [
            f"{each['id']} ({each['impact']}): {node['target']} {node['html'][:200]} {_why(node)}"
            for each in found["violations"]
            if each["impact"] in _SERIOUS
            for node in each["nodes"]
        ]

    async def wider(self) -> list[str]:
        """What makes the page scroll sideways."""
        return await self.page.evaluate(_WIDER)

    async def small_targets(self) -> list[str]:
        """What of the page a finger would miss."""
        return await self.page.evaluate(_SMALL)

    async def check(self) -> None:
        """Fail if a script of a stranger ran, the policy stopped something, or a script of ours failed."""
        for each in [await frame.evaluate("[window.__ran, window.__violations]") for frame in self.page.frames]:
            self.trouble += [f"ran: {json.dumps(each[0])}"] * bool(each[0])
            self.trouble += [f"violated: {json.dumps(each[1])}"] * bool(each[1])
        assert not self.trouble, self.trouble

    def watch(self) -> None:
        """Note what goes wrong in the page."""

        async def on_dialog(dialog: Dialog) -> None:
            self.trouble.append(f"dialog: {dialog.message}")
            await dialog.dismiss()

        def on_console(message: ConsoleMessage) -> None:
            if message.type == "error" and "Failed to load resource" not in message.text:
                self.trouble.append(f"console: {message.text}")

        def on_response(response: Response) -> None:
            if response.status >= 500:
                self.trouble.append(f"{response.status}: {response.url}")

        self.page.on("dialog", on_dialog)
        self.page.on("console", on_console)
        self.page.on("response", on_response)
        self.page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))


def _why(node: dict[str, Any]) -> str:
    checks: Sequence[dict[str, Any]] = [*node["any"], *node["all"], *node["none"]]
    return "; ".join(check["message"] for check in checks)[:300]


AXE = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")
"""axe-core, as its package carries it."""


@asynccontextmanager
async def launched() -> AsyncGenerator[Browser]:
    """Chromium without a window, whose pages may collect their garbage and measure their memory."""
    async with chromium(*_ARGS) as browser:
        yield browser


@asynccontextmanager
async def window(
    browser: Browser,
    url: str,
    token: str | None,
    *,
    scheme: Scheme = "light",
    size: Size = WIDE,
    script: bool = True,
) -> AsyncGenerator[Window]:
    """A window with the session of a token, and with nothing of any other; nothing may have gone wrong at its end."""
    context = await signed_in(browser, url, token, scheme=scheme, size=size, scale=1.0, script=script)
    if script:
        await context.add_init_script(_WATCH)
    opened = Window(await context.new_page(), url)
    opened.page.set_default_timeout(PATIENCE * 1000)
    opened.watch()
    try:
        yield opened
        if script:
            await opened.check()
    finally:
        await context.close()
