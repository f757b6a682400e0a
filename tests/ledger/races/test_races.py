"""Interleavings that broke an invariant, each with one transaction in flight that another one waits for.

The numbers are those of the hazards in docs/hazards.md. Each was seen to fail without its cure.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
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
    stop,
    stop_on,
)
from tests.support.waiting import overtaken, until_waiting
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection
from turnstile.ledger.roster import add_agent, list_agents, list_profiles, put_profile
from turnstile.ledger.turns.cards import make_box
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.intake import Enqueued, QueuedStop
from turnstile.ledger.turns.lease import dispatch_next
from turnstile.ledger.turns.steps import commit_step
from turnstile.rules.turn_ends import LIVE, Ending, fallback_card
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentId, CardId, ChannelId, new_box_id
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata, EndMetadata

T = TypeVar("T")


def stopping(agent: AgentId, queued: Enqueued) -> Callable[[Connection], Awaitable[QueuedStop | None]]:
    """The stop of a queued turn, as a transition."""
    return lambda conn: stop_on(conn, agent, queued)


async def test_1_a_finish_sees_the_enqueue_it_waited_for(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    sent = command()
    ended = await overtaken(agents, lambda conn: send(conn, sent), finish(agents, turn))
    assert (ended.result, ended.head_status, ended.next_turn_id) == ("done", "dispatched", sent.agent_turn_id)


async def test_1_a_single_finish_that_waited_changes_nothing(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)

    async def once() -> None:
        async with agents.connection() as conn:
            await finish_on(conn, turn)

    sent = command()
    with pytest.raises(Again):
        await overtaken(agents, lambda conn: send(conn, sent), once())
    assert (await head(agents))["status"] == "running"


async def test_1_an_enqueue_leases_the_agent_that_a_finish_freed_meanwhile(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    asked = await overtaken(agents, lambda conn: finish_on(conn, turn), ask(agents))
    assert asked.lease is not None
    assert asked.reply.inbox_status == "pending"


async def test_1_an_enqueue_into_the_box_that_a_finish_frees_meanwhile_is_leased(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    asked = await overtaken(agents, lambda conn: finish_on(conn, turn), ask(agents, output_box_id=turn.output_box_id))
    assert asked.lease is not None
    await play(agents)


async def test_2_a_twin_of_a_commit_is_answered_what_is_recorded(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    twin = await overtaken(agents, lambda conn: commit_step(conn, turn, middle_record(turn, 1)), commit(agents, turn))
    assert (twin.result, twin.step_metadata) == ("already", ContinueMetadata())


async def test_2_a_twin_of_a_finish_is_answered_what_is_recorded(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    twin = await overtaken(agents, lambda conn: finish_on(conn, turn), finish(agents, turn))
    assert (twin.result, twin.step_metadata) == ("already", EndMetadata())


async def test_3_a_simultaneous_duplicate_leases_once(agents: Pool) -> None:
    sent, twin = command(correlation_id="c"), command(correlation_id="c")
    second = await overtaken(agents, lambda conn: send(conn, sent), agents.run(lambda conn: send(conn, twin)))
    assert (second.reply.duplicate, second.reply.agent_turn_id, second.lease) == (True, sent.agent_turn_id, None)
    assert (await head(agents))["turn_epoch"] == 1


async def test_3_a_simultaneous_use_of_a_correlation_for_another_agent_is_a_conflict(agents: Pool) -> None:
    sent = command(correlation_id="c")
    with pytest.raises(Refused) as refused:
        await overtaken(agents, lambda conn: send(conn, sent), ask(agents, BOB, correlation_id="c"))
    assert refused.value.code == "correlation_conflict"
    assert (await head(agents, BOB))["status"] == "idle"


async def test_5_a_finish_never_leases_a_turn_that_is_being_stopped(agents: Pool) -> None:
    turn = await lease(agents)
    stopped, waiting = await ask(agents), await ask(agents)
    await begin(agents, turn)
    ended = await overtaken(agents, stopping(ALICE, stopped), finish(agents, turn))
    assert ended.next_turn_id == waiting.reply.agent_turn_id


async def test_5_a_stop_never_ends_a_turn_that_is_being_leased(agents: Pool) -> None:
    turn = await lease(agents)
    waiting = await ask(agents)
    await begin(agents, turn)
    stopped = await overtaken(agents, lambda conn: finish_on(conn, turn), agents.run(stopping(ALICE, waiting)))
    assert stopped is None
    assert (await start(agents)).agent_turn_id == waiting.reply.agent_turn_id


async def test_5_dispatch_never_leases_a_turn_that_is_being_stopped(agents: Pool) -> None:
    stopped = await stranded(agents)
    leases = await overtaken(
        agents, stopping(ALICE, stopped), agents.run(lambda c: dispatch_next(c, [(PROJECT, ALICE)]))
    )
    assert leases == []


async def stranded(pool: Pool, *agents: AgentId) -> Enqueued:
    """A turn of each agent, queued while its agent is idle, its box held by Carol and then freed."""
    held = await lease(pool, CAROL)
    asked = [await ask(pool, agent, output_box_id=held.output_box_id) for agent in agents or (ALICE,)]
    await begin(pool, held)
    await finish(pool, held)
    return asked[0]


async def test_9_positions_after_a_stop_that_wrote_to_the_box_of_a_running_turn(agents: Pool) -> None:
    turn = await lease(agents)
    waiting = await ask(agents, output_box_id=turn.output_box_id)
    await begin(agents, turn)
    await commit(agents, turn)
    committed = await overtaken(agents, stopping(ALICE, waiting), commit(agents, turn, 2))
    assert committed.result == "done"
    await finish(agents, turn, 3)


async def test_9_positions_after_a_stop_that_wrote_to_the_box_of_a_dispatched_turn(agents: Pool) -> None:
    """The turn that begins waits for it: what it saw of the box is old."""
    first = await lease(agents)
    await begin(agents, first)
    await finish(agents, first)
    turn = await lease(agents, output_box_id=first.output_box_id)
    waiting = await ask(agents, output_box_id=first.output_box_id)
    await overtaken(agents, stopping(ALICE, waiting), begin(agents, turn))
    await commit(agents, turn)
    await finish(agents, turn, 2)
    assert [place.type for place in await box(agents, turn.output_box_id)].count("task.deliverable") == 3


async def test_9_positions_after_a_stop_by_an_agent_that_believed_the_box_free(agents: Pool) -> None:
    queued = await stranded(agents)
    async with agents.connection() as conn, conn.transaction():
        await conn.fetch("SELECT FROM state.agent_state_head WHERE agent_id = $1 FOR UPDATE", ALICE)
        late = asyncio.create_task(stop(agents, ALICE, queued))
        await until_waiting(agents)  # with a picture in which nobody holds the box
        turn = await lease(agents, BOB, output_box_id=queued.reply.output_box_id)
        await begin(agents, turn)
    assert await late is not None
    await commit(agents, turn)
    await finish(agents, turn, 2)


async def test_11_a_finish_does_not_depend_on_the_box_of_the_next_turn(agents: Pool) -> None:
    turn, other = await lease(agents), await lease(agents, BOB)
    await ask(agents, output_box_id=other.output_box_id)
    await begin(agents, turn)
    assert (await finish(agents, turn)).head_status == "idle"


async def test_11_a_finish_whose_next_box_is_taken_meanwhile_leases_another_turn(agents: Pool) -> None:
    holder = await lease(agents, CAROL)
    turn = await lease(agents)
    await begin(agents, turn)
    await ask(agents, output_box_id=holder.output_box_id)
    free = await ask(agents)
    await begin(agents, holder)
    await finish(agents, holder)
    taken = command(BOB, output_box_id=holder.output_box_id)
    ended = await overtaken(agents, lambda conn: send(conn, taken), finish(agents, turn))
    assert ended.next_turn_id == free.reply.agent_turn_id


async def test_11_two_agents_that_are_dispatched_at_once_do_not_share_a_box(agents: Pool) -> None:
    await stranded(agents, ALICE, BOB)
    both = [(PROJECT, ALICE), (PROJECT, BOB)]
    [leased] = await agents.run(lambda conn: dispatch_next(conn, both))
    assert leased.agent_id == ALICE
    await play(agents, ALICE)
    assert [each.agent_id for each in await agents.run(lambda conn: dispatch_next(conn, both))] == [BOB]
    await play(agents, BOB)


async def test_a_worker_that_is_late_by_a_fence_has_no_effect(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    ending = Ending(TurnStatus.FAILED, CardId(f"{turn.agent_turn_id}-deliverable"), "timeout_reaped_by_watchdog")
    card = fallback_card(turn, (), TurnStatus.FAILED, "reaped")

    async def fence_on(conn: Connection) -> object:
        return await finish_turn(conn, turn, ending, cards=[card], from_statuses=LIVE, raise_epoch=True)

    with pytest.raises(StaleTurn):
        await overtaken(agents, fence_on, commit(agents, turn))
    assert (await head(agents))["turn_epoch"] == 2


async def test_a_profile_that_is_put_twice_at_once_is_the_last_ones(agents: Pool) -> None:
    first, second = profile(max_steps=1), profile(max_steps=2)
    box_id, created, count = await overtaken(
        agents, lambda conn: put_profile(Here(conn), PROJECT, first), put_profile(agents, PROJECT, second)
    )
    assert (created, count) == (False, 3)
    assert [row.profile_box_id for row in await list_profiles(agents, PROJECT)] == [box_id]


async def test_an_agent_that_is_added_beside_a_put_gets_its_profile(agents: Pool) -> None:
    dave = AgentId("dave")
    _, _, count = await overtaken(
        agents, lambda conn: add_agent(Here(conn), PROJECT, dave, "helper"), put_profile(agents, PROJECT, profile())
    )
    assert count == 4
    erin = AgentId("erin")
    await overtaken(
        agents, lambda conn: put_profile(Here(conn), PROJECT, profile()), add_agent(agents, PROJECT, erin, "helper")
    )
    assert {row.profile_name for row in await list_agents(agents, PROJECT)} == {"helper"}


class Here(Pool):
    """A pool that runs a transition on the connection it is given, once."""

    def __init__(self, conn: Connection) -> None:
        super().__init__("postgresql://nowhere/none")
        self._conn = conn

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        return await transition(self._conn)


async def test_of_two_channels_that_write_in_a_box_of_nobody_at_once_one_has_it(agents: Pool) -> None:
    shared = new_box_id()
    await agents.run(lambda conn: make_box(conn, PROJECT, shared, []))
    first = command(output_box_id=shared)
    second = replace(command(BOB, output_box_id=shared), channel_id=ChannelId("u_blue"))
    with pytest.raises(Refused) as refused:
        await overtaken(agents, lambda conn: send(conn, first), agents.run(lambda conn: send(conn, second)))
    assert refused.value.code == "unknown_output_box"
    await play(agents)
