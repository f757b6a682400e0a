"""The verdict on trees of a chaos run: a healthy ledger breaks no rule, and each rule tells of what breaks it."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lab.chaos.clock_model import times_between
from lab.chaos.load import CRON_LINES
from lab.chaos.verdict import TREE_RULES, judge_trees, open_witness, wrong_firings
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, add_agents, finish
from tests.support.ledger.calls import sleeper
from tests.support.ledger.trees import forks, succeed
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.waiting import apply_reports
from turnstile.rules.schedule_times import upcoming
from turnstile.schema.ids import InboxId
from turnstile.schema.wire.schedule_requests import Timing

UNGUARDED = "SET LOCAL session_replication_role = 'replica'"
"""For changes of cards and of boxes, which the ledger's guards refuse."""
BATCH = "UPDATE state.pmo_batches SET {}"
TASK = "UPDATE state.pmo_batch_tasks SET {} WHERE task_index = 0"
CHILD = "UPDATE state.turn_nodes SET {} WHERE parent_turn_id IS NOT NULL"
ROOT = "UPDATE state.turn_nodes SET {} WHERE parent_turn_id IS NULL"
SAID = (
    "UPDATE cards SET content = jsonb_set(content, '{text}', to_jsonb('%s'::text)) WHERE card_id LIKE '%%-instruction'"
)
PLAN, OTHER = SAID % '{"joins": ["success"], "ends": "success"}', SAID % '{"joins": ["failed"], "ends": "failed"}'
RESULT = "UPDATE cards SET content = {} WHERE card_id = 'c1-result'"
ANSWERED = "UPDATE state.agent_inbox SET payload = payload || '{\"status\": \"failed\"}' WHERE inbox_id LIKE 'join-%'"
DAMAGES: list[tuple[str, str]] = [
    ("batches_not_decided_once", BATCH.format("decided_by = 'another'")),
    ("batches_not_decided_once", "TRUNCATE chaos.decisions"),
    ("batches_not_decided_once", BATCH.format("status = 'running', decided_at = NULL")),
    ("calls_not_answered_once", "DELETE FROM state.agent_inbox WHERE inbox_id = 'join-batch-c1'"),
    ("calls_not_answered_once", ANSWERED),
    ("calls_not_answered_once", "DELETE FROM box_cards WHERE card_id = 'c1-result'"),
    ("answers_untrue", RESULT.format("jsonb_set(content, '{result,results,0,status}', '\"failed\"')")),
    ("answers_untrue", RESULT.format("content #- '{result,results,1}'")),
    ("children_of_nobody", TASK.format("current_agent_turn_id = NULL, status = 'failed'")),
    ("children_of_nobody", CHILD.format("waited = false")),
    ("children_of_nobody", CHILD.format("parent_turn_id = NULL")),
    ("children_after_a_mark", ROOT.format("stopping_at = now() - interval '1 hour'")),
    ("tasks_unlike_their_turns", TASK.format("status = 'failed'")),
    ("tasks_unlike_their_turns", TASK.format("status = 'dispatched'")),
    ("nodes_not_over", CHILD.format("ended = false")),
    ("nodes_not_over", "DELETE FROM state.turn_outcomes WHERE agent_id = 'alice'"),
    ("batches_unlike_their_plan", OTHER),
    ("children_unlike_their_plan", OTHER),
]


class _Undo(Exception):
    """Rolls a transaction back."""


@pytest.fixture(scope="module")
async def healthy(databases: Databases, migrated: str) -> AsyncIterator[Pool]:
    """A ledger with a witness, a fork of two that was joined, and its parent's end."""
    name = await databases.create(migrated)
    await open_witness(databases.url(name))
    pool = Pool(databases.url(name), size=2, name="test")
    await add_agents(pool, ALICE)
    parent = await sleeper(pool, "c1", correlation_id="key-0")
    made = await forks(pool, "c1", 2)
    for task in made.tasks:
        await succeed(pool, task.agent_turn_id)
    await pool.run(lambda conn: apply_reports(conn, parent, [InboxId("join-batch-c1")]))
    await finish(pool, parent, 2)
    async with pool.connection() as conn, conn.transaction():
        await conn.execute(UNGUARDED)
        await conn.execute(PLAN)
    yield pool
    await pool.close()
    await databases.drop(name)


async def test_a_healthy_ledger_breaks_no_rule_and_each_damage_is_told(healthy: Pool) -> None:
    assert await healthy.run(judge_trees) == []
    for rule, damage in DAMAGES:
        async with healthy.connection() as conn:
            told: list[str] = []
            with suppress(_Undo):
                async with conn.transaction():
                    if "cards" in damage:
                        await conn.execute(UNGUARDED)
                    await conn.execute(damage)
                    told = await judge_trees(conn)
                    raise _Undo
        assert rule in {each.partition(":")[0] for each in told}, damage


def test_each_rule_is_broken() -> None:
    assert {rule for rule, _ in DAMAGES} == set(TREE_RULES)


BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def fired(second: int, turn: str, late: float = 0.1) -> dict[str, Any]:
    """A firing of a schedule of every two seconds, which was paused after a minute."""
    at = BEGAN + timedelta(seconds=second)
    times = {"anchor_at": BEGAN, "nominal_at": at, "fired_at": at + timedelta(seconds=late)}
    about = {"schedule_id": "tick", "timing": '{"every_seconds": 2}', "agent_turn_id": turn, "code": None}
    return {**about, **times, "paused_at": BEGAN + timedelta(minutes=1)}


@pytest.mark.parametrize(
    ("firings", "wrong"),
    [
        ([fired(2, "a"), fired(4, "b"), fired(50, "c")], []),
        ([fired(2, "a"), fired(50, "a")], ["is that of 2 firings"]),
        ([fired(2, "a"), fired(50, "x")], ["has no outcome"]),
        ([fired(3, "a"), fired(50, "b")], ["which it does not name"]),
        ([fired(2, "a"), fired(8, "b", 45.0), fired(50, "c")], ["after the time that follows"]),
        ([fired(2, "a")], ["did not fire until it was paused"]),
        ([], ["did not fire until it was paused"]),
    ],
)
def test_firings_are_compared_with_the_times_of_their_schedule(firings: list[dict[str, Any]], wrong: list[str]) -> None:
    found = wrong_firings(firings, ["tick"], {"a", "b", "c"})
    assert len(found) == len(wrong), found
    assert all(part in line for part, line in zip(wrong, found, strict=True))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize(
    "cron",
    [
        *(cron for cron, _ in CRON_LINES[4:]),
        *("30 2 * * *", "15,45 1-3 * * *", "*/30 2 * * *", "30 * * * *", "15 */2 * * 0", "0 12 29 2 *", "5 2 1 * 7"),
    ],
)
def test_the_judge_s_own_model_of_cron_names_the_times_that_schedules_fire_at(zone: str, cron: str) -> None:
    """Around each change of these clocks in 2026, and at the end of a February of 29 days."""
    timing = Timing(cron=cron, timezone=zone)
    for day in ("2026-03-08", "2026-03-29", "2026-04-04", "2026-10-03", "2026-10-25", "2026-11-01", "2028-02-28"):
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
        end = begin + timedelta(hours=32)
        named = times_between(timing.timing(), begin, begin, end)
        assert named == [at for at in upcoming(timing, begin, begin, len(named) + 1) if at <= end]
