"""Stops that race what the turn does by itself: whoever wins, one outcome, one deliverable, one event."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.service import RPCError, RPCStatusCode

from tests.support.conditions import until
from tests.support.tenants import Ended, Tenant
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.workflows.options import turn_workflow_id

pytestmark = pytest.mark.shared_stack

log = logging.getLogger(__name__)
WAITS = "SELECT coalesce(array_agg(wait_status), '{}') AS states FROM state.turn_waiting_tools WHERE agent_turn_id = $1"
LINES: dict[str, Any] = {
    "the end of the step": {"text": "done", "delay_seconds": 0.05},
    "the commit of a suspend": calling("search", "search", delay_seconds=0.025),
    "the next step": calling("nosuch", delay_seconds=0.05),
}


async def by_verb(hand: Hand, turn: AgentTurnId) -> None:
    """The stop verb."""
    reply = await hand.tenant.client.request("stop", {"agent_turn_id": turn})
    assert reply["status"] == "accepted", reply


async def by_web_ui(hand: Hand, turn: AgentTurnId) -> None:
    """A cancellation of the workflow, then the verb for those it came too early for."""
    try:
        await hand.tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn)).cancel()
    except RPCError:
        await by_verb(hand, turn)


STOPS = {"the verb": by_verb, "the web ui": by_web_ui}


@pytest.fixture(params=[8, pytest.param(48, marks=pytest.mark.long)])
def racer_count(request: pytest.FixtureRequest) -> int:
    """How many turns race at once, each at a moment of its own."""
    return int(request.param)


async def begun(hand: Hand, turn: AgentTurnId) -> None:
    """A worker has begun the turn."""

    async def consumed() -> bool:
        return await hand.tenant.count("state.agent_inbox", f"agent_turn_id = '{turn}' AND status = 'consumed'") == 1

    await until(consumed, 25, "the turn is begun", pause=0.005)


async def returned(tenant: Tenant, turn: AgentTurnId) -> None:
    """The turn's workflow has returned, and did not fail; one that was stopped before its start has none."""
    try:
        await tenant.stack.temporal.get_workflow_handle(turn_workflow_id(turn)).result()
    except RPCError as error:
        assert error.status is RPCStatusCode.NOT_FOUND  # noqa: PT017 -- either way is right


async def racers(tenant: Tenant, count: int, race: Callable[[Hand, float], Awaitable[Ended]]) -> list[Ended]:
    """Turns of as many agents at once, each with a delay of its own from 0 to 1."""
    async with hand_of(tenant) as hand:
        agents: list[AgentId] = await tenant.agents("player", count, allowed_tools=["search"])
        hands = [Hand(tenant, agent, hand.commands) for agent in agents]
        raced = await asyncio.gather(*(race(own, number / count) for number, own in enumerate(hands)))
    assert await tenant.task_events() == {ended.view.agent_turn_id: 1 for ended in raced}
    [counted] = await tenant.rows(
        "SELECT count(*) AS n, count(DISTINCT agent_turn_id) AS turns FROM state.turn_outcomes WHERE project_id = $1",
        tenant.project,
    )
    assert counted == {"n": count, "turns": count}
    for ended in raced:
        assert ended.types().count("task.deliverable") == 1
        assert (ended.view.status, ended.view.error_code) in {("success", None), ("canceled", "stopped")}
        assert set((await tenant.rows(WAITS, ended.view.agent_turn_id))[0]["states"]) <= {"dropped", "applied"}
        await returned(tenant, ended.view.agent_turn_id)
    log.info("ended as %s", Counter(ended.view.status for ended in raced))
    return raced


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("line", LINES)
async def test_a_stop_that_races_has_one_outcome(tenant: Tenant, racer_count: int, line: str, stop: str) -> None:
    async def race(hand: Hand, share: float) -> Ended:
        early = {} if share else {"delay_seconds": 1.0}  # one is stopped long before its end, however slow the machine
        turn = await hand.start(LINES[line] | early)
        if share > 0.3:  # the others may not have begun
            await begun(hand, turn)
        await asyncio.sleep(share * 0.1)  # the moment is the subject
        await STOPS[stop](hand, turn)
        return await hand.ended(turn)

    raced = await racers(tenant, racer_count, race)
    statuses = {ended.view.status for ended in raced}
    if line == "the commit of a suspend":
        assert statuses == {"canceled"}  # nobody answers: a stop always finds it in hand
        results = {len(ended.results()) for ended in raced}
        assert results <= {0, 2}
    assert "canceled" in statuses


async def test_a_stop_that_races_the_last_report_has_one_outcome(tenant: Tenant, racer_count: int) -> None:
    async def race(hand: Hand, share: float) -> Ended:
        turn = await hand.start(calling("search", "search"))
        await hand.called(call_of(turn, 1))
        await hand.report(call_of(turn))

        async def report() -> None:
            await hand.report(call_of(turn, 1))

        async def stop() -> None:
            await asyncio.sleep(share * 0.03)  # the moment is the subject
            await by_verb(hand, turn)

        await asyncio.gather(report(), stop())
        ended = await hand.ended(turn)
        assert len(ended.results()) == 2
        return ended

    await racers(tenant, racer_count, race)


async def test_turns_queued_behind_stopped_ones_all_run(tenant: Tenant) -> None:
    """Each agent has three turns; the first two are stopped while they are queued, leased, running or ending."""

    async def race(hand: Hand, share: float) -> Ended:
        turns = [await hand.start({"text": "done", "delay_seconds": 0.04}) for _ in range(3)]
        await asyncio.sleep(share * 0.1)  # the moment is the subject
        await asyncio.gather(*(by_verb(hand, turn) for turn in turns[:2]))
        ended = [await hand.ended(turn) for turn in turns]
        assert ended[2].deliverable() == "done"
        assert all(each.view.status in {"success", "canceled"} for each in ended)
        return ended[2]

    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", 10)
        hands = [Hand(tenant, agent, hand.commands) for agent in agents]
        last = await asyncio.gather(*(race(own, number / len(agents)) for number, own in enumerate(hands)))
    assert len(last) == len(agents)
    assert set((await tenant.task_events()).values()) == {1}
    assert await tenant.count("state.turn_outcomes") == 3 * len(agents)
