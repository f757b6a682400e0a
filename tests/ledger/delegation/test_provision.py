"""Two calls that provision one agent at once (protocol §12): it is made once, and the second judges what is there."""

import asyncio
from typing import Any

import pytest

from tests.support.ledger.agents import CHANNEL, PROJECT, profile, rows
from tests.support.waiting import until_waiting
from turnstile.ledger.delegation.provision import ProvisionCaller, provision_agent
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.schema.delegation.policy import DelegationPolicy
from turnstile.schema.delegation.provision import ProvisionRefused, provision_arguments
from turnstile.schema.ids import AgentId, StepId, ToolCallId


def caller(call: str) -> ProvisionCaller:
    return ProvisionCaller(
        project_id=PROJECT,
        channel_id=CHANNEL,
        agent_id=AgentId("alice"),
        step_id=StepId("s"),
        tool_call_id=ToolCallId(call),
        trace_id="t",
        policy=DelegationPolicy(),
    )


async def after_the_first(pool: Pool, first: dict[str, Any], second: dict[str, Any]) -> bool:
    """What the second call comes to, which waits for the first."""
    asked: dict[str, Any] = {"action": "ensure", "agent_id": "new", "profile_name": "helper"}
    one, two = (provision_arguments({**asked, **given}) for given in (first, second))
    async with pool.connection() as conn, conn.transaction():
        assert await provision_agent(conn, caller("c1"), one)
        waiting = asyncio.create_task(pool.run(lambda conn: provision_agent(conn, caller("c2"), two)))
        await until_waiting(pool)
    return await waiting


async def agent(pool: Pool) -> tuple[str, list[str]]:
    """Its metadata, and what was done to it in order."""
    [row] = await rows(pool, "SELECT metadata FROM resource.project_agents WHERE agent_id = 'new'")
    edges = await rows(
        pool, "SELECT action FROM state.identity_edges WHERE target_agent_id = 'new' ORDER BY created_at"
    )
    return row["metadata"], [edge["action"] for edge in edges]


async def test_the_same_twice_is_made_once(agents: Pool) -> None:
    assert not await after_the_first(agents, {}, {})
    assert await agent(agents) == ('{"profile_name": "helper"}', ["add"])


async def test_the_second_adds_to_what_the_first_made(agents: Pool) -> None:
    assert await after_the_first(agents, {"metadata": {"desk": 1}}, {"metadata": {"floor": 2}})
    assert await agent(agents) == ('{"desk": 1, "floor": 2, "profile_name": "helper"}', ["add", "change"])


async def test_the_second_may_not_change_the_profile_of_what_the_first_made(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("other"))
    with pytest.raises(ProvisionRefused, match="existing_agent_profile_mutation_forbidden"):
        await after_the_first(agents, {"profile_name": "other"}, {})
    assert await agent(agents) == ('{"profile_name": "other"}', ["add"])


async def test_a_repeat_of_one_call_waits_for_its_first_try_and_finds_it(agents: Pool) -> None:
    wanted = provision_arguments({"action": "ensure", "agent_id": "new", "profile_name": "helper"})
    async with agents.connection() as conn, conn.transaction():
        assert await provision_agent(conn, caller("c1"), wanted)
        waiting = asyncio.create_task(agents.run(lambda conn: provision_agent(conn, caller("c1"), wanted)))
        await until_waiting(agents)
    assert await waiting
    assert (await agent(agents))[1] == ["add"]
