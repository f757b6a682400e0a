"""Browsers of the console without a browser: a client with a session's cookie, and what its pages hold."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from html.parser import HTMLParser

import httpx

from turnstile.gateway.app import Gateway


@asynccontextmanager
async def visiting(
    url: str, token: str | None = None, gateway: Gateway | None = None, **headers: str
) -> AsyncGenerator[httpx.AsyncClient]:
    """A client that sends forms as a browser would, signed in with this token; it follows no redirect by itself.

    With `gateway` it asks that one, which needs no server.
    """
    own = {"origin": url, "sec-fetch-site": "same-origin", **headers}
    transport = None if gateway is None else httpx.ASGITransport(app=gateway.app)
    async with httpx.AsyncClient(base_url=url, headers=own, timeout=30, transport=transport) as made:
        if token is not None:
            answer = await made.post("/console/enter", data={"token": token, "next": "/console"})
            assert answer.status_code == 303, answer.text
        yield made


async def send(
    web: httpx.AsyncClient, page: str, action: str, fields: Mapping[str, str | list[str]] | None = None
) -> httpx.Response:
    """Open a page and send the form on it that goes to `action`, with its hidden fields and these."""
    shown = await web.get(page)
    assert shown.status_code == 200, shown.text
    form = next(form for form in forms_of(shown.text) if form.action == action)
    return await web.post(action, data={**form.hidden, **(fields or {})})


class Form:
    """A form of a page."""

    def __init__(self, action: str) -> None:
        self.action = action
        self.hidden: dict[str, str] = {}


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._open: Form | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = Form(attributes.get("action", ""))
            self.found.append(self._open)
        elif tag == "input" and attributes.get("type") == "hidden" and self._open is not None:
            self._open.hidden[attributes["name"]] = attributes.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None


def forms_of(page: str) -> list[Form]:
    """The forms of a page."""
    parser = _Forms()
    parser.feed(page)
    return parser.found


def words_of(page: str) -> str:
    """What a page says, in one line."""
    text = re.sub(r"<[^>]*>", " ", page)
    return re.sub(r"\s+", " ", text)
