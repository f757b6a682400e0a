"""What all pages have: headers, problems as pages, static files, and the time and statements that they take."""

import re

import httpx
import pytest

from tests.support.console.visiting import visiting, words_of
from tests.support.gateway import composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.gateway.console import rendering
from turnstile.gateway.http import bearers
from turnstile.schema.access import GatewayRole

SESSION = "/console/session"


async def test_every_response_forbids_what_pages_do_not_need(url: str, operator: httpx.AsyncClient) -> None:
    page = await operator.get(SESSION)
    static = re.findall(r'"(/console/static/[^"]+)"', page.text)
    assert {path.rpartition("/")[2] for path in static} == {"console.css", "console.js", "icon.svg"}
    paths = [SESSION, "/console/enter", "/console/nothing", "/console/", "/console/session?x=1", *static]
    answers = [page, *[await operator.get(path) for path in paths], await operator.delete(SESSION)]
    async with visiting(url) as stranger:
        answers += [await stranger.get(SESSION), await stranger.post(SESSION)]
        answers.append(await stranger.get("/console", headers={"host": "evil.example"}))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'"), answer.url
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == (
            "public, max-age=31536000, immutable" if "/static/" in str(answer.url) else "no-store"
        )
        assert not re.search(r"<script(?! src=)|\son\w+=|\sstyle=|javascript:", answer.text.partition("/*")[0])


async def test_what_is_refused_is_told_on_a_page(url: str, operator: httpx.AsyncClient) -> None:
    for path, status, words in (
        ("/console/nothing", 404, "the console has no such page"),
        ("/console/session?x=<b>", 400, "x: there is no such field"),
        ("/console/session?token=a", 400, "a token belongs"),
        ("/console/turns/nobodys/events", 404, "the project has no such turn"),
    ):
        answer = await operator.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), path
        assert words in words_of(answer.text)
        assert "Sign out" in answer.text
        assert '<a href="/console">Back</a>' in answer.text
    for came_from, back in (
        (f"{url}/console/turns?state=running", "/console/turns?state=running"),
        (f"{url}/v1/turns", "/console"),
        ("https://evil.example/console/turns", "/console"),
        ("http://[", "/console"),
    ):
        answer = await operator.get("/console/nothing", headers={"referer": came_from})
        assert f'<a href="{back}">Back</a>' in answer.text
    wrong = await operator.delete(SESSION)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert "this address does not support this method" in words_of(wrong.text)
    large = await operator.post("/console/enter", content=b"a" * (2 << 20), headers={"content-type": FORM})
    assert large.status_code == 413
    assert (await operator.post("/console/enter", json={})).status_code == 415
    for body in (b"a=%ff", b"token=\xff", b"&".join(b"a=1" for _ in range(501))):
        assert (await operator.post("/console/enter", content=body, headers={"content-type": FORM})).status_code == 400


FORM = "application/x-www-form-urlencoded"


async def test_a_bug_is_told_as_one_and_shows_nothing(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        composed(here) as gateway,
        visiting("https://here", await token_of(here, tenant.project), gateway) as web,
    ):
        monkeypatch.setattr(rendering, "NAV", 1 / 3)
        answer = await web.get(SESSION)
        assert (answer.status_code, answer.headers["content-type"]) == (500, "text/html; charset=utf-8")
        assert "the gateway failed; its log has the reason" in words_of(answer.text)
        assert "Traceback" not in answer.text


async def test_a_static_file_is_kept_as_long_as_it_is_the_same(operator: httpx.AsyncClient) -> None:
    for path, status, kept in (
        ("/console/static/0000000000000000/console.css", 200, "no-store"),
        ("/console/static/0000000000000000/layout.html", 404, "no-store"),
        ("/console/static/0/..%2fpage.py", 404, "no-store"),
        ("/console/static/", 404, "no-store"),
    ):
        answer = await operator.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (status, kept), path


async def test_a_page_costs_three_looks_at_most(here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    async with (
        composed(here) as gateway,
        visiting("https://here", await token_of(here, tenant.project), gateway) as web,
    ):
        before = gateway.pool.round_trips
        assert (await web.get(SESSION)).status_code == 200
        assert gateway.pool.round_trips - before == 3  # the token, the count in the navigation, the labels of tokens
        assert (await web.get(SESSION)).status_code == 200
        assert gateway.pool.round_trips - before == 4  # count and labels were remembered


async def test_a_token_of_a_channel_and_of_a_viewer_says_so(url: str, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project, GatewayRole.VIEWER, channel="u_ada")
    async with visiting(url, token) as web:
        words = words_of((await web.get(SESSION)).text)
        assert "Channel u_ada" in words
        assert "You may read every page Your" in words
