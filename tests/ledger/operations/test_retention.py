"""Retention: what is over and old goes, whole; what is live, or used by what stays, does not; the audit is clean."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import pytest

from lab.bench.ledgers.ended_turns import fill
from tests.ledger.plans.test_plans import literal, nodes
from tests.support.databases import Databases
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    add_agents,
    announce,
    ask,
    begin,
    command,
    finish,
    lease,
    play,
    profile,
    rows,
    send,
    value,
)
from tests.support.ledger.budgets import end as spent
from tests.support.ledger.budgets import limit, price, reserve, uses
from tests.support.ledger.calls import end, settle, sleeper
from tests.support.ledger.healthy import make_healthy
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.schedules import firings, put
from tests.support.ledger.trees import child, forks, in_hand, parent, succeed
from tests.support.pump.threads import RESPONSE, talk
from tests.support.waiting import Counting, in_flight, overtaken, until_waiting
from turnstile.ledger.operations.audit import Bounds, Scope, audit
from turnstile.ledger.operations.retention import Pruned, RetentionBusy, RetentionLimits, prune, sole
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import mark_replied
from turnstile.ledger.queries import query
from turnstile.ledger.roster import put_profile
from turnstile.ledger.trees.batches import ChildTurn, NewAgent
from turnstile.ledger.turns.cards import make_box
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, InboxId, ProjectId, new_box_id
from turnstile.schema.turns import TurnRef

LATER = timedelta(minutes=1)
TABLES = (
    *("state.agent_inbox", "state.turn_outcomes", "state.agent_steps", "state.turn_waiting_tools"),
    *("state.execution_edges", "state.threads", "state.thread_messages", "state.thread_replies", "state.rejections"),
    *("public.cards", "public.boxes", "public.box_cards", "state.agent_state_head", "state.agent_state_pointers"),
)


def everything(**fields: Any) -> RetentionLimits:
    """All that is over may go."""
    return RetentionLimits(datetime.now(UTC) + LATER, **fields)


async def counts(pool: Pool) -> dict[str, int]:
    """The rows of each table."""
    return {table: await value(pool, f"SELECT count(*) FROM {table}") for table in TABLES}  # noqa: S608 -- above


async def pruned(pool: Pool, limits: RetentionLimits | None = None) -> Pruned:
    """What a run removed, which is what a dry one says; nothing is left for a second one, and the audit is clean."""
    limits = limits or everything()
    before = await counts(pool)
    planned = await prune(pool, limits, dry_run=True)
    assert await counts(pool) == before
    done = await prune(pool, limits)
    assert removed(done) == removed(planned)
    assert sum(removed(await prune(pool, limits)).values()) == 0
    await sound(pool)
    after = await counts(pool)
    for table, name in (("state.turn_outcomes", "turns"), ("public.boxes", "boxes"), ("public.cards", "cards")):
        assert before[table] - after[table] == removed(done)[name]
    return done


def removed(done: Pruned) -> dict[str, int]:
    """Its sums of rows."""
    return done.model_dump(exclude={"batches", "longest_ms"})


async def sound(pool: Pool) -> None:
    """No rule of the audit is broken."""
    async with pool.connection() as conn:
        await assert_invariants(conn)


async def ended(pool: Pool, agent: AgentId = ALICE, **fields: Any) -> TurnRef:
    """A turn that is over and announced."""
    await ask(pool, agent, **fields)
    turn = await play(pool, agent)
    await announce(pool, [turn.agent_turn_id])
    return turn


async def known(pool: Pool, *turns: TurnRef) -> list[bool]:
    """Whether each turn still has its outcome."""
    found = await rows(pool, "SELECT agent_turn_id FROM state.turn_outcomes")
    return [turn.agent_turn_id in {row["agent_turn_id"] for row in found} for turn in turns]


async def has_box(pool: Pool, box: BoxId) -> bool:
    """Whether the box is there."""
    return await value(pool, "SELECT count(*) FROM public.boxes WHERE box_id = $1::text::uuid", box) == 1


async def test_of_a_ledger_in_every_state_only_what_is_over_goes(pool: Pool) -> None:
    names = await make_healthy(pool)
    assert (await pruned(pool)).turns == 7
    left = {row["agent_turn_id"] for row in await rows(pool, "SELECT agent_turn_id FROM state.agent_inbox")}
    turns = {name: turn for name, turn in names.items() if f"{name}_row" in names or name == "given_up"}
    gone = {name for name, turn in turns.items() if turn not in left}
    # the last of a conversation stays with it, unless it was rolled back
    assert gone == {"plain", "given_up", "gone", "dropped_later", "cut", "once", "rolled_back"}
    assert not await has_box(pool, BoxId(names["plain_box"]))
    assert not await has_box(pool, BoxId(names["plain_context"]))
    edges = await rows(pool, "SELECT FROM state.execution_edges WHERE target_agent_turn_id = $1", names["plain"])
    assert edges == []


async def test_what_ended_after_the_moment_stays(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    old, moment = await ended(pool), datetime.now(UTC)
    young, last = await ended(pool), await ended(pool)
    assert (await pruned(pool, RetentionLimits(moment))).turns == 1
    assert await known(pool, old, young, last) == [False, True, True]


async def test_what_was_not_announced_stays(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await ask(pool)
    quiet = await play(pool)
    told, last = await ended(pool), await ended(pool)
    await prune(pool, everything())
    assert await known(pool, quiet, told, last) == [True, False, True]


async def test_another_projects_turns_stay(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    turns = [await ended(pool), await ended(pool)]
    assert removed(await pruned(pool, everything(project_id=ProjectId("p2"))))["turns"] == 0
    assert (await pruned(pool, everything(project_id=PROJECT))).turns == 1
    assert await known(pool, *turns) == [False, True]


async def test_memory_that_goes_on_stays_whole(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool)
    later = [await ended(pool, output_box_id=first.output_box_id) for _ in range(3)]
    held = await value(pool, "SELECT count(*) FROM box_cards WHERE box_id = $1::text::uuid", first.output_box_id)
    assert (await pruned(pool)).turns == 3
    assert await known(pool, first, *later) == [False, False, False, True]
    left = await value(pool, "SELECT count(*) FROM box_cards WHERE box_id = $1::text::uuid", first.output_box_id)
    assert (left, held > 4) == (held, True)


async def test_a_card_goes_with_the_last_box_that_has_it(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    first = await ended(pool)
    copied = await ended(pool, context_box_id=first.context_box_id)  # a box of its own: the first's card and another
    await ended(pool)
    waits = await lease(pool, BOB, context_box_id=copied.context_box_id)
    assert (await pruned(pool)).turns == 2
    for box, stays in ((first.context_box_id, False), (copied.context_box_id, False), (waits.context_box_id, True)):
        assert await has_box(pool, box) is stays
    await begin(pool, waits)
    await finish(pool, waits)
    await announce(pool, [waits.agent_turn_id])
    await ended(pool, BOB)
    done = await pruned(pool)
    assert (done.turns, await has_box(pool, waits.context_box_id)) == (1, False)
    assert await value(pool, "SELECT count(*) FROM cards WHERE card_id LIKE $1", f"{first.agent_turn_id}%") == 0


async def test_the_box_of_a_replaced_profile_goes_once_nothing_names_it(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    old = await ended(pool)
    await put_profile(pool, PROJECT, profile())
    moment = datetime.now(UTC)
    await ended(pool)
    assert (await pruned(pool, RetentionLimits(moment))).turns == 1
    assert not await has_box(pool, old.profile_box_id)
    [kept] = await rows(pool, "SELECT profile_box_id::text AS box_id FROM resource.project_agents")
    assert await has_box(pool, kept["box_id"])


async def test_a_box_that_nobody_has_named_yet_goes_only_when_it_is_old(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    moment, packed = datetime.now(UTC), new_box_id()
    await pool.run(lambda conn: make_box(conn, PROJECT, packed, []))
    await pruned(pool, RetentionLimits(moment))
    assert await has_box(pool, packed)
    await pruned(pool)
    assert not await has_box(pool, packed)


async def test_memory_that_a_pointer_names_stays(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool)
    await ended(pool)
    change = "UPDATE state.agent_state_pointers SET memory_context_box_id = $1::text::uuid"
    await rows(pool, change, first.context_box_id)
    await pruned(pool)
    assert await has_box(pool, first.context_box_id)


async def test_ended_threads_go_with_their_cards_and_open_ones_stay(pool: Pool) -> None:
    over, quiet, live = await talk(pool), await talk(pool), await talk(pool)
    for each in (over, quiet):
        await each.do(RESPONSE)
    await pool.run(lambda conn: mark_replied(conn, [over.first]))
    done = await pruned(pool)
    assert (done.threads, done.cards) == (1, 2)
    left = {row["thread_id"] for row in await rows(pool, "SELECT thread_id FROM state.threads")}
    assert left == {quiet.ref.thread_id, live.ref.thread_id}
    assert await value(pool, "SELECT count(*) FROM state.thread_messages m LEFT JOIN state.threads t USING (thread_id)"
                             " WHERE t.thread_id IS NULL") == 0  # fmt: skip
    assert await over.begin(over.first) is None


async def test_a_turn_stays_with_its_thread(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    works = await ended(pool)
    await ended(pool)
    thread = await talk(pool)
    await thread.begun(thread.first)
    await thread.wait(thread.first, turn=works.agent_turn_id, box=works.output_box_id)
    assert (await pruned(pool)).turns == 0
    await thread.do(RESPONSE, thread.first)
    await pool.run(lambda conn: mark_replied(conn, [thread.first]))
    done = await pruned(pool)
    assert (done.threads, done.turns) == (1, 1)


async def test_a_thread_stays_while_a_turn_of_it_is_live(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    thread = await talk(pool)
    asked = await ask(pool, correlation_id=thread.first)
    await thread.do(RESPONSE, thread.first)
    await pool.run(lambda conn: mark_replied(conn, [thread.first]))
    assert (await pruned(pool)).threads == 0
    turn = await play(pool)
    assert turn.agent_turn_id == asked.reply.agent_turn_id
    await announce(pool, [turn.agent_turn_id])
    assert (await pruned(pool)).threads == 1


async def test_rows_of_no_turn_and_rejections_go(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    strange = (
        "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, agent_turn_id, correlation_id,"
        " status, archived_at, created_at) SELECT n, 'p1', 'alice', 'tool_result', 'none', n, 'error', now(), now()"
        " FROM unnest(ARRAY['a', 'inb_1', 'zz']) n"
    )
    await rows(pool, strange)
    for _ in range(3):
        await pool.run(lambda conn: reject(conn, PROJECT, "verb", "x", "no", {}))
    events = (
        "INSERT INTO state.webhook_events (event_id, project_id, webhook_id, agent_turn_id, type, data, status)"
        " SELECT 'evt_' || n, 'p1', 'w', CASE n WHEN 9 THEN 'kept' END, 'budget.warned', '{}',"
        " CASE n WHEN 3 THEN 'active' WHEN 4 THEN 'given_up' ELSE 'done' END FROM unnest(ARRAY[1, 2, 3, 4, 5, 9]) n"
    )
    await rows(pool, events)
    await put(pool, "tick")
    await rows(
        pool,
        "INSERT INTO state.schedule_firings (firing_id, project_id, schedule_id, nominal_at, code)"
        " SELECT 'f' || n, 'p1', 'tick', now() + n * interval '1 hour', 'missed' FROM unnest(ARRAY[1, 2, 3]) n",
    )
    done = await pruned(pool, everything(batch_rows=2))
    assert (done.inbox_rows, done.rejections, done.events, done.firings) == (3, 3, 4, 3)
    assert await firings(pool) == []
    left = await rows(pool, "SELECT event_id FROM state.webhook_events ORDER BY 1")
    assert [row["event_id"] for row in left] == ["evt_3", "evt_9"]  # to be sent; of a turn, with which it goes


async def test_a_repeated_correlation_is_a_new_turn_once_the_first_has_gone(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool, correlation_id="once")
    await ended(pool)
    assert (await ask(pool, correlation_id="once")).reply.duplicate
    await pruned(pool)
    again = (await ask(pool, correlation_id="once")).reply
    assert (again.duplicate, again.agent_turn_id != first.agent_turn_id) == (False, True)


async def test_an_enqueue_that_names_a_box_keeps_it(pool: Pool, open_pool: Any) -> None:
    await add_agents(pool, ALICE, BOB)
    first = await ended(pool)
    await ended(pool)

    async def enqueued(conn: Any) -> object:
        return await conn.fetch(
            "SELECT FROM public.boxes WHERE box_id = $1::text::uuid FOR KEY SHARE", first.context_box_id
        )

    async with in_flight(pool, enqueued):  # as far as the statement's first part
        await prune(open_pool(size=2), everything())
        assert await has_box(pool, first.context_box_id)
    await ask(pool, BOB, context_box_id=first.context_box_id)
    await pruned(pool)
    assert await known(pool, first) == [False]


async def test_an_enqueue_that_comes_too_late_does_not_find_its_box(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    first = await ended(pool)
    await ended(pool)
    await prune(pool, RetentionLimits(datetime.now(UTC) - timedelta(days=1)))

    async def removing(conn: Any) -> None:
        await query("begin_retention").one(conn)
        await query("remove_turns").many(conn, ids=[first.agent_turn_id])
        await query("lock_boxes").many(conn, ids=[first.context_box_id])
        await query("remove_boxes").one(conn, ids=[first.context_box_id])

    with pytest.raises(Refused, match="context_box_id") as refused:
        await overtaken(pool, removing, ask(pool, BOB, context_box_id=first.context_box_id))
    assert refused.value.code == "unknown_context_box"


async def test_only_one_removes(pool: Pool) -> None:
    async with sole(pool):
        with pytest.raises(RetentionBusy):
            await prune(pool, everything())
    await prune(pool, everything())


async def test_a_batch_that_is_killed_leaves_nothing_half(pool: Pool, open_pool: Any) -> None:
    await add_agents(pool, ALICE)
    turns = [await ended(pool) for _ in range(6)]
    holder = "SELECT FROM state.agent_steps WHERE agent_turn_id = $1 FOR UPDATE"

    async def held(conn: Any) -> object:
        return await conn.fetch(holder, turns[3].agent_turn_id)

    other: Pool = open_pool(size=2, name="killed")
    async with in_flight(pool, held):  # so that its second batch of turns stands in the middle of its statement
        running = asyncio.create_task(prune(other, everything(batch_rows=2)))
        await until_waiting(pool)
        killed = await rows(
            pool,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'killed'"
            " AND wait_event_type = 'Lock'",
        )
        assert len(killed) == 1
        await until_waiting(pool)  # it is tried again
        running.cancel()
        await asyncio.wait([running])
    await other.close()
    assert await known(pool, *turns) == [False, False, True, True, True, True]
    await sound(pool)
    assert (await pruned(pool)).turns == 3


async def test_turns_go_on_beside_it(open_pool: Any, database_url: str) -> None:
    pool = Counting(database_url, size=8, name="turns")
    agents = [AgentId(f"agent-{n}") for n in range(4)]
    await add_agents(pool, *agents)
    box = {agent: await ended(pool, agent) for agent in agents}
    done = asyncio.Event()

    async def turning(agent: AgentId) -> None:
        n = 0
        while not done.is_set():
            n += 1
            own: dict[str, Any] = {"output_box_id": box[agent].output_box_id} if n % 3 else {}
            try:
                await ask(pool, agent, **own)
            except Refused:  # its box went while another box was the agent's memory
                await ask(pool, agent)
            box[agent] = await play(pool, agent)
            await announce(pool, [box[agent].agent_turn_id])

    async def pruning() -> None:
        other, turns = open_pool(size=2), 0
        while turns < 12:
            turns += (await prune(other, everything(batch_rows=7))).turns
        done.set()

    async with asyncio.timeout(30):
        await asyncio.gather(pruning(), *(turning(agent) for agent in agents))
    assert pool.deadlocks == 0
    await pruned(pool)
    assert await value(pool, "SELECT count(*) FROM state.turn_outcomes") == len(agents)
    await pool.close()


@pytest.fixture(scope="module")
async def past(databases: Databases, migrated: str) -> AsyncIterator[Pool]:
    """A ledger of ended turns of the last 90 days."""
    name = await databases.create(migrated)
    await fill(databases.url(name), 4_000)
    pool = Pool(databases.url(name), size=3)
    yield pool
    await pool.close()
    await databases.drop(name)


PAGE = 50
ROWS = 40 * PAGE
"""Rows that one node of a plan may see: some for each turn of the page, and none for the past."""


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("list_prunable_turns", {"planned": False}),
        ("list_prunable_turns", {"planned": True}),
        ("list_unused_instances", {"asleep_before": datetime.now(UTC)}),
        ("list_prunable_conversations", {}),
        ("list_prunable_boxes", {"planned": False}),
        ("list_prunable_boxes", {"planned": True}),
        ("list_loose_rows", {}),
        ("list_prunable_threads", {}),
        ("remove_turns", {"of": "SELECT agent_turn_id FROM state.turn_outcomes ORDER BY 1 LIMIT 50"}),
        ("confirm_boxes", {"of": "SELECT box_id::text FROM public.boxes ORDER BY 1 LIMIT 50"}),
        ("remove_boxes", {"of": "SELECT box_id::text FROM public.boxes ORDER BY 1 LIMIT 50"}),
    ],
)
async def test_a_batch_reads_its_page_and_not_the_past(past: Pool, name: str, extra: dict[str, Any]) -> None:
    wanted = query(name)
    ids = [row[0] for row in await rows_of(past, extra["of"])] if "of" in extra else []
    nil = "00000000-0000-0000-0000-000000000000" if "boxes" in name or "conversations" in name else ""
    before = datetime.now(UTC) - timedelta(days=30)
    values = {"after": nil, "until": None, "row_limit": PAGE, "before": before, "project_id": None, "ids": ids, **extra}
    given = ", ".join(literal(values[each]) for each in wanted.parameters)
    async with past.connection() as conn:
        await conn.execute("BEGIN")
        await query("begin_retention").one(conn)
        await conn.execute(f"PREPARE batch AS {wanted.sql}")
        [row] = await conn.fetch(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE batch ({given})")
        await conn.execute("ROLLBACK; DEALLOCATE batch")
    for node in nodes(json.loads(row["QUERY PLAN"])[0]["Plan"]):
        seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        assert node["Node Type"] != "Seq Scan", node
        assert seen * node["Actual Loops"] <= ROWS, (node["Node Type"], node.get("Index Name"), seen)


async def rows_of(pool: Pool, statement: str) -> list[Any]:
    """Rows by position."""
    async with pool.connection() as conn:
        return await conn.fetch(statement)


@pytest.mark.parametrize(
    ("days", "least", "most"), [(80, 400, 450), pytest.param(30, 2_150, 2_700, marks=pytest.mark.long)]
)
async def test_a_long_past_is_pruned_and_the_rest_is_sound(past: Pool, days: int, least: int, most: int) -> None:
    limits = RetentionLimits(datetime.now(UTC) - timedelta(days=days), batch_rows=300 if days < 80 else 50)
    planned = await prune(past, limits, dry_run=True)
    done = await prune(past, limits)
    assert removed(done) == removed(planned)
    assert least < done.turns < most
    assert (await audit(past, Scope(), Bounds(), row_limit=10)).violations == []


CREW: dict[str, Any] = {"agent": None, "profile_name": "Crew"}


async def crew_turn(pool: Pool, **fields: Any) -> TurnRef:
    """A turn of an instance that is over and announced."""
    await put_profile(pool, PROJECT, profile("Crew", instances=True))
    asked = await ask(pool, **CREW, **fields)
    assert asked.reply.agent_id is not None
    turn = await play(pool, asked.reply.agent_id)
    await announce(pool, [turn.agent_turn_id])
    return turn


async def statuses(pool: Pool) -> list[str]:
    """The statuses of instances."""
    found = await rows(
        pool, "SELECT status FROM resource.project_agents WHERE metadata ? 'instance_of' ORDER BY status"
    )
    return [row["status"] for row in found]


async def test_an_instance_of_one_request_goes_whole(pool: Pool) -> None:
    turn = await crew_turn(pool, correlation_id="k")
    done = await pruned(pool)
    assert (done.instances, done.asleep, done.turns, done.boxes) == (1, 0, 1, 2)
    for table in ("resource.project_agents", "state.agent_state_head", "state.agent_state_pointers"):
        assert await value(pool, f"SELECT count(*) FROM {table}") == 0  # noqa: S608 -- constants
    again = await ask(pool, **CREW, correlation_id="k")
    assert (again.reply.agent_id, again.reply.duplicate) == (turn.agent_id, False)


async def test_an_instance_of_a_conversation_sleeps_and_wakes(pool: Pool) -> None:
    turn = await crew_turn(pool, conversation_id="c1")
    assert (
        await pruned(pool, RetentionLimits(datetime.now(UTC) + LATER, asleep_before=datetime.now(UTC) - LATER))
    ).asleep == 0
    done = await pruned(pool)
    assert (done.instances, done.asleep, done.turns, done.conversations) == (0, 1, 0, 0)
    assert await statuses(pool) == ["dormant"]
    again = await ask(pool, **CREW, conversation_id="c1")
    assert (again.reply.agent_id, again.reply.output_box_id) == (turn.agent_id, turn.output_box_id)
    assert await statuses(pool) == ["active"]


async def test_instances_with_a_turn_are_awake_and_stay(pool: Pool) -> None:
    await crew_turn(pool, conversation_id="c1")
    await ask(pool, **CREW, conversation_id="c1")
    await ask(pool, **CREW)
    done = await pruned(pool)
    assert (done.instances, done.asleep, await statuses(pool)) == (0, 0, ["active", "active"])


async def test_an_enqueue_and_a_retention_at_once_leave_no_sleeper_with_a_turn(pool: Pool) -> None:
    turn = await crew_turn(pool, conversation_id="c1")
    async with in_flight(pool, lambda conn: send(conn, command(**CREW, conversation_id="c1"))):
        done = await prune(pool, everything())
    assert (done.asleep, await statuses(pool)) == (0, ["active"])
    assert (await play(pool, turn.agent_id)).output_box_id == turn.output_box_id


async def test_a_conversation_goes_once_no_turn_of_it_is_left(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool, conversation_id="c1")
    assert (await pruned(pool)).conversations == 0  # the agent's last turn stays
    await ended(pool)
    done = await pruned(pool)
    assert (done.turns, done.conversations) == (1, 1)
    assert not await has_box(pool, first.output_box_id)
    await ended(pool, conversation_id="c1")


async def test_a_conversation_that_is_used_keeps_what_was_said(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool, conversation_id="c1")
    await ask(pool, conversation_id="c1")
    done = await pruned(pool)
    assert (done.turns, done.conversations, done.boxes) == (0, 0, 0)
    second = await play(pool)
    await announce(pool, [second.agent_turn_id])
    assert (await pruned(pool)).turns == 1
    assert await known(pool, first, second) == [False, True]
    assert await value(pool, "SELECT count(*) FROM box_cards WHERE box_id = $1::text::uuid", first.output_box_id) == 4


async def test_an_enqueue_that_goes_on_keeps_its_conversation(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    first = await ended(pool, conversation_id="c1")
    await ended(pool)
    async with in_flight(pool, lambda conn: send(conn, command(conversation_id="c1"))):
        assert (await prune(pool, everything())).conversations == 0
    assert (await play(pool)).output_box_id == first.output_box_id
    await sound(pool)


async def test_a_tree_goes_with_its_batches_tasks_and_nodes(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    top, turns = await forked(pool)
    for turn in turns:
        await succeed(pool, turn)
    await settle(pool, top, InboxId("join-batch-c1"))
    await begin(pool, top, 2)
    await finish(pool, top, 2)
    await announce(pool, [top.agent_turn_id, *turns])
    await ended(pool, ALICE)
    await ended(pool, BOB)
    assert (await pruned(pool)).turns == 3
    for table in ("pmo_batches", "pmo_batch_tasks", "turn_nodes"):
        assert await value(pool, f"SELECT count(*) FROM state.{table}") == 0  # noqa: S608 -- constants
    assert await rows(pool, "SELECT FROM state.execution_edges WHERE primitive = 'join'") == []


async def test_a_turn_stays_with_its_batch_until_its_children_are_over(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    top, [first, second] = await forked(pool)
    await end(pool, top)
    await announce(pool, [top.agent_turn_id])
    await ended(pool, ALICE)
    done = await pruned(pool)  # which compares it with a dry run
    assert (done.turns, done.boxes) == (0, 0)
    assert await known(pool, top) == [True]
    for turn in (first, second):
        await end(pool, await in_hand(pool, turn))
    assert await value(pool, "SELECT status FROM state.pmo_batches") == "withdrawn"
    assert (await pruned(pool)).turns == 1
    assert await value(pool, "SELECT count(*) FROM state.pmo_batch_tasks") == 0


async def test_agents_that_were_made_for_children_go_with_their_turns(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    top = await sleeper(pool, "c1")
    call = await parent(pool, "c1")
    tasks = [child(call, index) for index in range(2)]
    made = await forks(pool, "c1", tasks=[dataclasses.replace(each, new_agent=made_for(each)) for each in tasks])
    turns = [task.agent_turn_id for task in made.tasks if task.agent_turn_id is not None]
    await succeed(pool, turns[0])
    await announce(pool, turns[:1])
    assert (await pruned(pool)).instances == 0  # its parent waits
    await succeed(pool, turns[1])
    await settle(pool, top, InboxId("join-batch-c1"))
    await begin(pool, top, 2)
    await finish(pool, top, 2)
    await announce(pool, [top.agent_turn_id, *turns])
    done = await pruned(pool)
    assert (done.instances, done.asleep, done.turns, done.boxes) == (2, 0, 2, 4)
    assert await rows(pool, "SELECT agent_id FROM resource.project_agents") == [{"agent_id": ALICE}]


async def test_an_agent_that_was_made_for_a_child_and_asked_again_sleeps(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await sleeper(pool, "c1")
    call = await parent(pool, "c1")
    task = child(call, 0)
    await forks(pool, "c1", tasks=[dataclasses.replace(task, new_agent=made_for(task))])
    await succeed(pool, task.agent_turn_id)
    second = await ended(pool, task.agent_id)
    await announce(pool, [task.agent_turn_id])
    done = await pruned(pool)
    assert (done.instances, done.asleep, done.turns, await statuses(pool)) == (0, 1, 1, ["dormant"])
    await sound(pool)
    assert await has_box(pool, second.output_box_id)


def made_for(task: ChildTurn) -> NewAgent:
    """The roster row of an agent that is made for one child, as the bridge says it."""
    metadata = {"spawned_by": ALICE, "instance_of": "helper", "agent_turn_id": task.agent_turn_id}
    return NewAgent(worker_target=TARGET, metadata=metadata)


async def forked(pool: Pool) -> tuple[TurnRef, list[AgentTurnId]]:
    """A turn of Alice's that waits for two of Bob's."""
    top = await sleeper(pool, "c1")
    call = await parent(pool, "c1")
    made = await forks(pool, "c1", tasks=[child(call, 0, BOB), child(call, 1, BOB)])
    return top, [task.agent_turn_id for task in made.tasks if task.agent_turn_id is not None]


async def test_what_was_booked_goes_with_its_turns_once_all_of_the_tree_are_over(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB, CAROL)
    await price(pool)
    await limit(pool, max_tokens=10_000)
    top = await sleeper(pool, "c1", budget={"max_tokens": 1000, "max_turns": 5})
    call = await parent(pool, "c1")
    tasks = [child(call, 0, BOB, budget={"max_tokens": 300}), child(call, 1, CAROL)]
    first, second = [await in_hand(pool, task.agent_turn_id) for task in (await forks(pool, "c1", tasks=tasks)).tasks]
    for turn in (first, second):
        await begin(pool, turn)
        await reserve(pool, turn)
    await spent(pool, first, uses((1, 40, 0)))
    await end(pool, top)
    await announce(pool, [top.agent_turn_id, first.agent_turn_id])
    for agent in (ALICE, BOB):
        await ended(pool, agent)  # of the latest turn the box stays
    assert (await pruned(pool)).turns == 0
    await spent(pool, second, uses((1, 7, 0)))
    await announce(pool, [second.agent_turn_id])
    await ended(pool, CAROL)
    assert (await pruned(pool)).turns == 3
    assert await value(pool, "SELECT count(*) FROM state.budget_reservations") == 0
    [day] = await rows(pool, "SELECT kind, spent_tokens, past_tokens, past_turns FROM state.budgets")
    assert tuple(day.values()) == ("day", 47, 47, 0)


FILES = """
INSERT INTO resource.artifacts (project_id, artifact_id, storage_uri, created_by, status, created_at, channel_id)
SELECT 'p', id, 'file:///s/p/' || id, maker, status, now() - age::interval, 'public'
FROM (VALUES ('old', 'me', 'ready', '9 days'), ('named', 'me', 'ready', '9 days'), ('young', 'me', 'ready', '1 day'),
             ('theirs', '', 'ready', '9 days'), ('sent', 'me', 'uploading', '9 days'),
             ('late', 'me', 'ready', '9 days')) x (id, maker, status, age)
"""
NAMES = """
INSERT INTO public.cards (card_id, tenant_id, content, metadata)
VALUES ($1, 'p', '{}', jsonb_build_object('artifacts', jsonb_build_array($2::text), 'channel_id', 'public'))
"""


async def test_old_files_that_no_card_names_go_beside_cards_that_come_to_name_them(pool: Pool) -> None:
    limits = RetentionLimits(datetime.now(UTC) - timedelta(days=5), ProjectId("p"), batch_rows=2)
    await rows(pool, FILES)
    await rows(pool, NAMES, "c1", "named")
    async with in_flight(pool, lambda conn: cast("Any", conn).fetch(NAMES, "c2", "late")):
        assert (await prune(pool, limits, dry_run=True)).files == 2
        assert (await prune(pool, limits)).files == 1, "a card that is about to come holds its file"
    left = await rows_of(pool, "SELECT artifact_id FROM resource.artifacts WHERE status = 'ready' ORDER BY 1")
    assert [row[0] for row in left] == ["late", "named", "theirs", "young"]
    with pytest.raises(asyncpg.PostgresError, match="has no file old that is ready"):
        await rows(pool, NAMES, "c3", "old")

    async def forget(conn: Any) -> None:
        await conn.fetch("SELECT set_config('turnstile.retention', 'on', true)")
        await conn.fetch("DELETE FROM public.cards WHERE card_id = 'c1'")

    async with in_flight(pool, forget):
        pass
    assert (await prune(pool, limits)).files == 1
