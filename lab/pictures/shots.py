"""The pictures of docs/console.md."""

from playwright.async_api import Page

from lab.pictures.camera import PHONE, Shot
from lab.pictures.story import CUSTOMER, DESK


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
