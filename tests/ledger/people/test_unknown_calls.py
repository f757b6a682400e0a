"""Calls that must not be run twice: begun once, not sent again, asked about where nobody runs them any more."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.ledger.agents import BOB, PROJECT, TARGET, begin, finish, head, rows, value
from tests.support.ledger.calls import ask_to_stop, end, ending, expire, request, results, settle, sleeper, tell, told
from tests.support.ledger.people import answer, asking, call_row, decide, decide_on, question
from tests.support.ledger.unknown_calls import begun, doubtful, runs, settle_dead, unsure
from tests.support.waiting import overtaken
from turnstile.ledger.operations import sweep
from turnstile.ledger.people.unknown_calls import begin_call, settle_unknown
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.waiting import Reported, describe_call, report_call
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InboxId, ToolCallId, uuid7
from turnstile.schema.people.approvals import Decision

REPORTS = "SELECT inbox_id FROM state.agent_inbox WHERE message_type = 'tool_result' AND archived_at IS NULL"


async def repeated(pool: Pool) -> list[str]:
    """The calls that the rule `command` would send again."""
    found = await pool.run(lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=-9, row_limit=9))
    return [each.tool_call_id for each in found]


async def test_one_run_begins_a_call_and_its_repeat_is_the_same_run(agents: Pool) -> None:
    await sleeper(agents, "a")
    made = await asyncio.gather(*(runs(agents, "a", f"run.{number}") for number in range(6)))
    assert sum(made) == 1
    winner = f"run.{made.index(True)}"
    assert await runs(agents, "a", winner)
    row = await call_row(agents, "a")
    assert (row["begun_by"], row["begun_at"] is not None, row["doubted_at"] is not None) == (winner, True, True)


async def test_a_run_that_waited_for_another_may_not_begin(agents: Pool) -> None:
    await sleeper(agents, "a")
    late = await overtaken(
        agents, lambda conn: begin_call(conn, PROJECT, ToolCallId("a"), "first"), runs(agents, "a", "second")
    )
    assert late is False


async def test_a_call_that_began_is_not_sent_again_and_others_are(agents: Pool) -> None:
    await sleeper(agents, "a", "b")
    assert await runs(agents, "a")
    assert await repeated(agents) == ["b"]
    assert [each.tool_call_id for each in await unsure(agents)] == ["a"]
    assert await unsure(agents, older_seconds=60) == []
    assert not await runs(agents, "a", "another")  # its command came again: the net looks at once
    assert [each.begun_by for each in await unsure(agents, older_seconds=60)] == ["run.1"]
    assert await unsure(agents, older_seconds=60) == []


async def test_a_call_that_is_held_or_over_does_not_begin(agents: Pool) -> None:
    await asking(agents, "held")
    assert not await runs(agents, "held")
    turn = await sleeper(agents, "over", agent=BOB)
    await settle(agents, turn, await told(agents, "over"))
    assert not await runs(agents, "over")


async def test_a_person_is_asked_about_a_call_whose_tool_died(agents: Pool) -> None:
    turn = await begun(agents, "a", "b")
    a, b = sorted(await unsure(agents), key=lambda each: each.tool_call_id)
    made = await settle_dead(agents, a)
    asked, row = await question(agents, "a"), await call_row(agents, "a")
    assert (made.verdict, made.interrupt_id, made.expires_at) == ("asked", asked["interrupt_id"], asked["expires_at"])
    assert (asked["reason"], asked["action_digest"], asked["requester_may_decide"]) == ("confirmation", "d", True)
    assert asked["allowed_decisions"] == ["approve", "reject", "respond"]
    assert (row["held_by"], row["deadline"], row["begun_by"]) == (asked["interrupt_id"], None, None)
    assert (await head(agents))["resume_deadline"] == (await call_row(agents, "b"))["deadline"]
    assert await settle_dead(agents, a) == made.model_copy(
        update={"verdict": "settled", "interrupt_id": None, "expires_at": None}
    )
    assert not await runs(agents, "a", "later")
    with pytest.raises(Refused, check=lambda error: error.code == "not_sent"):
        await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("a")))
    await settle_dead(agents, b)
    assert (await head(agents))["resume_deadline"] is None
    assert await expire(agents, turn) == []
    assert (await settle(agents, turn)).waiting == ["a", "b"]


async def test_where_nobody_may_be_asked_the_call_failed(agents: Pool) -> None:
    turn = await begun(agents, "a")
    [found] = await unsure(agents)
    assert (await settle_dead(agents, found, asks=False)).verdict == "answered"
    assert (await settle(agents, turn, *await reports(agents))).waiting == []
    content = json.loads(await value(agents, "SELECT content FROM cards WHERE card_id = 'a-result'"))
    assert (content["status"], content["error"]["code"]) == ("failed", "outcome_unknown")
    await begin(agents, turn, 2)
    await finish(agents, turn, 2)


async def test_an_approved_call_may_run_once_more_and_be_asked_about_again(agents: Pool) -> None:
    await doubtful(agents, "a")
    done = await decide(agents, "a")
    assert done.sent
    wait = (await call_row(agents, "a"))["deadline"] - datetime.now(UTC)
    assert timedelta(seconds=50) < wait < timedelta(seconds=70)
    assert await repeated(agents) == ["a"]
    assert await runs(agents, "a", "run.2")
    assert not await runs(agents, "a", "run.1")
    [found] = await unsure(agents)
    again = await settle_dead(agents, found)
    assert again.interrupt_id == "int-a-2"


async def test_what_the_person_knows_is_the_result(agents: Pool) -> None:
    turn = await doubtful(agents, "a")
    await decide(agents, "a", answer(Decision.RESPOND, response="paid"))
    assert (await settle(agents, turn, *await reports(agents))).waiting == []
    assert await results(agents, turn) == [("a", "success")]


async def test_the_tools_own_report_closes_the_question(agents: Pool) -> None:
    """It was cut off, not dead: it knows."""
    turn = await doubtful(agents, "a")
    reported = await told(agents, "a")
    asked, row = await question(agents, "a"), await call_row(agents, "a")
    assert (asked["status"], row["wait_status"], row["held_by"]) == ("withdrawn", "received", None)
    assert (await settle(agents, turn, reported)).waiting == []
    assert (await tell(agents, "a")).reply.duplicate


async def test_of_a_report_and_a_decision_at_once_one_counts(agents: Pool) -> None:
    turn = await doubtful(agents, "a", "b")
    late = await overtaken(agents, lambda conn: decide_on(conn, "a", answer(Decision.REJECT)), tell(agents, "a"))
    assert late.reply.duplicate
    with pytest.raises(Refused, check=lambda error: error.code == "withdrawn"):
        await overtaken(agents, lambda conn: reporting(conn, "b"), decide(agents, "b"))
    assert (await settle(agents, turn, *await reports(agents))).waiting == []


async def reports(pool: Pool) -> list[InboxId]:
    return [row["inbox_id"] for row in await rows(pool, REPORTS)]


async def reporting(conn: Connection, call: str) -> Reported:
    content = json.dumps({"__type__": "ToolResultContent", "status": "success", "result": 1, "error": None})
    return await report_call(conn, PROJECT, request(call), content, InboxId(uuid7()), {})


async def test_a_report_that_comes_first_leaves_nothing_to_ask(agents: Pool) -> None:
    await begun(agents, "a")
    [found] = await unsure(agents)
    settled = await overtaken(agents, lambda conn: reporting(conn, "a"), settle_dead(agents, found))
    assert settled.verdict == "settled"
    assert await value(agents, "SELECT count(*) FROM state.interrupts") == 0


async def test_nobody_is_asked_for_a_turn_that_ends(agents: Pool) -> None:
    turn = await begun(agents, "a")
    [found] = await unsure(agents)
    settled = await overtaken(agents, ending(turn), settle_dead(agents, found))
    assert settled.verdict == "settled"
    stopped = await begun(agents, "b")
    [found] = await unsure(agents)
    await ask_to_stop(agents, stopped.agent_turn_id)
    assert (await settle_dead(agents, found)).verdict == "settled"
    await end(agents, stopped)
    assert await value(agents, "SELECT count(*) FROM state.interrupts") == 0


async def test_two_bridges_ask_once(agents: Pool) -> None:
    await begun(agents, "a")
    [found] = await unsure(agents)
    twin = await overtaken(agents, lambda conn: settle_unknown(conn, found, "?", "d"), settle_dead(agents, found))
    assert twin.verdict == "settled"
    assert await value(agents, "SELECT count(*) FROM state.interrupts") == 1


async def test_a_repeat_is_no_way_around_a_second_pair_of_eyes(agents: Pool) -> None:
    """The question whether it was done may be answered by those who could approve the call."""
    await asking(agents, "a", requester_may_decide=False)
    await decide(agents, "a")
    assert await runs(agents, "a")
    [found] = await unsure(agents)
    assert (await settle_dead(agents, found)).interrupt_id == "int-a-2"
    may = "SELECT requester_may_decide FROM state.interrupts WHERE interrupt_id = 'int-a-2'"
    assert await value(agents, may) is False
