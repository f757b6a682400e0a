"""Sessions of the console: who gets in, how, what ends it, and what a page of another site can do: nothing."""

import re
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from tests.support.console.visiting import forms_of, send, visiting, words_of
from tests.support.gateway import composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.gateway.console.once import OneTimeLinks
from turnstile.gateway.console.page import Page
from turnstile.gateway.http import bearers
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import RIGHTS, GatewayRole, new_secret, read_secret

SESSION = "/console/session"
ENTER = "/console/enter"


async def test_who_signs_in_sees_pages(url: str, tenant: Tenant) -> None:
    async with visiting(url) as web:
        asked = await web.get(SESSION)
        assert (asked.status_code, asked.headers["location"]) == (303, f"{ENTER}?next=%2Fconsole%2Fsession")
        fields = {"token": f"  {await token_of(tenant.stack, tenant.project)}\n"}
        entered = await send(web, asked.headers["location"], ENTER, fields)
        assert (entered.status_code, entered.headers["location"]) == (303, SESSION)
        page = await web.get(entered.headers["location"])
        assert page.status_code == 200
        assert f"{tenant.project} · operator" in words_of(page.text)


async def test_who_signs_out_is_out(operator: httpx.AsyncClient) -> None:
    left = await send(operator, SESSION, "/console/leave")
    assert (left.status_code, left.headers["location"]) == (303, ENTER)
    assert (await operator.get(SESSION)).status_code == 303


async def test_the_cookie_is_for_the_console_alone(url: str, tenant: Tenant) -> None:
    token = await token_of(tenant.stack, tenant.project)
    async with visiting(url) as web:
        entered = await web.post(ENTER, data={"token": token})
        name = f"turnstile_console_{web.base_url.port}"  # another gateway of this machine has another
        cookie = SimpleCookie(entered.headers["set-cookie"])[name]
        assert (cookie["path"], cookie["httponly"], cookie["samesite"]) == ("/console", True, "Strict")
        assert (cookie["max-age"], cookie["secure"], cookie["domain"]) == (str(12 * 3600), "", "")
        held = {"cookie": f"{name}={cookie.value}"}
        assert (await web.get(SESSION, headers=held)).status_code == 200
        for other in ("/v1/turns", "/openai/v1/models"):
            assert (await web.get(other, headers=held)).status_code == 401
        web.cookies.clear()
        bearer = {"authorization": f"Bearer {token}"}
        assert (await web.get(SESSION, headers=bearer)).status_code == 303  # and a bearer is no session


async def test_outside_of_this_machine_the_cookie_needs_https(here: Stack, tenant: Tenant) -> None:
    token = await token_of(here, tenant.project)
    async with composed(here) as gateway:
        async with visiting("https://here", gateway=gateway) as web:
            entered = await web.post(ENTER, data={"token": token})
            assert SimpleCookie(entered.headers["set-cookie"])["turnstile_console"]["secure"] is True
            assert (await web.get(SESSION)).status_code == 200
        async with visiting("http://here", gateway=gateway) as web:
            refused = await web.post(ENTER, data={"token": token})
            assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
            assert "put TLS before the gateway" in words_of(refused.text)


@pytest.mark.parametrize(
    "given",
    ["", "tsk_x", new_secret().text, "\u202e" * 4, "x" * 5000],
    ids=["none", "no-token", "unknown", "unseen", "long"],
)
async def test_a_wrong_token_is_told_and_not_kept(url: str, given: str) -> None:
    async with visiting(url) as web:
        refused = await web.post(ENTER, data={"token": given, "next": SESSION})
        assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)
        assert "This token is not valid" in words_of(refused.text)
        assert [form.hidden for form in forms_of(refused.text)] == [{"next": SESSION}]
        assert not given or given not in refused.text
        wrong = {"cookie": f"turnstile_console_{web.base_url.port}={quote(given)}"}
        assert (await web.get(SESSION, headers=wrong)).status_code == 303


async def test_a_revoked_token_ends_the_session(url: str, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    token = await token_of(tenant.stack, tenant.project)
    secret = read_secret(token)
    assert secret is not None
    async with visiting(url, token) as web:
        assert (await web.get(SESSION)).status_code == 200
        await tenant.stack.pool.run(lambda conn: revoke_token(conn, tenant.project, secret.token_id))
        assert (await web.get(SESSION)).headers["location"].startswith(ENTER)
        fragment = await web.get(SESSION, headers={"x-console-fragment": "nav"})
        assert fragment.status_code == 401  # a page that is open is told, and not led away


@pytest.mark.parametrize(
    ("wanted", "led_to"),
    [
        ("/console/turns?state=running", "/console/turns?state=running"),
        ("/console", "/console"),
        ("//evil.example/console", "/console"),
        ("https://evil.example/console", "/console"),
        ("/\\evil.example", "/console"),
        ("/console/../v1/turns", "/console"),
        ("/console/%2e%2e/v1/turns", "/console"),
        ("/console/\r\nset-cookie: a=b", "/console"),
        ("/consoles", "/console"),
        ("/console/enter?next=/console/enter", "/console"),
        ("//[x/console", "/console"),
        ("javascript:alert(1)", "/console"),
        ("", "/console"),
    ],
)
async def test_signing_in_leads_nowhere_else(url: str, tenant: Tenant, wanted: str, led_to: str) -> None:
    async with visiting(url) as web:
        fields = {"token": await token_of(tenant.stack, tenant.project), "next": wanted}
        assert (await web.post(ENTER, data=fields)).headers["location"] == led_to
        [form] = forms_of((await web.get(ENTER, params={"next": wanted})).text)
        assert form.hidden == {"next": led_to}


async def test_a_link_of_another_site_leads_to_the_page_after_all(operator: httpx.AsyncClient) -> None:
    """A browser sends a cookie that is `Strict` only when one of our own pages leads there."""
    async with visiting(str(operator.base_url)) as stranger:
        asked = await stranger.get("/console/session?told=x", headers={"sec-fetch-site": "cross-site"})
        assert asked.status_code == 200
        assert '<meta http-equiv="refresh" content="0; url=/console/session?told=x">' in asked.text
        again = await stranger.get("/console/session?told=x", headers={"sec-fetch-site": "same-origin"})
        assert again.status_code == 303  # who has no session signs in


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://app.example", "http://here:81", None])
async def test_only_its_own_pages_change_anything(here: Stack, tenant: Tenant, origin: str | None) -> None:
    """Also where an origin is listed: it may ask `/v1`, with a token of its own."""
    token = await token_of(here, tenant.project)
    listed = ["https://app.example"]
    async with composed(here, origins=listed) as gateway, visiting("https://here", token, gateway) as web:
        [form, *_] = forms_of((await web.get(SESSION)).text)
        web.headers.pop("origin")
        sent = {} if origin is None else {"origin": origin}
        for path in (ENTER, "/console/leave", *_changes(gateway.pages)):
            answer = await web.post(path, data={**form.hidden, "token": token}, headers=sent)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), path
            assert "origin not allowed" in words_of(answer.text), path


async def test_a_change_needs_what_the_sessions_own_forms_carry(here: Stack, tenant: Tenant) -> None:
    other = read_secret(await token_of(here, tenant.project))
    assert other is not None
    async with composed(here) as gateway:
        async with visiting("https://here", other.text, gateway) as web:
            [theirs, *_] = forms_of((await web.get(SESSION)).text)
        async with visiting("https://here", await token_of(here, tenant.project), gateway) as web:
            for path in _changes(gateway.pages):
                for given in ({"x": "1"}, {"csrf": ""}, {"csrf": "é"}, {"csrf": ["a", "b"]}, theirs.hidden):
                    answer = await web.post(path, data=given)
                    assert (answer.status_code, "form expired" in words_of(answer.text)) == (403, True), (path, given)


async def test_every_page_asks_for_a_session_and_its_right(here: Stack, tenant: Tenant) -> None:
    """Of what is not there, so that nothing is done."""
    async with composed(here) as gateway:
        async with visiting("https://here", gateway=gateway) as web:
            for page in gateway.pages:
                answer = await web.request(page.method, _path(page.path))
                assert answer.status_code == (303 if page.method == "GET" else 401), page.name
        for role in GatewayRole:
            async with visiting("https://here", await token_of(here, tenant.project, role), gateway) as web:
                [form, *_] = forms_of((await web.get(SESSION)).text)
                for page in gateway.pages:
                    if page.method == "GET":
                        continue
                    answer = await web.post(_path(page.path), data=form.hidden)
                    may = page.right in RIGHTS[role]
                    assert ("forbidden" in words_of(answer.text)) is not may, (role, page.name)


def _changes(pages: tuple[Page, ...]) -> list[str]:
    return [_path(page.path) for page in pages if page.method == "POST"]


def _path(path: str) -> str:
    return re.sub(r"\{\w+\}", "nobodys", path)


async def test_a_link_of_up_signs_in_once(here: Stack, tenant: Tenant, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(await token_of(here, tenant.project))
    links = OneTimeLinks(tmp_path)
    async with composed(here, once=links) as gateway:
        page = links.link("")
        async with (
            visiting("http://localhost", gateway=gateway) as web,
            visiting("http://localhost", gateway=gateway) as late,
        ):
            assert (await late.get(page)).status_code == 200
            assert (await send(web, page, ENTER)).headers["location"] == "/console"
            assert (await web.get(SESSION)).status_code == 200
            refused = await send(late, page, ENTER)
            assert (refused.status_code, (await late.get(SESSION)).status_code) == (410, 303)
    async with composed(here) as gateway, visiting("http://localhost", gateway=gateway) as web:
        [form] = forms_of((await web.get(links.link(""))).text)
        assert form.hidden == {"next": "/console"}  # a gateway that has no links asks for a token


async def test_what_is_told_once_is_one_of_our_sentences(operator: httpx.AsyncClient) -> None:
    assert "The turn is being stopped." in words_of((await operator.get(f"{SESSION}?told=stopped")).text)
    for words in ("You+were+hacked", "<b>x</b>", "", "entered2"):
        page = await operator.get(f"{SESSION}?told={words}")
        assert (page.status_code, 'role="status"' in page.text) == (200, False)
