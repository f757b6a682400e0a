"""A turn that is run again, in copies of its boxes as they were before one of its steps (protocol §6, rerun)."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    act,
    ask,
    begin,
    box,
    card,
    commit,
    finish,
    last_record,
    lease,
    play,
    profile,
    rows,
    start,
    stop,
    value,
)
from tests.support.ledger.calls import ask_to_stop, end, settle, sleeper, told
from tests.support.ledger.reruns import MALLORY, OPERATOR, again, command, rerun_of
from tests.support.waiting import in_flight, overtaken
from turnstile.ledger.people.reruns import rerun_on
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.ledger.turns.ends import finish_turn
from turnstile.ledger.turns.views import describe_turn
from turnstile.rules.turn_ends import Ending
from turnstile.schema.cards import CardType
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentTurnId, BoxId, ChannelId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.limits import Admission


def refused(code: str) -> Any:
    return pytest.raises(Refused, check=lambda error: error.code == code)


async def called(pool: Pool, call: str = "c1", **fields: Any) -> TurnRef:
    """A turn of two steps: the first one made a call, which was answered."""
    turn = await sleeper(pool, call, **fields)
    await settle(pool, turn, await told(pool, call))
    await begin(pool, turn, 2)
    await finish(pool, turn, 2)
    return turn


async def cards(pool: Pool, box_id: BoxId | None) -> list[str]:
    return [each.card_id for each in await box(pool, box_id)]


async def untouched(pool: Pool) -> dict[str, int]:
    """What a refused rerun would have written."""
    tables = ("boxes", "box_cards", "cards", "state.agent_inbox", "state.execution_edges")
    return {name: await value(pool, f"SELECT count(*) FROM {name}") for name in tables}  # noqa: S608 -- words above


async def test_a_rerun_from_the_first_step_has_what_the_turn_began_with(agents: Pool) -> None:
    before = await lease(agents)
    await begin(agents, before)
    await finish(agents, before)
    old = await called(agents, output_box_id=before.output_box_id)
    made = await again(agents, old, from_step=1)
    assert made.reply.inbox_status == "pending"
    new_context, new_output = made.reply.context_box_id, made.reply.output_box_id
    assert {new_context, new_output}.isdisjoint({old.context_box_id, old.output_box_id})
    assert await cards(agents, new_context) == await cards(agents, old.context_box_id)
    assert await cards(agents, new_output) == (await cards(agents, old.output_box_id))[:2]
    played = await play(agents)
    assert played.agent_turn_id == made.reply.agent_turn_id
    assert len(await box(agents, new_output)) == 4


async def test_a_rerun_from_a_later_step_has_the_results_of_the_calls_before_it(agents: Pool) -> None:
    old = await called(agents)
    made = await again(agents, old, from_step=2)
    kept = await cards(agents, made.reply.output_box_id)
    assert kept == (await cards(agents, old.output_box_id))[: len(kept)]
    assert [each.type for each in await box(agents, made.reply.output_box_id)] == [
        *("agent.thought", "tool.call", "tool.result")
    ]
    assert await value(agents, "SELECT count(*) FROM state.turn_waiting_tools") == 1
    new = await play(agents)
    described = await agents.run(lambda conn: describe_turn(conn, PROJECT, new.agent_turn_id))
    assert described is not None
    assert (described.rerun_of, described.from_step, described.steps) == (old.agent_turn_id, 2, 1)
    before = await agents.run(lambda conn: describe_turn(conn, PROJECT, old.agent_turn_id))
    assert before is not None
    assert (before.rerun_of, before.reruns) == (None, (new.agent_turn_id,))


async def test_what_was_written_after_the_turn_is_not_in_the_copies(agents: Pool) -> None:
    """A turn of a conversation: others went on in its box."""
    old = await called(agents, conversation_id="talk")
    size = len(await box(agents, old.output_box_id))
    await ask(agents, conversation_id="talk")
    await play(agents)
    assert len(await box(agents, old.output_box_id)) > size
    made = await again(agents, old, from_step=2)
    assert len(await box(agents, made.reply.output_box_id)) == 3
    assert made.reply.conversation_id is None
    await play(agents)
    assert await value(agents, "SELECT turn_count FROM state.conversations") == 2


async def _failed(pool: Pool, steps: int, *, committed: bool) -> TurnRef:
    """A turn that failed after so many steps; in the last one, or, if that was never committed, in the next."""
    turn = await lease(pool)
    for number in range(1, steps + 1):
        await begin(pool, turn, number)
        if number < steps or not committed:
            await commit(pool, turn, number)
    if committed:
        await pool.run(lambda conn: _fail(conn, turn, steps))
    else:
        await begin(pool, turn, steps + 1)
        await end(pool, turn, "worker_lost")
        await rows(
            pool, "UPDATE state.turn_outcomes SET status = 'failed' WHERE agent_turn_id = $1", turn.agent_turn_id
        )
    return turn


async def _fail(conn: Any, turn: TurnRef, step: int) -> None:
    record = last_record(turn, step)
    await finish_turn(conn, turn, Ending(TurnStatus.FAILED, record.cards[-1].card_id, "auth_failed"), record=record)


@pytest.mark.parametrize(("committed", "step"), [(True, 3), (False, 4)])
async def test_a_failed_turn_is_run_again_from_the_step_that_failed(agents: Pool, committed: bool, step: int) -> None:
    turn = await _failed(agents, 3, committed=committed)
    made = await again(agents, turn)
    assert (await rerun_of(agents, made))["from_step"] == step
    assert len(await box(agents, made.reply.output_box_id)) == step - 1
    await play(agents)


async def test_a_turn_that_was_stopped_asleep_makes_its_calls_anew(agents: Pool) -> None:
    """Its canceled results are in its box, so a step after them is none of its."""
    turn = await sleeper(agents, "c1")
    await ask_to_stop(agents, turn.agent_turn_id)
    await end(agents, turn)
    with refused("unknown_step"):
        await again(agents, turn, from_step=2)
    made = await again(agents, turn)
    assert (await rerun_of(agents, made))["from_step"] == 1
    assert await box(agents, made.reply.output_box_id) == []
    await play(agents)


async def test_a_turn_that_never_began_is_run_as_it_was_asked(agents: Pool) -> None:
    running, queued = await lease(agents), await ask(agents)
    assert await stop(agents, ALICE, queued) is not None
    await begin(agents, running)
    await finish(agents, running)
    made = await again(agents, AgentTurnId(str(queued.reply.agent_turn_id)))
    assert len(await box(agents, made.reply.context_box_id)) == 1
    await play(agents)


async def test_a_rerun_can_be_run_again(agents: Pool) -> None:
    old = await called(agents)
    first = await again(agents, old, from_step=2)
    new = await play(agents)
    second = await again(agents, new)
    assert (await rerun_of(agents, second))["line"] == [new.agent_turn_id, old.agent_turn_id]
    assert await cards(agents, second.reply.output_box_id) == (await cards(agents, first.reply.output_box_id))[:3]
    await play(agents)


async def test_the_settings_of_the_turn_are_kept_but_those_that_are_given(agents: Pool) -> None:
    await ask(agents, runtime_config={"temperature": 1, "max_steps": 3, "instructions": "be brief", "remember": True})
    old = await play(agents)
    changes = {"temperature": 0.5, "max_steps": None}
    await again(agents, old, caller=OPERATOR, model="scripted/other", runtime_config=changes)
    new = await play(agents)
    given = {"model": "scripted/other", "remember": True, "temperature": 0.5}
    assert await settings(agents, new) == (
        given | {"card_id": f"{old.agent_turn_id}-config"},
        {"instructions": "be brief"},
    )
    assert await cards(agents, new.context_box_id) == await cards(agents, old.context_box_id)
    with pytest.raises(ValueError, match="different models"):
        await again(agents, old, model="a/b", runtime_config={"model": "a/c"})


async def settings(pool: Pool, turn: TurnRef) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Those in a turn's row, and what is on the card that they name, which is in its context box."""
    [row] = await rows(
        pool,
        "SELECT i.payload ->> 'runtime_config' AS settings, c.content ->> 'data' AS text FROM state.agent_inbox i"
        " LEFT JOIN (cards c JOIN box_cards b USING (card_id)) ON b.box_id::text = i.payload ->> 'context_box_id'"
        " AND c.card_id = i.payload #>> '{runtime_config,card_id}' WHERE i.agent_turn_id = $1",
        turn.agent_turn_id,
    )
    return json.loads(row["settings"]), None if row["text"] is None else json.loads(row["text"])


THINK = {"name": "think", "description": "Think on."}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"instructions": "be long"}, {"instructions": "be long", "choices": [THINK]}),
        ({"choices": []}, {"instructions": "be brief"}),
        ({"instructions": None}, {"choices": [THINK]}),
        ({"instructions": None, "choices": []}, None),
        ({"instructions": "be brief", "choices": [THINK]}, {"instructions": "be brief", "choices": [THINK]}),
    ],
)
async def test_another_text_is_a_card_of_the_rerun(
    agents: Pool, given: dict[str, Any], text: dict[str, Any] | None
) -> None:
    """And a rerun of that one has it, too. The copied box is not written, nor that of the old turn."""
    await ask(agents, runtime_config={"max_steps": 3, "instructions": "be brief", "choices": [THINK]})
    old = await play(agents)
    before, was = await cards(agents, old.context_box_id), await settings(agents, old)
    made = await again(agents, old, runtime_config=given, correlation_id="r")
    assert (await again(agents, old, runtime_config=given, correlation_id="r")).reply.duplicate
    new = await play(agents)
    row, told_text = await settings(agents, new)
    for choice in (told_text or {}).get("choices", []):
        assert choice.pop("parameters") == {"type": "object", "properties": {}}
    assert told_text == text
    own = {} if text is None else {"card_id": f"{new.agent_turn_id}-config"}
    same = text == {"instructions": "be brief", "choices": [THINK]}
    assert row == {"max_steps": 3} | (was[0] if same else own)
    assert made.reply.context_box_id == new.context_box_id
    assert await cards(agents, new.context_box_id) == [*before, *([] if same else own.values())]
    assert (await cards(agents, old.context_box_id), await settings(agents, old)) == (before, was)
    await again(agents, new)
    assert await settings(agents, await play(agents)) == await settings(agents, new)


async def test_settings_whose_text_is_gone_are_not_repeated(agents: Pool) -> None:
    await ask(agents, runtime_config={"instructions": "be brief"})
    old = await play(agents)
    await rows(agents, "UPDATE cards SET deleted_at = now() WHERE metadata ->> 'type' = 'task.runtime_config'")
    with refused("step_gone"):
        await again(agents, old)


async def test_it_has_the_profile_of_the_turn_as_that_is_now(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("special"))
    old = await lease(agents, profile_name="special")
    await begin(agents, old)
    await finish(agents, old)
    box_now, _, _ = await put_profile(agents, PROJECT, profile("special", system_prompt_template="anew"))
    await again(agents, old)
    new = await play(agents)
    assert new.profile_box_id == box_now != old.profile_box_id


async def test_it_waits_in_the_queue_as_any_turn(agents: Pool) -> None:
    old = await called(agents)
    await lease(agents)
    made = await again(agents, old)
    assert (made.lease, made.reply.inbox_status, made.reply.turn_epoch) == (None, "queued", 0)
    with pytest.raises(Limited):
        await again(agents, old, admission=Admission(max_queued_turns=1))


async def test_it_has_no_parent_and_begins_at_no_depth(agents: Pool) -> None:
    lineage = {"CG-Parent-Turn-Id": "t-parent", "CG-Parent-Agent-Id": "bob", "CG-Recursion-Depth": "3"}
    await ask(agents, incoming=lineage)
    old = await play(agents)
    made = await again(agents, old, incoming=lineage)
    headers = (
        "SELECT replace((context_headers - 'traceparent')::text, payload ->> 'output_box_id', 'its output box')"
        " FROM state.agent_inbox WHERE agent_turn_id = $1"
    )
    kept = await value(agents, headers, made.reply.agent_turn_id)
    assert kept == '{"CG-Sender": "user.test", "CG-Conversation-Id": "its output box", "CG-Recursion-Depth": "0"}'
    await play(agents)


async def test_what_is_refused_changes_nothing(agents: Pool) -> None:
    old, live = await called(agents), await lease(agents)
    before = await untouched(agents)
    cases: list[tuple[str, TurnRef | AgentTurnId, dict[str, Any]]] = [
        ("unknown_turn", AgentTurnId("nobody"), {}),
        ("unknown_turn", old, {"project": ProjectId("other")}),
        ("unknown_turn", old, {"channel": ChannelId("other")}),
        ("not_yours", old, {"caller": MALLORY}),
        ("turn_not_over", live, {}),
        ("turn_not_over", live, {"caller": OPERATOR, "from_step": 1}),
        ("unknown_step", old, {"from_step": 3}),
        ("text_too_large", old, {"runtime_config": {"instructions": "é" * 300_000}}),
    ]
    for code, turn, fields in cases:
        with refused(code):
            await again(agents, turn, **fields)
    assert await untouched(agents) == before


async def test_a_limit_that_refuses_it_leaves_no_copies(agents: Pool) -> None:
    old, _ = await called(agents), await lease(agents)
    await ask(agents)
    before = await untouched(agents)
    with pytest.raises(Limited):
        await again(agents, old, admission=Admission(max_queued_turns=1))
    assert await untouched(agents) == before


@pytest.mark.parametrize("gone", ["expires_at = now()", "deleted_at = now()"])
async def test_a_step_whose_cards_are_gone_cannot_be_run_again(agents: Pool, gone: str) -> None:
    old = await called(agents)
    result = (await cards(agents, old.output_box_id))[2]
    await rows(agents, f"UPDATE cards SET {gone} WHERE card_id = $1", result)  # noqa: S608 -- words of this test
    before = await untouched(agents)
    with refused("step_gone"):
        await again(agents, old, from_step=2)
    assert await untouched(agents) == before
    await again(agents, old, from_step=1)
    await play(agents)


async def test_a_card_that_the_turn_had_not_read_does_not_hinder(agents: Pool) -> None:
    before = await lease(agents)
    await begin(agents, before)
    await finish(agents, before)
    await rows(
        agents,
        "UPDATE cards SET expires_at = '2025-12-01' WHERE card_id = $1",
        (await cards(agents, before.output_box_id))[0],
    )
    old = await called(agents, output_box_id=before.output_box_id)
    await again(agents, old, from_step=2)
    await play(agents)


async def test_a_ui_action_is_not_run_again(agents: Pool) -> None:
    await act(agents)
    turn = await start(agents)
    await begin(agents, turn)
    made = card(turn, 1, "deliverable", CardType.DELIVERABLE)
    await agents.run(
        lambda conn: finish_turn(conn, turn, Ending(TurnStatus.FAILED, made.card_id, "unknown_tool"), cards=[made])
    )
    with refused("not_repeatable"):
        await again(agents, turn)


async def test_a_repeat_finds_the_first_ones_turn(agents: Pool) -> None:
    old = await called(agents)
    first = await again(agents, old, correlation_id="k")
    before = await untouched(agents)
    repeat = await again(agents, old, correlation_id="k")
    assert repeat.reply.duplicate
    assert repeat.reply.model_copy(update={"duplicate": False}) == first.reply
    others: list[dict[str, Any]] = [{"from_step": 2}, {"model": "a/b"}, {"caller": OPERATOR}]
    for fields in others:
        with refused("correlation_conflict"):
            await again(agents, old, correlation_id="k", **fields)
    with refused("correlation_conflict"):
        await ask(agents, correlation_id="k")
    assert await untouched(agents) == before
    other = await again(agents, old)
    assert other.reply.agent_turn_id != first.reply.agent_turn_id


async def test_of_two_at_once_under_one_name_one_is_made(agents: Pool) -> None:
    """In every order: each finds the copies of its own, or the other's turn."""
    old = await called(agents)
    made = await asyncio.gather(*(again(agents, old, correlation_id="k") for _ in range(8)))
    assert len({each.reply.agent_turn_id for each in made}) == 1
    assert sorted(each.reply.duplicate for each in made) == [False] + [True] * 7
    assert (
        await value(agents, "SELECT count(*) FROM boxes WHERE parent_ids = ARRAY[$1::text::uuid]", old.output_box_id)
        == 1
    )


async def test_one_that_waited_for_its_twin_finds_the_twins(agents: Pool) -> None:
    old = await called(agents)
    twin = command(old, correlation_id="k")
    repeat = await overtaken(agents, lambda conn: rerun_on(conn, twin), again(agents, old, correlation_id="k"))
    assert (repeat.reply.duplicate, repeat.reply.agent_turn_id) == (True, twin.agent_turn_id)
    assert (
        await value(agents, "SELECT count(*) FROM boxes WHERE parent_ids = ARRAY[$1::text::uuid]", old.output_box_id)
        == 1
    )


async def test_retention_passes_by_a_rerun_and_a_rerun_waits_for_retention(agents: Pool) -> None:
    old = await called(agents)
    lock = "SELECT FROM boxes WHERE box_id = $1::text::uuid FOR UPDATE"
    async with in_flight(agents, lambda conn: rerun_on(conn, command(old))):
        assert await rows(agents, f"{lock} SKIP LOCKED", old.output_box_id) == []
    made = await overtaken(agents, lambda conn: conn.fetch(lock, old.context_box_id), again(agents, old))
    assert made.reply.inbox_status == "queued"


async def test_an_agent_that_ran_the_turn_of_another_has_nothing_to_do_with_it(agents: Pool) -> None:
    """A rerun is of the agent that ran the turn."""
    old = await called(agents, agent=BOB)
    await again(agents, old)
    assert (await play(agents, BOB)).agent_id == BOB
