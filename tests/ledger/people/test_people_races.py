"""Decisions at one moment with other decisions, stops, marks, expiries, ends, timeouts and results (protocol §13.2)."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, begin, box, head, lease, rows
from tests.support.ledger.calls import ask_to_stop, end, ending, expire, settle, stop_on, told, waits
from tests.support.ledger.people import (
    answer,
    asking,
    call_row,
    decide,
    decide_on,
    edit,
    held_record,
    hold,
    pass_expiry,
    question,
)
from tests.support.ledger.steers import say
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.people.decisions import expire_interrupt
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.waiting import apply_reports, inject_timeouts
from turnstile.schema.access import Caller
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InboxId, ToolCallId, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.turns import TurnRef

ASKED = interrupt_id(ToolCallId("a"))


async def code_of(pool: Pool, call: str = "a", *args: Any, **fields: Any) -> str:
    """`accepted`, or why not."""
    try:
        return (await decide(pool, call, *args, **fields)).verdict
    except Refused as refused:
        return refused.code


async def duels(pool: Pool, count: int) -> None:
    """Two people decide about one call at once, so often: one decision counts, and the other is told."""
    agents = (ALICE, BOB, CAROL)
    for number in range(count):
        call, agent = f"call-{number}", agents[number % 3]
        turn = await asking(pool, call, agent=agent)
        found = await asyncio.gather(
            code_of(pool, call, answer(Decision.APPROVE), who="dora"),
            code_of(pool, call, answer(Decision.REJECT), who="erin"),
            code_of(pool, call, answer(Decision.RESPOND, response=1), who="frank"),
        )
        assert sorted(found) == ["accepted", "already_decided", "already_decided"]
        asked = await question(pool, call)
        decisions = {"dora": "approve", "erin": "reject", "frank": "respond"}
        assert decisions[asked["decided_by"]] == asked["decision"]
        is_sent = asked["decision"] == "approve"
        assert (await call_row(pool, call))["wait_status"] == ("waiting" if is_sent else "received")
        if not is_sent:
            await settle(pool, turn, InboxId(f"decide-{asked['interrupt_id']}"))
        await end(pool, turn)


async def test_of_people_who_decide_at_once_one_does_and_the_others_are_told(counting: Counting) -> None:
    await duels(counting, 24)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_thousand_times_one_decides_and_the_others_are_told(counting: Counting) -> None:
    await duels(counting, 1000)


async def steered_and_asking(pool: Counting, call: str) -> TurnRef:
    """A turn that asks about its call; Dora and Erin steer while its step begins, Frank while that is committed."""
    turn = await lease(pool)
    dora, erin, frank = (Caller(name, operates=True) for name in ("dora", "erin", "frank"))
    begun, *_ = await asyncio.gather(begin(pool, turn), say(pool, turn, caller=dora), say(pool, turn, caller=erin))
    said = [steer.card_id for steer in begun.steers]
    record = held_record(turn, 1, {call: hold(requester_may_decide=False)})
    metadata = record.metadata.model_copy(update={"new_card_ids": tuple(said)})
    cards = [*begun.steers, *record.cards]
    record = replace(record, metadata=metadata, cards=cards, kept=[*said, *record.kept], steers=said)
    await asyncio.gather(pool.run(lambda conn: commit_step(conn, turn, record)), say(pool, turn, caller=frank))
    return turn


async def test_nobody_approves_what_a_model_asked_for_that_had_heard_them(counting: Counting) -> None:
    """Whoever is first: a steer that the step took counts, one that came later does not."""
    met = Counter[str]()
    people = ("dora", "erin", "frank", "gina")
    for number in range(12):
        call = f"call-{number}"
        turn = await steered_and_asking(counting, call)
        heard = {
            row["steered_by"]
            for row in await rows(
                counting,
                "SELECT steered_by FROM state.steers WHERE agent_turn_id = $1 AND step_id IS NOT NULL",
                turn.agent_turn_id,
            )
        }
        refused = await asyncio.gather(*(code_of(counting, call, who=who) for who in heard))
        assert [*refused] == ["own_words"] * len(heard)
        codes = await asyncio.gather(*(code_of(counting, call, who=who) for who in people))
        assert sorted(codes).count("accepted") == 1
        assert (await question(counting, call))["decided_by"] not in heard
        met.update([*refused, *codes])
        await end(counting, turn)
    assert met["own_words"], "no step took a steer"
    assert met["already_decided"]


async def test_a_stop_that_waited_for_a_decision_finds_the_call_let_go(counting: Counting) -> None:
    turn = await asking(counting, "a")
    found = await overtaken(counting, lambda conn: decide_on(conn, "a"), ask_to_stop(counting, turn.agent_turn_id))
    assert found.verdict == "accepted"
    assert (await question(counting, "a"))["status"] == "resolved"
    await end(counting, turn)
    assert await waits(counting) == {"a": "dropped"}


async def test_a_decision_that_waited_for_a_stop_is_withdrawn(counting: Counting) -> None:
    turn = await asking(counting, "a")
    assert await overtaken(counting, lambda conn: stop_on(conn, turn), code_of(counting)) == "withdrawn"
    assert (await call_row(counting, "a"))["held_by"] == ASKED
    await end(counting, turn)


async def test_a_decision_that_waited_for_the_end_is_withdrawn(counting: Counting) -> None:
    turn = await asking(counting, "a")
    assert await overtaken(counting, ending(turn), code_of(counting)) == "withdrawn"


@pytest.mark.parametrize("decision", [Decision.APPROVE, Decision.REJECT, Decision.EDIT])
async def test_an_end_that_waited_for_a_decision_leaves_it(counting: Counting, decision: Decision) -> None:
    turn = await asking(counting, "a")
    given = answer(decision, edit=edit(turn, "a", {"q": "mild"}) if decision is Decision.EDIT else None)
    await overtaken(counting, lambda conn: decide_on(conn, "a", given), end(counting, turn))
    assert (await question(counting, "a"))["status"] == "resolved"
    assert await waits(counting) == {"a": "dropped"}


async def test_an_expiry_that_waited_for_a_decision_changes_nothing(counting: Counting) -> None:
    turn = await asking(counting, "a")

    async def first(conn: Connection) -> None:
        await decide_on(conn, "a")
        await conn.fetch("UPDATE state.interrupts SET expires_at = now() - interval '1 s'")

    assert not await overtaken(counting, first, expire_interrupt(counting, ASKED))
    assert (await question(counting, "a"))["status"] == "resolved"
    await end(counting, turn)


async def test_a_decision_that_waited_for_an_expiry_is_told_so(counting: Counting) -> None:
    turn = await asking(counting, "a")
    await pass_expiry(counting)

    async def first(conn: Connection) -> None:
        assert (await query("expire_interrupt").one(conn, interrupt_id=ASKED))["expired"]

    assert await overtaken(counting, first, code_of(counting)) == "expired"
    await end(counting, turn)


async def test_a_mark_waits_for_a_decision_in_a_tree_and_a_decision_for_a_mark(counting: Counting) -> None:
    turn = await asking(counting, "a", "b")
    await rows(
        counting,
        "INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES ($1, $2, $1)",
        *(turn.agent_turn_id, PROJECT),
    )
    mark = "SELECT state.mark_subtrees(ARRAY[$1], 'enough', 'test', false, NULL)"
    marking = rows(counting, mark, turn.agent_turn_id)
    await overtaken(counting, lambda conn: decide_on(conn, "a"), marking)
    assert await code_of(counting, "b") == "withdrawn"
    await end(counting, turn)
    other = await asking(counting, "c", agent=BOB)
    await rows(
        counting,
        "INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES ($1, $2, $1)",
        *(other.agent_turn_id, PROJECT),
    )
    first = await overtaken(counting, lambda conn: conn.fetch(mark, other.agent_turn_id), code_of(counting, "c"))
    assert first == "withdrawn"
    await end(counting, other)


async def test_a_timeout_that_waited_for_a_decision_keeps_the_deadline_of_its_call(counting: Counting) -> None:
    turn = await asking(counting, "a", free=("b",), wait_seconds=0)
    await rows(counting, "UPDATE state.interrupts SET wait_seconds = 60")
    await overtaken(counting, lambda conn: decide_on(conn, "a"), expire(counting, turn))
    await expire(counting, turn)
    row = await call_row(counting, "a")
    assert row["deadline"] is not None
    assert (await head(counting))["resume_deadline"] == row["deadline"]


async def test_a_timeout_that_waited_for_an_edit_does_not_take_its_call_for_one_without_a_card(
    counting: Counting,
) -> None:
    turn = await asking(counting, "a", wait_seconds=0)
    given = answer(Decision.EDIT, edit=edit(turn, "a", {"q": "mild"}))

    async def late(conn: Connection) -> Any:
        await decide_on(conn, "a", given)
        await conn.fetch("UPDATE state.turn_waiting_tools SET deadline = now() - interval '1 hour'")

    await overtaken(counting, late, expire(counting, turn))
    await expire(counting, turn)
    assert await waits(counting) == {"a": "waiting"}


async def test_an_apply_that_waited_for_a_decision_keeps_the_deadline_of_its_call(counting: Counting) -> None:
    turn = await asking(counting, "a", free=("b",))
    report = await told(counting, "b")
    done = await overtaken(counting, lambda conn: decide_on(conn, "a"), settle(counting, turn, report))
    row = await call_row(counting, "a")
    assert done.deadline == row["deadline"] == (await head(counting))["resume_deadline"]


async def test_a_decision_that_waited_for_a_timeout_or_an_apply_is_as_any_other(counting: Counting) -> None:
    turn = await asking(counting, "a", "c", free=("b",), wait_seconds=0)
    given = answer(Decision.EDIT, edit=edit(turn, "a", {"q": "mild"}))
    first = await overtaken(counting, lambda conn: inject_timeouts(conn, turn), code_of(counting, "a", given))
    late = InboxId("timeout-b")
    second = await overtaken(counting, lambda conn: apply_reports(conn, turn, [late]), code_of(counting, "c"))
    assert (first, second) == ("accepted", "accepted")
    places = [each.position for each in await box(counting, turn.output_box_id)]
    assert places == sorted(set(places))
    assert await waits(counting) == {"a": "waiting", "b": "expired", "c": "waiting"}


async def test_edits_of_two_calls_at_once_take_places_of_their_own(counting: Counting) -> None:
    turn = await asking(counting, "a", "b", free=("c",))
    given = {call: answer(Decision.EDIT, edit=edit(turn, call, {"q": "mild"})) for call in "ab"}
    report = await told(counting, "c")
    await asyncio.gather(*(decide(counting, call, given[call]) for call in "ab"), settle(counting, turn, report))
    found = await box(counting, turn.output_box_id)
    assert {each.card_id for each in found} > {"a-call-2", "b-call-2", "c-result"}
    assert (await head(counting))["output_position"] == found[-1].position
