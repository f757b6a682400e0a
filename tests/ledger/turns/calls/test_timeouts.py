"""The deadline of a suspended turn (protocol §7.6): what expires, what does not, and results that race it."""

import asyncio
from datetime import timedelta

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    begin,
    claim,
    finish,
    head,
    lease,
    rows,
    value,
)
from tests.support.ledger.calls import (
    became,
    expire,
    pass_deadline,
    results,
    row_of,
    settle,
    sleeper,
    suspend,
    tell,
    told,
    waits,
    written_report,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.cards import get_card
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.waiting import describe_call
from turnstile.schema.cards import ToolResultContent, content_of
from turnstile.schema.ids import CardId, ToolCallId
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.wire import headers


async def test_before_the_deadline_nothing_expires(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    before = await head(agents)
    assert await expire(agents, turn) == []
    assert await head(agents) == before


async def test_at_the_deadline_each_waiting_call_expires_once(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", incoming={headers.DEPTH: "2"})
    await pass_deadline(agents)
    rings = await expire(agents, turn)
    assert sorted((ring.inbox_id, ring.message_type, ring.correlation_id) for ring in rings) == [
        ("timeout-a", "timeout", "a"),
        ("timeout-b", "timeout", "b"),
    ]
    now = await head(agents)
    assert (now["status"], now["waiting_tool_count"], now["resume_deadline"]) == ("suspended", 2, None)
    again = await expire(agents, turn)
    assert sorted(again, key=lambda ring: ring.inbox_id) == sorted(rings, key=lambda ring: ring.inbox_id)
    assert await waits(agents) == {"a": "waiting", "b": "waiting"}
    row = await row_of(agents, rings[0].inbox_id)
    assert (row["status"], row["agent_turn_id"], row["turn_epoch"]) == ("pending", turn.agent_turn_id, 1)
    edges = await rows(agents, "SELECT * FROM state.execution_edges WHERE primitive = 'report' ORDER BY edge_id")
    assert [(edge["correlation_id"], edge["edge_phase"]) for edge in edges] == [("a", "response"), ("b", "response")]
    assert {(edge["recursion_depth"], edge["trace_id"]) for edge in edges} == {(2, turn.trace_id)}


async def test_injecting_again_is_no_sign_of_life(agents: Pool) -> None:
    """The rules that look for lost turns go by when the head changed: nothing may change it while nothing happens."""
    turn = await sleeper(agents, "a", wait_seconds=0)
    await expire(agents, turn)
    before = await head(agents)
    assert len(await expire(agents, turn)) == 1
    assert await head(agents) == before


async def test_a_timeout_is_a_result_that_says_so(agents: Pool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    [ring] = await expire(agents, turn)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.ring()) == ("signal", ring)
    assert headers.trace_id(claimed.context_headers[headers.TRACEPARENT]) == turn.trace_id
    assert (await settle(agents, turn, ring.inbox_id)).status == HeadStatus.RUNNING
    assert await waits(agents) == {"a": "expired"}
    made = await agents.run(lambda conn: get_card(conn, PROJECT, CardId("a-timeout")))
    assert made is not None
    content = content_of(made)
    assert isinstance(content, ToolResultContent)
    assert (content.status, content.error and content.error.code) == ("timeout", "tool_timeout")
    assert (made.metadata.author_id, made.metadata.function_name) == ("system", "search")


async def test_timeouts_that_are_injected_twice_at_once_are_one(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    found = await asyncio.gather(*(expire(agents, turn) for _ in range(6)))
    assert {tuple(sorted(ring.inbox_id for ring in rings)) for rings in found} == {("timeout-a", "timeout-b")}


async def test_a_call_that_was_reported_does_not_expire(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    real = await told(agents, "a")
    rings = await expire(agents, turn)
    assert {(ring.inbox_id, ring.message_type) for ring in rings} == {(real, "tool_result"), ("timeout-b", "timeout")}
    await settle(agents, turn, *(ring.inbox_id for ring in rings))
    assert await waits(agents) == {"a": "applied", "b": "expired"}
    assert await results(agents, turn) == [("a", "success"), ("b", "timeout")]


async def test_a_call_without_a_card_is_dropped_and_leaves_the_count(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await suspend(agents, turn, "a", "b", wait_seconds=0, uncarded=("b",))
    assert [ring.correlation_id for ring in await expire(agents, turn)] == ["a"]
    assert (await head(agents))["waiting_tool_count"] == 1
    assert await waits(agents) == {"a": "waiting", "b": "dropped"}
    await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn)))
    assert (await head(agents))["status"] == "running"
    assert await results(agents, turn) == [("a", "timeout")]
    late = await told(agents, "b")
    [claimed] = await claim(agents, ALICE)
    assert (claimed.inbox_id, claimed.verdict) == (late, "consumed")


async def test_a_turn_whose_every_call_is_dropped_goes_on(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await suspend(agents, turn, "a", "b", wait_seconds=0, uncarded=("a", "b"))
    assert await expire(agents, turn) == []
    now = await head(agents)
    assert (now["status"], now["waiting_tool_count"], now["resume_deadline"]) == ("running", 0, None)
    assert (await begin(agents, turn, 2)).head.answered == []
    await finish(agents, turn, 2)


async def test_timeouts_need_the_gate_of_a_suspended_turn(agents: Pool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    assert await expire(agents, turn.model_copy(update={"turn_epoch": 2})) == []
    await settle(agents, turn, await told(agents, "a"))
    assert await expire(agents, turn) == []
    await begin(agents, turn, 2)
    await finish(agents, turn, 2)
    assert await expire(agents, turn) == []
    fenced = await sleeper(agents, "b", wait_seconds=0)
    await fence(agents, fenced, TurnStatus.FAILED, "reaped", "reaped")
    assert await expire(agents, fenced) == []


@pytest.mark.parametrize("result_first", [True, False])
async def test_of_a_result_and_a_timeout_that_race_exactly_one_is_applied(agents: Pool, result_first: bool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    if result_first:
        real = await told(agents, "a")
        [ring] = await expire(agents, turn)
        assert ring.inbox_id == real
    else:
        await expire(agents, turn)
        real = await told(agents, "a")
    claimed = await claim(agents, ALICE)
    assert {each.verdict for each in claimed} == {"signal"}
    await settle(agents, turn, *(each.inbox_id for each in claimed))
    assert await results(agents, turn) == [("a", "success" if result_first else "timeout")]
    assert await waits(agents) == {"a": "applied" if result_first else "expired"}
    assert await became(agents, real) == ("consumed", None if result_first else "already_settled")
    assert (await head(agents))["status"] == "running"


async def test_results_and_timeouts_at_once_leave_one_result_a_call(agents: Pool) -> None:
    calls = [f"c{number}" for number in range(12)]
    turn = await sleeper(agents, *calls, wait_seconds=0)
    await asyncio.gather(expire(agents, turn), *(tell(agents, call) for call in calls), expire(agents, turn))
    ids = [ring.inbox_id for ring in await expire(agents, turn)]
    await asyncio.gather(*(settle(agents, turn, *ids) for _ in range(3)))
    assert sorted(call for call, _ in await results(agents, turn)) == sorted(calls)
    assert (await head(agents))["status"] == "running"


async def test_turns_whose_deadline_is_over_are_listed(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await sleeper(agents, "b", agent=BOB)
    cleared = await sleeper(agents, "c", agent=CAROL, wait_seconds=0)
    await expire(agents, cleared)

    async def listed(target: str = TARGET, older: float = 5) -> list[str]:
        found = await agents.run(lambda c: sweep.list_overdue(c, [target], older_seconds=older, row_limit=9))
        assert {each.agent_turn_id for each in found} <= {turn.agent_turn_id}
        return sorted(each.agent_id for each in found)

    assert await listed() == []
    await rows(
        agents,
        "UPDATE state.agent_state_head SET resume_deadline = now() - interval '6 s' WHERE agent_id = 'alice'",
    )
    assert await listed() == [ALICE]
    assert await listed("x") == []
    assert await listed(older=7) == []
    await rows(agents, "UPDATE state.agent_state_head SET updated_at = now() - interval '6 s' WHERE agent_id <> 'bob'")
    assert await listed() == [ALICE]  # carol's timeout is a row that is due: the doorbell rule rings for it
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = now() WHERE agent_id = 'alice'")
    await expire(agents, turn)
    assert await listed() == []


async def test_a_null_deadline_is_never_past(agents: Pool) -> None:
    """A call that waits for something without an end is not timed out, listed, reaped or told as damage."""
    turn = await sleeper(agents, "a", wait_seconds=0)
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = NULL")
    await rows(
        agents, "UPDATE state.agent_state_head SET resume_deadline = NULL, updated_at = now() - interval '1 day'"
    )
    before = await head(agents)
    assert await expire(agents, turn) == []
    assert await agents.run(lambda c: sweep.list_overdue(c, [TARGET], older_seconds=5, row_limit=9)) == []
    assert (await waits(agents), await head(agents)) == ({"a": "waiting"}, before)
    await settle(agents, turn, await told(agents, "a"))
    assert await waits(agents) == {"a": "applied"}


async def test_a_call_without_a_deadline_has_that_of_its_turn(agents: Pool) -> None:
    """As the version before wrote it."""
    turn = await sleeper(agents, "a", "b")
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = NULL")
    assert await expire(agents, turn) == []
    await rows(agents, "UPDATE state.agent_state_head SET resume_deadline = now() WHERE agent_id = 'alice'")
    assert [ring.correlation_id for ring in await expire(agents, turn)] == ["a", "b"]


async def test_each_call_expires_at_its_own_deadline(agents: Pool) -> None:
    turn = await sleeper(agents, "later", "soon", "last", waits=[60, 0, 600])
    found = await rows(agents, "SELECT tool_call_id, deadline FROM state.turn_waiting_tools")
    due = {row["tool_call_id"]: row["deadline"] for row in found}
    assert (due["later"] - due["soon"], due["last"] - due["soon"]) == (timedelta(seconds=60), timedelta(seconds=600))
    assert (await head(agents))["resume_deadline"] == due["soon"]
    rings = await expire(agents, turn)
    assert [ring.correlation_id for ring in rings] == ["soon"]
    assert (await head(agents))["resume_deadline"] == due["later"]
    assert await expire(agents, turn) == rings  # whoever comes second finds what is due
    done = await settle(agents, turn, *(ring.inbox_id for ring in rings))
    assert (done.status, sorted(done.waiting), done.deadline) == (HeadStatus.SUSPENDED, ["last", "later"], due["later"])
    done = await settle(agents, turn, await told(agents, "later"))
    assert (done.waiting, done.deadline) == (["last"], due["last"])
    seen = await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("last")))
    assert seen is not None
    assert seen.resume_deadline == due["last"]
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = now() WHERE tool_call_id = 'last'")
    await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn)))
    assert await results(agents, turn) == [("soon", "timeout"), ("later", "success"), ("last", "timeout")]
    assert (await head(agents))["status"] == "running"


async def test_a_report_does_not_put_off_a_timeout_that_is_due(agents: Pool) -> None:
    """The head keeps the deadline that has passed, so that the timer and the safety net see it."""
    turn = await sleeper(agents, "late", "told", waits=[0, 600])
    done = await settle(agents, turn, await told(agents, "told"))
    found = await rows(agents, "SELECT deadline FROM state.turn_waiting_tools WHERE tool_call_id = 'late'")
    assert (done.waiting, done.deadline) == (["late"], found[0]["deadline"])
    assert [ring.correlation_id for ring in await expire(agents, turn)] == ["late"]


async def test_a_call_that_was_reported_sets_no_deadline(agents: Pool) -> None:
    """Its report is there: what is left to wait for is the other's."""
    turn = await sleeper(agents, "a", "b", "c", waits=[0, 600, 900])
    hidden = await written_report(agents, turn, "b", None)
    await told(agents, "a")
    done = await settle(agents, turn, await told(agents, "c"))
    assert sorted(done.waiting) == ["a", "b"]
    assert done.deadline == (
        await value(agents, "SELECT deadline FROM state.turn_waiting_tools WHERE tool_call_id = 'b'")
    )
    assert (await row_of(agents, hidden))["status"] == "pending"
