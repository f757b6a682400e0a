"""Forks with every join (protocol §12): joined once, in task order; the long run has up to 1,000 children."""

import pytest

from tests.support.delegation import CHIEF, answers, fork, result, says, staff, steps, task
from tests.support.tenants import Ended, Tenant, turn_of
from turnstile.schema.base import JsonObject
from turnstile.schema.states import TurnStatus

LATE = says("It began thus, and", chunks=2, delay_seconds=3600)
SLOW = says("slow", delay_seconds=0.5)
JOINS: list[tuple[JsonObject, str]] = [
    ({}, "all"),
    ({"join": "any"}, "stop"),
    ({"join": "any", "losers": "finish"}, "finish"),
    ({"join": "first_k", "k": 5}, "stop"),
    ({"join": "first_k", "k": 5, "losers": "finish"}, "finish"),
    ({"join": "quorum"}, "stop"),
    ({"join": "quorum", "losers": "finish"}, "finish"),
]
NAMES = [f"{fields.get('join', 'v1r4')}-{losers}" for fields, losers in JOINS]


def needed(fields: JsonObject, size: int) -> int:
    """How many successes decide the batch."""
    match fields.get("join"):
        case "any":
            return 1
        case "first_k":
            return 5
        case "quorum":
            return size // 2 + 1
        case _:
            return size


async def forked(tenant: Tenant, size: int, fields: JsonObject, losers: str, patience: float) -> Ended:
    """A turn that forks so many children, of which as many answer as the join needs; all turns are over."""
    await staff(tenant)
    quick = needed(fields, size)
    rest = LATE if losers == "stop" else SLOW
    tasks = [task(instruction=says(f"{n}") if n < quick else rest) for n in range(size)]
    reply = await tenant.ask({"agent_id": CHIEF, "instruction": steps(fork(tasks, **fields), {"text": "joined"})})
    ended = await tenant.ended(turn_of(reply), patience)
    assert ended.deliverable() == "joined"
    await tenant.all_ended([turn_of(reply)] * (size + 1), patience)
    return ended


async def check(tenant: Tenant, ended: Ended, size: int, quick: int, losers: str) -> None:
    """It was answered once, with a result for each task in its order; losers were stopped, or did their work."""
    [answer] = answers(ended)
    assert answer.status is TurnStatus.SUCCESS
    told = result(ended)["results"]
    assert [each["task_index"] for each in told] == list(range(size))
    won = [each for each in told if each["status"] == "success"]
    assert len(won) >= quick
    assert all(each["summary"] in {str(each["task_index"]), "slow"} for each in won)
    edges = await tenant.count("state.execution_edges", "primitive = 'join' AND edge_phase = 'response'")
    rows = await tenant.count("state.agent_inbox", "message_type = 'tool_result'")
    assert (edges, rows) == (1, 1)
    assert await tenant.count("state.turn_nodes", "parent_turn_id IS NOT NULL") == size
    over = await tenant.count("state.turn_outcomes", "status = 'success'")
    assert over == (size + 1 if losers != "stop" else len(won) + 1)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [7, *(pytest.param(size, marks=pytest.mark.long) for size in (16, 128, 1000))])
@pytest.mark.parametrize(("fields", "losers"), JOINS, ids=NAMES)
async def test_children_are_joined_once(tenant: Tenant, fields: JsonObject, losers: str, size: int) -> None:
    ended = await forked(tenant, size, fields, losers, 20 + size)
    await check(tenant, ended, size, needed(fields, size), losers)


@pytest.mark.long
async def test_more_children_than_run_at_once(tenant: Tenant) -> None:
    ended = await forked(tenant, 64, {}, "all", 60)
    await check(tenant, ended, 64, 64, "all")
