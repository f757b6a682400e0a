"""Reports applied to a suspended turn: one winner a call, in time order, whatever came (protocol §7.5)."""

import asyncio
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, PROJECT, begin, claim, finish, head, lease, rows
from tests.support.ledger.calls import (
    became,
    expire,
    result_card,
    results,
    row_of,
    settle,
    sleeper,
    told,
    waits,
    write_card,
    written_report,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import get_card
from turnstile.ledger.turns.ends import fence
from turnstile.schema.cards import ToolResultContent, content_of
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import CardId, InboxId, uuid7
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef


async def test_a_part_of_the_answers_leaves_the_turn_suspended(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    before = await head(agents)
    done = await settle(agents, turn, await told(agents, "b"))
    assert (done.status, done.waiting) == (HeadStatus.SUSPENDED, ["a", "c"])
    assert done.deadline == before["resume_deadline"]
    now = await head(agents)
    assert (now["status"], now["waiting_tool_count"], now["resume_deadline"]) == ("suspended", 2, done.deadline)
    assert now["updated_at"] == done.updated_at > before["updated_at"]
    assert done.context_headers["traceparent"].split("-")[1] == turn.trace_id
    with pytest.raises(StaleTurn):
        await begin(agents, turn, 2)


async def test_the_last_answer_resumes_the_turn(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    await settle(agents, turn, await told(agents, "a"))
    last = await told(agents, "b")
    done = await settle(agents, turn, last)
    assert (done.status, done.waiting, done.deadline) == (HeadStatus.RUNNING, [], None)
    assert [(row.inbox_id, row.status, row.reason) for row in done.rows] == [(last, "consumed", None)]
    now = await head(agents)
    assert (now["status"], now["waiting_tool_count"], now["resume_deadline"]) == ("running", 0, None)
    assert await waits(agents) == {"a": "applied", "b": "applied"}
    await begin(agents, turn, 2)
    await finish(agents, turn, 2)


async def test_answers_enter_the_box_in_the_order_in_which_they_came(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c", "d")
    came = [await told(agents, call) for call in "dbca"]
    await settle(agents, turn, *reversed(came))
    assert [call for call, _ in await results(agents, turn)] == list("dbca")


async def test_answers_of_one_moment_enter_the_box_by_inbox_id(agents: Pool) -> None:
    turn = await sleeper(agents, *"abc")
    ids = {call: await told(agents, call) for call in "bca"}
    await rows(agents, "UPDATE state.agent_inbox SET created_at = '2026-01-01' WHERE message_type = 'tool_result'")
    await settle(agents, turn, *ids.values())
    assert [call for call, _ in await results(agents, turn)] == sorted(ids, key=lambda call: ids[call])


async def test_answers_out_of_order_are_applied_as_they_ring(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    first, second = await told(agents, "a"), await told(agents, "b")
    await settle(agents, turn, second)
    await settle(agents, turn, first)
    assert [call for call, _ in await results(agents, turn)] == ["b", "a"]
    assert (await head(agents))["status"] == "running"


async def test_a_report_that_rings_again_has_no_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    inbox_id = await told(agents, "a")
    await settle(agents, turn, inbox_id)
    again = await settle(agents, turn, inbox_id, inbox_id)
    assert (again.status, again.waiting, again.rows) == (HeadStatus.SUSPENDED, ["b"], [])
    await settle(agents, turn, await told(agents, "b"))
    assert (await settle(agents, turn, inbox_id)).status == HeadStatus.RUNNING
    assert await results(agents, turn) == [("a", "success"), ("b", "success")]


async def test_a_second_answer_to_a_settled_call_is_consumed_without_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    rings = {ring.correlation_id: ring.inbox_id for ring in await expire(agents, turn)}
    await settle(agents, turn, rings["a"])
    late = await told(agents, "a")
    done = await settle(agents, turn, late)
    assert [(row.inbox_id, row.status, row.reason) for row in done.rows] == [(late, "consumed", "already_settled")]
    assert (done.waiting, await waits(agents)) == (["b"], {"a": "expired", "b": "waiting"})
    assert await results(agents, turn) == [("a", "timeout")]


async def test_an_unknown_row_and_another_agents_row_are_left_alone(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await sleeper(agents, "b", agent=BOB)
    theirs = await told(agents, "b")
    done = await settle(agents, turn, theirs, InboxId("none"), turn.inbox_id)
    assert (done.rows, done.waiting) == ([], ["a"])
    assert await became(agents, theirs) == ("pending", None)


async def test_a_report_of_another_turn_or_epoch_is_skipped(agents: Pool) -> None:
    old = await sleeper(agents, "old")
    await fence(agents, old, TurnStatus.FAILED, "reaped", "reaped")
    turn = await sleeper(agents, "a")
    stale = await told(agents, "old")
    card_id = await write_card(agents, result_card(turn, "a"))
    wrong = await written_report(agents, turn, "a", card_id, turn_epoch=turn.turn_epoch - 1)
    done = await settle(agents, turn, stale, wrong)
    assert {(row.inbox_id, row.status, row.reason) for row in done.rows} == {
        (stale, "skipped", "stale_turn"),
        (wrong, "skipped", "stale_turn"),
    }
    assert (done.waiting, await results(agents, turn)) == (["a"], [])


@pytest.mark.parametrize("change", [{"turn_epoch": 2}, {"agent_turn_id": "x"}, {"agent_id": "bob"}])
async def test_an_apply_without_the_gate_is_stale(agents: Pool, change: dict[str, Any]) -> None:
    turn = await sleeper(agents, "a")
    inbox_id = await told(agents, "a")
    with pytest.raises(StaleTurn):
        await settle(agents, turn.model_copy(update=change), inbox_id)
    assert await became(agents, inbox_id) == ("pending", None)


async def test_an_apply_to_a_turn_that_is_not_begun_or_over_is_stale(agents: Pool) -> None:
    turn = await lease(agents)
    with pytest.raises(StaleTurn):
        await settle(agents, turn)
    await begin(agents, turn)
    assert (await settle(agents, turn)).status == HeadStatus.RUNNING
    await finish(agents, turn)
    with pytest.raises(StaleTurn):
        await settle(agents, turn)


async def test_two_applies_at_once_have_one_winner(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    ids = [await told(agents, call) for call in "abc"]
    done = await asyncio.gather(*(settle(agents, turn, *ids) for _ in range(6)))
    assert {(each.status, tuple(each.waiting)) for each in done} == {(HeadStatus.RUNNING, ())}
    assert sorted(len(each.rows) for each in done) == [0] * 5 + [3]
    assert await results(agents, turn) == [("a", "success"), ("b", "success"), ("c", "success")]


async def test_two_applies_of_different_answers_lose_none(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    ids = [await told(agents, call) for call in "abc"]
    done = await asyncio.gather(*(settle(agents, turn, inbox_id) for inbox_id in ids))
    assert sorted(len(each.waiting) for each in done) == [0, 1, 2]
    assert (await head(agents))["status"] == "running"


async def test_a_v1r4_report_is_applied(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    card_id = await write_card(agents, result_card(turn, "a"))
    inbox_id = await written_report(agents, turn, "a", card_id)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.ring().inbox_id, claimed.ring().correlation_id) == ("signal", inbox_id, "a")
    assert (await settle(agents, turn, inbox_id)).status == HeadStatus.RUNNING
    [waited] = await rows(agents, "SELECT * FROM state.turn_waiting_tools")
    assert (waited["wait_status"], waited["tool_result_card_id"]) == ("applied", card_id)
    assert waited["received_at"] == (await row_of(agents, inbox_id))["created_at"]
    assert await results(agents, turn) == [("a", "success")]


WRONG: list[dict[str, Any]] = [
    {"type": "agent.thought"},
    {"author_id": "alice"},
    {"author_id": None},
    {"tool_call_id": "b"},
]


@pytest.mark.parametrize("changes", WRONG)
async def test_a_v1r4_card_of_another_type_author_or_call_breaks_the_protocol(
    agents: Pool, changes: dict[str, Any]
) -> None:
    turn = await sleeper(agents, "a", "b")
    other = result_card(turn, "a", **({"type": "tool.result"} | changes))
    inbox_id = await written_report(agents, turn, "a", await write_card(agents, other))
    done = await settle(agents, turn, inbox_id)
    assert [(row.status, row.reason) for row in done.rows] == [("error", "protocol_violation")]
    [refused] = await rows(agents, "SELECT source, error_code, error, ids ->> 'inbox_id' AS row FROM state.rejections")
    author = changes.get("author_id", "tool.search") or "nobody"
    assert (refused["source"], refused["error_code"]) == (f"sql:{author}", "not_its_card")
    assert (refused["error"], refused["row"]) == (f"report: {done.rows[0].flaw}", inbox_id)
    assert (done.waiting, await waits(agents)) == (["a", "b"], {"a": "waiting", "b": "waiting"})
    assert await results(agents, turn) == []
    if changes.get("type"):
        async with agents.connection() as conn, conn.transaction():  # a stray card is in no box
            await conn.execute("SET LOCAL turnstile.retention = 'on'")
            await conn.fetch("DELETE FROM cards WHERE card_id = $1", other.card_id)


async def test_a_call_whose_report_broke_the_protocol_still_times_out(agents: Pool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    card_id = await write_card(agents, result_card(turn, "a", author_id="alice"))
    await settle(agents, turn, await written_report(agents, turn, "a", card_id))
    [ring] = await expire(agents, turn)
    assert (await settle(agents, turn, ring.inbox_id)).status == HeadStatus.RUNNING
    assert await results(agents, turn) == [("a", "timeout")]


async def deferred(pool: Pool, turn: TurnRef, inbox_id: InboxId, retry: int) -> float:
    """Apply a report whose card is not there; gives the seconds until it is due again."""
    await rows(pool, "UPDATE state.agent_inbox SET next_retry_at = now() WHERE inbox_id = $1", inbox_id)
    done = await settle(pool, turn, inbox_id)
    assert [(row.status, row.reason) for row in done.rows] == [("deferred", "card_not_visible")]
    row = await row_of(pool, inbox_id)
    assert (row["retry_count"], row["defer_reason"], row["archived_at"]) == (retry, "card_not_visible", None)
    delay = row["next_retry_at"] - (await head(pool))["updated_at"]  # both of one statement
    assert (await settle(pool, turn, inbox_id)).rows == []  # not due
    assert await claim(pool, ALICE) == []
    return delay.total_seconds()


async def test_a_card_that_never_appears_is_awaited_three_times_then_stood_in_for_once(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    inbox_id = await written_report(agents, turn, "a", "nowhere")
    delays = [await deferred(agents, turn, inbox_id, retry) for retry in (1, 2, 3)]
    assert [round(delay, 3) for delay in delays] == [1.5, 3.0, 6.0]
    await rows(agents, "UPDATE state.agent_inbox SET next_retry_at = now() WHERE inbox_id = $1", inbox_id)
    done = await settle(agents, turn, inbox_id)
    assert [(row.status, row.reason) for row in done.rows] == [("error", "resume_retry_exhausted")]
    assert (done.waiting, await waits(agents)) == (["b"], {"a": "applied", "b": "waiting"})
    for _ in range(2):
        await settle(agents, turn, inbox_id)
    assert await results(agents, turn) == [("a", "failed")]
    made = await agents.run(lambda conn: get_card(conn, PROJECT, CardId("a-exhausted")))
    assert made is not None
    content = content_of(made)
    assert isinstance(content, ToolResultContent)
    assert (content.status, content.error and content.error.code) == ("failed", "resume_retry_exhausted")
    assert (made.metadata.author_id, made.metadata.agent_turn_id) == ("system", turn.agent_turn_id)


async def test_a_card_that_appears_in_time_is_applied(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    made = result_card(turn, "a").model_copy(update={"card_id": CardId(uuid7())})
    inbox_id = await written_report(agents, turn, "a", made.card_id)
    await deferred(agents, turn, inbox_id, 1)
    await write_card(agents, made)
    await rows(agents, "UPDATE state.agent_inbox SET next_retry_at = now() WHERE inbox_id = $1", inbox_id)
    [claimed] = await claim(agents, ALICE)
    assert claimed.verdict == "signal"
    await settle(agents, turn, inbox_id)
    assert (await became(agents, inbox_id), await results(agents, turn)) == (("consumed", None), [("a", "success")])


async def test_a_report_without_a_card_id_is_awaited_too(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await deferred(agents, turn, await written_report(agents, turn, "a", None), 1)


async def test_the_earlier_of_a_result_and_a_timeout_wins(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    card_id = await write_card(agents, result_card(turn, "a"))
    early = await written_report(agents, turn, "a", card_id)  # by SQL: the call still says waiting
    timeouts = {ring.correlation_id: ring.inbox_id for ring in await expire(agents, turn) if ring.inbox_id != early}
    late = await told(agents, "b")
    done = await settle(agents, turn, late, early, *timeouts.values())
    assert {row.inbox_id: (row.status, row.reason) for row in done.rows} == {
        early: ("consumed", None),
        timeouts["a"]: ("consumed", "already_settled"),
        timeouts["b"]: ("consumed", None),
        late: ("consumed", "already_settled"),
    }
    assert await waits(agents) == {"a": "applied", "b": "expired"}
    assert await results(agents, turn) == [("a", "success"), ("b", "timeout")]
