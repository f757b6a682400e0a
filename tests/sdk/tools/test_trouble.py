"""A database that cannot now, the disk being full or for a reason that nobody knows: what was accepted is done once."""

import asyncio
import contextlib
import json
import time
from typing import Any

import pytest

from tests.sdk.tools.stack import Call, Stack, eventually
from tests.sdk.tools.test_once import Gated, playing
from tests.support.ledger.trouble import raising
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, ToolCallId
from turnstile.schema.states import TurnStatus

INBOX, STEPS = "state.agent_inbox", "state.agent_steps"
FULL, A_BUG = "53100", "XX000"


@pytest.mark.long
async def test_a_full_disk_is_told_as_one_and_what_was_accepted_is_done_when_it_passes(
    stack: Stack, target: str
) -> None:
    """Asked, told durably, and stopped."""
    tool = Gated(target)
    agent = await stack.register(*tool.replica().definitions())
    waits = await _enqueue(stack, agent, [tool.call])
    client, began = stack.client, time.monotonic()
    async with client.wait_task(agent) as waiter, client.watching() as events:
        async with raising(stack.pool, FULL, on=INBOX):
            asked = _request(agent)
            assert await client.command("enqueue", asked, "r1")
            replies = await asyncio.gather(
                client.request("enqueue", asked), client.request("stop", {"agent_turn_id": waits})
            )
            for reply in replies:
                assert (reply["status"], reply["error_code"]) == ("error", ServerUnavailable.code), reply
                assert "the database's disk is full (53100)" in str(reply["error"])
            assert time.monotonic() - began < 9, "before a client is out of patience"
        stopped = await client.request("stop", {"agent_turn_id": waits})
        assert stopped["status"] == "accepted", stopped
        assert (await waiter.wait(waits, 25)).status is TurnStatus.CANCELED
        async with asyncio.timeout(25):
            answer = await anext(event.payload async for event in events if event.suffix == "enqueue_ack")
        assert (answer["status"], answer["request_id"]) == ("accepted", "r1"), answer
        assert (await waiter.wait(AgentTurnId(str(answer["agent_turn_id"])), 25)).status is TurnStatus.SUCCESS


async def test_a_result_outlasts_a_full_disk(stack: Stack, target: str) -> None:
    """And its call is run by no other replica, though the safety net goes on to send the command."""
    tool = Gated(target)
    replicas = (tool.replica(), tool.replica())
    async with stack.overheard() as heard, stack.serving(*replicas) as [a, b], playing(stack, tool) as turn:
        async with raising(stack.pool, FULL, on=INBOX):
            tool.gate.set()
            await eventually(lambda: a.counts.succeeded + b.counts.succeeded == 1)
            for number in range(100, 106):  # some of them reach the other replica
                await stack.repeat(heard[0], number)
            await eventually(lambda: a.counts.duplicates + b.counts.duplicates >= 6)
            assert not turn.done()
        assert (await turn).result["result"] == "only"
        assert (a.counts.refused + b.counts.refused, tool.runs) == (0, ["only"])


async def test_a_result_outlasts_a_bridge_that_fails_over_it(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.serving(tool.replica()) as [running], playing(stack, tool) as turn:
        async with raising(stack.pool, A_BUG, on=INBOX):
            tool.gate.set()
            await asyncio.sleep(1)
            assert (running.counts.succeeded, running.counts.refused) == (0, 0)
        assert (await turn).result["result"] == "only"
        assert (running.counts.succeeded, tool.runs) == (1, ["only"])


async def test_a_result_is_kept_no_longer_than_its_call_waits(stack: Stack, target: str) -> None:
    tool = Gated(target)
    async with stack.overheard() as heard, stack.serving(tool.replica()) as [running], playing(stack, tool) as turn:
        call = ToolCallId((heard[0].headers or {})["CG-Tool-Call-Id"])
        async with raising(stack.pool, A_BUG, on=INBOX):
            tool.gate.set()
            await asyncio.sleep(0.3)
            assert running.counts.refused == 0
            async with stack.pool.connection() as conn:
                await conn.fetch(
                    "UPDATE state.turn_waiting_tools SET wait_status = 'dropped' WHERE tool_call_id = $1", call
                )
            await eventually(lambda: running.counts.refused == 1)
        turn.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await turn


async def test_a_step_keeps_its_answer_until_it_is_written(stack: Stack, target: str) -> None:
    """Its turn does not fail, and its model is asked, and paid, once."""
    tool = Gated(target)
    tool.gate.set()
    agent = await stack.register(*tool.replica().definitions())
    async with stack.serving(tool.replica()), stack.client.wait_task(agent) as waiter:
        async with raising(stack.pool, FULL, on=STEPS):
            turn = await _enqueue(stack, agent, [tool.call])
            await asyncio.sleep(1.5)
        assert (await waiter.wait(turn, 25)).status is TurnStatus.SUCCESS
    async with stack.pool.connection() as conn:
        rows = await conn.fetch(
            "SELECT metadata -> 'attempts' AS attempts FROM state.agent_steps WHERE agent_turn_id = $1 ORDER BY 1",
            turn,
        )
    attempts = [[load["attempt"] for load in json.loads(row["attempts"])] for row in rows]
    assert attempts == [[1], [1]]


def _request(agent: str, *calls: Call) -> dict[str, Any]:
    told = [{"name": call.name, "arguments": call.arguments} for call in calls]
    return {"agent_id": agent, "instruction": json.dumps(told)}


async def _enqueue(stack: Stack, agent: str, calls: list[Call]) -> AgentTurnId:
    reply = await stack.client.request("enqueue", _request(agent, *calls))
    assert reply["status"] == "accepted", reply
    return AgentTurnId(str(reply["agent_turn_id"]))
