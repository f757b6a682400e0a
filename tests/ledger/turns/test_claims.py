"""What a claim makes of every kind of row in every state of its turn (protocol §6 claim), and rule 'command' (§8)."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, BOB, TARGET, begin, claim, finish, lease, rows, value
from tests.support.ledger.calls import (
    ask_to_stop,
    became,
    expire,
    pass_deadline,
    result_card,
    row_of,
    settle,
    sleeper,
    suspend,
    told,
    write_card,
    written_report,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.operations.sweep import SilentCall
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.lease import Claim
from turnstile.schema.ids import InboxId, uuid7
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire import headers


async def claimed(pool: Pool, inbox_id: InboxId) -> Claim:
    """The claim of one row."""
    [found] = [each for each in await claim(pool, ALICE, BOB) if each.inbox_id == inbox_id]
    return found


async def test_a_result_of_a_suspended_turn_is_a_signal(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    inbox_id = await told(agents, "a")
    found = await claimed(agents, inbox_id)
    assert (found.verdict, found.message_type) == ("signal", "tool_result")
    assert found.turn() == turn
    assert (found.ring().correlation_id, found.ring().message_type) == ("a", "tool_result")
    assert await became(agents, inbox_id) == ("processing", None)
    assert await claim(agents, ALICE) == []


@pytest.mark.parametrize(
    ("how", "message_type"),
    [("applied", "timeout"), ("expired", "tool_result"), ("dropped", "timeout"), ("dropped", "tool_result")],
)
async def test_a_report_of_a_settled_call_is_consumed(agents: Pool, how: str, message_type: str) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    if how == "dropped":
        await fence(agents, turn, TurnStatus.FAILED, "reaped", "reaped")
    elif how == "expired":
        await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn)))
    else:
        await settle(agents, turn, await told(agents, "a"))
    late = await written_report(agents, turn, "a", None, message_type)
    found = await claimed(agents, late)
    assert (found.verdict, found.last_error) == ("consumed", "already_settled")
    assert (await row_of(agents, late))["archived_at"] is not None


@pytest.mark.parametrize("message_type", ["tool_result", "timeout"])
async def test_a_report_of_another_epoch_or_turn_is_skipped(agents: Pool, message_type: str) -> None:
    turn = await sleeper(agents, "a", "b")
    old = await written_report(agents, turn, "a", None, message_type, turn_epoch=7)
    other = await written_report(agents, turn, "b", None, message_type, agent_turn_id="another")
    verdicts = {each.inbox_id: (each.verdict, each.last_error) for each in await claim(agents, ALICE)}
    assert verdicts == {old: ("skipped", "stale_turn"), other: ("skipped", "stale_turn")}


@pytest.mark.parametrize("message_type", ["tool_result", "timeout"])
async def test_a_report_of_a_running_turn_whose_call_waits_is_deferred_a_second(
    agents: Pool, message_type: str
) -> None:
    """No transition of ours leaves a call waiting in a running turn; another writer's may."""
    turn = await sleeper(agents, "a")
    inbox_id = await written_report(agents, turn, "a", None, message_type)
    await rows(agents, "UPDATE state.agent_state_head SET status = 'running' WHERE agent_id = 'alice'")
    assert (await claimed(agents, inbox_id)).verdict == "deferred"
    row = await row_of(agents, inbox_id)
    assert (row["status"], row["defer_reason"], row["retry_count"]) == ("deferred", "turn_running", 0)
    assert row["next_retry_at"] - row["processed_at"] == timedelta(seconds=1)
    assert await claim(agents, ALICE) == []
    await rows(agents, "UPDATE state.agent_state_head SET status = 'suspended' WHERE agent_id = 'alice'")
    await rows(agents, "UPDATE state.agent_inbox SET next_retry_at = now() WHERE inbox_id = $1", inbox_id)
    assert (await claimed(agents, inbox_id)).verdict == "signal"


ILLEGAL: list[dict[str, Any]] = [
    {"correlation_id": "nobody"},
    {"agent_id": BOB},
    {"turn_epoch": 0},
    {"payload": "{}"},
    {"message_type": "nonsense"},
]


@pytest.mark.parametrize("columns", ILLEGAL)
async def test_an_illegal_report_breaks_the_protocol(agents: Pool, columns: dict[str, Any]) -> None:
    turn = await sleeper(agents, "a")
    await lease(agents, BOB)
    inbox_id = await written_report(agents, turn, "a", None, **columns)
    found = await claimed(agents, inbox_id)
    assert (found.verdict, found.last_error) == ("error", "protocol_violation")
    assert (await row_of(agents, inbox_id))["archived_at"] is not None


async def test_a_report_of_another_projects_call_breaks_the_protocol(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await rows(agents, "UPDATE state.turn_waiting_tools SET project_id = 'p2'")
    inbox_id = await written_report(agents, turn, "a", None)
    assert (await claimed(agents, inbox_id)).verdict == "error"
    await rows(agents, "UPDATE state.turn_waiting_tools SET project_id = 'p1'")


@pytest.mark.parametrize("at", ["running", "suspended"])
async def test_a_stop_is_a_signal_in_every_state_of_its_turn(agents: Pool, at: str) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    if at == "suspended":
        await suspend(agents, turn, "a")
    stop = (await ask_to_stop(agents, turn.agent_turn_id)).inbox_id
    assert stop is not None
    assert (await claimed(agents, stop)).verdict == "signal"


async def test_a_stop_of_a_turn_that_is_over_is_skipped(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    stop = (await ask_to_stop(agents, turn.agent_turn_id)).inbox_id
    assert stop is not None
    await rows(agents, "UPDATE state.agent_inbox SET correlation_id = 'hidden' WHERE inbox_id = $1", stop)
    await finish(agents, turn)  # which did not see it
    assert ((await claimed(agents, stop)).verdict, await became(agents, stop)) == ("skipped", ("skipped", "stale_turn"))


async def test_a_row_of_one_agent_that_names_another_agents_turn_breaks_the_protocol(agents: Pool) -> None:
    turn = await lease(agents)
    columns = "inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id, turn_epoch"
    stop = InboxId(uuid7())
    await rows(
        agents,
        f"INSERT INTO state.agent_inbox ({columns}) VALUES ($1, 'p1', 'bob', 'stop', $2, $2, 1)",  # noqa: S608 -- above
        *(stop, turn.agent_turn_id),
    )
    assert (await claimed(agents, stop)).verdict == "error"


async def test_all_kinds_of_rows_are_one_claim(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    report = await told(agents, "a")
    await pass_deadline(agents)
    await expire(agents, turn)
    stop = (await ask_to_stop(agents, turn.agent_turn_id)).inbox_id
    other = await written_report(agents, turn, "b", await write_card(agents, result_card(turn, "b")), agent_id=BOB)
    before = agents.round_trips
    verdicts = {each.inbox_id: each.verdict for each in await claim(agents, ALICE, BOB)}
    assert agents.round_trips == before + 1
    assert verdicts == {report: "signal", "timeout-b": "signal", stop: "signal", other: "error"}


async def silent(pool: Pool, older: float = 30, target: str = TARGET) -> list[SilentCall]:
    """retry_commands."""
    found = await pool.run(lambda c: sweep.retry_commands(c, [target], older_seconds=older, row_limit=9))
    return sorted(found, key=lambda call: call.tool_call_id)


async def pass_time(pool: Pool, seconds: float) -> None:
    """Every call was made, and heard of last, so much earlier."""
    await rows(
        pool,
        "UPDATE state.turn_waiting_tools SET created_at = created_at - $1::interval, updated_at = updated_at - $1",
        timedelta(seconds=seconds),
    )


async def test_a_command_that_nobody_answers_is_sent_again_with_a_number(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", incoming={headers.DEPTH: "3"})
    assert await silent(agents) == []
    await pass_time(agents, 31)
    assert await silent(agents, target="x") == []
    first, second = await silent(agents)
    assert (first.tool_call_id, second.tool_call_id, first.repeat) == ("a", "b", 1)
    assert await silent(agents) == []
    message = first.message("test")
    assert message is not None
    assert message.subject == "cg.v1r4.p1.public.cmd.tool.search.run"
    assert json.loads(message.payload) == {
        "tool_call_card_id": "a-call",
        "tool_name": "search",
        "after_execution": "suspend",
    }
    assert message.headers[headers.MSG_ID] == "tool-a-1"
    assert message.headers[headers.TOOL_CALL_ID] == "a"
    assert message.headers[headers.TURN_ID] == turn.agent_turn_id
    assert message.headers[headers.DEPTH] == "3"
    assert headers.trace_id(message.headers[headers.TRACEPARENT]) == turn.trace_id


async def test_the_number_of_a_repeat_rises(agents: Pool) -> None:
    await sleeper(agents, "a")
    numbers: list[int] = []
    for seconds in (31, 30, 45, 30):
        await pass_time(agents, seconds)
        numbers += [call.repeat for call in await silent(agents)]
    assert numbers == [1, 2, 3, 4]


async def test_a_command_is_sent_again_by_one_bridge_at_a_time(agents: Pool) -> None:
    await sleeper(agents, "a", "b")
    await pass_time(agents, 31)
    found = await asyncio.gather(*(silent(agents) for _ in range(6)))
    assert sorted(call.tool_call_id for calls in found for call in calls) == ["a", "b"]


async def test_a_command_of_a_call_that_is_reported_or_over_is_not_sent_again(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    await told(agents, "a")
    await settle(agents, turn, await told(agents, "b"))
    await pass_time(agents, 60)
    assert [call.tool_call_id for call in await silent(agents)] == ["c"]
    await pass_time(agents, 60)
    await fence(agents, turn, TurnStatus.FAILED, "reaped", "reaped")
    assert await silent(agents) == []


async def test_a_step_that_recorded_no_command_is_not_sent_again(agents: Pool) -> None:
    await sleeper(agents, "a")
    await rows(agents, "UPDATE state.agent_steps SET metadata = '{}'")
    await pass_time(agents, 31)
    [call] = await silent(agents)
    assert (call.command, call.message("test")) == (None, None)
    assert await value(agents, "SELECT wait_status FROM state.turn_waiting_tools") == "waiting"
