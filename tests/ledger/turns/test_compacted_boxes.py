"""A compaction makes a box, and the pointers move; the box before reads as it did, for everybody (protocol §7.3)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CHANNEL,
    PROJECT,
    announce,
    ask,
    begin,
    box,
    card,
    finish,
    head,
    lease,
    play,
    rows,
    start,
    stop,
    value,
)
from tests.support.ledger.compactions import compact, cut_record
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.talks import CountedCache
from tests.support.waiting import in_flight, overtaken
from turnstile.ledger.operations.retention import RetentionLimits, prune
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.boxes import fork_box
from turnstile.ledger.turns.ends import recall_step
from turnstile.ledger.turns.lease import dispatch_next
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.views import describe_turn
from turnstile.schema.ids import AgentTurnId, BoxId, CardId, new_box_id
from turnstile.schema.turns import TurnRef

IN_ROW = "SELECT payload ->> 'output_box_id' FROM state.agent_inbox WHERE inbox_id = $1"
CONVERSATION = "SELECT output_box_id::text FROM state.conversations"
POINTER = "SELECT last_output_box_id::text FROM state.agent_state_pointers WHERE agent_id = 'alice'"


def first_of(turn: TurnRef) -> CardId:
    return CardId(f"{turn.agent_turn_id}-s1-thought")


async def ended_in(pool: Pool, turn: AgentTurnId) -> BoxId:
    """The box that the turn's outcome names."""
    return await value(pool, "SELECT output_box_id::text FROM state.turn_outcomes WHERE agent_turn_id = $1", turn)


async def ids(pool: Pool, of: BoxId) -> list[CardId]:
    """The cards of a box."""
    return [each.card_id for each in await box(pool, of)]


async def said(pool: Pool, turns: int) -> list[TurnRef]:
    """So many turns of one conversation, which are over."""
    made: list[TurnRef] = []
    for _ in range(turns):
        await ask(pool, conversation_id="c1")
        made.append(await play(pool))
    return made


async def cutting(pool: Pool, turns: int = 2) -> tuple[list[TurnRef], TurnRef]:
    """These, and a leased turn that comes after them."""
    return await said(pool, turns), await lease(pool, conversation_id="c1")


async def test_a_compaction_makes_a_box_and_the_pointers_move(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    before = await ids(agents, turn.output_box_id)
    assert await value(agents, POINTER) == turn.output_box_id
    thought = card(turn, 1, "thought")
    moved = await compact(agents, turn, first_of(earlier[1]), cards=[thought])
    assert moved.output_box_id != turn.output_box_id
    cut = f"{turn.agent_turn_id}-s1-memory-cut"
    assert await ids(agents, moved.output_box_id) == [cut, *before[2:], thought.card_id]
    assert await ids(agents, turn.output_box_id) == before
    assert await value(agents, CONVERSATION) == await value(agents, POINTER) == moved.output_box_id
    assert str((await head(agents))["output_box_id"]) == moved.output_box_id
    assert await rows(agents, "SELECT parent_ids::text[] AS of FROM boxes WHERE box_id = $1", moved.output_box_id) == [
        {"of": [turn.output_box_id]}
    ]
    read = "SELECT output_box_id::text FROM state.agent_steps WHERE agent_turn_id = $1"
    assert await value(agents, read, turn.agent_turn_id) == turn.output_box_id
    view = await agents.run(lambda conn: describe_turn(conn, PROJECT, turn.agent_turn_id))
    assert view is not None
    assert view.output_box_id == moved.output_box_id
    begun = await begin(agents, moved, 2)
    assert [each.card_id for each in begun.output] == await ids(agents, moved.output_box_id)
    ended = await finish(agents, moved, 2)
    assert ended.output_box_id == moved.output_box_id == await value(agents, POINTER)
    following = await lease(agents, conversation_id="c1")
    assert following.output_box_id == moved.output_box_id
    assert await ids(agents, turn.output_box_id) == before


async def test_a_turn_that_waited_reads_what_one_enqueued_later_does(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    waiting = (await ask(agents, conversation_id="c1")).reply
    assert waiting.output_box_id == turn.output_box_id  # where the conversation was, as it was asked
    assert await value(agents, IN_ROW, waiting.inbox_id) is None
    moved = await compact(agents, turn, first_of(earlier[1]))
    queued = await agents.run(lambda conn: describe_turn(conn, PROJECT, waiting.agent_turn_id or turn.agent_turn_id))
    assert queued is not None
    assert queued.output_box_id == moved.output_box_id
    assert (await finish(agents, moved, 2)).next_output_box_id == moved.output_box_id
    following = await start(agents)
    assert following.output_box_id == moved.output_box_id
    assert await value(agents, IN_ROW, waiting.inbox_id) == moved.output_box_id
    assert [each.card_id for each in (await begin(agents, following)).output] == await ids(agents, moved.output_box_id)


async def test_a_box_that_a_caller_names_stays_what_it_named(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    fork = new_box_id()
    await agents.run(lambda conn: fork_box(conn, PROJECT, CHANNEL, turn.output_box_id, fork))
    named = [(await ask(agents, output_box_id=each)).reply for each in (turn.output_box_id, fork)]
    moved = await compact(agents, turn, first_of(earlier[1]))
    await finish(agents, moved, 2)
    for reply, of in zip(named, (turn.output_box_id, fork), strict=True):
        following = await start(agents)
        assert (following.agent_turn_id, following.output_box_id) == (reply.agent_turn_id, of)
        assert first_of(earlier[0]) in {each.card_id for each in (await begin(agents, following)).output}
        await finish(agents, following)


async def test_a_compaction_outside_of_a_conversation_moves_what_names_the_box(agents: Pool) -> None:
    one = await lease(agents)
    await begin(agents, one)
    await finish(agents, one)
    turn = await lease(agents, output_box_id=one.output_box_id)
    moved = await compact(agents, turn, first_of(one))
    assert await value(agents, POINTER) == moved.output_box_id
    other = await lease(agents, agent=BOB)
    await begin(agents, other)
    await finish(agents, other)
    await finish(agents, moved, 2)
    assert await ended_in(agents, turn.agent_turn_id) == moved.output_box_id


async def test_a_repeated_commit_answers_with_the_box_that_was_made(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    begun = await begin(agents, turn)
    records = [cut_record(turn, 1, first_of(earlier[1]), begun.head.output_position) for _ in range(2)]
    first, again = [await agents.run(lambda conn, record=record: commit_step(conn, turn, record)) for record in records]
    assert (first.result, again.result) == ("done", "already")
    assert first.step_metadata.box_after == again.step_metadata.box_after == await value(agents, CONVERSATION)
    assert await value(agents, "SELECT count(*) FROM boxes WHERE parent_ids <> '{}'") == 1
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 1))
    assert recalled.step_metadata is not None
    assert recalled.step_metadata.box_after == first.step_metadata.box_after


async def test_who_missed_a_compaction_reads_the_box_of_the_head(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    cache = CountedCache(1 << 20)
    begun = await begin(agents, turn, cache=cache)
    moved = await compact(agents, turn, first_of(earlier[1]), begun=begun)
    wanted = await ids(agents, moved.output_box_id)
    for given in (turn, moved):
        again = await begin(agents, given, 2, cache)
        assert [each.card_id for each in again.output] == wanted
        assert again.head.output_box_id == moved.output_box_id
    before = cache.rows
    assert [each.card_id for each in (await begin(agents, moved, 2, cache)).output] == wanted
    assert cache.rows == before


async def test_a_turn_compacts_twice_and_both_boxes_stay(agents: Pool) -> None:
    earlier, turn = await cutting(agents, 3)
    moved = await compact(agents, turn, first_of(earlier[1]), cards=[card(turn, 1, "thought")])
    twice = await compact(
        agents, moved, first_of(earlier[2]), 2, carried=[CardId(f"{turn.agent_turn_id}-s1-memory-cut")]
    )
    mine = f"{turn.agent_turn_id}-s"
    there = await ids(agents, twice.output_box_id)
    assert there[:2] == [CardId(f"{mine}2-memory-cut"), CardId(f"{mine}1-memory-cut")]
    assert there[2:] == [*(await ids(agents, moved.output_box_id))[3:]]
    assert await value(agents, CONVERSATION) == twice.output_box_id
    await finish(agents, twice, 3)
    assert await ended_in(agents, turn.agent_turn_id) == twice.output_box_id
    async with agents.connection() as conn:
        await assert_invariants(conn)


async def test_a_compaction_and_an_enqueue_wait_for_each_other(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    begun = await begin(agents, turn)
    record = cut_record(turn, 1, first_of(earlier[1]), begun.head.output_position)
    done = await overtaken(agents, lambda conn: commit_step(conn, turn, record), ask(agents, conversation_id="c1"))
    assert done.reply.output_box_id == record.metadata.box_after
    await finish(agents, turn, 2)
    assert (await start(agents)).output_box_id == record.metadata.box_after


@pytest.mark.parametrize("named", [False, True])
async def test_a_compaction_and_the_stop_of_a_queued_turn_pass_each_other(agents: Pool, *, named: bool) -> None:
    earlier, turn = await cutting(agents)
    begun = await begin(agents, turn)
    fields: dict[str, Any] = {"output_box_id": turn.output_box_id} if named else {"conversation_id": "c1"}
    queued = (await ask(agents, **fields)).reply
    record = cut_record(turn, 1, first_of(earlier[1]), begun.head.output_position)
    assert queued.agent_turn_id is not None
    await overtaken(agents, lambda conn: commit_step(conn, turn, record), stop(agents, ALICE, queued.agent_turn_id))
    ended = await ended_in(agents, queued.agent_turn_id)
    assert (ended == turn.output_box_id) == named
    moved = turn.model_copy(update={"output_box_id": record.metadata.box_after})
    assert f"{queued.agent_turn_id}-deliverable" not in await ids(agents, moved.output_box_id)
    await finish(agents, moved, 2)
    async with agents.connection() as conn:
        await assert_invariants(conn)


async def test_a_lease_that_waited_for_the_head_takes_the_newest_box(agents: Pool) -> None:
    """The lease's snapshot is older than its lock: it asks the pointer anew."""
    [earlier] = await said(agents, 1)
    holder = await lease(agents, BOB, output_box_id=earlier.output_box_id)
    await ask(agents, conversation_id="c1")
    await begin(agents, holder)
    await finish(agents, holder)
    fork = new_box_id()
    await agents.run(lambda conn: fork_box(conn, PROJECT, CHANNEL, earlier.output_box_id, fork))

    async def moves(conn: Connection) -> None:  # as if turns of hers had come and gone meanwhile
        await conn.fetch("SELECT FROM state.agent_state_head WHERE agent_id = 'alice' FOR NO KEY UPDATE")
        await conn.fetch("UPDATE state.conversations SET output_box_id = $1::text::uuid", fork)

    [leased] = await overtaken(agents, moves, agents.run(lambda conn: dispatch_next(conn, [(PROJECT, ALICE)])))
    assert leased.output_box_id == fork
    assert (await start(agents)).output_box_id == fork
    assert await value(agents, IN_ROW, leased.inbox_id) == fork


async def test_retention_leaves_the_boxes_that_a_turn_has_read(agents: Pool) -> None:
    earlier, turn = await cutting(agents, 3)
    moved = await compact(agents, turn, first_of(earlier[1]), cards=[card(turn, 1, "thought")])
    cut = CardId(f"{turn.agent_turn_id}-s1-memory-cut")
    twice = await compact(agents, moved, first_of(earlier[2]), 2, carried=[cut])
    await finish(agents, twice, 3)
    boxes = {turn.output_box_id, moved.output_box_id, twice.output_box_id}
    there = "SELECT box_id::text AS box FROM boxes"
    await announce(agents, [each.agent_turn_id for each in (*earlier, turn)])
    limits = RetentionLimits(datetime.now(UTC) + timedelta(minutes=1))
    assert (await prune(agents, limits)).turns == len(earlier)
    assert boxes <= {row["box"] for row in await rows(agents, there)}
    await ask(agents, conversation_id="c1")
    await ask(agents)
    last = [await play(agents) for _ in range(2)][-1]
    await announce(agents, [last.agent_turn_id])
    assert (await prune(agents, limits)).turns == 1
    assert boxes & {row["box"] for row in await rows(agents, there)} == {twice.output_box_id}  # the conversation's
    async with agents.connection() as conn:
        await assert_invariants(conn)


async def test_a_compaction_and_retention_pass_each_other(agents: Pool) -> None:
    earlier, turn = await cutting(agents)
    begun = await begin(agents, turn)
    record = cut_record(turn, 1, first_of(earlier[1]), begun.head.output_position)
    await announce(agents, [each.agent_turn_id for each in earlier])
    limits = RetentionLimits(datetime.now(UTC) + timedelta(minutes=1))
    async with in_flight(agents, lambda conn: commit_step(conn, turn, record)):
        await prune(agents, limits)
    await prune(agents, limits)
    moved = turn.model_copy(update={"output_box_id": record.metadata.box_after})
    assert [each.card_id for each in (await begin(agents, moved, 2)).output] == await ids(agents, moved.output_box_id)
    assert len(await ids(agents, turn.output_box_id)) == 4
