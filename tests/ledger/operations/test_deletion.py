"""Deletion: of a conversation or an end user nothing is left, what others reach stays, and the audit is clean."""

import asyncio
import json
from typing import Any

import pytest

from tests.ledger.turns.test_card_files import asked, keep
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CHANNEL,
    PROJECT,
    STARTED,
    add_agents,
    announce,
    ask,
    begin,
    command,
    finish,
    lease,
    play,
    rows,
    send,
    stop,
    value,
)
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.schedules import put
from tests.support.waiting import overtaken
from turnstile.ledger.access.costs import sum_costs
from turnstile.ledger.operations.deletion import AdvancedDeletion, advance_deletion, find_text, request_deletion
from turnstile.ledger.operations.retention import sole
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import box_cards
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ConversationId
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

MARK = "m4rk3r-of-ada"
FILES = "SELECT artifact_id, status, filename FROM resource.artifacts"
TALK = ConversationId("talk-1")
ATTEMPTS = json.dumps(
    {"attempts": [{"model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "response_cost": 0.5}]}
)


async def requested(pool: Pool, **whom: Any) -> str:
    """The deletion of a conversation or an end user."""
    return (await pool.run(lambda conn: request_deletion(conn, PROJECT, CHANNEL, "root", **whom))).deletion_id


async def advanced(pool: Pool, deletion: str, **how: Any) -> AdvancedDeletion:
    """One piece of it."""
    return await pool.run(lambda conn: advance_deletion(conn, deletion, **how))


async def deleted(pool: Pool, **whom: Any) -> list[str]:
    """The phases of a deletion up to its end."""
    return await deleted_on(pool, await requested(pool, **whom))


async def deleted_on(pool: Pool, deletion: str) -> list[str]:
    """The phases of a deletion up to its end, from where it is; the audit is clean after each piece."""
    phases: list[str] = []
    while (step := await advanced(pool, deletion, row_limit=1)).phase == "removes":
        phases.append(step.phase)
        await sound(pool)
    return [*phases, step.phase]


async def ended(pool: Pool, agent: AgentId = ALICE, **fields: Any) -> TurnRef:
    """A turn that is over and announced."""
    await ask(pool, agent, **fields)
    turn = await play(pool, agent)
    await announce(pool, [turn.agent_turn_id])
    return turn


async def sound(pool: Pool) -> None:
    """No rule of the audit is broken."""
    async with pool.connection() as conn:
        await assert_invariants(conn)


async def test_a_conversation_goes_whole(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    other = await ended(pool, instruction="stays")
    for _ in range(3):
        await ended(pool, instruction=MARK, conversation_id=TALK)
    assert {found.table_name for found in await find_text(pool, PROJECT, MARK)} == {"public.cards"}
    assert (await deleted(pool, conversation=TALK))[-1] == "done"
    assert await find_text(pool, PROJECT, MARK) == []
    assert await find_text(pool, PROJECT, TALK) == []
    assert [row["agent_turn_id"] for row in await rows(pool, "SELECT agent_turn_id FROM state.agent_inbox")] == [
        other.agent_turn_id
    ]
    await sound(pool)
    with pytest.raises(Refused) as refused:
        await requested(pool, conversation=TALK)
    assert refused.value.code == "unknown_conversation"


async def test_what_others_read_or_say_stays(pool: Pool) -> None:
    """Bob shares a conversation with Ada, and a turn of his reads a box of hers: of the first hers is emptied."""
    await add_agents(pool, ALICE, BOB)
    await ended(pool, instruction="I am Bob", conversation_id=TALK, end_user="bob")
    mine = await ended(pool, instruction=MARK, conversation_id=TALK, end_user="ada")
    read = await ended(pool, instruction=f"read by him {MARK}", end_user="ada")
    his = await ended(pool, BOB, instruction=None, context_box_id=read.context_box_id, end_user="bob")
    await rows(pool, f"UPDATE state.agent_steps SET metadata = metadata || '{ATTEMPTS}' RETURNING 1")  # noqa: S608 -- constant
    paid = await pool.run(lambda conn: sum_costs(conn, PROJECT, channel=None, since=STARTED))
    assert (await deleted(pool, end_user="ada"))[-1] == "done"
    [kept] = await find_text(pool, PROJECT, MARK)
    assert (kept.table_name, kept.found) == ("public.cards", 1), "what he reads is his, too"
    cards = await pool.run(lambda conn: box_cards(conn, PROJECT, his.context_box_id))
    assert [card.content for card in cards or []] == [{"__type__": "TextContent", "text": f"read by him {MARK}"}]
    [talk] = await rows(pool, "SELECT last_turn_id, output_box_id::text AS box FROM state.conversations")
    assert talk["last_turn_id"] < mine.agent_turn_id
    said = await pool.run(lambda conn: box_cards(conn, PROJECT, talk["box"]))
    assert {card.metadata.agent_turn_id for card in said or []} == {talk["last_turn_id"]}
    left = await pool.run(lambda conn: sum_costs(conn, PROJECT, channel=None, since=STARTED))
    assert left.lines["day"] == paid.lines["day"]
    assert left.total.attempts == paid.total.attempts > 0
    await sound(pool)
    assert (await deleted(pool, end_user="bob"))[-1] == "done"
    assert await find_text(pool, PROJECT, MARK) == []
    assert (
        await value(
            pool,
            "SELECT count(*) FROM public.boxes b WHERE NOT EXISTS"
            " (SELECT FROM resource.profiles p WHERE p.profile_box_id = b.box_id::text)",
        )
        == 0
    )
    await sound(pool)


async def test_files_that_no_other_card_names_go(pool: Pool) -> None:
    """What is known of them at once; their bytes, and then their rows, by the safety net."""
    await add_agents(pool, ALICE, BOB)
    for name in ("hers", "both", "emptied", "loose"):
        await keep(pool, f"{MARK}-{name}")

    async def told(agent: AgentId, *names: str, **more: Any) -> None:
        await asked(pool, *(f"{MARK}-{name}" for name in names), agent_id=agent, **more)
        turn = await play(pool, agent)
        await announce(pool, [turn.agent_turn_id])

    await told(BOB, "both", end_user="bob", conversation_id=TALK)
    await told(BOB, "both", "emptied", end_user="ada", conversation_id=TALK)
    await told(ALICE, "hers", "both", end_user="ada")
    assert (await deleted(pool, end_user="ada"))[-1] == "done"
    left = {row["artifact_id"].removeprefix(f"{MARK}-"): row for row in await rows(pool, FILES)}
    assert {name for name, row in left.items() if row["status"] == "ready"} == {"both", "loose"}
    assert {left[name]["filename"] for name in ("hers", "emptied")} == {None}
    await sound(pool)
    assert (await deleted(pool, conversation=TALK))[-1] == "done"
    assert {row["artifact_id"] for row in await rows(pool, FILES) if row["status"] == "ready"} == {f"{MARK}-loose"}
    await sound(pool)


async def test_schedules_that_name_the_conversation_go(pool: Pool) -> None:
    await add_agents(pool, ALICE, BOB)
    for name, agent, talk in (("its", ALICE, TALK), ("other", ALICE, "talk-2"), ("bobs", BOB, TALK)):
        await put(pool, name, agent_id=agent, conversation_id=talk)
    await ended(pool, conversation_id=TALK)
    assert (await deleted(pool, conversation=TALK))[-1] == "done"
    assert await names_of_schedules(pool) == ["bobs", "other"]
    await sound(pool)


async def names_of_schedules(pool: Pool) -> list[str]:
    found = await rows(pool, "SELECT schedule_id FROM resource.schedules ORDER BY schedule_id")
    return [row["schedule_id"] for row in found]


async def test_what_runs_is_named_until_it_has_ended_and_is_announced(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    turn, queued = await lease(pool, ALICE, conversation_id=TALK), await ask(pool, ALICE, conversation_id=TALK)
    deletion = await requested(pool, conversation=TALK)
    assert await requested(pool, conversation=TALK) == deletion
    live = await advanced(pool, deletion)
    assert (live.phase, live.live) == ("stops", (queued.reply.agent_turn_id, turn.agent_turn_id))
    refusals: list[dict[str, Any]] = [
        {"conversation_id": TALK},
        {"incoming": {headers.PARENT_TURN_ID: turn.agent_turn_id}},
    ]
    for fields in refusals:
        with pytest.raises(Refused) as refused:
            await ask(pool, ALICE, **fields)
        assert refused.value.code == "being_deleted"
    await ask(pool, ALICE, instruction="elsewhere", conversation_id="talk-2")
    await stop(pool, ALICE, queued)
    await begin(pool, turn)
    await finish(pool, turn)
    assert (await advanced(pool, deletion)).phase == "waits"  # their ends are not announced
    await announce(pool, [turn.agent_turn_id, AgentTurnId(str(queued.reply.agent_turn_id))])
    while (step := await advanced(pool, deletion)).phase == "removes":
        pass
    assert step.phase == "done"
    assert (await advanced(pool, deletion)).phase == "over"
    await ask(pool, ALICE, conversation_id=TALK)  # a new one of that name
    assert await value(pool, "SELECT count(*) FROM state.agent_inbox") == 2
    await sound(pool)


async def test_a_later_turn_than_was_seen_refuses_it(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    seen = await ended(pool, conversation_id=TALK)
    await ended(pool, conversation_id=TALK)
    with pytest.raises(Refused) as refused:
        await requested(pool, conversation=TALK, seen=seen.agent_turn_id)
    assert refused.value.code == "conversation_changed"
    with pytest.raises(Refused) as unknown:
        await requested(pool, end_user="nobody")
    assert unknown.value.code == "unknown_end_user"


@pytest.mark.parametrize("whom", [{"conversation": TALK}, {"end_user": "ada"}], ids=["conversation", "end user"])
async def test_an_enqueue_is_before_the_request_or_refused(pool: Pool, whom: dict[str, Any]) -> None:
    await add_agents(pool, ALICE)
    await ended(pool, conversation_id=TALK, end_user="ada")
    sent = command(conversation_id=TALK, end_user="ada")
    deletion = await overtaken(pool, lambda conn: send(conn, sent), requested(pool, **whom))
    assert sent.agent_turn_id in (await advanced(pool, deletion)).live
    late = command(conversation_id=TALK, end_user="ada")
    with pytest.raises(Refused) as refused:
        await pool.run(lambda conn: send(conn, late))
    assert refused.value.code == "being_deleted"


async def test_one_removal_at_a_time(pool: Pool) -> None:
    await add_agents(pool, ALICE)
    await ended(pool, conversation_id=TALK)
    deletion = await requested(pool, conversation=TALK)
    async with sole(pool):
        assert (await advanced(pool, deletion)).phase == "waits"
    steps = await asyncio.gather(*(advanced(pool, deletion) for _ in range(3)))
    assert {step.phase for step in steps} <= {"waits", "removes"}
    assert (await deleted_on(pool, deletion))[-1] == "done"
    await sound(pool)
