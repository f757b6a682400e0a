"""Sessions of the console: who gets in, how, and what ends it."""

import httpx

from tests.support.console.visiting import send, visiting, words_of
from tests.support.gateway import token_of
from tests.support.tenants import Tenant


async def test_who_signs_in_sees_pages(url: str, tenant: Tenant) -> None:
    async with visiting(url) as web:
        asked = await web.get("/console/session")
        assert (asked.status_code, asked.headers["location"]) == (303, "/console/enter?next=%2Fconsole%2Fsession")
        fields = {"token": await token_of(tenant.stack, tenant.project)}
        entered = await send(web, asked.headers["location"], "/console/enter", fields)
        assert (entered.status_code, entered.headers["location"]) == (303, "/console/session")
        page = await web.get(entered.headers["location"])
        assert page.status_code == 200
        assert f"{tenant.project} · operator" in words_of(page.text)


async def test_who_signs_out_is_out(operator: httpx.AsyncClient) -> None:
    left = await send(operator, "/console/session", "/console/leave")
    assert (left.status_code, left.headers["location"]) == (303, "/console/enter")
    assert (await operator.get("/console/session")).status_code == 303
