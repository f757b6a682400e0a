"""What tools ask people under their calls (protocol §13.8): once, without holding the call, whose time stands still."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, CAROL, PROJECT, TARGET, head, rows, value
from tests.support.ledger.calls import (
    ask_to_stop,
    end,
    ending,
    expire,
    pass_deadline,
    request,
    settle,
    sleeper,
    stop_on,
    tell,
    told,
    waits,
)
from tests.support.ledger.people import (
    REJECT,
    RESPOND,
    asked_by_tool,
    asking,
    asks,
    asks_on,
    call_row,
    lapses,
    pass_expiry,
    responds,
    responds_on,
)
from tests.support.ledger.unknown_calls import begun, runs, settle_dead, unsure
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.operations import sweep
from turnstile.ledger.people.call_questions import MOST_OPEN, find_call_question
from turnstile.ledger.people.decisions import DecisionRecord
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.waiting import inject_timeouts, report_call
from turnstile.schema.ids import InboxId, ToolCallId, asked_interrupt_id, uuid7
from turnstile.schema.people.interrupts import InterruptStatus

NEARLY = timedelta(seconds=5)
REPORTS = "SELECT inbox_id FROM state.agent_inbox WHERE message_type = 'tool_result' AND archived_at IS NULL"


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def near(found: datetime, wanted: datetime) -> bool:
    return abs(found - wanted) < NEARLY


async def reporting(conn: Connection, call: str) -> Any:
    content = json.dumps({"__type__": "ToolResultContent", "status": "success", "result": 1, "error": None})
    return await report_call(conn, PROJECT, request(call), content, InboxId(uuid7()), {})


async def test_a_question_puts_its_call_off_and_the_answer_gives_it_what_was_left(counting: Counting) -> None:
    await sleeper(counting, "a", "b", waits=(60, 500))
    assert await asks(counting, "a", expires_after_seconds=3600) == "accepted"
    asked, call = await asked_by_tool(counting, "a"), await call_row(counting, "a")
    assert (asked["status"], asked["call_key"], call["held_by"]) == ("open", "1", None)
    assert 55 < call["left_seconds"] <= 60
    assert near(call["deadline"], asked["expires_at"] + timedelta(seconds=60))
    assert (await head(counting))["resume_deadline"] == (await call_row(counting, "b"))["deadline"]
    assert await responds(counting, "a") == "accepted"
    asked, call = await asked_by_tool(counting, "a"), await call_row(counting, "a")
    assert (asked["status"], json.loads(asked["response"])) == ("resolved", "blue")
    assert (call["wait_status"], call["left_seconds"]) == ("waiting", None)
    assert near(call["deadline"], in_seconds(60))
    assert (await head(counting))["resume_deadline"] == call["deadline"]


async def test_a_question_is_asked_once_by_its_key(counting: Counting) -> None:
    await sleeper(counting, "a")
    assert await asks(counting, "a") == "accepted"
    assert await asks(counting, "a") == "duplicate"
    assert await asks(counting, "a", digest="other") == "key_conflict"
    await responds(counting, "a", given=REJECT)
    assert await asks(counting, "a") == "duplicate"
    found = await counting.run(lambda conn: find_call_question(conn, PROJECT, ToolCallId("a"), "1"))
    assert found is not None
    assert (found.status, found.decision, found.comment) == (InterruptStatus.RESOLVED, "reject", "no")
    assert await asks(counting, "none") == "unknown_call"


async def test_of_two_replicas_that_ask_at_once_one_does(counting: Counting) -> None:
    await sleeper(counting, "a")
    made = await asyncio.gather(*(asks(counting, "a") for _ in range(6)))
    assert sorted(made) == ["accepted", *["duplicate"] * 5]
    late = await overtaken(counting, lambda conn: asks_on(conn, "a", "2"), asks(counting, "a", "2", digest="other"))
    assert late == "key_conflict"


async def test_the_time_stands_still_until_the_last_of_several_is_closed(counting: Counting) -> None:
    await sleeper(counting, "a")
    for key, seconds in (("1", 3600), ("2", 7200), ("3", 60)):
        assert await asks(counting, "a", key, expires_after_seconds=seconds) == "accepted"
        left = (await call_row(counting, "a"))["left_seconds"]
        assert 55 < left <= 60
    assert near((await call_row(counting, "a"))["deadline"], in_seconds(7260))
    assert await responds(counting, "a", "2") == "accepted"
    assert near((await call_row(counting, "a"))["deadline"], in_seconds(3660))
    await rows(counting, "UPDATE state.interrupts SET expires_at = now() WHERE call_key = '3'")
    assert await lapses(counting, "a", "3")
    assert near((await call_row(counting, "a"))["deadline"], in_seconds(3660))
    assert await responds(counting, "a", "1") == "accepted"
    assert near((await call_row(counting, "a"))["deadline"], in_seconds(60))


async def test_while_its_tool_asks_a_call_is_neither_timed_out_nor_sent_again_nor_in_doubt(counting: Counting) -> None:
    async def repeated() -> list[str]:
        found = await counting.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-9, row_limit=9))
        return [each.tool_call_id for each in found]

    turn = await sleeper(counting, "a", agent=BOB)
    dying = await begun(counting, "c")
    [doubted] = await unsure(counting)
    for call in ("a", "c"):
        await asks(counting, call)
    assert await repeated() == []
    assert await unsure(counting) == []
    assert (await settle_dead(counting, doubted)).verdict == "settled"
    await pass_expiry(counting)
    await pass_deadline(counting)  # no bridge has closed it yet
    assert await expire(counting, turn) == []
    assert (await head(counting, BOB))["resume_deadline"] is None
    assert (await waits(counting))["a"] == "waiting"
    for call in ("a", "c"):
        assert await lapses(counting, call)
        assert not await lapses(counting, call)
    assert await responds(counting, "a") == "expired"
    assert (await head(counting, BOB))["resume_deadline"] == (await call_row(counting, "a"))["deadline"]
    assert await repeated() == ["a"]
    [again] = await unsure(counting)
    settled = await settle_dead(counting, again)
    assert (settled.verdict, settled.interrupt_id) == ("asked", "int-c-2")
    assert await asks(counting, "c", "2") == "not_sent"
    await end(counting, dying)


async def test_a_report_withdraws_what_the_tool_asks(counting: Counting) -> None:
    turn = await sleeper(counting, "a", "b")
    for key in ("1", "2"):
        await asks(counting, "a", key)
    report = await told(counting, "a")
    assert [(await asked_by_tool(counting, "a", key))["status"] for key in ("1", "2")] == ["withdrawn"] * 2
    assert (await call_row(counting, "a"))["left_seconds"] is None
    assert await responds(counting, "a") == "withdrawn"
    assert await asks(counting, "a", "3") == "parent_over"
    done = await settle(counting, turn, report)
    assert done.deadline == (await call_row(counting, "b"))["deadline"]


async def test_the_end_of_the_turn_withdraws_what_its_tools_ask(counting: Counting) -> None:
    turn = await sleeper(counting, "a")
    await asks(counting, "a")
    await end(counting, turn)
    assert (await asked_by_tool(counting, "a"))["status"] == "withdrawn"
    assert await asks(counting, "a", "2") == "parent_over"


async def test_nobody_is_asked_for_a_call_that_is_held_late_or_of_a_turn_that_shall_stop(counting: Counting) -> None:
    await asking(counting, "held")
    assert await asks(counting, "held") == "not_sent"
    late = await sleeper(counting, "late", agent=BOB, wait_seconds=0)
    assert await asks(counting, "late") == "parent_over"
    await end(counting, late)
    turn = await sleeper(counting, "a", agent=CAROL)
    await ask_to_stop(counting, turn.agent_turn_id)
    assert await asks(counting, "a") == "parent_stopping"
    await end(counting, turn)
    assert await value(counting, "SELECT count(*) FROM state.interrupts WHERE call_key IS NOT NULL") == 0


async def test_a_call_may_have_so_many_open_questions_and_no_more(counting: Counting) -> None:
    await sleeper(counting, "a")
    for key in range(MOST_OPEN):
        assert await asks(counting, "a", str(key)) == "accepted"
    assert await asks(counting, "a", "more") == "too_many_questions"
    await responds(counting, "a", "0")
    assert await asks(counting, "a", "more") == "accepted"


@pytest.mark.parametrize("given", [RESPOND, REJECT])
async def test_a_decision_and_a_report_at_once(counting: Counting, given: DecisionRecord) -> None:
    """Whichever is first: the report counts, and a decision that came before it stands."""
    turn = await sleeper(counting, "a", "b")
    for call in "ab":
        await asks(counting, call)
    late = await overtaken(counting, lambda conn: responds_on(conn, "a", given=given), tell(counting, "a"))
    assert not late.reply.duplicate
    assert (await asked_by_tool(counting, "a"))["status"] == "resolved"
    assert await overtaken(counting, lambda conn: reporting(conn, "b"), responds(counting, "b")) == "withdrawn"
    assert (await asked_by_tool(counting, "b"))["status"] == "withdrawn"
    await end(counting, turn)


async def test_a_question_and_a_report_at_once(counting: Counting) -> None:
    turn = await sleeper(counting, "a", "b")
    await overtaken(counting, lambda conn: asks_on(conn, "a"), tell(counting, "a"))
    assert (await asked_by_tool(counting, "a"))["status"] == "withdrawn"
    assert await overtaken(counting, lambda conn: reporting(conn, "b"), asks(counting, "b")) == "parent_over"
    await end(counting, turn)


async def test_a_question_and_a_stop_or_an_end_at_once(counting: Counting) -> None:
    first = await sleeper(counting, "a")
    assert await overtaken(counting, lambda conn: stop_on(conn, first), asks(counting, "a")) == "parent_stopping"
    await end(counting, first)
    second = await sleeper(counting, "b")
    assert await overtaken(counting, ending(second), asks(counting, "b")) == "parent_over"
    third = await sleeper(counting, "c")
    await overtaken(counting, lambda conn: asks_on(conn, "c"), end(counting, third))
    assert (await asked_by_tool(counting, "c"))["status"] == "withdrawn"


async def test_a_decision_and_a_stop_or_an_end_at_once(counting: Counting) -> None:
    first = await sleeper(counting, "a")
    await asks(counting, "a")
    assert await overtaken(counting, lambda conn: stop_on(conn, first), responds(counting, "a")) == "withdrawn"
    await end(counting, first)
    second = await sleeper(counting, "b")
    await asks(counting, "b")
    await overtaken(counting, lambda conn: responds_on(conn, "b"), end(counting, second))
    assert (await asked_by_tool(counting, "b"))["status"] == "resolved"


async def test_a_decision_and_an_expiry_at_once(counting: Counting) -> None:
    turn = await sleeper(counting, "a", "b")
    for call in "ab":
        await asks(counting, call)

    async def decided(conn: Connection) -> None:
        await responds_on(conn, "a")
        await conn.fetch("UPDATE state.interrupts SET expires_at = now() - interval '1 s'")

    assert not await overtaken(counting, decided, lapses(counting, "a"))

    async def expired(conn: Connection) -> None:
        named = asked_interrupt_id(ToolCallId("b"), "1")
        assert (await query("expire_interrupt").one(conn, interrupt_id=named))["expired"]

    assert await overtaken(counting, expired, responds(counting, "b")) == "expired"
    await end(counting, turn)


async def test_a_question_and_a_timeout_at_once(counting: Counting) -> None:
    turn = await sleeper(counting, "a", "b", waits=(60, 0))
    await rows(counting, "UPDATE state.agent_state_head SET resume_deadline = now() WHERE status = 'suspended'")
    await overtaken(counting, lambda conn: asks_on(conn, "a"), expire(counting, turn))
    assert "b" in {ring.correlation_id for ring in await expire(counting, turn)}
    assert (await head(counting))["resume_deadline"] == (await call_row(counting, "a"))["deadline"]
    await end(counting, turn)
    late = await sleeper(counting, "c", agent=BOB, wait_seconds=60)
    await pass_deadline(counting)
    assert await overtaken(counting, lambda conn: inject_timeouts(conn, late), asks(counting, "c")) == "parent_over"
    await end(counting, late)


async def test_a_mark_and_a_question_at_once(counting: Counting) -> None:
    turn = await sleeper(counting, "a")
    node = "INSERT INTO state.turn_nodes (agent_turn_id, project_id, root_turn_id) VALUES ($1, $2, $1)"
    await rows(counting, node, turn.agent_turn_id, PROJECT)
    mark = "SELECT state.mark_subtrees(ARRAY[$1], 'enough', 'test', false, NULL)"
    found = await overtaken(counting, lambda conn: conn.fetch(mark, turn.agent_turn_id), asks(counting, "a"))
    assert found == "parent_stopping"
    await end(counting, turn)


async def test_another_run_begins_while_the_question_is_open(counting: Counting) -> None:
    """Its replica died, and the stream gave the call to another: that may ask by the same key."""
    turn = await begun(counting, "a")
    await asks(counting, "a")
    assert not await runs(counting, "a", "run.2")
    assert await asks(counting, "a") == "duplicate"
    assert await unsure(counting) == []
    await responds(counting, "a")
    assert [each.tool_call_id for each in await unsure(counting)] == ["a"]
    await end(counting, turn)


@pytest.mark.long
@pytest.mark.timeout(1800)
async def test_a_thousand_times_a_question_ends_one_way(counting: Counting) -> None:
    await rush(counting, 1000)


async def test_whatever_comes_at_once_a_question_ends_one_way(counting: Counting) -> None:
    await rush(counting, 18)


async def rush(pool: Pool, count: int) -> None:
    """Ask twice, answer, report, lapse, time out and stop at once, so often: the audit finds nothing."""
    for number in range(count):
        call, agent = f"call-{number}", (ALICE, BOB, CAROL)[number % 3]
        turn = await sleeper(pool, call, agent=agent)
        if number % 2:
            await asks(pool, call)
            if number % 4 == 1:
                await rows(pool, "UPDATE state.interrupts SET expires_at = now() WHERE tool_call_id = $1", call)
        acts: list[Any] = [asks(pool, call), asks(pool, call), responds(pool, call), lapses(pool, call)]
        acts += [expire(pool, turn), *([tell(pool, call)] if number % 3 else [])]
        await asyncio.gather(*acts)
        await settle(pool, turn, *(row["inbox_id"] for row in await rows(pool, REPORTS)))
        await end(pool, turn)
        found = await rows(pool, "SELECT status FROM state.interrupts WHERE tool_call_id = $1", call)
        assert all(row["status"] != "open" for row in found)
