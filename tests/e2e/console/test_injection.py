"""What strangers write is shown and nothing else: no script of theirs runs, no request leaves, no page breaks."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.async_api import Page, Request

from tests.e2e.console import hostile
from tests.e2e.console.conftest import Seats
from tests.support.console.windows import Window
from tests.support.people import Person
from tests.support.tenants import Tenant
from tests.support.tools import call_of, calling, definition, hand_of
from turnstile.ledger.turns.roster import add_agent, put_tool
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId

_POKE = """
() => {
  for (const each of document.querySelectorAll('details')) each.open = true;
  for (const each of document.querySelectorAll('body *')) {
    for (const name of ['mouseover', 'mouseenter', 'focus', 'pointerenter', 'load', 'error'])
      each.dispatchEvent(new Event(name));
  }
  return {
    elements: document.querySelectorAll('[data-evil]').length,
    frames: document.querySelectorAll('iframe, object, embed, base').length,
    handlers: [...document.querySelectorAll('body *')].flatMap((each) => each.getAttributeNames())
      .filter((name) => name.startsWith('on')),
    schemes: [...document.querySelectorAll('[href], [src], [action], [formaction]')]
      .flatMap((each) => ['href', 'src', 'action', 'formaction'].map((name) => each.getAttribute(name)))
      .filter((value) => value && /^[a-z][a-z0-9+.-]*:/i.test(value.trim()) && !/^(https?|mailto):/i.test(value.trim())),
    images: [...document.querySelectorAll('main img')].length,
    template: document.body.innerText.includes('1337'),
    hidden: getComputedStyle(document.querySelector('main')).display === 'none',
  };
}
"""
_HARMLESS = {
    "elements": 0,
    "frames": 0,
    "handlers": [],
    "schemes": [],
    "images": 0,
    "template": False,
    "hidden": False,
}


async def poked(window: Window) -> None:
    """Touch everything on the page; nothing of a stranger's may be an element or run."""
    found: dict[str, Any] = await window.page.evaluate(_POKE)
    assert found == _HARMLESS, f"{window.page.url}: {found}"
    await window.check()


def strangers(page: Page, url: str) -> list[str]:
    """The addresses elsewhere that the page asks for."""
    own, found = urlsplit(url).netloc, list[str]()

    def on_request(request: Request) -> None:
        if urlsplit(request.url).netloc != own and not request.url.startswith("data:"):
            found.append(request.url)

    page.on("request", on_request)
    return found
