"""What open pages are told: hints when something changed, and the events of `/v1` for a session."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from tests.support.conditions import until
from tests.support.console.visiting import visiting
from tests.support.gateway import Folded, client, events_of, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant, new_tenant
from turnstile.gateway.http import bearers
from turnstile.ledger.access.tokens import revoke_token
from turnstile.schema.access import GatewayRole, read_secret
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId, AgentTurnId

WORDS = "".join(f"word-{number} " for number in range(100))
SAID = json.dumps({"steps": [{"text": WORDS, "chunks": 20, "delay_seconds": 0.02}]})
STUCK = json.dumps({"steps": [{"text": "It began thus, and", "chunks": 2, "delay_seconds": 3600}]})


@pytest.fixture
async def web(url: str, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `/v1`."""
    await tenant.agent("player")
    async with client(url, await token_of(tenant.stack, tenant.project)) as made:
        yield made


async def begun(web: httpx.AsyncClient, instruction: str, **fields: str) -> AgentTurnId:
    """A turn that was just enqueued."""
    made = await web.post("/v1/turns", json={"agent_id": ALICE, "instruction": instruction, **fields})
    assert made.status_code == 202, made.text
    return AgentTurnId(made.json()["agent_turn_id"])


class Hints:
    """How many came."""

    count = 0
    over = False

    async def some(self) -> None:
        """Wait for the next one."""
        before = self.count

        async def more() -> bool:
            return self.count > before

        await until(more, 25, "a hint")

    async def end(self) -> None:
        """Wait until the gateway has ended the stream."""

        async def ended() -> bool:
            return self.over

        await until(ended, 25, "the stream's end")


@asynccontextmanager
async def hinted(web: httpx.AsyncClient, query: str = "") -> AsyncGenerator[Hints]:
    """The hints that a page gets; inside, it listens."""
    hints = Hints()
    async with web.stream("GET", f"/console/changes{query}", headers={"accept": "text/event-stream"}) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert await anext(lines) == ": still here"  # it is heard from here on

        async def read() -> None:
            with contextlib.suppress(httpx.HTTPError):
                async for line in lines:
                    assert line in ("", "event: changed", "data: {}")
                    hints.count += line == "event: changed"
            hints.over = True

        reading = asyncio.create_task(read())
        try:
            yield hints
        finally:
            reading.cancel()
            await asyncio.wait({reading})


async def test_a_page_is_told_that_something_changed(
    operator: httpx.AsyncClient, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    async with hinted(operator) as hints:
        turn = await begun(web, SAID)
        await hints.some()
    await tenant.ended(turn)


async def test_a_turns_page_is_told_of_its_turn_alone(
    operator: httpx.AsyncClient, web: httpx.AsyncClient, tenant: Tenant
) -> None:
    stuck = await begun(web, STUCK)
    async with client(str(web.base_url), web.headers["authorization"].removeprefix("Bearer ")) as second:
        await asyncio.wait_for(_first_chunk(second, stuck), 30)
    await tenant.agent("player", AgentId("bob"))
    async with hinted(operator, f"?turn={stuck}") as own, hinted(operator, "?agent=bob") as of_bob:
        other = (await web.post("/v1/turns", json={"agent_id": "bob", "instruction": SAID})).json()["agent_turn_id"]
        await tenant.ended(AgentTurnId(other))
        assert (own.count, of_bob.count > 0) == (0, True)
        await web.post(f"/v1/turns/{stuck}/stop", json={})
        await own.some()
    await tenant.ended(stuck)


async def _first_chunk(web: httpx.AsyncClient, turn: AgentTurnId) -> None:
    async with web.stream("GET", f"/v1/turns/{turn}/events") as response:
        async for sent in events_of(response):
            if sent.event == "chunk":
                return


async def test_many_changes_are_one_hint_a_second(operator: httpx.AsyncClient, web: httpx.AsyncClient) -> None:
    steps: list[JsonObject] = [{"text": "t", "tool_calls": [{"name": "missing_tool", "arguments": {}}]}] * 6
    async with hinted(operator) as hints:
        began = asyncio.get_running_loop().time()
        turns = [await begun(web, json.dumps({"steps": [*steps, {"text": "end"}]})) for _ in range(5)]
        for turn in turns:
            assert (await web.get(f"/v1/turns/{turn}", headers={"prefer": "wait=60"})).json()["status"] == "success"
        passed = asyncio.get_running_loop().time() - began
        assert 0 < hints.count <= passed + 2


async def test_other_projects_and_channels_give_no_hints(url: str, here: Stack, tenant: Tenant) -> None:
    await tenant.agent("player")
    stranger = new_tenant(here)
    theirs = await token_of(here, stranger.project)
    ada = await token_of(here, tenant.project, GatewayRole.VIEWER, channel="u_ada")
    async with (
        client(url, await token_of(here, tenant.project)) as web,
        visiting(url, theirs) as far,
        visiting(url, ada) as near,
        hinted(far) as of_strangers,
        hinted(near) as of_ada,
    ):
        await tenant.ended(await begun(web, SAID))
        turn = await begun(web, SAID, channel_id="u_ada")
        await of_ada.some()
        assert of_strangers.count == 0
        assert (await far.get(f"/console/turns/{turn}/events")).status_code == 404
        await tenant.ended(turn)


async def test_a_session_that_ended_hears_nothing_more(
    here: Stack, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearers, "KNOWN_SECONDS", 0.0)
    token = await token_of(here, tenant.project)
    held = read_secret(token)
    assert held is not None
    async with serving(here, heartbeat_seconds=0.2) as url, visiting(url, token) as web, hinted(web) as hints:
        await hints.some()  # at each heartbeat, though nothing happens
        await here.pool.run(lambda conn: revoke_token(conn, tenant.project, held.token_id))
        await hints.end()
        again = await web.get("/console/changes", headers={"accept": "text/event-stream"})
        assert again.status_code == 401  # which tells an EventSource to ask no more


async def test_a_turn_and_a_conversation_are_told_as_v1_tells_them(
    operator: httpx.AsyncClient, web: httpx.AsyncClient
) -> None:
    turn = await begun(web, SAID, conversation_id="talk")
    for path in (f"/console/turns/{turn}/events", f"/console/conversations/{ALICE}/talk/events?turns=1"):
        folded = Folded()
        async with operator.stream("GET", path, headers={"accept": "text/event-stream"}) as response:
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            async for sent in events_of(response):
                folded.take(sent)
                if sent.event == "outcome":
                    break
        assert folded.outcome is not None
        assert folded.outcome["output"]["text"] == WORDS
    over = await operator.get(f"/console/turns/{turn}/events", headers={"last-event-id": f"{turn}:end"})
    assert over.status_code == 204
