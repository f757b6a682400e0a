"""Pages of the console in Chromium without a window, and their pictures: light, dark, and as wide as a phone."""

import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from starlette.datastructures import Headers

from lab.pictures.seed import CUSTOMER, DESK, Shop
from turnstile.gateway.console.sessions import cookie_name

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in BROWSERS if (path := shutil.which(name))), None)
"""The headless shell takes two thirds of the time of the whole browser, which draws its own windows' pages, too."""
# Quiet: a browser that reports home hangs where there is no way out.
ARGS = ("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")
ZONE = "Europe/Berlin"
Scheme = Literal["light", "dark"]
Size = tuple[int, int]
WIDE: Size = (1280, 800)
PHONE: Size = (390, 844)


async def _nothing(page: Page) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a page; `path` has `{name}` for the turns of the story."""

    name: str
    path: str
    scheme: Scheme = "light"
    size: Size = WIDE
    height: int | None = None
    """Of the picture; by default the window's."""
    do: Callable[[Page], Awaitable[None]] = _nothing
    """What is done on the page before."""
    who: str | None = "nadia"
    """Whose session it is; None: nobody is signed in."""


@asynccontextmanager
async def chromium(*args: str) -> AsyncGenerator[Browser]:
    """A browser with these arguments too; raises `RuntimeError` if the machine has none."""
    if CHROMIUM is None:
        raise RuntimeError("no chromium here: apt-get install chromium-headless-shell")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGS, *args])
        yield browser
        await browser.close()


async def signed_in(
    browser: Browser,
    url: str,
    token: str | None,
    *,
    scheme: Scheme = "light",
    size: Size = WIDE,
    scale: float = 1.5,
    script: bool = True,
) -> BrowserContext:
    """A context with the session of a token; it runs scripts unless `script` is false."""
    context = await browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce",
        timezone_id=ZONE,
        locale="en-GB",
        device_scale_factor=scale,
        java_script_enabled=script,
    )
    if token is not None:
        name = cookie_name(Headers({"host": urlsplit(url).netloc}))
        await context.add_cookies([{"name": name, "value": token, "url": f"{url}/console"}])
    return context


async def take(browser: Browser, shop: Shop, shot: Shot, out: Path) -> Path:
    """Take one picture; returns its file. Raises `RuntimeError` if the page is not there."""
    size = (shot.size[0], shot.height or shot.size[1])
    token = None if shot.who is None else shop.tokens[shot.who]
    context = await signed_in(browser, shop.url, token, scheme=shot.scheme, size=size)
    page = await context.new_page()
    path = shop.address(shot.path)
    answer = await page.goto(f"{shop.url}{path}")
    if answer is None or not answer.ok:
        raise RuntimeError(f"{shot.name}: {path} is {'away' if answer is None else answer.status}")
    await shot.do(page)
    await page.mouse.move(0, 0)
    file = out / f"console-{shot.name}.png"
    await page.screenshot(path=file)
    await context.close()
    return file


async def _edit(page: Page) -> None:
    await page.keyboard.press("e")
    await page.mouse.wheel(0, -10_000)


SHOTS = (
    Shot("enter", "/console/enter", size=(720, 420), who=None),
    Shot("now", "/console"),
    Shot("turn", "/console/turns/{refund}", height=1040),
    Shot("tree", "/console/turns/{printers}/tree", height=520),
    Shot("approval", "/console/approvals/{torn_question}", do=_edit, height=900),
    Shot("chat", f"/console/conversations/{DESK}/{CUSTOMER}", height=900),
    Shot("agents", "/console/agents", height=640),
    Shot("calls", "/console/calls", height=560),
    Shot("costs", "/console/costs", height=1000),
    Shot("health", "/console/health", height=760),
    Shot("dark", "/console/turns/{refund}", scheme="dark", height=1040),
    Shot("phone", "/console", size=PHONE),
)
