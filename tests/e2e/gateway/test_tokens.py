"""What each role may, what the ledger has of who asked, and tokens that are tried, shared or kept in a file."""

import asyncio
import json
import re
from pathlib import Path

import httpx
import pytest

from tests.e2e.gateway.test_access import ASK, code
from tests.e2e.gateway.test_rights import needed
from tests.e2e.gateway.test_streams import LONG, begun, follow
from tests.support.gateway import Folded, asking, client, composed, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import Tenant
from turnstile.gateway.http import bearers
from turnstile.processes.gateway import own_token
from turnstile.schema.access import RIGHTS, GatewayRole, new_secret, read_secret
from turnstile.schema.ids import AgentTurnId

OF_THE_PROJECT = {"list_webhooks", "remove_webhook", "get_deletion"}
"""What a token of one channel may not ask, whatever its role."""


@pytest.mark.parametrize("channel", [None, "u_ada"])
async def test_every_endpoint_asks_for_its_right(here: Stack, tenant: Tenant, channel: str | None) -> None:
    """Of what is not there, so that nothing is done; a refused one looks nothing up."""
    async with composed(here) as gateway:
        for role in GatewayRole:
            async with asking(gateway, await token_of(here, tenant.project, role, channel=channel)) as web:
                assert (await web.get("/v1/agents")).status_code == 200
                for endpoint in gateway.endpoints:
                    before = gateway.pool.round_trips
                    path = re.sub(r"\{\w+\}", "nobodys", endpoint.path)
                    answer = await web.request(endpoint.method, path, json={})
                    if needed(endpoint.right) & RIGHTS[role] and (
                        channel is None or endpoint.name not in OF_THE_PROJECT
                    ):
                        assert answer.status_code != 403, (role, endpoint.name)
                    else:
                        assert code(answer) == (403, "forbidden"), (role, endpoint.name)
                        assert gateway.pool.round_trips == before


async def test_the_ledger_has_who_asked_and_who_stopped(web: httpx.AsyncClient, url: str, tenant: Tenant) -> None:
    await tenant.agent("player")
    asker = read_secret(web.headers["authorization"].removeprefix("Bearer "))
    stranger = await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT)
    other = await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR)
    stopper = read_secret(other)
    assert asker is not None
    assert stopper is not None
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {**ASK, "instruction": LONG}
    turn = (await web.post("/v1/turns", json=body, headers={"traceparent": trace})).json()["agent_turn_id"]
    assert not await follow(web, f"/v1/turns/{turn}/events", Folded(), cut_after=1)  # it has begun
    async with client(url, stranger) as third:
        assert code(await third.post(f"/v1/turns/{turn}/stop", json={})) == (403, "not_yours")
    async with client(url, other) as second:
        forged = f"enough (token.{asker.token_id})"
        await second.post(f"/v1/turns/{turn}/stop", json={"reason": forged})
    await tenant.ended(AgentTurnId(turn))
    [asked] = await tenant.rows(
        "SELECT payload ->> 'reason' AS why FROM state.agent_inbox WHERE agent_turn_id = $1 AND message_type = 'stop'",
        turn,
    )
    assert asked["why"] == f"{forged} (token.{stopper.token_id})"
    [row] = await tenant.rows(
        "SELECT i.context_headers ->> 'traceparent' AS trace, c.metadata ->> 'author_id' AS author"
        " FROM state.agent_inbox i JOIN public.cards c ON c.card_id = i.agent_turn_id || '-instruction'"
        " WHERE i.agent_turn_id = $1 AND i.message_type = 'turn'",
        turn,
    )
    assert row["author"] == f"token.{asker.token_id}"
    assert row["trace"].split("-")[1] == trace.split("-")[1]


async def test_requests_that_come_together_look_a_token_up_once(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred at once, of a token that was known a moment ago and of one that nobody has seen."""
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    async with composed(here) as gateway, asking(gateway, await token_of(here, tenant.project)) as web:
        for _ in range(2):
            before = gateway.pool.round_trips
            answers = await asyncio.gather(*(web.get("/v1/agents", params={"limit": "0"}) for _ in range(300)))
            assert {answer.status_code for answer in answers} == {400}  # let in, and nothing more looked up
            assert gateway.pool.round_trips - before < 10


async def test_whoever_tries_tokens_is_slowed_down_and_others_are_not(here: Stack, tenant: Tenant) -> None:
    async with composed(here) as gateway:
        token = await token_of(here, tenant.project)

        async def tried(secret: str, address: str) -> int:
            transport = httpx.ASGITransport(app=gateway.app, client=(address, 1))
            headers = {"authorization": f"Bearer {secret}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as web:
                return (await web.get("/v1/agents")).status_code

        known = read_secret(token)
        assert known is not None
        wrong = [f"tsk_{known.token_id}_{new_secret().secret}" for _ in range(300)]
        answers = await asyncio.gather(*(tried(each, "192.0.2.1") for each in wrong))
        assert set(answers) == {401, 429}
        assert answers.count(429) > 5
        assert await tried(token, "192.0.2.2") == 200
        assert await tried(token, "192.0.2.1") == 200  # it is known now


async def test_the_file_has_an_operators_token_of_the_default_project(
    here: Stack, tenant: Tenant, tmp_path: Path
) -> None:
    file, url = tmp_path / "token", here.endpoints.database_url
    await own_token(tmp_path, url, tenant.project)
    first = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    await own_token(tmp_path, url, tenant.project)
    assert (file.read_text(), file.stat().st_mode & 0o777) == (first, 0o600)
    for unfit in (
        "\N{SNOWMAN}",
        await token_of(here, tenant.project, GatewayRole.VIEWER),
        await token_of(here, tenant.project, channel="u_ada"),
        await token_of(here, tenant.named("p-former").project),
        new_secret().text,
    ):
        file.write_text(unfit)
        await own_token(tmp_path, url, tenant.project)
        made = read_secret(file.read_text().strip())
        assert made is not None
        assert made.text != unfit
        assert file.stat().st_mode & 0o777 == 0o600


async def test_a_turn_names_no_more_than_its_token_asked_for(web: httpx.AsyncClient, tenant: Tenant) -> None:
    await tenant.agent("player")
    turn = await begun(web, json.dumps({"steps": [{"text": "x"}]}))
    assert web.headers["authorization"].split("_", 2)[2] not in (await web.get(f"/v1/turns/{turn}")).text
    await tenant.ended(turn)
