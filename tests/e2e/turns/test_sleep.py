"""A suspended turn costs no worker memory and no connection: it is evicted, and replayed when something rings."""

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from functools import wraps
from typing import Any

import pytest
from temporalio.worker import Worker

from tests.support.conditions import until
from tests.support.processes.stack import Stack, running_here
from tests.support.tenants import Tenant
from tests.support.tools import Hand, call_of, calling, hand_of
from turnstile.schema.ids import AgentTurnId
from turnstile.temporal import plugin
from turnstile.workflows.agent_turn import AgentTurn

CACHED, SLEEPERS = 2, 6


@pytest.fixture(scope="module")
async def here(stack: Stack) -> AsyncIterator[Stack]:
    """Worker and bridge in this process, the worker with a cache that holds next to nothing."""

    def small_worker(*args: Any, **given: Any) -> Worker:
        return Worker(*args, **{**given, "max_cached_workflows": CACHED})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plugin, "Worker", small_worker)
        async with running_here(stack):
            yield stack


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[AgentTurnId]:
    """How often the workflow of each turn was made: once, and once more at each replay."""
    counts: Counter[AgentTurnId] = Counter()
    original = AgentTurn.__init__

    @wraps(original)  # the SDK's mark on it, too
    def counting(self: AgentTurn, turn: Any) -> None:
        counts[turn.agent_turn_id] += 1
        original(self, turn)

    monkeypatch.setattr(AgentTurn, "__init__", counting)
    return counts


def in_memory() -> int:
    """Workflows of turns that this process holds."""
    gc.collect()
    return sum(issubclass(type(each), AgentTurn) for each in gc.get_objects())


async def evicted() -> bool:
    """Whether no more than the cache holds is in memory."""
    return in_memory() <= CACHED


async def test_suspended_turns_are_evicted_and_replayed_when_they_wake(
    tenant: Tenant, made: Counter[AgentTurnId]
) -> None:
    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", SLEEPERS, allowed_tools=["search"])
        hands = [Hand(tenant, agent, hand.commands) for agent in agents]
        turns = [await own.start(calling("search", "search")) for own in hands]
        await hand.heard(2 * SLEEPERS)
        await until(evicted, 25, "the sleeping turns are out of memory", pause=0.1)
        assert await tenant.count("state.agent_state_head", "status = 'suspended'") == SLEEPERS
        before = made.copy()
        assert set(before) == set(turns)
        await asyncio.gather(*(hand.report(call_of(turn, index)) for turn in turns for index in range(2)))
        ended = [await own.ended(turn) for own, turn in zip(hands, turns, strict=True)]
    assert all(each.view.status == "success" and len(each.results()) == 2 for each in ended)
    replayed = [turn for turn in turns if made[turn] > before[turn]]
    assert len(replayed) >= SLEEPERS - CACHED


async def test_an_evicted_turn_wakes_for_a_stop(tenant: Tenant, made: Counter[AgentTurnId]) -> None:
    async with hand_of(tenant) as hand:
        agents = await tenant.agents("player", SLEEPERS, allowed_tools=["search"])
        hands = [Hand(tenant, agent, hand.commands) for agent in agents]
        turns = [await own.start(calling("search")) for own in hands]
        await hand.heard(SLEEPERS)
        await until(evicted, 25, "the sleeping turns are out of memory", pause=0.1)
        before = made.copy()
        for turn in turns:
            await tenant.client.request("stop", {"agent_turn_id": turn})
        ended = [await own.ended(turn) for own, turn in zip(hands, turns, strict=True)]
    assert {(each.view.status, each.view.error_code) for each in ended} == {("canceled", "stopped")}
    assert len([turn for turn in turns if made[turn] > before[turn]]) >= SLEEPERS - CACHED
