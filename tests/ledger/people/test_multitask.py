"""Strategies of an enqueue on the turns before it: reject, interrupt, rollback (protocol §6, enqueue)."""

import json
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    STARTED,
    ask,
    begin,
    box,
    card,
    finish,
    head,
    play,
    profile,
    rows,
    start,
    stop,
    value,
)
from tests.support.ledger.calls import end, sleeper, suspend
from tests.support.ledger.compactions import compact
from tests.support.ledger.multitask import EVE, again, asked, over, plain
from tests.support.ledger.trees import child, forks, parent
from turnstile.ledger.people.multitask import MadeWay, make_way, requester_of
from turnstile.ledger.people.steered_enqueues import Steered, steer_or_make_way
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import LOCAL, put_profile, set_agent_status
from turnstile.ledger.turns.boxes import compose_box, fork_box
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.intake import Enqueued, enqueue_turn
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.waiting import request_stop
from turnstile.rules.turn_step import BegunStep, StepRecord
from turnstile.schema.cards import CardType, Role, TextContent, make_card
from turnstile.schema.errors import BadRequest, Limited, Refused
from turnstile.schema.ids import AgentTurnId, BoxId, CardId, ChannelId, InboxId, new_box_id
from turnstile.schema.profiles import Memory
from turnstile.schema.states import TurnStatus
from turnstile.schema.step_metadata import ContinueMetadata
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.box_requests import BoxMakeRequest
from turnstile.schema.wire.limits import Admission

STOPPING = ("interrupt", "rollback")


def turn_id(done: Enqueued) -> AgentTurnId:
    assert done.reply.agent_turn_id is not None
    return done.reply.agent_turn_id


async def queue(pool: Pool) -> list[str]:
    """Alice's queued turns, in their order."""
    found = await rows(
        pool, "SELECT agent_turn_id FROM state.queued_turns WHERE agent_id = 'alice' ORDER BY created_at"
    )
    return [row["agent_turn_id"] for row in found]


async def stops(pool: Pool) -> list[str]:
    """The turns that are asked to stop."""
    found = await rows(
        pool, "SELECT correlation_id FROM state.agent_inbox WHERE message_type = 'stop' AND archived_at IS NULL"
    )
    return [row["correlation_id"] for row in found]


async def outcome(pool: Pool, turn: AgentTurnId) -> dict[str, Any]:
    [row] = await rows(pool, "SELECT * FROM state.turn_outcomes WHERE agent_turn_id = $1", turn)
    return row


async def say(pool: Pool) -> TurnRef:
    """The leased turn from its claim to its end, with its instruction in the box, as a turn that remembers has it."""
    turn = await start(pool)
    await begin(pool, turn)
    await _commit_asked(pool, turn)
    await finish(pool, turn, 2)
    return turn


async def _commit_asked(pool: Pool, turn: TurnRef) -> None:
    asked = CardId(f"{turn.agent_turn_id}-instruction")
    thought = card(turn, 1, "thought")
    instruction = make_card(
        asked, CardType.INSTRUCTION, Role.USER, TextContent(text="x"), author="me", turn=turn.agent_turn_id
    )
    record = StepRecord(1, ContinueMetadata(), [instruction, thought], [], STARTED, kept=[asked])
    await pool.run(lambda conn: commit_step(conn, turn, record))


def read(begun: BegunStep) -> set[str | None]:
    """The turns of whose cards the output box was read."""
    return {each.metadata.agent_turn_id for each in begun.output}


async def test_reject_refuses_and_names_the_turn(agents: Pool) -> None:
    first = await again(agents, "reject")
    before = await value(agents, "SELECT count(*) FROM state.agent_inbox")
    with pytest.raises(Refused) as refused:
        await again(agents, "reject")
    assert refused.value.code == "turn_in_progress"
    assert turn_id(first.enqueued) in str(refused.value)
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == before
    await again(agents, "reject", who=EVE)  # it waits behind the first
    await play(agents)
    assert (await head(agents))["status"] == "dispatched"
    await again(agents, "reject")


async def test_reject_names_the_newest_that_is_queued(agents: Pool) -> None:
    await plain(agents)
    newest = await plain(agents)
    with pytest.raises(Refused) as refused:
        await again(agents, "reject")
    assert turn_id(newest) in str(refused.value)


@pytest.mark.parametrize("strategy", STOPPING)
@pytest.mark.parametrize("state", ["dispatched", "running", "suspended"])
async def test_the_turn_in_hand_is_asked_to_stop_and_the_new_one_is_next(
    agents: Pool, strategy: str, state: str
) -> None:
    await plain(agents)
    turn = await start(agents)
    if state != "dispatched":
        await begin(agents, turn)
    if state == "suspended":
        await suspend(agents, turn, "a")
    await plain(agents, EVE)
    made = await again(agents, strategy)
    [(found, ended)] = made.stopped
    assert (found.agent_turn_id, ended) == (turn.agent_turn_id, None)
    assert found.verdict == ("dispatched" if state == "dispatched" else "accepted")
    assert made.marked == [turn.agent_turn_id]
    assert made.enqueued.reply.stopped == (turn.agent_turn_id,)
    assert await stops(agents) == [turn.agent_turn_id]
    assert (await queue(agents))[0] == turn_id(made.enqueued)
    assert (await head(agents))["active_agent_turn_id"] == turn.agent_turn_id
    done = await end(agents, turn)
    assert (done.status, done.next_turn_id) == (TurnStatus.CANCELED, turn_id(made.enqueued))
    assert await stops(agents) == []
    kept = (await outcome(agents, turn.agent_turn_id))["stats"]
    assert ("rolled_back_by" in json.loads(kept)) == (strategy == "rollback")


@pytest.mark.parametrize("strategy", STOPPING)
async def test_own_queued_turns_end_and_those_of_others_stay(agents: Pool, strategy: str) -> None:
    await plain(agents, EVE)
    mine, theirs, more = await plain(agents), await plain(agents, EVE), await plain(agents)
    elsewhere = await plain(agents, conversation="c2")
    made = await again(agents, strategy)
    assert [found.agent_turn_id for found, _ in made.stopped] == [turn_id(mine), turn_id(more)]
    assert [done.status for _, done in made.stopped if done is not None] == [TurnStatus.CANCELED] * 2
    assert await queue(agents) == [turn_id(each) for each in (made.enqueued, theirs, elsewhere)]
    assert (await outcome(agents, turn_id(mine)))["error_code"] == "stopped"
    assert await stops(agents) == []
    newer = await again(agents, strategy, who=EVE)
    assert await queue(agents) == [turn_id(each) for each in (newer.enqueued, made.enqueued, elsewhere)]


@pytest.mark.parametrize("strategy", ["reject", *STOPPING])
async def test_nothing_of_another_conversation_channel_agent_or_tree_is_touched(agents: Pool, strategy: str) -> None:
    parent = {headers.PARENT_TURN_ID: "t-1"}
    others = [await plain(agents, incoming=parent), await plain(agents, incoming=parent)]
    others += [await plain(agents, conversation="c2"), await plain(agents, agent=BOB)]
    others += [(await again(agents, strategy, channel=ChannelId("u_me"))).enqueued, await plain(agents, EVE)]
    made = await again(agents, strategy)
    assert made.enqueued.reply.stopped == ()
    assert await stops(agents) == []
    left = await rows(agents, "SELECT agent_turn_id FROM state.agent_inbox WHERE archived_at IS NULL")
    assert {row["agent_turn_id"] for row in left} == {turn_id(each) for each in (*others, made.enqueued)}


async def test_an_idle_agent_takes_the_turn_at_once(agents: Pool) -> None:
    made = await again(agents, "interrupt")
    assert made.enqueued.lease is not None
    assert (made.stopped, made.enqueued.reply.stopped) == ([], ())


async def test_turns_that_wait_for_a_paused_agent_make_way(agents: Pool) -> None:
    await set_agent_status(agents, PROJECT, ALICE, "pause", LOCAL)
    waits = await plain(agents)
    made = await again(agents, "rollback")
    assert [found.agent_turn_id for found, _ in made.stopped] == [turn_id(waits)]
    assert await queue(agents) == [turn_id(made.enqueued)]


@pytest.mark.parametrize("strategy", STOPPING)
async def test_a_repeat_stops_nothing_and_answers_the_same(agents: Pool, strategy: str) -> None:
    first = await plain(agents)
    turn = await start(agents)
    made = await again(agents, strategy, correlation_id="k")
    await end(agents, turn)
    repeated = await again(agents, strategy, correlation_id="k")
    assert repeated.enqueued.reply.duplicate
    assert (repeated.stopped, repeated.enqueued.reply.stopped) == ((), (turn_id(first),))
    assert repeated.enqueued.reply.agent_turn_id == turn_id(made.enqueued)
    assert await stops(agents) == []
    with pytest.raises(Refused, match="other content"):
        await again(agents, "reject", correlation_id="k")


@pytest.mark.parametrize("strategy", ["reject", "steer", *STOPPING])
async def test_a_transaction_whose_answer_was_lost_is_answered_the_same(agents: Pool, strategy: str) -> None:
    """The pool runs it again, with the same ids."""
    if strategy in STOPPING:
        await plain(agents)
        await plain(agents)
    given = asked(strategy, correlation_id="k")
    run = steer_or_make_way if strategy == "steer" else make_way
    first = await agents.transact(lambda conn: run(conn, *given))
    if strategy in {"reject", "steer"}:
        await plain(agents)  # behind it
    before = await rows(agents, "SELECT payload::text FROM state.agent_inbox ORDER BY 1")
    second = await agents.transact(lambda conn: run(conn, *given))
    assert isinstance(first, MadeWay)
    assert isinstance(second, MadeWay)
    assert set(second.enqueued.reply.stopped) == set(first.enqueued.reply.stopped)
    assert second.enqueued.reply.agent_turn_id == turn_id(first.enqueued)
    assert await rows(agents, "SELECT payload::text FROM state.agent_inbox ORDER BY 1") == before


async def test_a_stop_asked_before_stays_the_one(agents: Pool) -> None:
    await plain(agents)
    turn = await start(agents)
    await begin(agents, turn)
    first = await again(agents, "interrupt")
    second = await again(agents, "interrupt")
    assert set(second.enqueued.reply.stopped) == {turn.agent_turn_id, turn_id(first.enqueued)}
    assert len(await stops(agents)) == 1
    assert await queue(agents) == [turn_id(second.enqueued)]


async def test_a_full_queue_counts_what_is_left_of_it(agents: Pool) -> None:
    one = Admission(max_queued_turns=1)
    await plain(agents, EVE)
    await plain(agents)
    made = await again(agents, "interrupt", admission=one)
    assert await queue(agents) == [turn_id(made.enqueued)]
    with pytest.raises(Limited) as full:
        await again(agents, "interrupt", who=EVE, conversation="c2", admission=one)
    assert full.value.code == "queue_full"
    assert await queue(agents) == [turn_id(made.enqueued)]


@pytest.mark.parametrize("strategy", [None, "reject", "steer", *STOPPING])
async def test_what_is_said_to_a_turn_takes_no_place_in_the_queue(agents: Pool, strategy: str | None) -> None:
    await plain(agents, EVE)
    turn = await start(agents)
    for _ in range(3):
        await steered(agents, who=EVE)
    one = Admission(max_queued_turns=1)

    async def enqueued(conversation: str) -> Enqueued:
        if strategy is None:
            planned, _ = asked("reject", conversation=conversation, admission=one)
            return await agents.run(lambda conn: enqueue_turn(conn, planned))
        return (await again(agents, strategy, conversation=conversation, admission=one)).enqueued

    made = await enqueued("c1")
    assert await queue(agents) == [turn_id(made)]
    with pytest.raises(Limited) as full:
        await enqueued("c2")
    assert (full.value.code, await queue(agents)) == ("queue_full", [turn_id(made)])
    assert (await head(agents, ALICE))["active_agent_turn_id"] == turn.agent_turn_id


@pytest.mark.parametrize("strategy", ["reject", "interrupt", "rollback", "steer"])
async def test_without_a_conversation_it_is_refused(agents: Pool, strategy: str) -> None:
    with pytest.raises(Refused) as refused:
        await over(agents, strategy, conversation=None)
    assert refused.value.code == "no_conversation"
    assert "conversation_id" in str(refused.value)
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == 0


async def test_the_conversation_that_a_memory_keeps_is_one(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile(memory=Memory(keep="conversation")))
    first = await again(agents, "interrupt", conversation=None)
    second = await again(agents, "interrupt", conversation=None)
    assert second.enqueued.reply.stopped == (turn_id(first.enqueued),)


async def test_an_instance_of_a_profile_has_its_conversation(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("Crew", instances=True))
    first = await again(agents, "interrupt", agent=None, profile_name="Crew")
    second = await again(agents, "interrupt", agent=None, profile_name="Crew")
    assert second.enqueued.reply.stopped == (turn_id(first.enqueued),)


async def steered(pool: Pool, **fields: Any) -> Steered:
    made = await over(pool, "steer", **fields)
    assert isinstance(made, Steered)
    return made


async def test_a_steer_goes_to_the_newest_turn_and_without_one_is_a_turn(agents: Pool) -> None:
    first = await again(agents, "steer")
    of_turns = "SELECT count(*) FROM state.agent_inbox WHERE message_type <> 'steer'"
    before = await value(agents, of_turns)
    said = await steered(agents)
    assert said.agent_turn_id == turn_id(first.enqueued)
    assert await value(agents, of_turns) == before
    row = "SELECT status FROM state.agent_inbox WHERE inbox_id = $1 AND message_type = 'steer'"
    assert await value(agents, row, said.steer.steer_id) == "pending"
    newest = await plain(agents)
    assert (await steered(agents)).agent_turn_id == turn_id(newest)
    other = await again(agents, "steer", who=EVE)
    turn = await start(agents)
    assert [len((await begin(agents, turn)).steers), len(await queue(agents))] == [1, 2]
    await stop(agents, ALICE, newest)
    assert (await steered(agents)).agent_turn_id == turn.agent_turn_id
    await agents.run(lambda conn: request_stop(conn, PROJECT, turn.agent_turn_id, "enough", InboxId("s")))
    mine = await again(agents, "steer")
    assert await queue(agents) == [turn_id(other.enqueued), turn_id(mine.enqueued)]


async def test_a_repeat_of_a_steer_is_the_same_steer_also_when_the_turn_is_over(agents: Pool) -> None:
    await plain(agents)
    turn = await start(agents)
    first = await steered(agents, correlation_id="k")
    await end(agents, turn)
    second = await steered(agents, correlation_id="k")
    assert second.agent_turn_id == first.agent_turn_id == turn.agent_turn_id
    assert (first.steer.is_new, second.steer.is_new) == (True, False)
    assert second.steer.steer_id == first.steer.steer_id
    with pytest.raises(Refused, match="other content"):
        await over(agents, "steer", correlation_id="k", instruction="something else")
    made = await again(agents, "steer", correlation_id="l")
    repeated = await again(agents, "steer", correlation_id="l")
    assert repeated.enqueued.reply.agent_turn_id == turn_id(made.enqueued)
    assert repeated.enqueued.reply.duplicate


async def test_a_steer_needs_an_instruction(agents: Pool) -> None:
    given = (await plain(agents)).reply.context_box_id
    with pytest.raises(BadRequest, match="instruction"):
        await over(agents, "steer", instruction=None, context_box_id=given)


async def test_later_turns_read_nothing_of_what_was_rolled_back(agents: Pool) -> None:
    await plain(agents)
    kept = await say(agents)
    cache = BoxCache(1 << 20)
    await plain(agents)
    gone = await start(agents)
    await begin(agents, gone, cache=cache)
    await _commit_asked(agents, gone)
    made = await again(agents, "rollback")
    queued = await plain(agents, EVE)
    begun = await begin_by_old_worker(agents, gone, cache)
    assert read(begun) == {kept.agent_turn_id, gone.agent_turn_id}  # a step that was on its way reads its own turn
    await end(agents, gone)
    there = {each.card_id for each in await box(agents, gone.output_box_id)}
    assert {f"{gone.agent_turn_id}-instruction", f"{gone.agent_turn_id}-deliverable"} <= there  # nothing is deleted
    turn = await start(agents)
    assert turn.agent_turn_id == turn_id(made.enqueued)
    assert read(await begin(agents, turn, cache=cache)) == {kept.agent_turn_id}
    assert read(await begin(agents, turn)) == {kept.agent_turn_id}
    await finish(agents, turn)
    assert turn_id(queued) == (await head(agents))["active_agent_turn_id"]


async def begin_by_old_worker(pool: Pool, turn: TurnRef, cache: BoxCache) -> BegunStep:
    """A step that began before the mark: the gate is closed now, so the mark is taken away for it."""
    await rows(pool, "UPDATE state.turn_nodes SET stopping_at = NULL")
    begun = await begin(pool, turn, 2, cache=cache)
    await rows(pool, "UPDATE state.turn_nodes SET stopping_at = now()")
    return begun


async def test_a_queued_turn_that_is_rolled_back_leaves_nothing_to_read(agents: Pool) -> None:
    await plain(agents, EVE)
    gone = await plain(agents)
    turn = await start(agents)
    await begin(agents, turn)
    before = await value(agents, "SELECT output_box_id FROM state.conversations")
    made = await again(agents, "rollback")
    ended = await outcome(agents, turn_id(gone))
    assert json.loads(ended["stats"])["rolled_back_by"] == turn_id(made.enqueued)
    assert str(ended["output_box_id"]) != turn.output_box_id  # it never had a box of the conversation
    assert [each.card_id for each in await box(agents, BoxId(str(ended["output_box_id"])))] == [
        f"{turn_id(gone)}-deliverable"
    ]
    assert read(await begin(agents, turn)) == set()
    await finish(agents, turn)
    next_turn = await start(agents)
    assert await value(agents, "SELECT output_box_id FROM state.conversations") == before  # nobody wrote there
    assert read(await begin(agents, next_turn)) == {turn.agent_turn_id}


def first_of(turn: TurnRef) -> CardId:
    return CardId(f"{turn.agent_turn_id}-s1-thought")


@pytest.mark.parametrize("cuts_before", [0, 1])
async def test_a_compaction_goes_with_the_turn_that_made_it(agents: Pool, cuts_before: int) -> None:
    said: list[TurnRef] = []
    for _ in range(3):
        await plain(agents)
        said.append(await play(agents))
    if cuts_before:
        await plain(agents)
        cutter = await start(agents)
        await compact(agents, cutter, first_of(said[1]))
        await finish(agents, cutter, 2)
        said = [*said[1:], cutter]
    last = CardId(f"{said[2].agent_turn_id}-s{1 + cuts_before}-thought")
    await plain(agents)
    gone = await start(agents)
    await compact(agents, gone, last)
    await again(agents, "rollback")
    await end(agents, gone)
    begun = await begin(agents, await start(agents))
    assert read(begun) == {turn.agent_turn_id for turn in said}
    summed_up = [each.metadata.agent_turn_id for each in begun.output if each.type == CardType.MEMORY_CUT]
    assert summed_up == ([said[2].agent_turn_id] if cuts_before else [])


async def test_a_turn_that_was_rolled_back_goes_on_where_nobody_reads(agents: Pool) -> None:
    await plain(agents)
    kept = await play(agents)
    await plain(agents)
    gone = await start(agents)
    begun = await begin(agents, gone)
    await again(agents, "rollback")
    there = await value(agents, "SELECT output_box_id FROM state.conversations")
    await rows(agents, "UPDATE state.turn_nodes SET stopping_at = NULL")  # a step that had passed its gate
    moved = await compact(agents, gone, first_of(kept), begun=begun)
    await rows(agents, "UPDATE state.turn_nodes SET stopping_at = now()")
    assert await value(agents, "SELECT output_box_id FROM state.conversations") == there
    assert str(there) not in {gone.output_box_id, moved.output_box_id}
    await again(agents, "rollback")  # its box is the conversation's no more, and nothing is made
    assert await value(agents, "SELECT output_box_id FROM state.conversations") == there
    await end(agents, gone)
    assert await value(agents, "SELECT last_output_box_id FROM state.agent_state_pointers") == there
    turn = await start(agents)
    assert (str(there), read(await begin(agents, turn))) == (turn.output_box_id, {kept.agent_turn_id})


async def test_boxes_read_the_same_for_everybody(agents: Pool) -> None:
    await plain(agents)
    kept = await play(agents)
    await plain(agents)
    gone = await start(agents)
    await begin(agents, gone)
    await again(agents, "rollback")
    there = BoxId(str(await value(agents, "SELECT output_box_id FROM state.conversations")))
    before = [each.card_id for each in await box(agents, there)]
    await end(agents, gone)
    assert before == [f"{kept.agent_turn_id}-s1-{name}" for name in ("thought", "deliverable")]
    behind = [each.card_id for each in await box(agents, kept.output_box_id)]
    for source, cards in ((there, before), (kept.output_box_id, behind)):
        parts = BoxMakeRequest.model_validate({"parts": [{"box_id": source}]})
        made, forked = new_box_id(), new_box_id()
        await agents.run(lambda conn, parts=parts, made=made: compose_box(conn, PROJECT, CHANNEL, parts, made, "me"))
        await agents.run(lambda conn, source=source, forked=forked: fork_box(conn, PROJECT, CHANNEL, source, forked))
        for copy in (made, forked):
            assert [each.card_id for each in await box(agents, copy)] == cards
    assert f"{gone.agent_turn_id}-deliverable" in behind


async def test_who_reads_the_box_beside_an_instruction_or_inherits_it_reads_all_of_it(agents: Pool) -> None:
    await plain(agents)
    kept = await play(agents)
    await plain(agents)
    gone = await start(agents)
    await begin(agents, gone)
    await again(agents, "rollback")
    await end(agents, gone)
    source = BoxId(str(await value(agents, "SELECT output_box_id FROM state.conversations")))
    there = {f"{kept.agent_turn_id}-s1-{name}" for name in ("thought", "deliverable")}
    enqueued = await ask(agents, BOB, context_box_id=source)
    assert {each.card_id for each in await box(agents, enqueued.reply.context_box_id)} == {
        *there,
        f"{turn_id(enqueued)}-instruction",
    }
    await sleeper(agents, "c1", agent=CAROL)
    asker = await parent(agents, "c1")
    made = await forks(agents, "c1", tasks=[child(asker, 0, inherits=[source])])
    of_child = {f"{made.tasks[0].agent_turn_id}-{name}" for name in ("instruction", "parent")}
    assert {each.card_id for each in await box(agents, made.tasks[0].context_box_id)} == {*there, *of_child}


async def test_a_plain_enqueue_costs_one_round_trip_and_a_strategy_three(agents: Pool) -> None:
    await plain(agents)
    for strategy, trips in (("enqueue", 1), ("interrupt", 3)):
        before = agents.round_trips
        await (plain(agents) if strategy == "enqueue" else again(agents, strategy, conversation="c9"))
        assert agents.round_trips - before <= trips


async def test_the_requester_is_kept_with_the_turn(agents: Pool) -> None:
    done = await plain(agents, EVE)
    assert await agents.run(lambda conn: requester_of(conn, PROJECT, CHANNEL, turn_id(done))) == EVE
    with pytest.raises(Refused, match="no such turn"):
        await agents.run(lambda conn: requester_of(conn, PROJECT, CHANNEL, AgentTurnId("nobody")))
