"""Reports, timeouts, applies and ends of one turn at once: hazards 1, 7, 8 in docs/hazards.md, and the lock order."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    PROJECT,
    TARGET,
    ask,
    begin,
    claim,
    finish,
    finish_on,
    head,
    lease,
    rows,
)
from tests.support.ledger.calls import (
    ask_to_stop,
    became,
    call_record,
    end,
    ending,
    expire,
    request,
    result_card,
    results,
    settle,
    sleeper,
    stop_on,
    suspend,
    tell,
    told,
    waits,
    write_card,
    written_report,
)
from tests.support.waiting import Counting, overtaken, until_waiting
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection
from turnstile.ledger.turns.lease import claim_inbox
from turnstile.ledger.turns.steps import CommittedStep, commit_step
from turnstile.ledger.turns.waiting import apply_reports, inject_timeouts, report_call
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, InboxId, uuid7
from turnstile.schema.states import HeadStatus

Transition = Callable[[Connection], Awaitable[Any]]


def reporting(call: str) -> Transition:
    """The report of a call, as a transition."""
    return lambda conn: report_call(conn, PROJECT, request(call), '{"status": "success"}', InboxId(uuid7()), {})


async def test_a_report_that_waits_for_its_call_holds_nothing_that_a_timeout_wants(counting: Counting) -> None:
    turn = await sleeper(counting, "a", wait_seconds=0)
    async with counting.connection() as conn, conn.transaction():
        await conn.fetch("SELECT FROM state.turn_waiting_tools FOR UPDATE")
        late = asyncio.create_task(expire(counting, turn))
        await until_waiting(counting)
        reported = asyncio.create_task(tell(counting, "a"))
        await until_waiting(counting, 2)
    assert [ring.message_type for ring in await late] == ["timeout"]
    assert (await reported).reply.status == "accepted"


async def storm(pool: Counting, agent: AgentId, rounds: int) -> None:
    """Everything that can happen to two calls at once, turn after turn."""
    for number in range(rounds):
        first, second = f"{agent}-{number}-a", f"{agent}-{number}-b"
        turn = await sleeper(pool, first, second, agent=agent, wait_seconds=0)
        early = await told(pool, first) if number % 2 else InboxId("none")
        written = await written_report(pool, turn, second, await write_card(pool, result_card(turn, second)))
        every: list[Transition] = [
            reporting(first),
            reporting(first),
            reporting(second),
            lambda conn, turn=turn: inject_timeouts(conn, turn),
            lambda conn, turn=turn: inject_timeouts(conn, turn),
            lambda conn, turn=turn, ids=[early, written]: apply_reports(conn, turn, ids),
            lambda conn, turn=turn, ids=[written, early]: apply_reports(conn, turn, ids),
            lambda conn: claim_inbox(conn, [(PROJECT, agent)], [TARGET], row_limit=9),
            lambda conn: sweep.retry_commands(conn, [TARGET], older_seconds=0, row_limit=9),
            lambda conn, turn=turn: stop_on(conn, turn),
            ending(turn),
        ]
        done = await asyncio.gather(*map(pool.run, every), return_exceptions=True)
        assert [each for each in done if isinstance(each, BaseException) and not isinstance(each, StaleTurn)] == []
        await claim(pool, agent)  # what came too late


@pytest.mark.parametrize("rounds", [25, pytest.param(200, marks=pytest.mark.long)])
async def test_reports_applies_timeouts_stops_and_ends_of_one_turn_never_deadlock(
    counting: Counting, rounds: int
) -> None:
    await asyncio.gather(*(storm(counting, agent, rounds) for agent in (ALICE, BOB, CAROL)))
    assert set((await waits(counting)).values()) <= {"applied", "expired", "dropped"}


async def test_7_an_apply_sees_the_suspend_it_waited_for(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    early = await written_report(agents, turn, "a", await write_card(agents, result_card(turn, "a")))
    record = call_record(turn, 1, "a", "b")
    done = await overtaken(agents, lambda conn: commit_step(conn, turn, record), settle(agents, turn, early))
    assert (done.status, done.waiting) == (HeadStatus.SUSPENDED, ["b"])
    assert await results(agents, turn) == [("a", "success")]


async def test_7_a_single_apply_that_waited_changes_nothing(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    early = await written_report(agents, turn, "a", await write_card(agents, result_card(turn, "a")))

    async def once() -> None:
        async with agents.connection() as conn:
            await apply_reports(conn, turn, [early])

    record = call_record(turn, 1, "a")
    with pytest.raises(Again):
        await overtaken(agents, lambda conn: commit_step(conn, turn, record), once())
    assert await became(agents, early) == ("pending", None)
    await settle(agents, turn, early)


async def test_7_an_apply_sees_the_apply_it_waited_for(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c")
    first, second = await told(agents, "a"), await told(agents, "b")
    done = await overtaken(agents, lambda conn: apply_reports(conn, turn, [first]), settle(agents, turn, first, second))
    assert done.waiting == ["c"]
    assert [row.inbox_id for row in done.rows] == [second]
    assert (await head(agents))["waiting_tool_count"] == 1


async def test_7_an_apply_beside_a_report_in_flight_leaves_its_call_waiting(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    first = await told(agents, "a")
    done = await overtaken(agents, reporting("b"), settle(agents, turn, first))
    assert (done.status, done.waiting) == (HeadStatus.SUSPENDED, ["b"])
    assert await waits(agents) == {"a": "applied", "b": "received"}


async def test_7_an_apply_that_waited_for_the_end_is_stale(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    inbox_id = await told(agents, "a")
    with pytest.raises(StaleTurn):
        await overtaken(agents, ending(turn), settle(agents, turn, inbox_id))
    assert await results(agents, turn) == [("a", "canceled")]


@pytest.mark.parametrize("queue", [0, 1])
async def test_7_an_end_sees_the_suspend_it_waited_for(agents: Pool, queue: int) -> None:
    turn = await lease(agents)
    for _ in range(queue):
        await ask(agents)
    await begin(agents, turn)
    record = call_record(turn, 1, "a", "b")
    await overtaken(agents, lambda conn: commit_step(conn, turn, record), end(agents, turn))
    assert await waits(agents) == {"a": "dropped", "b": "dropped"}
    assert await results(agents, turn) == [("a", "canceled"), ("b", "canceled")]


async def test_7_a_step_that_begins_sees_the_apply_it_waited_for(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    inbox_id = await told(agents, "a")
    done = await overtaken(agents, lambda conn: apply_reports(conn, turn, [inbox_id]), settle(agents, turn, inbox_id))
    assert (done.status, done.rows) == (HeadStatus.RUNNING, [])
    begun = await begin(agents, turn, 2)
    assert [card.type for card in begun.output] == ["agent.thought", "tool.call", "tool.result"]


async def test_8_a_timeout_that_waited_for_a_report_does_not_expire_its_call(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    rings = await overtaken(agents, reporting("a"), expire(agents, turn))
    assert [ring.correlation_id for ring in rings if ring.message_type == "timeout"] == ["b"]
    rings = await expire(agents, turn)
    assert {(ring.correlation_id, ring.message_type) for ring in rings} == {("a", "tool_result"), ("b", "timeout")}
    await settle(agents, turn, *(ring.inbox_id for ring in rings))
    assert await waits(agents) == {"a": "applied", "b": "expired"}


async def test_8_a_report_that_waited_for_a_timeout_is_the_later_one(agents: Pool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    late = (await overtaken(agents, lambda conn: inject_timeouts(conn, turn), tell(agents, "a"))).reply
    assert (late.duplicate, late.inbox_id is not None) == (False, True)
    ids = [ring.inbox_id for ring in await expire(agents, turn)]
    assert set(ids) == {"timeout-a", late.inbox_id}
    await settle(agents, turn, *ids)
    assert await results(agents, turn) == [("a", "timeout")]
    [edge] = await rows(agents, "SELECT metadata::text FROM state.execution_edges WHERE primitive = 'report'")
    assert edge["metadata"] == '{"status": "timeout"}'


async def test_8_timeouts_that_waited_for_an_apply_leave_its_calls_alone(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    real = await written_report(agents, turn, "a", await write_card(agents, result_card(turn, "a")))
    rings = await overtaken(agents, lambda conn: apply_reports(conn, turn, [real]), expire(agents, turn))
    assert [ring.inbox_id for ring in rings if ring.message_type == "timeout"] == ["timeout-b"]
    assert await waits(agents) == {"a": "applied", "b": "waiting"}
    assert (await head(agents))["waiting_tool_count"] == 1


async def test_1_timeouts_that_waited_for_their_twin_are_answered_alike(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await suspend(agents, turn, "a", "b", "c", wait_seconds=0, uncarded=("c",))
    rings = await overtaken(agents, lambda conn: inject_timeouts(conn, turn), expire(agents, turn))
    assert sorted(ring.inbox_id for ring in rings) == ["timeout-a", "timeout-b"]
    assert await waits(agents) == {"a": "waiting", "b": "waiting", "c": "dropped"}
    assert (await head(agents))["waiting_tool_count"] == 2


async def test_1_a_single_look_for_timeouts_that_waited_changes_nothing(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    real = await written_report(agents, turn, "a", await write_card(agents, result_card(turn, "a")))

    async def once() -> None:
        async with agents.connection() as conn:
            await inject_timeouts(conn, turn)

    with pytest.raises(Again):
        await overtaken(agents, lambda conn: apply_reports(conn, turn, [real]), once())
    assert await rows(agents, "SELECT FROM state.agent_inbox WHERE message_type = 'timeout'") == []
    assert [ring.inbox_id for ring in await expire(agents, turn)] == ["timeout-b"]


async def test_8_timeouts_that_waited_for_the_next_calls_leave_them_and_their_deadline_alone(agents: Pool) -> None:
    turn = await sleeper(agents, "a", wait_seconds=0)
    answer = await told(agents, "a")

    async def answered_and_suspended_again(conn: Connection) -> CommittedStep:
        await apply_reports(conn, turn, [answer])
        return await commit_step(conn, turn, call_record(turn, 2, "b", wait_seconds=60))

    rings = await overtaken(agents, answered_and_suspended_again, expire(agents, turn))
    assert rings == []
    assert (await head(agents))["resume_deadline"] is not None
    assert await waits(agents) == {"a": "applied", "b": "waiting"}


async def test_a_report_that_waited_for_one_by_sql_does_not_say_received(agents: Pool) -> None:
    """Or its call would never expire, should that row turn out to break the protocol."""
    turn = await sleeper(agents, "a", wait_seconds=0)
    card_id = await write_card(agents, result_card(turn, "a", author_id="alice"))
    insert = (
        "INSERT INTO state.agent_inbox (inbox_id, project_id, agent_id, message_type, correlation_id, agent_turn_id,"
        " turn_epoch, payload, next_retry_at, created_at) VALUES ('sql', 'p1', 'alice', 'tool_result', 'a', $1, 1,"
        " jsonb_build_object('tool_result_card_id', $2::text), now(), now())"
    )
    reply = (
        await overtaken(agents, lambda conn: conn.fetch(insert, turn.agent_turn_id, card_id), tell(agents, "a"))
    ).reply
    assert (reply.duplicate, reply.inbox_id, await waits(agents)) == (True, "sql", {"a": "waiting"})
    assert [row.reason for row in (await settle(agents, turn, InboxId("sql"))).rows] == ["protocol_violation"]
    await settle(agents, turn, *(ring.inbox_id for ring in await expire(agents, turn)))
    assert await results(agents, turn) == [("a", "timeout")]


async def test_a_twin_of_a_commit_with_calls_is_answered_what_is_recorded(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    record = call_record(turn, 1, "a")
    twin = await overtaken(agents, lambda conn: commit_step(conn, turn, record), suspend(agents, turn, "a"))
    assert (twin.result, twin.status, twin.step_metadata) == ("already", HeadStatus.SUSPENDED, record.metadata)


async def test_a_report_that_waited_for_the_end_has_no_effect(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    late = (await overtaken(agents, ending(turn), tell(agents, "a"))).reply
    assert (late.status, late.duplicate) == ("accepted", False)
    assert [each.verdict for each in await claim(agents, ALICE)] == ["consumed"]
    assert await waits(agents) == {"a": "dropped"}


async def test_an_end_that_waited_for_a_report_cancels_its_call(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await overtaken(agents, reporting("a"), end(agents, turn))
    assert await results(agents, turn) == [("a", "canceled")]
    assert [each.verdict for each in await claim(agents, ALICE)] == ["consumed"]


async def test_1_a_stop_that_waited_for_the_end_finds_the_turn_over(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    found = await overtaken(
        agents, lambda conn: finish_on(conn, turn), ask_to_stop(agents, turn.agent_turn_id, "late-stop")
    )
    assert found.verdict == "already_final"
    assert await rows(agents, "SELECT FROM state.agent_inbox WHERE message_type = 'stop'") == []


@pytest.mark.parametrize("queue", [0, 1])
async def test_1_an_end_sees_the_stop_it_waited_for(agents: Pool, queue: int) -> None:
    turn = await lease(agents)
    for _ in range(queue):
        await ask(agents)
    await begin(agents, turn)
    ended = await overtaken(agents, lambda conn: stop_on(conn, turn), finish(agents, turn))
    assert ended.head_status == ("dispatched" if queue else "idle")
    [stop] = await rows(agents, "SELECT status, last_error FROM state.agent_inbox WHERE message_type = 'stop'")
    assert (stop["status"], stop["last_error"]) == ("skipped", "already_final")
