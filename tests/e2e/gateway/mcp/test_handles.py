"""One turn for each call of a tool: what a client that goes away, repeats or cancels comes to (protocol §17.2)."""

import asyncio
import os
import signal
from typing import Any

import httpx
import pytest

from tests.e2e.gateway.mcp.official import SESSIONS, STATELESS, Door, enveloped, request, told
from tests.e2e.gateway.test_chat_completions import LATE, only_turn, says
from tests.support.conditions import until
from tests.support.gateway import gateway_process, serving, token_of
from tests.support.processes.stack import Stack
from tests.support.tenants import ALICE, Tenant
from turnstile.schema.access import GatewayRole

KEY = "turnstile/idempotency_key"


async def test_the_same_key_is_the_same_turn(door: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    asked: dict[str, Any] = {"instruction": says("once")}
    async with door.client() as mcp:
        first = told(await mcp.call_tool(ALICE, asked, meta={KEY: "order-4711"}))
        assert told(await mcp.call_tool(ALICE, asked, meta={KEY: "order-4711"})) == first
        other = told(await mcp.call_tool(ALICE, {"instruction": says("else")}, meta={KEY: "order-4711"}))
        assert (other["status"], other["error_code"]) == ("refused", "correlation_conflict")
        for bad in ("", "x" * 257, "ä", 5):
            found = told(await mcp.call_tool(ALICE, asked, meta={KEY: bad}))
            assert found["error_code"] == "bad_request"
    assert (await only_turn(tenant)).correlation_id == "order-4711"


async def test_a_request_of_a_session_that_comes_twice_is_one_turn(operator: Door, tenant: Tenant) -> None:
    """Of one session and one token: another session counts its requests anew."""
    await tenant.agent("player")
    call = request("tools/call", {"name": ALICE, "arguments": {"instruction": says("once")}}, name=7)
    turns: list[str] = []
    async with operator.raw() as web:
        for _ in range(2):
            session = await opened(web)
            made = [await web.post("/mcp", content=call, headers={"mcp-session-id": session}) for _ in range(2)]
            turns += [each.json()["result"]["structuredContent"]["turn_id"] for each in made]
    assert (turns[0], turns[2]) == (turns[1], turns[3])
    assert len(set(turns)) == 2


async def opened(web: httpx.AsyncClient, **capabilities: Any) -> str:
    """A session."""
    client = {"name": "test", "version": "1"}
    asked = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": client}
    answer = await web.post("/mcp", content=request("initialize", asked))
    assert answer.json()["result"]["protocolVersion"] == "2025-11-25"
    return answer.headers["mcp-session-id"]


async def canceled(tenant: Tenant) -> None:
    """The project's one turn is, or becomes."""
    await tenant.ended((await only_turn(tenant)).agent_turn_id)
    assert (await only_turn(tenant)).status == "canceled"


async def test_a_client_that_cancels_stops_its_turn(door: Door, tenant: Tenant) -> None:
    """By a notification of its session, or by closing its request: the client does what its generation wants."""
    await tenant.agent("player")
    async with door.client() as mcp:
        asking = asyncio.create_task(mcp.call_tool(ALICE, {"instruction": LATE}))
        await only_turn(tenant)
        asking.cancel()
        await asyncio.wait({asking})
        await canceled(tenant)


async def test_a_client_that_has_a_key_stops_nothing_by_going_away(operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    asked: dict[str, Any] = {"instruction": says("still here", delay_seconds=2)}
    async with operator.client() as mcp:
        asking = asyncio.create_task(mcp.call_tool(ALICE, asked, meta={KEY: "k"}))
        turn = await only_turn(tenant)
        asking.cancel()
        await asyncio.wait({asking})
    async with operator.client() as mcp:
        again = told(await mcp.call_tool(ALICE, asked, meta={KEY: "k"}))
    assert again == {"turn_id": turn.agent_turn_id, "status": "success", "value": "still here"}


async def test_a_connection_of_a_session_that_breaks_stops_nothing(operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    call = request("tools/call", {"name": ALICE, "arguments": {"instruction": says("here", delay_seconds=1)}})
    async with operator.raw() as web:
        session = await opened(web)
        asking = asyncio.create_task(web.post("/mcp", content=call, headers={"mcp-session-id": session}))
        await only_turn(tenant)
        asking.cancel()
        await asyncio.wait({asking})
        again = await web.post("/mcp", content=call, headers={"mcp-session-id": session})
    assert again.json()["result"]["structuredContent"]["value"] == "here"


async def test_nobody_cancels_for_another(operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    call = request("tools/call", {"name": ALICE, "arguments": {"instruction": says("mine"), "wait_seconds": 0}}, name=3)
    cancel = request("notifications/cancelled", {"requestId": 3}).replace('"id": 1, ', "")
    other = Door(operator.url, await token_of(tenant.stack, tenant.project, GatewayRole.CLIENT), SESSIONS)
    async with operator.raw() as web, other.raw() as theirs:
        session, wrong = await opened(web), await opened(web)
        await web.post("/mcp", content=call, headers={"mcp-session-id": session})
        for each, named in ((theirs, session), (web, wrong)):
            assert (await each.post("/mcp", content=cancel, headers={"mcp-session-id": named})).status_code == 202
    turn = await only_turn(tenant)
    await tenant.ended(turn.agent_turn_id)
    assert (await only_turn(tenant)).status == "success"


async def test_a_gateway_that_stops_answers_with_the_handle(here: Stack, operator: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    for number, mode in enumerate((SESSIONS, STATELESS)):
        first = serving(here)
        door = Door(await first.__aenter__(), operator.token, mode)
        asked = {"instruction": says(f"{number}", delay_seconds=2)}
        headers, body = enveloped("tools/call", {"name": ALICE, "arguments": asked})
        async with door.raw(**(headers if mode == STATELESS else {})) as web:
            before = await tenant.count("state.agent_inbox", "message_type = 'turn'")
            asking = asyncio.create_task(web.post("/mcp", content=body))

            async def there(before: int = before) -> bool:
                return await tenant.count("state.agent_inbox", "message_type = 'turn'") > before

            await until(there, 25, "a turn is there")
            await first.__aexit__(None, None, None)
            found = (await asking).json()["result"]["structuredContent"]
        assert found["status"] == "running"
        last = await operator.call("turn_get", turn_id=found["turn_id"], wait_seconds=20)
        assert (last["status"], last["value"]) == ("success", f"{number}")


@pytest.mark.long
async def test_where_a_gateway_is_killed_the_same_key_finds_the_turn_at_another(
    here: Stack, operator: Door, tenant: Tenant
) -> None:
    await tenant.agent("player")
    asked: dict[str, Any] = {"instruction": says("once", delay_seconds=2)}
    async with gateway_process(here) as (pid, first):
        headers, body = enveloped("tools/call", {"name": ALICE, "arguments": asked}, **{KEY: "k"})
        async with Door(first, operator.token).raw(**headers) as web:
            asking = asyncio.create_task(web.post("/mcp", content=body))
            turn = await only_turn(tenant)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                await asking
    async with operator.client() as mcp:
        found = told(await mcp.call_tool(ALICE, asked, meta={KEY: "k"}))
    assert found == {"turn_id": turn.agent_turn_id, "status": "success", "value": "once"}
    assert await tenant.count("state.agent_inbox", "message_type = 'turn'") == 1


async def test_steps_are_told_as_they_happen(door: Door, tenant: Tenant) -> None:
    await tenant.agent("player")
    heard: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    step = '{"tool_calls": [{"name": "nothing", "arguments": {}}], "delay_seconds": 0.3}'
    async with door.client() as mcp:
        play = f'{{"steps": [{step}, {step}, {{"text": "done"}}]}}'
        answer = told(await mcp.call_tool(ALICE, {"instruction": play}, progress_callback=on_progress))
    assert answer["value"] == "done"
    assert [each for each, _ in heard] == sorted({each for each, _ in heard})
    assert "step 1 is done" in [message for _, message in heard]
