"""A flood of one project does not hold up another's turn, nor its stop, on the whole stack (docs/limits.md).

Told by who began before whom, which does not depend on how fast the machine is.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.paths import TESTS
from tests.support.processes.stack import QUICK, SCRIPTS, Config, Stack, running_here
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, new_tenant, turn_of
from turnstile.schema.ids import AgentId, AgentTurnId

LONG = TESTS / "e2e" / "scripts" / "flood"
"""Scripts that take too long for tests which go through all."""
FLOOD = 150
SLOTS = 4
SMALL: Config = {**QUICK, "worker": {**QUICK["worker"], "max_concurrency": SLOTS}}
"""The flood takes the worker a while."""
PASSED_BY = FLOOD * 2 // 3
"""Turns of the flood that may begin first: a worker takes the step of a workflow that it has just begun past the queue,
while it has a free slot. First in, first out, it would be all of them."""


@pytest.fixture(scope="module")
async def small(stacks: Stacks) -> AsyncIterator[Stack]:
    """Worker and bridge here, with few places for steps."""
    async with stacks.open(SMALL, (*SCRIPTS, LONG)) as opened, running_here(opened):
        yield opened


async def begun_first(loud: Tenant, quiet: Tenant, turn: AgentTurnId) -> int:
    """Turns of the flood that began after this turn was enqueued and before it began."""
    [row] = await quiet.rows(
        "SELECT count(*) AS n FROM state.agent_inbox i JOIN state.turn_outcomes o USING (inbox_id)"
        " JOIN state.turn_outcomes flood ON flood.started_at BETWEEN i.created_at AND o.started_at"
        " WHERE o.agent_turn_id = $1 AND flood.project_id = $2",
        *(turn, loud.project),
    )
    return row["n"]


@pytest.mark.long
async def test_one_turn_and_one_stop_pass_a_flood(small: Stack) -> None:
    loud, quiet = new_tenant(small), new_tenant(small)
    agents, agent = await loud.agents("labours", FLOOD), await quiet.agent("plain")
    turns = [turn_of(reply) for reply in await asyncio.gather(*(loud.enqueue(a) for a in agents))]

    ended = await quiet.turn(agent)
    stopped = turn_of(await quiet.enqueue(await quiet.agent("tarries", AgentId("bob"))))
    await until(lambda: running(quiet), 25, "it runs")
    await quiet.client.request("stop", {"agent_turn_id": stopped})
    assert (await quiet.ended(stopped)).view.status == "canceled"
    assert await loud.count("state.turn_outcomes") < FLOOD, "the flood is still there"

    await loud.all_ended(turns, 60)
    for turn in (ended.view.agent_turn_id, stopped):
        assert await begun_first(loud, quiet, turn) < PASSED_BY
    async with loud.pool.connection() as conn:
        await assert_invariants(conn)


async def running(tenant: Tenant) -> bool:
    """Whether a turn of the project runs."""
    return await tenant.count("state.agent_state_head", "status = 'running'") == 1
