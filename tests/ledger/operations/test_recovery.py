"""What the safety net asks the ledger: whose turn a look is, which turns to ask the engine about, what a restart does.

Every statement touches only served worker targets and what is old enough, and stands several bridges at once.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

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
    head,
    lease,
    locate,
    profile,
    rows,
)
from tests.support.ledger.calls import (
    ask_to_stop,
    became,
    expire,
    row_of,
    settle,
    sleeper,
    suspend,
    told,
    written_report,
)
from tests.support.waiting import Counting, in_flight, overtaken
from turnstile.ledger.operations import recovery, sweep
from turnstile.ledger.operations.recovery import (
    OverTurn,
    confirm_in_hand,
    follow_clock,
    list_in_hand,
    list_over,
    list_own_repairs,
    list_repairs,
    list_silent,
    list_undispatched,
    record_repairs,
    restart_turn,
    take_duty,
)
from turnstile.ledger.operations.sweep import RuleStatement, touch_worker
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.lease import AgentKey, LiveTurn
from turnstile.schema.errors import ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentTurnId, InboxId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.turns import TurnRef

OLD = timedelta(hours=1)


async def age(pool: Pool, by: timedelta = OLD) -> None:
    """Every lease, claim, change of a head and end happened so much earlier; deadlines stay."""
    await rows(pool, "UPDATE state.agent_state_head SET updated_at = updated_at - $1::interval", by)
    await rows(pool, "UPDATE state.agent_inbox SET processed_at = processed_at - $1::interval", by)
    await rows(pool, "UPDATE state.turn_outcomes SET ended_at = ended_at - $1::interval", by)


async def serve(pool: Pool, instance: str = "w1", target: str = TARGET) -> None:
    """A worker signs on."""
    await pool.run(lambda conn: touch_worker(conn, instance, [target]))


async def pass_shift(pool: Pool, *, on_since: float, last_seen: float = 0) -> None:
    """Every worker signed on so many seconds ago, and did so last so many seconds ago."""
    await rows(
        pool,
        "UPDATE state.workers SET started_at = now() - $1::interval, last_seen_at = now() - $2::interval",
        *(timedelta(seconds=on_since), timedelta(seconds=last_seen)),
    )


async def in_hand(pool: Pool, turn: TurnRef) -> LiveTurn:
    """The turn as its agent has it."""
    found = await locate(pool, turn.agent_turn_id)
    assert found is not None
    return found


def names(turns: Sequence[LiveTurn]) -> list[AgentTurnId]:
    """Their ids."""
    return [turn.agent_turn_id for turn in turns]


async def taken(pool: Pool, duty: str = "engine") -> bool:
    """take_duty, once a minute."""
    return await pool.run(lambda conn: take_duty(conn, duty, every_seconds=60))


async def test_a_duty_is_done_at_most_every_so_often(agents: Pool) -> None:
    assert await taken(agents)
    assert not await taken(agents)
    assert await taken(agents, "another")
    await rows(agents, "UPDATE state.duties SET taken_at = now() - interval '61 s' WHERE duty = 'engine'")
    assert await taken(agents)
    assert not await taken(agents)
    assert not await taken(agents, "another")


@pytest.mark.parametrize("known", [False, True])
async def test_a_duty_is_taken_by_one_of_two_bridges_at_once(agents: Pool, known: bool) -> None:
    if known:
        await taken(agents)
        await rows(agents, "UPDATE state.duties SET taken_at = now() - interval '61 s'")
    assert not await overtaken(agents, lambda conn: take_duty(conn, "engine", every_seconds=60), taken(agents))
    assert sum(await asyncio.gather(*(taken(agents, "another") for _ in range(6)))) == 1


TIMES = (
    ("state.agent_state_head", "updated_at"),
    ("state.agent_inbox", "next_retry_at"),
    ("state.agent_inbox", "processed_at"),
    ("state.turn_waiting_tools", "updated_at"),
    ("state.workers", "last_seen_at"),
    ("state.duties", "taken_at"),
)


async def set_clock_back(pool: Pool, by: timedelta) -> None:
    """As if the ledger's clock had been so far ahead until now; deadlines stay."""
    for table, column in TIMES:
        await rows(pool, f"UPDATE {table} SET {column} = {column} + $1::interval", by)  # noqa: S608 -- words of this test


async def ahead(pool: Pool) -> set[tuple[str, str]]:
    """The columns with times that are still to come; a queued turn has no time."""
    found: set[tuple[str, str]] = set()
    for table, column in TIMES:
        live = "archived_at IS NULL AND" if table == "state.agent_inbox" else ""
        if await rows(pool, f"SELECT FROM {table} WHERE {live} {column} > now() AND {column} < 'infinity'"):
            found.add((table, column))
    return found


async def test_what_was_due_before_the_clock_was_set_back_is_due_now(agents: Pool) -> None:
    await serve(agents)
    await ask(agents)
    await ask(agents)  # queued behind: it has no time
    await lease(agents, BOB)
    await sleeper(agents, "a", agent=CAROL)
    assert await taken(agents)
    assert await agents.run(follow_clock) == []
    await set_clock_back(agents, timedelta(seconds=50))
    assert await agents.run(follow_clock) == []  # a minute is waited out
    await set_clock_back(agents, OLD)
    assert await ahead(agents) == set(TIMES)
    assert not await claim(agents, ALICE)
    assert {agent for _, agent in await agents.run(follow_clock)} == {ALICE, BOB, CAROL}
    assert await ahead(agents) == {("state.duties", "taken_at")}
    assert await taken(agents)
    assert not await taken(agents)
    assert await ahead(agents) == set()
    assert [row["n"] for row in await rows(agents, "SELECT count(*) AS n FROM state.queued_turns")] == [1]
    assert len(await claim(agents, ALICE)) == 1
    assert await agents.run(follow_clock) == []


async def test_two_bridges_that_see_the_clock_set_back_bring_times_back_once(agents: Pool) -> None:
    await lease(agents)
    await agents.run(follow_clock)
    await set_clock_back(agents, OLD)
    assert await overtaken(agents, follow_clock, agents.run(follow_clock)) == []


async def test_an_end_of_before_the_clock_was_set_back_is_announced(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await finish(agents, turn)

    async def found() -> list[AgentTurnId]:
        ends = await agents.run(lambda conn: sweep.list_unannounced(conn, [TARGET], older_seconds=60, row_limit=9))
        return [end.agent_turn_id for end in ends]

    assert await found() == []
    await age(agents, -OLD)
    assert await found() == [turn.agent_turn_id]


async def listed(pool: Pool, target: str = TARGET, older: float = 5) -> list[LiveTurn]:
    """list_in_hand, to its last page."""
    return [turn async for turn in list_in_hand(pool.run, [target], older_seconds=older)]


async def test_turns_in_hand_are_listed_page_by_page_whatever_their_state(
    agents: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_PAGE", 1)
    dispatched, sleeping, over = await lease(agents), await sleeper(agents, "a", agent=BOB), await lease(agents, CAROL)
    await begin(agents, over)
    await finish(agents, over)
    await ask(agents)  # queued behind: nobody has it in hand
    assert await listed(agents) == []
    await age(agents)
    first, second = sorted(await listed(agents), key=lambda turn: turn.agent_id)
    assert (first, second) == (await in_hand(agents, dispatched), await in_hand(agents, sleeping))
    assert (first.status, second.status) == ("dispatched", "suspended")
    assert first.resume_deadline is None
    assert second.resume_deadline is not None
    assert await listed(agents, "x") == []
    assert await listed(agents, older=3700) == []


async def test_agents_of_one_name_in_several_projects_are_all_listed(
    agents: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_PAGE", 1)
    projects = [ProjectId(f"p{number}") for number in (1, 2, 3)]
    for project in projects[1:]:
        await put_profile(agents, project, profile())
        await add_agent(agents, project, ALICE, "helper")
    for project in projects:
        await ask(agents, project=project)
    await age(agents)
    found = await listed(agents)
    assert sorted((turn.agent_id, turn.project_id) for turn in found) == [(ALICE, p) for p in projects]


async def test_a_turn_is_confirmed_while_its_gate_holds(agents: Pool) -> None:
    turn, other = (
        await in_hand(agents, await lease(agents)),
        await in_hand(agents, await sleeper(agents, "a", agent=BOB)),
    )

    async def confirmed(*asked: LiveTurn) -> list[AgentTurnId]:
        return names(await agents.run(lambda conn: confirm_in_hand(conn, asked)))

    assert await confirmed(turn, other) == [turn.agent_turn_id, other.agent_turn_id]
    assert await confirmed(turn.model_copy(update={"turn_epoch": 2}), other) == [other.agent_turn_id]
    assert await confirmed(turn.model_copy(update={"project_id": "p2"})) == []
    await ask(agents)
    await begin(agents, turn)
    assert await confirmed(turn) == [turn.agent_turn_id]  # it went on, and is the same
    await finish(agents, turn)
    assert await confirmed(turn, other) == [other.agent_turn_id]  # its agent has the next one


async def restarted(pool: Pool, turn: LiveTurn, *, counted: bool = True) -> int:
    """restart_turn."""
    return await pool.run(lambda conn: restart_turn(conn, turn, counted=counted))


async def test_a_restart_is_counted_unless_an_operator_made_it(agents: Pool) -> None:
    turn = await sleeper(agents, "a")
    await age(agents)
    before = await in_hand(agents, turn)
    assert await restarted(agents, before) == 1
    after = await in_hand(agents, turn)
    assert (after.restart_count, after.turn_epoch, after.status) == (1, 1, "suspended")
    assert after.resume_deadline == before.resume_deadline
    assert after.updated_at - before.updated_at >= OLD
    assert await restarted(agents, after, counted=False) == 1
    assert await restarted(agents, await in_hand(agents, turn)) == 2


async def test_a_restart_leaves_a_lease_as_old_as_it_is(agents: Pool) -> None:
    turn = await lease(agents)
    await age(agents)
    before = await in_hand(agents, turn)
    assert await restarted(agents, before) == 1
    assert (await in_hand(agents, turn)).updated_at == before.updated_at
    row = await row_of(agents, turn.inbox_id)
    assert row["status"] == "processing"  # as it was claimed: the rule 'dispatched, retry' is for it


async def test_a_restart_of_a_turn_that_is_over_changes_nothing(agents: Pool) -> None:
    turn = await in_hand(agents, await sleeper(agents, "a"))
    report = await told(agents, "a")
    await claim(agents, ALICE)
    for stale in (turn.model_copy(update={"turn_epoch": 2}), turn.model_copy(update={"agent_turn_id": "t"})):
        with pytest.raises(StaleTurn):
            await restarted(agents, stale)
    assert (await became(agents, report))[0] == "processing"
    await fence(agents, turn, TurnStatus.FAILED, "reaped", "reaped")
    before = await head(agents)
    with pytest.raises(StaleTurn):
        await restarted(agents, turn)
    assert await head(agents) == before


async def test_one_loss_is_counted_once_however_many_bridges_saw_it(agents: Pool) -> None:
    turn = await in_hand(agents, await sleeper(agents, "a"))
    with pytest.raises(StaleTurn):
        await overtaken(agents, lambda conn: restart_turn(conn, turn, counted=True), restarted(agents, turn))
    answers = await asyncio.gather(*(restarted(agents, turn) for _ in range(6)), return_exceptions=True)
    assert all(isinstance(answer, StaleTurn) for answer in answers)
    assert (await in_hand(agents, turn)).restart_count == 1


async def test_a_restart_makes_due_what_the_lost_workflow_had_in_hand_and_nothing_else(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b", "c", "d")
    other = await sleeper(agents, "x", agent=BOB)
    applied, early = await told(agents, "a"), await written_report(agents, turn, "b", "a-card-that-is-not-there-yet")
    await settle(agents, turn, applied, early)
    assert [(await became(agents, each))[0] for each in (applied, early)] == ["consumed", "deferred"]
    reported, others = await told(agents, "c"), await told(agents, "x")
    stop, others_stop = [(await ask_to_stop(agents, each.agent_turn_id)).inbox_id for each in (turn, other)]
    assert {each.inbox_id for each in await claim(agents, ALICE, BOB)} == {reported, others, stop, others_stop}
    unclaimed = await told(agents, "d")
    await ask(agents)  # queued behind it
    before = {row["inbox_id"]: row for row in await rows(agents, "SELECT * FROM state.agent_inbox")}
    await restarted(agents, await in_hand(agents, turn))
    after = {row["inbox_id"]: row for row in await rows(agents, "SELECT * FROM state.agent_inbox")}
    changed = {inbox_id for inbox_id, row in after.items() if row != before[inbox_id]}
    assert changed == {reported, stop}
    assert {each.inbox_id: each.verdict for each in await claim(agents, ALICE, BOB)} == dict.fromkeys(
        [reported, stop, unclaimed], "signal"
    )


@pytest.mark.parametrize("late", [list_undispatched, list_silent])
async def test_a_late_turn_is_listed_only_while_a_worker_was_there_all_the_time(
    agents: Pool, late: RuleStatement[LiveTurn]
) -> None:
    turn = await lease(agents)
    if late is list_silent:
        await begin(agents, turn)
    await age(agents)

    async def found(target: str = TARGET, older: float = 60) -> list[AgentTurnId]:
        return names(await agents.run(lambda conn: late(conn, [target], older_seconds=older, row_limit=9)))

    assert await found() == []  # nobody serves
    await serve(agents, "elsewhere", "x")
    await pass_shift(agents, on_since=3600)
    assert await found() == []
    await serve(agents)
    assert await found() == []  # it has just come
    await pass_shift(agents, on_since=61)
    assert await found() == [turn.agent_turn_id]
    assert await found("x") == []
    assert await found(older=3700) == []
    await pass_shift(agents, on_since=59)
    assert await found() == []
    await pass_shift(agents, on_since=3600, last_seen=31)
    assert await found() == []  # it has gone
    await serve(agents)
    assert await found() == []  # and come again: its service starts anew
    await serve(agents, "another")
    await rows(agents, "UPDATE state.workers SET started_at = now() - interval '61 s' WHERE instance = 'another'")
    assert await found() == [turn.agent_turn_id]


async def test_only_a_lease_that_nobody_began_is_undispatched(agents: Pool) -> None:
    await serve(agents)
    turn, running = await lease(agents), await lease(agents, BOB)
    await begin(agents, running)
    await sleeper(agents, "a", agent=CAROL)

    async def found() -> list[LiveTurn]:
        return await agents.run(lambda c: list_undispatched(c, [TARGET], older_seconds=60, row_limit=9))

    await pass_shift(agents, on_since=3600)
    assert await found() == []
    await age(agents)
    assert await found() == [await in_hand(agents, turn)]
    await begin(agents, turn)
    await age(agents)
    assert await found() == []


async def test_a_turn_is_silent_when_neither_its_head_nor_its_deadline_has_moved(agents: Pool) -> None:
    await serve(agents)
    await pass_shift(agents, on_since=3600)
    await lease(agents)
    running = await lease(agents, BOB)
    await begin(agents, running)
    asleep = await sleeper(agents, "a", agent=CAROL, wait_seconds=7200)

    async def found(limit: int = 9) -> list[AgentTurnId]:
        listed = await agents.run(lambda c: list_silent(c, [TARGET], older_seconds=60, row_limit=limit))
        return sorted(names(listed))

    assert await found() == []
    await age(agents)
    assert await found() == [running.agent_turn_id]  # who sleeps is silent until its deadline
    await rows(
        agents, "UPDATE state.agent_state_head SET resume_deadline = now() - interval '50 s' WHERE status = 'suspended'"
    )
    assert await found() == [running.agent_turn_id]
    await rows(
        agents, "UPDATE state.agent_state_head SET resume_deadline = now() - interval '61 s' WHERE status = 'suspended'"
    )
    assert await found() == sorted([running.agent_turn_id, asleep.agent_turn_id])
    assert len(await found(1)) == 1
    await begin(agents, running)
    assert await found() == [asleep.agent_turn_id]
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = now()")
    await expire(agents, asleep)  # the deadline is null now, and a timeout is there: the head's change counts
    assert await found() == []
    await age(agents)
    assert await found() == [running.agent_turn_id]  # the timeout has just come, however long the turn slept
    await rows(
        agents, "UPDATE state.agent_inbox SET created_at = now() - interval '61 s' WHERE message_type = 'timeout'"
    )
    assert await found() == sorted([running.agent_turn_id, asleep.agent_turn_id])
    await rows(agents, "DELETE FROM state.agent_inbox WHERE message_type = 'timeout'")
    await rows(agents, "UPDATE state.turn_waiting_tools SET deadline = NULL")
    assert await found() == [running.agent_turn_id]  # nothing is there, and null is never past


async def test_turns_that_are_over_are_told_from_those_in_hand(agents: Pool) -> None:
    over, live, young = await lease(agents), await lease(agents, BOB), await lease(agents, CAROL)
    await begin(agents, over)
    await finish(agents, over)
    await age(agents)
    await fence(agents, young, TurnStatus.FAILED, "reaped", "reaped")
    asked = [turn.agent_turn_id for turn in (over, live, young)]

    async def found(older: float) -> list[OverTurn]:
        return await agents.run(lambda c: list_over(c, [*asked, AgentTurnId("unknown")], older_seconds=older))

    [listed] = await found(10)
    assert listed.agent_turn_id == over.agent_turn_id
    assert 3600 <= listed.over_seconds < 3700
    assert await found(3700) == []
    assert {turn.agent_turn_id for turn in await found(-1)} == {over.agent_turn_id, young.agent_turn_id}


async def woken(pool: Pool, target: str = TARGET, older: float = 10) -> list[AgentKey]:
    """retry_resumes."""
    return await pool.run(lambda c: sweep.retry_resumes(c, [target], older_seconds=older, row_limit=9))


async def test_a_report_that_did_not_wake_its_turn_is_due_again(agents: Pool) -> None:
    await serve(agents)
    turn = await sleeper(agents, "a", "b")
    reported = await told(agents, "a")
    await age(agents)
    assert await woken(agents) == []  # nobody claimed it
    await claim(agents, ALICE)
    assert await woken(agents) == []
    await age(agents)
    assert await woken(agents, "x") == []
    assert await woken(agents, older=3700) == []
    assert await woken(agents) == [(PROJECT, ALICE)]
    assert await woken(agents) == []
    [claimed] = await claim(agents, ALICE)
    assert (claimed.inbox_id, claimed.verdict) == (reported, "signal")
    await settle(agents, turn, reported)
    await age(agents)
    assert await woken(agents) == []


async def test_a_report_is_not_due_again_while_no_worker_could_take_it(agents: Pool) -> None:
    """Its ring waits at the workflow, whose history every other one would lengthen."""
    await sleeper(agents, "a")
    await told(agents, "a")
    await claim(agents, ALICE)
    await age(agents)
    assert await woken(agents) == []
    await serve(agents, target="x")
    assert await woken(agents) == []
    await serve(agents)
    await pass_shift(agents, on_since=3600, last_seen=31)
    assert await woken(agents) == []
    await serve(agents)
    assert await woken(agents) == [(PROJECT, ALICE)]


async def test_only_reports_of_a_sleeping_turn_are_due_again(agents: Pool) -> None:
    await serve(agents)
    turn = await sleeper(agents, "a", "b", wait_seconds=0)
    timeouts = [ring.inbox_id for ring in await expire(agents, turn)]
    await ask_to_stop(agents, turn.agent_turn_id)
    await lease(agents, BOB)
    await claim(agents, ALICE)
    await age(agents)
    assert await woken(agents) == [(PROJECT, ALICE)]
    given_back = await rows(agents, "SELECT inbox_id FROM state.agent_inbox WHERE status = 'deferred'")
    assert sorted(row["inbox_id"] for row in given_back) == sorted(timeouts)


async def test_a_report_of_a_turn_that_went_on_or_is_over_is_not_due_again(agents: Pool) -> None:
    await serve(agents)
    over, on = await sleeper(agents, "a"), await sleeper(agents, "b", agent=BOB)
    for call in ("a", "b"):
        await told(agents, call)
    await claim(agents, ALICE, BOB)
    await age(agents)
    await fence(agents, over, TurnStatus.FAILED, "reaped", "reaped")
    await settle(agents, on, *(await inbox_ids(agents, "b")))
    await begin(agents, on, 2)
    await suspend(agents, on, "c", step=2)
    assert await woken(agents) == []
    assert {each.verdict for each in await claim(agents, ALICE)} == set()


async def inbox_ids(pool: Pool, call: str) -> list[InboxId]:
    """The rows of a call's reports."""
    found = await rows(pool, "SELECT inbox_id FROM state.agent_inbox WHERE correlation_id = $1", call)
    return [row["inbox_id"] for row in found]


async def test_reports_are_made_due_by_one_bridge_at_once(agents: Pool) -> None:
    """Bridges that look at once may share the rows: each is one bridge's."""
    await serve(agents)
    for agent, call in ((ALICE, "a"), (BOB, "b"), (CAROL, "c")):
        await sleeper(agents, call, agent=agent)
        await told(agents, call)
    await claim(agents, ALICE, BOB, CAROL)
    await age(agents)
    retry = partial(sweep.retry_resumes, worker_targets=[TARGET], older_seconds=10, row_limit=1)
    async with in_flight(agents, retry) as first, asyncio.timeout(30):  # nobody waits for what another has
        found = await asyncio.gather(*(woken(agents) for _ in range(6)))
    assert len(first) == 1
    assert sorted(first + [key for each in found for key in each]) == [(PROJECT, each) for each in (ALICE, BOB, CAROL)]
    assert await woken(agents) == []
    assert len(await claim(agents, ALICE, BOB, CAROL)) == 3


async def services(pool: Pool) -> dict[tuple[str, str], datetime]:
    """Since when who serves what."""
    found = await rows(pool, "SELECT instance, worker_target, started_at FROM state.workers")
    return {(row["instance"], row["worker_target"]): row["started_at"] for row in found}


async def test_a_worker_that_was_silent_starts_its_service_anew(agents: Pool) -> None:
    await agents.run(lambda conn: touch_worker(conn, "w1", [TARGET, "x", TARGET]))
    await serve(agents, "w2")
    await pass_shift(agents, on_since=3600, last_seen=29)
    before = await services(agents)
    assert set(before) == {("w1", TARGET), ("w1", "x"), ("w2", TARGET)}
    await serve(agents)
    assert await services(agents) == before
    await rows(agents, "UPDATE state.workers SET last_seen_at = now() - interval '31 s' WHERE instance <> 'w2'")
    await serve(agents)
    after = await services(agents)
    assert after[("w1", TARGET)] - before[("w1", TARGET)] >= OLD
    assert {key for key, since in after.items() if since != before[key]} == {("w1", TARGET)}


async def test_a_worker_that_says_so_starts_its_service_anew(agents: Pool) -> None:
    """Its engine was away for less than the time in which a worker counts as silent."""
    for instance in ("w1", "w2"):
        await serve(agents, instance)
    await pass_shift(agents, on_since=3600, last_seen=1)
    before = await services(agents)
    await agents.run(lambda conn: touch_worker(conn, "w1", [TARGET], restarted=True))
    after = await services(agents)
    assert after[("w1", TARGET)] - before[("w1", TARGET)] >= OLD
    assert {key for key, since in after.items() if since != before[key]} == {("w1", TARGET)}


async def test_workers_that_are_long_gone_are_forgotten(agents: Pool) -> None:
    for instance in ("w1", "w2"):
        await serve(agents, instance)
    await pass_shift(agents, on_since=200_000, last_seen=90_000)
    await serve(agents)
    assert set(await services(agents)) == {("w1", TARGET)}


async def recorded(pool: Pool, **repairs: int) -> None:
    """record_repairs."""
    await pool.run(lambda conn: record_repairs(conn, repairs))


async def test_repairs_of_several_bridges_add_up(agents: Pool) -> None:
    await recorded(agents, engine=2)
    [first] = await agents.run(list_repairs)
    await overtaken(agents, lambda conn: record_repairs(conn, {"engine": 1, "claims": 3}), recorded(agents, engine=4))
    await asyncio.gather(*(recorded(agents, claims=1, engine=1) for _ in range(6)))
    sums = await agents.run(list_repairs)
    assert [(each.rule, each.repaired) for each in sums] == [("claims", 9), ("engine", 13)]
    assert sums[1].last_at > first.last_at


async def test_a_project_sees_repairs_that_are_its_alone(agents: Pool) -> None:
    await recorded(agents, engine=2)
    for other in ("a-first", "z-last"):
        assert [each.repaired for each in await agents.run(lambda conn: list_own_repairs(conn, PROJECT))] == [2]
        insert = "INSERT INTO resource.project_agents (project_id, agent_id, profile_box_id) VALUES ($1, 'x', $2)"
        await rows(agents, insert, other, uuid4())
        assert await agents.run(lambda conn: list_own_repairs(conn, PROJECT)) == []
        await rows(agents, "DELETE FROM resource.project_agents WHERE project_id = $1", other)


async def test_repairs_recorded_in_any_order_do_not_lock_each_other_out(agents: Pool) -> None:
    pool = Counting(agents._url)
    try:
        names = ["claims", "doorbell", "engine", "stop"]
        orders = [names, names[::-1]] * 20
        await asyncio.gather(*(recorded(pool, **dict.fromkeys(order, 1)) for order in orders))
    finally:
        await pool.close()
    assert pool.deadlocks == 0
    assert {each.repaired for each in await agents.run(list_repairs)} == {40}


async def everything(pool: Pool) -> dict[str, list[str]]:
    """Every row of the tables that rules write."""
    tables = ("state.agent_inbox", "state.agent_state_head", "state.turn_waiting_tools", "state.duties")
    return {
        table: sorted(str(row) for row in await rows(pool, f"SELECT x.*, x.xmin::text FROM {table} x"))  # noqa: S608 -- names above
        for table in tables
    }


async def test_a_rehearsal_answers_like_the_run_and_leaves_no_trace(agents: Pool) -> None:
    await serve(agents)
    await sleeper(agents, "a")
    await told(agents, "a")
    await claim(agents, ALICE)
    await age(agents)
    before = await everything(agents)
    rehearsed = await agents.rehearse(lambda c: sweep.retry_resumes(c, [TARGET], older_seconds=10, row_limit=9))
    assert await agents.rehearse(lambda c: take_duty(c, "engine", every_seconds=60))
    assert await everything(agents) == before
    assert await woken(agents) == rehearsed == [(PROJECT, ALICE)]
    assert await everything(agents) != before


async def test_a_rehearsal_that_fails_leaves_no_trace_either(agents: Pool) -> None:
    async def failing(conn: Connection) -> None:
        await take_duty(conn, "engine", every_seconds=60)
        raise StaleTurn("as a transition may")

    with pytest.raises(StaleTurn):
        await agents.rehearse(failing)
    assert await taken(agents)


async def test_a_rehearsal_names_a_server_that_is_lost(agents: Pool) -> None:
    async def lost(conn: Connection) -> None:
        await conn.fetch("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(ServerUnavailable, match="no answer from"):
        await agents.rehearse(lost)
    assert await taken(agents)
