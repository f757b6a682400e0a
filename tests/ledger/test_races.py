"""Interleavings that broke an invariant, each with one transaction in flight that another one waits for.

The numbers are those of the pitfalls in the ledger notes. Each was seen to fail without its cure.
"""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ledger.intake import Enqueued, QueuedStop, stop_queued_turn
from ledger.lease import dispatch_next
from ledger.pool import Again, Pool
from ledger.queries import Connection, query
from ledger.roster import add_agent, list_agents, list_profiles, put_profile
from ledger.turns import commit_step, fallback_card, fence
from schema.errors import Refused, StaleTurn
from schema.ids import AgentId, AgentTurnId, BoxId, new_box_id
from schema.states import TurnStatus
from schema.turns import TurnRef
from tests.support.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    add_agents,
    ask,
    begin,
    box,
    command,
    commit,
    finish,
    finish_on,
    head,
    lease,
    middle_record,
    play,
    profile,
    send,
    start,
    stop_on,
    value,
)
from tests.support.invariants import assert_invariants
from tests.support.waiting import overtaken


@pytest.fixture
async def pool(pool: Pool) -> Pool:
    await add_agents(pool, ALICE, BOB, CAROL)
    return pool


async def check(pool: Pool, *skip: str) -> None:
    async with pool.connection() as conn:
        await assert_invariants(conn, skip=skip)


def stop(agent: AgentId, queued: Enqueued) -> Callable[[Connection], Awaitable[QueuedStop | None]]:
    """The stop of a queued turn, as a transition."""
    return lambda conn: stop_on(conn, agent, queued)


async def test_1_a_finish_sees_the_enqueue_it_waited_for(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)
    sent = command()
    [ended] = await overtaken(pool, lambda conn: send(conn, sent), finish(pool, turn))
    assert (ended.result, ended.head_status, ended.next_turn_id) == ("done", "dispatched", sent.agent_turn_id)
    await check(pool)


async def test_1_a_single_finish_that_waited_changes_nothing(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)

    async def once() -> None:
        async with pool.connection() as conn:
            await finish_on(conn, turn)

    sent = command()
    with pytest.raises(Again):
        await overtaken(pool, lambda conn: send(conn, sent), once())
    assert (await head(pool))["status"] == "running"
    await check(pool)


async def test_1_an_enqueue_leases_the_agent_that_a_finish_freed_meanwhile(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)
    [asked] = await overtaken(pool, lambda conn: finish_on(conn, turn), ask(pool))
    assert asked.lease is not None
    assert asked.reply.inbox_status == "pending"
    await check(pool)


async def test_1_an_enqueue_into_the_box_that_a_finish_frees_meanwhile_is_leased(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)
    [asked] = await overtaken(pool, lambda conn: finish_on(conn, turn), ask(pool, output_box_id=turn.output_box_id))
    assert asked.lease is not None
    await play(pool)
    await check(pool)


async def test_2_a_twin_of_a_commit_is_answered_what_is_recorded(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)
    [twin] = await overtaken(pool, lambda conn: commit_step(conn, turn, middle_record(turn, 1)), commit(pool, turn))
    assert (twin.result, twin.step_metadata) == ("already", {"next": "continue"})
    await check(pool)


async def test_2_a_twin_of_a_finish_is_answered_what_is_recorded(pool: Pool) -> None:
    turn = await lease(pool)
    await begin(pool, turn)
    [twin] = await overtaken(pool, lambda conn: finish_on(conn, turn), finish(pool, turn))
    assert (twin.result, twin.step_metadata) == ("already", {"next": "end"})
    await check(pool)


async def test_3_a_simultaneous_duplicate_leases_once(pool: Pool) -> None:
    sent, twin = command(correlation_id="c"), command(correlation_id="c")
    [second] = await overtaken(pool, lambda conn: send(conn, sent), pool.run(lambda conn: send(conn, twin)))
    assert (second.reply.duplicate, second.reply.agent_turn_id, second.lease) == (True, sent.agent_turn_id, None)
    assert (await head(pool))["turn_epoch"] == 1
    await check(pool)


async def test_3_a_simultaneous_use_of_a_correlation_for_another_agent_is_a_conflict(pool: Pool) -> None:
    sent = command(correlation_id="c")
    with pytest.raises(Refused) as refused:
        await overtaken(pool, lambda conn: send(conn, sent), ask(pool, BOB, correlation_id="c"))
    assert refused.value.code == "correlation_conflict"
    assert (await head(pool, BOB))["status"] == "idle"
    await check(pool)


async def test_5_a_finish_never_leases_a_turn_that_is_being_stopped(pool: Pool) -> None:
    turn = await lease(pool)
    stopped, waiting = await ask(pool), await ask(pool)
    await begin(pool, turn)
    [ended] = await overtaken(pool, stop(ALICE, stopped), finish(pool, turn))
    assert ended.next_turn_id == waiting.reply.agent_turn_id
    await check(pool)


async def test_5_a_stop_never_ends_a_turn_that_is_being_leased(pool: Pool) -> None:
    turn = await lease(pool)
    waiting = await ask(pool)
    await begin(pool, turn)
    [stopped] = await overtaken(pool, lambda conn: finish_on(conn, turn), pool.run(stop(ALICE, waiting)))
    assert stopped is None
    assert (await start(pool)).agent_turn_id == waiting.reply.agent_turn_id
    await check(pool)


async def test_5_dispatch_never_leases_a_turn_that_is_being_stopped(pool: Pool) -> None:
    stopped = await stranded(pool)
    [leases] = await overtaken(pool, stop(ALICE, stopped), pool.run(lambda c: dispatch_next(c, [(PROJECT, ALICE)])))
    assert leases == []
    await check(pool)


async def stranded(pool: Pool, *agents: AgentId) -> Enqueued:
    """A turn of each agent, queued while its agent is idle, its box held by Carol and then freed."""
    held = await lease(pool, CAROL)
    asked = [await ask(pool, agent, output_box_id=held.output_box_id) for agent in agents or (ALICE,)]
    await begin(pool, held)
    await finish(pool, held)
    return asked[0]


async def test_9_positions_after_a_stop_that_wrote_to_the_box_of_a_running_turn(pool: Pool) -> None:
    turn = await lease(pool)
    waiting = await ask(pool, output_box_id=turn.output_box_id)
    await begin(pool, turn)
    await commit(pool, turn)
    [committed] = await overtaken(pool, stop(ALICE, waiting), commit(pool, turn, 2))
    assert committed.result == "done"
    await finish(pool, turn, 3)
    await check(pool)


async def test_9_positions_after_a_stop_that_wrote_to_the_box_of_a_dispatched_turn(pool: Pool) -> None:
    """The turn that begins waits for it: what it saw of the box is old."""
    first = await lease(pool)
    await begin(pool, first)
    await finish(pool, first)
    turn = await lease(pool, output_box_id=first.output_box_id)
    waiting = await ask(pool, output_box_id=first.output_box_id)
    await overtaken(pool, stop(ALICE, waiting), begin(pool, turn))
    await commit(pool, turn)
    await finish(pool, turn, 2)
    assert [place.type for place in await box(pool, turn.output_box_id)].count("task.deliverable") == 3
    await check(pool)


async def test_9_positions_after_a_stop_by_an_agent_that_believed_the_box_free(pool: Pool) -> None:
    queued = await stranded(pool)
    shared = queued.reply.output_box_id
    sent = command()  # holds Alice's head, and leases her to nothing: the stop waits with an old picture of Bob

    async def steps() -> TurnRef:
        turn = await lease(pool, BOB, output_box_id=shared)
        await begin(pool, turn)
        return turn

    async with pool.connection() as conn:
        async with conn.transaction():
            await conn.fetch("SELECT FROM state.agent_state_head WHERE agent_id = $1 FOR UPDATE", ALICE)
            stopping = asyncio.create_task(pool.run(stop(ALICE, queued)))
            from tests.support.waiting import until_waiting

            await until_waiting(pool)
            turn = await steps()
    stopped = await stopping
    assert stopped is not None
    await commit(pool, turn)
    await finish(pool, turn, 2)
    await check(pool)
