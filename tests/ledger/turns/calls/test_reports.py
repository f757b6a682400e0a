"""What a tool reports of a call: `report`, from acceptance to refusal (protocol §6)."""

import asyncio
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, PROJECT, TARGET, claim, profile, rows, value
from tests.support.ledger.calls import (
    became,
    expire,
    request,
    result_card,
    results,
    row_of,
    settle,
    sleeper,
    tell,
    told,
    waits,
    write_card,
    written_report,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.waiting import report_call
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import CardId, InboxId, ProjectId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES

REPORTS = "SELECT * FROM state.execution_edges WHERE primitive = 'report' AND edge_phase = 'response'"
ROWS = """
SELECT (SELECT array_agg(xmin::text || ctid::text ORDER BY 1) FROM state.agent_inbox)::text || '/' ||
       (SELECT array_agg(xmin::text || ctid::text ORDER BY 1) FROM state.turn_waiting_tools)::text || '/' ||
       (SELECT array_agg(xmin::text || ctid::text ORDER BY 1) FROM state.agent_state_head)::text || '/' ||
       (SELECT count(*) FROM state.execution_edges) || '/' || (SELECT count(*) FROM cards)
"""
"""Every row version there is."""


async def test_an_inline_report_writes_card_row_and_edge(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", incoming={headers.DEPTH: "2"})
    done = await tell(agents, "a", after_execution="terminate")
    assert (done.reply.status, done.reply.tool_call_id, done.reply.duplicate) == ("accepted", "a", False)
    assert done.reply.inbox_id is not None
    row = await row_of(agents, done.reply.inbox_id)
    assert (row["message_type"], row["status"], row["correlation_id"]) == ("tool_result", "pending", "a")
    assert (row["agent_id"], row["agent_turn_id"], row["turn_epoch"]) == (ALICE, turn.agent_turn_id, 1)
    assert headers.depth(await headers_of(agents, done.reply.inbox_id)) == 2
    kept = await value(agents, "SELECT payload::text FROM state.agent_inbox WHERE message_type = 'tool_result'")
    assert kept == '{"status": "success", "after_execution": "terminate", "tool_result_card_id": "a-result"}'
    [made] = await rows(agents, "SELECT *, content ->> 'result' AS result FROM cards WHERE card_id = 'a-result'")
    assert (made["tool_call_id"], made["result"]) == ("a", "found by a")
    meta = "SELECT metadata ->> $1 FROM cards WHERE card_id = 'a-result'"
    assert await value(agents, meta, "type") == "tool.result"
    assert await value(agents, meta, "author_id") == "tool.search"
    assert await value(agents, meta, "trace_id") == turn.trace_id
    [edge] = await rows(agents, REPORTS)
    assert (edge["correlation_id"], edge["target_agent_id"], edge["recursion_depth"]) == ("a", ALICE, 2)
    assert (edge["target_agent_turn_id"], edge["trace_id"]) == (turn.agent_turn_id, turn.trace_id)
    assert await waits(agents) == {"a": "received", "b": "waiting"}


async def headers_of(pool: Pool, inbox_id: InboxId) -> dict[str, str]:
    """The context headers of a row."""
    found = await rows(
        pool,
        "SELECT key, value FROM state.agent_inbox CROSS JOIN jsonb_each_text(context_headers) WHERE inbox_id = $1",
        inbox_id,
    )
    return {row["key"]: row["value"] for row in found}


async def test_a_report_tells_whom_to_ring(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    ring = (await tell(agents, "a")).ring
    assert ring is not None
    assert (ring.agent_id, ring.agent_turn_id, ring.turn_epoch) == (ALICE, turn.agent_turn_id, 1)
    assert ring.worker_target == TARGET
    assert headers.trace_id(ring.context_headers[headers.TRACEPARENT]) == turn.trace_id
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.inbox_id, claimed.correlation_id) == ("signal", ring.inbox_id, "a")


@pytest.mark.parametrize("author", ["tool.search", "tool.openapi", "sys.judge", "system"])
async def test_a_report_may_point_to_a_card_of_any_service(agents: Pool, author: str) -> None:
    turn = await sleeper(agents, "a")
    card_id = await write_card(agents, result_card(turn, "a", author_id=author))
    await settle(agents, turn, await told(agents, "a", tool_result_card_id=card_id))
    assert await results(agents, turn) == [("a", "success")]
    assert await value(agents, "SELECT tool_result_card_id FROM state.turn_waiting_tools") == card_id
    assert await value(agents, "SELECT count(*) FROM cards WHERE card_id = 'a-result'") == 0


async def test_an_inline_failure_without_a_word_is_given_one(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    await tell(agents, "a", status=TurnStatus.FAILED, result=None)
    await tell(agents, "b", status=TurnStatus.FAILED, error={"code": "no_such_page", "message": "404"})
    await tell(agents, "c", status=TurnStatus.PARTIAL, result={"half": 1})
    errors = "SELECT content -> 'error' ->> 'code' FROM cards WHERE card_id = $1"
    assert await value(agents, errors, "a-result") == "tool_failed"
    assert await value(agents, errors, "b-result") == "no_such_page"
    assert await value(agents, errors, "c-result") == "tool_partial"
    await settle(agents, turn)


@pytest.mark.parametrize("text", ["x" * (RESULT_LIMIT_BYTES - 2), "é" * (RESULT_LIMIT_BYTES // 2 - 1)])
async def test_an_inline_result_has_a_limit_in_bytes(agents: Pool, text: str) -> None:
    await sleeper(agents, "a", "b")
    await tell(agents, "a", result=text)  # as JSON exactly 512 KiB, with its quotes
    with pytest.raises(Refused) as refused:
        await tell(agents, "b", result=text + "x")
    assert refused.value.code == "result_too_large"
    with pytest.raises(Refused):
        await tell(agents, "b", status=TurnStatus.FAILED, error={"code": "x", "message": text})
    assert await waits(agents) == {"a": "received", "b": "waiting"}


@pytest.mark.parametrize("fields", [{"result": "a\0b"}, {"result": {"\0": 1}}])
async def test_text_that_postgres_cannot_store_is_a_bad_request(agents: Pool, fields: dict[str, Any]) -> None:
    await sleeper(agents, "a")
    with pytest.raises(BadRequest, match="NUL"):
        await tell(agents, "a", **fields)
    assert await waits(agents) == {"a": "waiting"}


async def refusal(pool: Pool, call: str, **arguments: Any) -> str:
    """The code of a report that is refused and changes no row."""
    before = await value(pool, ROWS)
    with pytest.raises(Refused) as refused:
        await tell(pool, call, **arguments)
    assert await value(pool, ROWS) == before
    return refused.value.code


async def test_an_unknown_call_is_refused(agents: Pool) -> None:
    await sleeper(agents, "a")
    assert await refusal(agents, "b") == "unknown_call"


async def test_a_call_of_another_project_is_unknown(agents: Pool) -> None:
    await sleeper(agents, "a")
    other = ProjectId("p2")
    await put_profile(agents, other, profile())
    await add_agent(agents, other, ALICE, "helper")
    assert await refusal(agents, "a", project=other) == "unknown_call"


@pytest.mark.parametrize(
    "claimed", [{headers.TURN_ID: "another"}, {headers.AGENT_ID: BOB}, {headers.DEPTH: "1"}, {headers.DEPTH: "0"}]
)
@pytest.mark.parametrize("answered", [False, True])
async def test_a_claim_of_another_turn_agent_or_depth_is_refused(
    agents: Pool, claimed: dict[str, str], answered: bool
) -> None:
    """Also where the call is answered: a stranger's report is no repeat."""
    await sleeper(agents, "a", incoming={headers.DEPTH: "3"})
    if answered:
        await tell(agents, "a")
    assert await refusal(agents, "a", incoming=claimed) == "not_your_call"


async def test_the_headers_of_the_command_are_accepted(agents: Pool) -> None:
    turn = await sleeper(agents, "a", incoming={headers.DEPTH: "3"})
    own = {headers.TURN_ID: turn.agent_turn_id, headers.AGENT_ID: ALICE, headers.DEPTH: "3"}
    traceparent = headers.new_traceparent()
    inbox_id = await told(agents, "a", incoming={**own, headers.TRACEPARENT: traceparent})
    kept = await headers_of(agents, inbox_id)
    assert headers.trace_id(kept[headers.TRACEPARENT]) == headers.trace_id(traceparent)


async def test_a_card_that_is_missing_is_refused(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    assert await refusal(agents, "a", tool_result_card_id="nowhere") == "unknown_card"
    theirs = await write_card(agents, result_card(turn, "a"), ProjectId("p2"))
    assert await refusal(agents, "a", tool_result_card_id=theirs) == "unknown_card"


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "agent.thought"},
        {"type": ""},
        {"author_id": "alice"},
        {"author_id": "agent.alice"},
        {"author_id": None},
        {"tool_call_id": "b"},
    ],
)
async def test_a_card_of_another_type_author_or_call_is_refused(agents: Pool, changes: dict[str, Any]) -> None:
    turn = await sleeper(agents, "a", "b")
    written = await write_card(agents, result_card(turn, "a", **changes))
    assert await refusal(agents, "a", tool_result_card_id=written) == "not_its_card"
    async with agents.connection() as conn, conn.transaction():  # a stray card is in no box
        await conn.execute("SET LOCAL turnstile.retention = 'on'")
        await conn.fetch("DELETE FROM cards WHERE card_id = $1", written)
    assert await waits(agents) == {"a": "waiting", "b": "waiting"}


@pytest.mark.parametrize("status", [TurnStatus.SUCCESS, TurnStatus.FAILED])
async def test_a_repeat_is_a_duplicate_and_changes_no_row(agents: Pool, status: TurnStatus) -> None:
    turn = await sleeper(agents, "a", "b")
    first = await tell(agents, "a")
    before = await value(agents, ROWS)
    again = await tell(agents, "a", status=status)
    assert again.reply == first.reply.model_copy(update={"duplicate": True})
    assert again.ring is None
    assert await value(agents, ROWS) == before
    assert first.reply.inbox_id is not None
    await settle(agents, turn, first.reply.inbox_id)
    assert (await tell(agents, "a")).reply == again.reply


async def test_a_try_whose_answer_was_lost_is_no_duplicate(agents: Pool) -> None:
    await sleeper(agents, "a")
    own = InboxId(uuid7())
    for _ in range(2):
        done = await agents.run(lambda conn: report_call(conn, PROJECT, request("a"), "{}", own, {}))
        assert (done.reply.inbox_id, done.reply.duplicate, done.ring is not None) == (own, False, True)


async def test_twins_are_one_report(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    done = await asyncio.gather(*(tell(agents, "a") for _ in range(8)))
    assert sorted(each.reply.duplicate for each in done) == [False] + [True] * 7
    [inbox_id] = {each.reply.inbox_id for each in done}
    assert [each.ring is None for each in done].count(False) == 1
    assert len(await rows(agents, REPORTS)) == 1
    assert inbox_id is not None
    await settle(agents, turn, inbox_id)
    assert await results(agents, turn) == [("a", "success")]


async def test_a_report_after_the_timeout_has_no_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn) if ring.correlation_id == "a"))
    late = await told(agents, "a")
    [claimed] = [each for each in await claim(agents, ALICE) if each.inbox_id == late]
    assert claimed.verdict == "consumed"
    assert await became(agents, late) == ("consumed", "already_settled")
    assert await waits(agents) == {"a": "expired", "b": "waiting"}
    assert await results(agents, turn) == [("a", "timeout")]
    assert {edge["edge_id"] for edge in await rows(agents, REPORTS)} == {"report-a", "report-b"}  # the first reports'


async def test_a_report_after_the_turn_has_no_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await fence(agents, turn, TurnStatus.CANCELED, "stopped", "stopped")
    done = await tell(agents, "a")
    assert (done.reply.status, done.reply.duplicate) == ("accepted", False)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.last_error) == ("consumed", "already_settled")
    assert await waits(agents) == {"a": "dropped"}
    assert await results(agents, turn) == [("a", "canceled")]


async def test_a_report_by_sql_before_one_by_the_verb_is_the_one(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    card_id = await write_card(agents, result_card(turn, "a"))
    written = await written_report(agents, turn, "a", card_id)
    done = await tell(agents, "a")
    assert (done.reply.inbox_id, done.reply.duplicate) == (written, True)
    assert await waits(agents) == {"a": "waiting"}
    await settle(agents, turn, written)
    assert await value(agents, "SELECT tool_result_card_id FROM state.turn_waiting_tools") == card_id


async def test_a_report_of_a_call_whose_agent_left_rings_nobody(agents: Pool) -> None:
    await sleeper(agents, "a")
    await rows(agents, "DELETE FROM resource.project_agents WHERE agent_id = 'alice'")
    assert (await tell(agents, "a")).ring is None


def test_a_report_is_a_pointer_or_inline() -> None:
    with pytest.raises(ValueError, match="not both"):
        request("a", tool_result_card_id=CardId("c"), result=1)
