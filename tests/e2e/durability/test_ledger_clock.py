"""PostgreSQL's own clock is set an hour forward, and back: deadlines pass, and nothing waits for the hour.

The ledger's clock decides what is due. Its worker, its bridge and Temporal have the right time.
"""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.clocks import Clock, of_postgres, right_clock
from tests.support.processes.net import claim, delete, net_of, repairs, unheard, workflow
from tests.support.processes.stack import QUICK, Stack, open_stack, running_here
from tests.support.tenants import Tenant, new_tenant
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.embedded import EmbeddedServers, Endpoints
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId

HOUR = timedelta(hours=1)
RIGHT = timedelta()
WAIT_SECONDS = 3.0
"""How long a turn sleeps for a call."""
LOOKS_SECONDS = 6.0


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    """PostgreSQL's."""
    return right_clock(tmp_path_factory.mktemp("clock") / "postgres.clock")


@pytest.fixture(scope="module")
async def stack(servers: Endpoints, clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """On a PostgreSQL with this clock, and the session's NATS and Temporal."""
    directory = tmp_path_factory.mktemp("ledger")
    bridge = {**QUICK["bridge"], "engine_interval_seconds": 0.5, "active_reap_seconds": 4.0}
    config = {**QUICK, "bridge": bridge, "tools": {"suspend_timeout_seconds": WAIT_SECONDS}}
    with of_postgres(clock):
        own = EmbeddedServers(
            directory / ".turnstile",
            nats_url=servers.nats_url,
            temporal_address=servers.temporal_address,
            temporal_namespace=servers.temporal_namespace,
        )
        async with own, open_stack(own.endpoints, directory, config) as opened:
            yield opened


@pytest.fixture
async def tenant(stack: Stack, clock: Clock) -> AsyncIterator[Tenant]:
    """What protocol §2 says holds at the end, no turn was ended by force, and the clock is right again."""
    yield new_tenant(stack)
    assert {rule for rule in await repairs(stack.pool) if rule.endswith("reap")} == set()
    async with stack.pool.connection() as conn:
        await assert_invariants(conn)
    clock.shift(RIGHT)


async def statuses(tenant: Tenant) -> dict[str, int]:
    """How turns of the project ended."""
    rows = await tenant.rows(
        "SELECT status || coalesce(' ' || error_code, '') AS how, count(*) AS n FROM state.turn_outcomes"
        " WHERE project_id = $1 GROUP BY 1",
        tenant.project,
    )
    return {row["how"]: row["n"] for row in rows}


@pytest.mark.long
async def test_deadlines_pass_where_it_is_set_forward_and_running_turns_go_on(
    stack: Stack, tenant: Tenant, clock: Clock, tmp_path: Path
) -> None:
    async with running_here(stack), hand_of(tenant) as hand:
        await tenant.profile("gated", "gated")
        agents = await tenant.agents("player", 3, allowed_tools=["search"])
        asleep = [await Hand(tenant, agent).start(calling("search")) for agent in agents]
        running = await tenant.enqueue(hand.agent, '{"steps": [{"text": "slow", "delay_seconds": 6}]}')
        await hand.heard(3)
        clock.shift(HOUR)
        for turn in asleep:
            assert [result[:2] for result in (await tenant.ended(turn)).results()] == [("timeout", "tool_timeout")]
        assert running.agent_turn_id is not None
        await tenant.ended(running.agent_turn_id)
        await tenant.turn(agents[0], '{"steps": [{"text": "done"}]}')
    assert await statuses(tenant) == {"success": 5}


async def test_a_schedule_fires_each_time_once_while_it_is_set_forward_and_back(
    stack: Stack, tenant: Tenant, clock: Clock
) -> None:
    await tenant.profile("many", "plain", instances=True)
    fired = "SELECT nominal_at, agent_turn_id AS turn FROM state.schedule_firings WHERE project_id = $1"

    async def until_more(count: int) -> None:
        before = len(await tenant.rows(fired, tenant.project))

        async def more() -> bool:
            return len(await tenant.rows(fired, tenant.project)) >= before + count

        await until(more, 25, f"{count} more firings")

    async with running_here(stack):
        asked: JsonObject = {"schedule_id": "tick", "profile_name": "many", "instruction": "go", "every_seconds": 1}
        await tenant.client.request("schedule.put", asked, caller=Caller("me"))
        for shift in (RIGHT, HOUR, RIGHT):
            clock.shift(shift)
            await until_more(2)
        await tenant.client.request("schedule.remove", {"schedule_id": "tick"}, caller=Caller("me"))
        turns = await tenant.count("state.agent_inbox", "correlation_id LIKE 'schedule:%'")
        await tenant.all_ended([AgentTurnId("")] * turns, 60)
    assert set(await statuses(tenant)) == {"success"}


async def test_nothing_waits_for_the_hour_where_it_is_set_back(stack: Stack, tenant: Tenant, clock: Clock) -> None:
    """Everything of these turns was done in what is now the future, by a worker and a bridge that are gone."""
    clock.shift(HOUR)
    net = net_of(stack)
    async with hand_of(tenant) as hand:
        due, claimed, lost = await tenant.agents("player", 3, allowed_tools=["search"])
        async with running_here(stack):
            gone = await Hand(tenant, lost, hand.commands).suspended(calling("search"))
            answered = await hand.suspended(calling("search"))
        steps = '{"steps": [{"text": "done"}]}'
        turns = [await unheard(tenant, claimed, steps)]
        assert len(await claim(tenant)) == 1
        turns.append(await unheard(tenant, due, steps))
        await delete(stack, gone)
        await net.look("clock")
        clock.shift(RIGHT)
        async with running_here(stack):
            await hand.report(call_of(answered))
            for turn in (*turns, answered):
                await tenant.ended(turn)

            async def restarted() -> bool:
                return (await repairs(stack.pool)).get("engine", 0) > 0

            await until(restarted, 25, "its workflow is started again")
            await hand.report(call_of(gone))
            await tenant.ended(gone)
    assert await statuses(tenant) == {"success": 4}


@pytest.mark.long
async def test_a_deadline_that_the_ledger_has_not_reached_is_looked_at_ever_more_seldom(
    stack: Stack, tenant: Tenant, clock: Clock
) -> None:
    """The turn's timer is Temporal's, and fires; the ledger says for another hour that the call is not late."""
    async with running_here(stack), hand_of(tenant) as hand:
        turn = await hand.suspended(calling("search"))
        clock.shift(-HOUR)

        async def looks() -> int:
            history = await workflow(stack, turn).fetch_history()
            done = [
                event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
            ]
            return len(done) - 1

        await until(looks, WAIT_SECONDS + 10, "the timer has fired")
        await asyncio.sleep(LOOKS_SECONDS)  # how often it looks meanwhile is the subject
        assert await looks() <= 6
        await hand.report(call_of(turn))
        await tenant.ended(turn)
    assert await statuses(tenant) == {"success": 1}
