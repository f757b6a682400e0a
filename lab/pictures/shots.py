"""The pictures of docs/console.md."""

from playwright.async_api import Page

from lab.pictures.camera import PHONE, Shot
from lab.pictures.story import CUSTOMER, DESK


async def _first_approval(page: Page) -> None:
    await page.locator("main a[href*='/console/approvals/']").first.click()
    await page.wait_for_load_state()


SHOTS = (
    Shot("now", "/console"),
    Shot("turn", "/console/turns/{refund}", height=1000),
    Shot("tree", "/console/turns/{printers}/tree", height=640),
    Shot("approval", "/console/approvals", do=_first_approval, height=900),
    Shot("chat", f"/console/conversations/{DESK}/{CUSTOMER}", height=900),
    Shot("agents", "/console/agents", height=640),
    Shot("calls", "/console/calls", height=560),
    Shot("costs", "/console/costs", height=900),
    Shot("health", "/console/health", height=720),
    Shot("dark", "/console/turns/{refund}", scheme="dark", height=1000),
    Shot("phone", "/console", size=PHONE),
)
