"""Addresses, queries and forms that no page of ours makes: each is refused in words, and none is a bug."""

import re
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tests.support.console.visiting import forms_of, visiting, words_of
from tests.support.gateway import composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.gateway.app import Gateway
from turnstile.gateway.console.page import Page
from turnstile.schema.access import GatewayRole, Right

NAMES = (
    "nobodys",
    "%00",
    "..%2f..",
    "a" * 300,
    "%C3%A9%E2%80%AE",
    "%ff",
    "'\"<b>",
    "01890000-0000-7000-8000-000000000000",
)
VALUES = ("", "\0", "-1", "9" * 20, "a" * 5000, "é\u202e'\"<b>", "2026-01-01")
STREAMS = {"changes", "turn_events", "conversation_events"}


@pytest.fixture(scope="module")
async def gateway(here: Stack) -> AsyncIterator[Gateway]:
    """One without a server, for all these requests."""
    async with composed(here) as made:
        yield made


@pytest.fixture
async def web(gateway: Gateway, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """An operator, signed in."""
    async with visiting("https://here", await token_of(tenant.stack, tenant.project), gateway) as made:
        yield made


def paths_of(page: Page) -> Iterator[str]:
    """Its address with each of the names; once if it has no place for one."""
    for name in NAMES if "{" in page.path else NAMES[:1]:
        yield re.sub(r"\{\w+\}", name, page.path)


def told(answer: httpx.Response) -> None:
    """It is answered in words, or leads to another page."""
    assert answer.status_code in (200, 303, 400, 403, 404, 405, 409, 413), (answer.url, answer.text[-600:])
    assert answer.status_code == 303 or answer.headers["content-type"].startswith(("text/html", "text/csv"))
    assert "<b>" not in re.sub(r"<b>[\w ,.:-]*</b>", "", answer.text.partition("<main")[2]) or answer.status_code == 200


async def test_pages_of_what_nobody_has(gateway: Gateway, web: httpx.AsyncClient) -> None:
    for page in gateway.pages:
        if page.method == "GET" and page.name not in STREAMS:
            for path in paths_of(page):
                told(await web.get(path))


async def test_queries_that_no_link_has(gateway: Gateway, web: httpx.AsyncClient) -> None:
    for page in gateway.pages:
        if page.method == "GET" and page.name not in STREAMS:
            path = next(paths_of(page))
            for name in (*page.query.model_fields, "nobodys"):
                for value in VALUES:
                    told(await web.get(path, params={name: value}))


async def test_forms_that_no_page_has(gateway: Gateway, web: httpx.AsyncClient) -> None:
    [form, *_] = forms_of((await web.get("/console/session")).text)
    for page in gateway.pages:
        if page.method == "POST":
            for path in paths_of(page):
                told(await web.post(path, data=form.hidden))
            path = next(paths_of(page))
            for value in VALUES:
                given = dict.fromkeys(page.form.model_fields, value)
                told(await web.post(path, data={**given, **form.hidden}))
                told(await web.post(path, data={**{name: [value, value] for name in given}, **form.hidden}))


async def test_who_only_looks_sees_every_page_and_no_form(gateway: Gateway, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER)
    async with visiting("https://here", token, gateway) as web:
        for page in gateway.pages:
            if page.method == "GET" and page.name not in STREAMS and "{" not in page.path:
                answer = await web.get(page.path)
                sees = page.right is Right.READ  # what costs the ledger much is for operators
                assert answer.status_code == (200 if sees else 403), (page.path, words_of(answer.text))
                changing = re.findall(r'<form[^>]*method="post"[^>]*action="([^"]*)"', answer.text)
                assert changing in ([], ["/console/leave"]), page.path
