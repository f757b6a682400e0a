"""The step that calls tools, and what later steps and tools read of its calls (protocol §6 command_intent, §7.4)."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    begin,
    box,
    commit,
    finish,
    head,
    lease,
    rows,
    value,
)
from tests.support.ledger.calls import (
    call_record,
    expire,
    result_card,
    settle,
    sleeper,
    suspend,
    tell,
    told,
    waits,
    write_card,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import recall_step
from turnstile.ledger.turns.steps import commit_step
from turnstile.ledger.turns.waiting import describe_call
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import ProjectId, ToolCallId, step_id
from turnstile.schema.states import HeadStatus
from turnstile.schema.wire import headers


async def test_a_step_with_calls_suspends_its_turn(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    done = await suspend(agents, turn, "a", "b", "c", wait_seconds=90)
    assert (done.result, done.status) == ("done", HeadStatus.SUSPENDED)
    suspended = await head(agents)
    assert (suspended["status"], suspended["waiting_tool_count"], suspended["step_count"]) == ("suspended", 3, 1)
    assert suspended["expecting_correlation_id"] is None
    assert suspended["resume_deadline"] == done.resume_deadline
    assert done.resume_deadline is not None
    assert timedelta(seconds=60) < done.resume_deadline - datetime.now(UTC) <= timedelta(seconds=90)
    waiting = await rows(agents, "SELECT * FROM state.turn_waiting_tools ORDER BY tool_call_id")
    assert [row["tool_call_id"] for row in waiting] == ["a", "b", "c"]
    for row in waiting:
        assert (row["wait_status"], row["tool_name"], row["agent_id"]) == ("waiting", "search", ALICE)
        assert (row["agent_turn_id"], row["turn_epoch"]) == (turn.agent_turn_id, 1)
        assert row["step_id"] == step_id(turn.agent_turn_id, 1)
    types = [place.type for place in await box(agents, turn.output_box_id)]
    assert types == ["agent.thought", "tool.call", "tool.call", "tool.call"]
    assert await value(agents, "SELECT tool_call_ids::text FROM state.agent_steps") == '["a", "b", "c"]'


async def test_a_call_has_an_edge_with_the_depth_and_trace_of_its_turn(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", incoming={headers.DEPTH: "4"})
    edges = await rows(agents, "SELECT * FROM state.execution_edges WHERE primitive = 'tool_call' ORDER BY edge_id")
    assert [edge["correlation_id"] for edge in edges] == ["a", "b"]
    for edge in edges:
        assert (edge["edge_phase"], edge["recursion_depth"], edge["trace_id"]) == ("request", 4, turn.trace_id)
        assert (edge["source_agent_id"], edge["target_agent_id"]) == (ALICE, ALICE)
        assert edge["source_agent_turn_id"] == edge["target_agent_turn_id"] == turn.agent_turn_id
        assert edge["source_step_id"] == step_id(turn.agent_turn_id, 1)


async def test_a_step_with_calls_costs_one_round_trip(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    before = agents.round_trips
    await suspend(agents, turn, "a", "b", "c")
    assert agents.round_trips == before + 1


async def test_a_repeated_commit_answers_the_recorded_commands(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    first = await suspend(agents, turn, "a", "b")
    await told(agents, "a")
    again = await agents.run(lambda conn: commit_step(conn, turn, call_record(turn, 1, "x", "y", wait_seconds=5)))
    assert (again.result, again.status) == ("already", HeadStatus.SUSPENDED)
    assert (again.step_metadata, again.resume_deadline) == (first.step_metadata, first.resume_deadline)
    assert again.step_metadata == call_record(turn, 1, "a", "b").metadata
    assert await waits(agents) == {"a": "received", "b": "waiting"}


async def test_a_commit_with_calls_that_lost_its_gate_writes_nothing(agents: Pool) -> None:
    turn = await lease(agents)
    with pytest.raises(StaleTurn):  # not begun
        await suspend(agents, turn, "a")
    await begin(agents, turn)
    with pytest.raises(StaleTurn):
        await suspend(agents, turn.model_copy(update={"turn_epoch": 2}), "a")
    with pytest.raises(StaleTurn):
        await suspend(agents, turn, "a", step=2)
    await finish(agents, turn)
    with pytest.raises(StaleTurn):  # the recorded step of an ended turn publishes nothing either
        await suspend(agents, turn, "a")
    assert await waits(agents) == {}
    assert await value(agents, "SELECT count(*) FROM state.execution_edges WHERE primitive = 'tool_call'") == 0
    assert await value(agents, "SELECT count(*) FROM cards WHERE metadata ->> 'type' = 'tool.call'") == 0


async def test_a_commit_with_calls_is_all_or_nothing(agents: Pool) -> None:
    await sleeper(agents, "taken")
    turn = await lease(agents, BOB)
    await begin(agents, turn)
    async with agents.connection() as conn:
        with pytest.raises(asyncpg.UniqueViolationError):
            await commit_step(conn, turn, call_record(turn, 1, "free", "taken"))
    left = await head(agents, BOB)
    assert (left["status"], left["step_count"], left["waiting_tool_count"]) == ("running", 0, 0)
    assert await waits(agents) == {"taken": "waiting"}
    assert await value(agents, "SELECT count(*) FROM state.execution_edges WHERE correlation_id = 'free'") == 0
    assert await box(agents, turn.output_box_id) == []


async def test_a_next_step_without_calls_has_no_deadline(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await settle(agents, turn, await told(agents, "a"))
    await begin(agents, turn, 2)
    done = await commit(agents, turn, 2)
    assert (done.status, done.resume_deadline) == (HeadStatus.RUNNING, None)


async def test_a_next_step_sees_the_calls_that_were_answered(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c", wait_seconds=0)
    first = await told(agents, "a", after_execution="terminate")
    card_id = await write_card(agents, result_card(turn, "b"))
    second = await told(agents, "b", tool_result_card_id=card_id)
    await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn)), first, second)
    begun = await begin(agents, turn, 2)
    answered = sorted(begun.head.answered, key=lambda call: call.tool_call_id)
    assert [(call.tool_call_id, call.tool_name, call.after_execution) for call in answered] == [
        ("a", "search", "terminate"),
        ("b", "search", None),
        ("c", "search", None),
    ]
    assert [call.tool_result_card_id for call in answered] == ["a-result", card_id, "c-timeout"]
    await commit(agents, turn, 2)
    assert (await begin(agents, turn, 3)).head.answered == []


async def test_a_first_step_has_nothing_answered(agents: Pool) -> None:
    assert (await begin(agents, await lease(agents))).head.answered == []


async def test_a_restarted_workflow_of_a_suspended_turn_recalls_what_it_waits_for(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    await settle(agents, turn, await told(agents, "b"))
    recalled = await agents.run(lambda conn: recall_step(conn, turn, 0))
    assert (recalled.gate, recalled.step, recalled.head_status) == (True, 1, HeadStatus.SUSPENDED)
    assert (sorted(recalled.waiting), recalled.resume_deadline is not None) == (["a", "c"], True)


async def test_a_call_is_described_to_its_tool(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    seen = await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("a")))
    assert seen is not None
    assert (seen.tool_name, seen.agent_id, seen.agent_turn_id) == ("search", ALICE, turn.agent_turn_id)
    assert (seen.turn_epoch, seen.step_id) == (1, step_id(turn.agent_turn_id, 1))
    assert (seen.wait_status, seen.tool_call_card_id, seen.tool_result_card_id) == ("waiting", "a-call", None)
    assert seen.content is not None
    assert seen.content["arguments"] == {"q": "a"}
    assert seen.resume_deadline is not None
    await settle(agents, turn, await told(agents, "a"))
    seen = await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("a")))
    assert seen is not None
    assert (seen.wait_status, seen.tool_result_card_id, seen.resume_deadline) == ("applied", "a-result", None)


async def test_a_call_is_described_to_its_own_project_only(agents: Pool) -> None:
    await sleeper(agents, "a")
    assert await agents.run(lambda conn: describe_call(conn, ProjectId("p2"), ToolCallId("a"))) is None
    assert await agents.run(lambda conn: describe_call(conn, PROJECT, ToolCallId("b"))) is None


async def test_a_report_and_its_application_cost_one_round_trip_each(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    before = agents.round_trips
    done = await tell(agents, "a")
    assert agents.round_trips == before + 1
    assert done.reply.inbox_id is not None
    await settle(agents, turn, done.reply.inbox_id)
    assert agents.round_trips == before + 2
