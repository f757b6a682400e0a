"""The stop of a turn in every state, and what it and a fence leave of the calls (protocol §6 stop, §3, §8)."""

import asyncio
from datetime import timedelta

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    TARGET,
    ask,
    begin,
    box,
    claim,
    finish,
    head,
    lease,
    play,
    rows,
    stop,
    value,
)
from tests.support.ledger.calls import (
    ask_to_stop,
    became,
    end,
    expire,
    results,
    row_of,
    settle,
    sleeper,
    told,
    waits,
)
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.schema.errors import BadRequest, StaleTurn
from turnstile.schema.ids import AgentTurnId, uuid7
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.wire import headers


async def test_a_running_turn_is_asked_through_its_inbox(agents: Pool) -> None:
    turn = await lease(agents, incoming={headers.DEPTH: "2"})
    await begin(agents, turn)
    found = await ask_to_stop(agents, turn.agent_turn_id)
    assert (found.verdict, found.agent_id, found.turn_epoch) == ("accepted", ALICE, 1)
    assert (found.worker_target, found.channel_id) == (TARGET, "public")
    assert headers.trace_id(found.context_headers[headers.TRACEPARENT]) == turn.trace_id
    assert found.inbox_id is not None
    row = await row_of(agents, found.inbox_id)
    assert (row["message_type"], row["status"], row["turn_epoch"]) == ("stop", "pending", 1)
    assert row["correlation_id"] == row["agent_turn_id"] == turn.agent_turn_id
    assert row["payload"] == '{"reason": "enough"}'
    [edge] = await rows(agents, "SELECT * FROM state.execution_edges WHERE primitive = 'report'")
    assert (edge["edge_phase"], edge["correlation_id"], edge["recursion_depth"]) == ("response", turn.agent_turn_id, 2)
    assert (edge["target_agent_turn_id"], edge["trace_id"]) == (turn.agent_turn_id, turn.trace_id)
    assert (await head(agents))["status"] == "running"


@pytest.mark.parametrize("suspended", [False, True])
async def test_a_stop_rings_the_workflow_of_a_turn_in_hand(agents: Pool, suspended: bool) -> None:
    if suspended:
        turn = await sleeper(agents, "a")
    else:
        turn = await lease(agents)
        await begin(agents, turn)
    found = await ask_to_stop(agents, turn.agent_turn_id)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.verdict, claimed.message_type, claimed.inbox_id) == ("signal", "stop", found.inbox_id)
    assert claimed.turn() == turn


async def test_a_suspended_turn_that_ends_cancels_its_calls_and_settles_its_stop(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    await settle(agents, turn, await told(agents, "a"))
    unheard = await told(agents, "b")
    found = await ask_to_stop(agents, turn.agent_turn_id)
    ended = await end(agents, turn)
    assert (ended.status, ended.error_code, ended.head_status) == (TurnStatus.CANCELED, "stopped", HeadStatus.IDLE)
    assert await waits(agents) == {"a": "applied", "b": "dropped", "c": "dropped"}
    assert await results(agents, turn) == [("a", "success"), ("b", "canceled"), ("c", "canceled")]
    assert (await box(agents, turn.output_box_id))[-1].type == "task.deliverable"
    assert found.inbox_id is not None
    assert await became(agents, found.inbox_id) == ("consumed", None)
    [claimed] = await claim(agents, ALICE)
    assert (claimed.inbox_id, claimed.verdict, claimed.last_error) == (unheard, "consumed", "already_settled")
    left = await head(agents)
    assert (left["waiting_tool_count"], left["resume_deadline"]) == (0, None)


async def test_a_late_report_or_timeout_of_an_ended_turn_has_no_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    timeouts = [ring.inbox_id for ring in await expire(agents, turn)]
    await end(agents, turn)
    before = await box(agents, turn.output_box_id)
    late = await told(agents, "a")
    with pytest.raises(StaleTurn):
        await settle(agents, turn, late, *timeouts)
    assert {each.inbox_id: each.verdict for each in await claim(agents, ALICE)} == dict.fromkeys(
        [late, *timeouts], "consumed"
    )
    assert await box(agents, turn.output_box_id) == before
    assert await waits(agents) == {"a": "dropped", "b": "dropped"}


async def test_a_stop_that_lost_against_the_end_is_skipped(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    found = await ask_to_stop(agents, turn.agent_turn_id)
    await finish(agents, turn)
    assert found.inbox_id is not None
    assert await became(agents, found.inbox_id) == ("skipped", "already_final")


async def test_a_finish_may_be_only_of_a_suspended_turn(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    with pytest.raises(StaleTurn):
        await end(agents, turn, states=(HeadStatus.RUNNING, HeadStatus.DISPATCHED))
    assert await waits(agents) == {"a": "waiting"}
    ended = await end(agents, turn, states=(HeadStatus.SUSPENDED,))
    assert (ended.head_epoch, (await head(agents))["turn_epoch"]) == (1, 1)


async def test_a_fence_of_a_suspended_turn_raises_the_epoch_and_leases_the_next(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    waiting = await ask(agents)
    reported = await told(agents, "b")
    ended = await fence(agents, turn, TurnStatus.CANCELED, "stopped", "the turn was stopped")
    assert (ended.head_status, ended.head_epoch, ended.next_turn_id) == ("dispatched", 2, waiting.reply.agent_turn_id)
    assert await waits(agents) == {"a": "dropped", "b": "dropped"}
    assert await results(agents, turn) == [("a", "canceled"), ("b", "canceled")]
    with pytest.raises(StaleTurn):
        await settle(agents, turn, reported)
    assert await expire(agents, turn) == []
    assert {each.verdict for each in await claim(agents, ALICE)} == {"start", "consumed"}
    assert (await head(agents))["waiting_tool_count"] == 0


async def test_a_queued_turn_is_the_callers_to_end(agents: Pool) -> None:
    await lease(agents)
    queued = (await ask(agents)).reply.agent_turn_id
    assert queued is not None
    found = await ask_to_stop(agents, queued)
    assert (found.verdict, found.inbox_id, found.agent_id) == ("queued", None, ALICE)
    assert await stop(agents, ALICE, queued) is not None
    assert (await ask_to_stop(agents, queued)).verdict == "already_final"
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox WHERE message_type = 'stop'") == 0


async def test_a_dispatched_turn_is_the_callers_to_end(agents: Pool) -> None:
    turn = await lease(agents)
    found = await ask_to_stop(agents, turn.agent_turn_id)
    assert (found.verdict, found.inbox_id, found.turn_epoch) == ("dispatched", None, 1)
    await end(agents, turn, states=(HeadStatus.DISPATCHED,))
    assert (await head(agents))["status"] == "idle"
    [row] = await rows(agents, "SELECT * FROM state.agent_inbox")
    assert (row["status"], row["last_error"]) == ("skipped", "stopped")
    with pytest.raises(StaleTurn):
        await begin(agents, turn)


async def test_a_finished_turn_is_already_final(agents: Pool) -> None:
    turn = await play_one(agents)
    found = await ask_to_stop(agents, turn)
    assert (found.verdict, found.inbox_id) == ("already_final", None)
    assert await value(agents, "SELECT count(*) FROM state.agent_inbox") == 1


async def play_one(pool: Pool) -> AgentTurnId:
    """A turn that is over."""
    await ask(pool)
    return (await play(pool)).agent_turn_id


@pytest.mark.parametrize("name", ["nobody", ""])
async def test_an_unknown_turn_cannot_be_stopped(agents: Pool, name: str) -> None:
    await lease(agents)
    found = await ask_to_stop(agents, AgentTurnId(name))
    assert (found.verdict, found.inbox_id, found.agent_id) == ("unknown_turn", None, None)
    with pytest.raises(BadRequest):
        await ask_to_stop(agents, AgentTurnId("a\0b"))


async def test_a_repeated_stop_is_a_duplicate(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    first = await ask_to_stop(agents, turn.agent_turn_id)
    again = await ask_to_stop(agents, turn.agent_turn_id)
    assert (again.verdict, again.inbox_id) == ("duplicate", first.inbox_id)
    assert again.worker_target == TARGET
    await end(agents, turn)
    assert (await ask_to_stop(agents, turn.agent_turn_id)).verdict == "already_final"


async def test_a_stop_whose_answer_was_lost_is_no_duplicate(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    own = uuid7()
    assert [(await ask_to_stop(agents, turn.agent_turn_id, own)).verdict for _ in range(2)] == ["accepted"] * 2


async def test_stops_at_once_are_one(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    found = await asyncio.gather(*(ask_to_stop(agents, turn.agent_turn_id) for _ in range(6)))
    assert sorted(each.verdict for each in found) == ["accepted", *["duplicate"] * 5]
    assert len({each.inbox_id for each in found}) == 1


async def test_a_turn_whose_row_broke_the_protocol_is_already_final(agents: Pool) -> None:
    columns = "inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id"
    await rows(
        agents,
        f"INSERT INTO state.agent_inbox ({columns}) VALUES ('i', $1, $2, 'ui_action', 'c', 't')",  # noqa: S608 -- above
        *(PROJECT, ALICE),
    )
    [claimed] = await claim(agents, ALICE)
    assert claimed.verdict == "error"
    assert (await ask_to_stop(agents, AgentTurnId("t"))).verdict == "already_final"
    async with agents.connection() as conn:
        await conn.execute("DELETE FROM state.agent_inbox WHERE inbox_id = 'i'")


async def test_turns_that_do_not_stop_in_time_are_listed(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    other = await lease(agents, BOB)
    await begin(agents, other)
    await ask_to_stop(agents, turn.agent_turn_id)
    await ask_to_stop(agents, other.agent_turn_id)

    async def listed(target: str = TARGET, older: float = 5) -> list[LiveTurn]:
        return await agents.run(lambda c: sweep.list_stops_overdue(c, [target], older_seconds=older, row_limit=9))

    assert await listed() == []
    await rows(
        agents,
        "UPDATE state.agent_inbox SET created_at = created_at - $1::interval WHERE message_type = 'stop'",
        timedelta(seconds=6),
    )
    assert await listed("x") == []
    assert sorted(each.agent_id for each in await listed()) == [ALICE, BOB]
    await claim(agents, ALICE, BOB)  # a bridge that took it and told the workflow changes nothing
    assert {each.agent_turn_id for each in await listed()} == {turn.agent_turn_id, other.agent_turn_id}
    await end(agents, turn)
    assert [each.agent_turn_id for each in await listed()] == [other.agent_turn_id]
    await fence(agents, other, TurnStatus.CANCELED, "stopped", "the turn was stopped")
    assert await listed() == []
    states = await rows(agents, "SELECT status FROM state.agent_inbox WHERE message_type = 'stop'")
    assert {row["status"] for row in states} == {"consumed"}
