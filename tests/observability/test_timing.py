"""How long turns and steps took, in a step's metadata and in the `task` event (protocol §4.2, §5.1)."""

import json
from typing import Any

import pytest

from tests.observability.tools import a_tool
from tests.sdk.tools.stack import PROJECT as DEMO
from tests.sdk.tools.stack import Call, Stack, fresh
from tests.support.ledger.agents import ALICE, PROJECT, add_agents, ask, stop
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.views import describe_turn, list_steps
from turnstile.schema.ids import AgentTurnId

TIMING = {"queue_delay_ms", "step_ms", "first_token_ms", "e2e_ms"}
STATS = {"steps", "queue_delay_ms", "step_ms", "first_token_ms", "e2e_ms", "model", "llm_usage"}


def whole(values: dict[str, Any], *names: str) -> list[int]:
    """Milliseconds, each a whole number from 0."""
    found = [values[name] for name in names]
    assert all(type(each) is int and each >= 0 for each in found), values
    return found


async def test_steps_and_the_end_tell_their_times(stack: Stack) -> None:
    service, name = a_tool(fresh("count"))
    agent = await stack.register(*service.definitions())
    async with stack.serving(service):
        played = await stack.play(agent, Call(name, {"text": "one two"}))
    turn = played.event.agent_turn_id
    first, last = await stack.pool.run(lambda conn: list_steps(conn, DEMO, turn))
    one: Any = first.metadata["timing"]
    two: Any = last.metadata["timing"]
    assert one.keys() == TIMING
    assert two.keys() == TIMING | {"suspended_ms"}
    assert one["queue_delay_ms"] == two["queue_delay_ms"]
    queued, lasted, token, so_far = whole(one, "queue_delay_ms", "step_ms", "first_token_ms", "e2e_ms")
    assert token <= lasted <= so_far
    assert queued <= so_far <= two["e2e_ms"]
    assert whole(two, "suspended_ms")[0] <= two["e2e_ms"]
    stats: Any = played.event.stats
    assert stats.keys() == STATS
    assert stats["steps"] == 2
    assert (stats["step_ms"], stats["first_token_ms"]) == (two["step_ms"], two["first_token_ms"])
    whole(stats, "queue_delay_ms", "e2e_ms")
    assert abs(stats["queue_delay_ms"] - queued) <= 1
    assert two["e2e_ms"] - 1000 <= stats["e2e_ms"]


async def test_a_turn_that_never_began_has_no_delay(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await ask(pool, ALICE)
    queued = (await ask(pool, ALICE)).reply.agent_turn_id
    assert queued is not None
    await stop(pool, ALICE, AgentTurnId(queued))
    view = await pool.run(lambda conn: describe_turn(conn, PROJECT, AgentTurnId(queued)))
    assert view is not None
    stats: Any = view.stats
    assert stats.keys() == {"steps", "e2e_ms"}
    assert stats["steps"] == 0
    whole(stats, "e2e_ms")


@pytest.mark.parametrize("began", [False, True])
async def test_a_turn_that_is_ended_from_outside_has_its_times(stack: Stack, began: bool) -> None:
    name = fresh("never")
    service, _ = a_tool(name)
    agent = await stack.register(*service.definitions())
    async with stack.client.wait_task(agent) as waiter:
        call = json.dumps([{"name": name, "arguments": {"text": "x"}}] if began else [])
        asked: Any = {"agent_id": agent, "instruction": call}
        reply = await stack.client.request("enqueue", asked)
        turn = AgentTurnId(str(reply["agent_turn_id"]))
        if not began:
            reply = await stack.client.request("enqueue", asked)  # waits, or is begun a moment later
        await stack.client.request("stop", {"agent_turn_id": turn})
        event = await waiter.wait(turn, 20)
    whole(event.stats, "e2e_ms", "steps")
