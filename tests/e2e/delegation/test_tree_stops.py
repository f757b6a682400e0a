"""A tree that is stopped in mid-stream (protocol §6, stop): no gate opens after the answer, and every turn ends."""

import logging
import time
from collections.abc import AsyncIterator, Sequence
from datetime import datetime

import pytest

from tests.support.conditions import until
from tests.support.delegation import CHIEF, fork, says, staff, steps, task
from tests.support.gates import Gates, gates_of, open_witness
from tests.support.processes.stack import QUICK, Config, Stack
from tests.support.processes.stacks import Stacks
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import calling
from turnstile.ledger.trees.tree_views import tree
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.schema.wire.inbox import StopReply

log = logging.getLogger(__name__)
WIDE: Config = {**QUICK, "worker": {**QUICK["worker"], "max_concurrency": 400}}
STREAMS = says("word " * 90, chunks=90, delay_seconds=5)
"""A turn that says a word every few seconds, for longer than any of these tests takes."""


@pytest.fixture(scope="module")
async def stack(stacks: Stacks) -> AsyncIterator[Stack]:
    """One whose worker runs as many steps as there are, with a witness of gates."""
    async with stacks.open(WIDE) as opened:
        async with opened.pool.connection() as conn:
            await open_witness(conn)
        yield opened


def grown(fans: Sequence[int]) -> str:
    """The instruction of a turn that forks so many, each of which forks so many …; the last ones stream."""
    if not fans:
        return STREAMS
    target = "chief" if len(fans) > 1 else "worker"
    return steps(fork([task(target, grown(fans[1:])) for _ in range(fans[0])]))


def size(fans: Sequence[int]) -> tuple[int, int]:
    """How many turns such a tree has, and how many of them stream."""
    turns, level = 1, 1
    for fan in fans:
        level *= fan
        turns += level
    return turns, level


async def heads(tenant: Tenant, status: str) -> int:
    return await tenant.count("state.agent_state_head", f"status = '{status}'")


async def stopped(tenant: Tenant, turn: AgentTurnId, **fields: str) -> tuple[StopReply, datetime]:
    """The reply to a stop of the tree, and the server's time after it."""
    reply = await tenant.client.request("stop", {"agent_turn_id": turn, "reason": "enough", **fields})
    [row] = await tenant.rows("SELECT clock_timestamp() AS at")
    return StopReply.model_validate(reply), row["at"]


async def announced(tenant: Tenant, count: int, seconds: float) -> float:
    """Seconds until so many turns have their `task` event, each one."""
    began = time.monotonic()
    await tenant.all_ended([AgentTurnId("")] * count, seconds)
    took = time.monotonic() - began
    assert sorted((await tenant.task_events()).values()) == [1] * count
    return took


async def gates(tenant: Tenant, root: AgentTurnId, answered_at: datetime) -> Gates:
    async with tenant.pool.connection() as conn:
        return await gates_of(conn, root, answered_at)


async def nodes(tenant: Tenant, turn: AgentTurnId) -> list[TreeTurn]:
    return await tenant.pool.run(lambda conn: tree(conn, tenant.project, turn))


@pytest.mark.parametrize(
    ("fans", "seconds"),
    [
        pytest.param((1, 2, 2, 2), 20, id="16"),
        pytest.param((3, 4, 4, 5), 120, id="304", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
async def test_a_tree_that_streams_ends_whole(tenant: Tenant, fans: Sequence[int], seconds: float) -> None:
    """All its leaves stream and all others wait for them: the answer counts exactly those that stream."""
    await staff(tenant)
    turns, leaves = size(fans)
    root = turn_of(await tenant.enqueue(CHIEF, grown(fans)))

    async def streaming() -> bool:
        out = await tenant.count("state.turn_waiting_tools", "wait_status = 'waiting' AND held_by IS NULL")
        return (await heads(tenant, "running"), await heads(tenant, "suspended"), out) == (leaves, turns - leaves, 0)

    await until(streaming, seconds, f"{leaves} turns stream")
    reply, answered_at = await stopped(tenant, root)
    took = await announced(tenant, turns, seconds)
    seen = await gates(tenant, root, answered_at)
    log.info("%d turns stopped: %d on their way, last task event after %.2f s", turns, reply.on_their_way, took)
    assert (seen.after_the_answer, seen.after_their_mark) == (0, 0)
    assert (reply.marked, reply.on_their_way, seen.on_their_way[0]) == (turns, leaves, leaves)
    found = await nodes(tenant, root)
    assert [each.status for each in found] == ["canceled"] * turns
    assert max(each.depth for each in found) == len(fans)


@pytest.mark.parametrize(
    ("fans", "seconds"),
    [
        pytest.param((2, 2, 3), 20, id="19"),
        pytest.param((3, 4, 4, 5), 120, id="304", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
async def test_a_tree_that_still_grows_ends_whole(tenant: Tenant, fans: Sequence[int], seconds: float) -> None:
    """Some leaves stream, others are not there yet: forks, begins and commands meet the marks."""
    await staff(tenant)
    turns, _ = size(fans)
    root = turn_of(await tenant.enqueue(CHIEF, grown(fans)))

    async def half() -> bool:
        return await tenant.count("state.turn_nodes") >= turns // 2

    await until(half, seconds, "half of the tree is there", pause=0.005)
    reply, answered_at = await stopped(tenant, root)
    there = await tenant.count("state.turn_nodes")
    took = await announced(tenant, there, seconds)
    seen = await gates(tenant, root, answered_at)
    log.info(
        "%d of %d turns stopped as they came: %d on their way (%d throughout, %d at all), last task event after %.2f s",
        *(there, turns, reply.on_their_way, *seen.on_their_way, took),
    )
    assert (seen.after_the_answer, seen.after_their_mark) == (0, 0)
    assert seen.on_their_way[0] <= reply.on_their_way <= seen.on_their_way[1]
    assert (reply.marked, await tenant.count("state.turn_nodes")) == (there, there)
    assert {node.status for node in await nodes(tenant, root)} == {"canceled"}


async def test_those_that_nobody_waits_for_end_only_with_all(tenant: Tenant) -> None:
    await staff(tenant)
    free = ("delegate_async", task("chief", grown((2,))))
    waited = ("fork_join", {"tasks": [task(instruction=STREAMS)]})
    root = turn_of(await tenant.enqueue(CHIEF, steps(calling(free, waited))))

    async def streaming() -> bool:
        return await heads(tenant, "running") == 3

    await until(streaming, 25, "three turns stream")
    reply, answered_at = await stopped(tenant, root)
    assert (reply.marked, reply.on_their_way) == (2, 1)
    await announced(tenant, 2, 20)
    assert await heads(tenant, "running") == 2
    again, answered_at = await stopped(tenant, root, cascade="all")
    took = await announced(tenant, 5, 20)
    seen = await gates(tenant, root, answered_at)
    log.info("all below an ended turn: %d marked, last task event after %.2f s", again.marked, took)
    assert (again.already_final, again.marked, again.on_their_way) == (True, 3, 2)
    assert (seen.after_the_answer, seen.after_their_mark) == (0, 0)
    assert {node.status for node in await nodes(tenant, root)} == {"canceled"}
