"""Eras of the ledger (protocol §16): the epochs of two histories never meet."""

import asyncio
from typing import Any

import pytest

from tests.support.ledger.agents import (
    BOB,
    CAROL,
    PROJECT,
    ask,
    begin,
    commit,
    dispatch,
    finish,
    head,
    lease,
    locate,
    rows,
    value,
)
from tests.support.ledger.calls import sleeper, told, waits, written_report
from tests.support.ledger.invariants import violations
from tests.support.ledger.trees import forks
from turnstile.ledger.operations.recovery import list_carried, restart_turn
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import StepId, era_of, tool_call_id
from turnstile.schema.turns import TurnRef

NEW_HISTORY = "UPDATE state.ledger_era SET timeline_id = timeline_id - 1"
"""As if the server had been promoted since the row was written."""


async def enter(pool: Pool) -> dict[str, Any]:
    """What each session does that writes, as it is opened."""
    [era] = await rows(pool, "SELECT * FROM state.enter_era()")
    return era


async def begin_era(pool: Pool) -> int:
    """A new history of the server, and its first session; returns the floor."""
    await enter(pool)
    await rows(pool, NEW_HISTORY)
    return (await enter(pool))["epoch_floor"]


async def carried(pool: Pool) -> list[LiveTurn]:
    """What the rule finds."""
    return await pool.run(lambda conn: list_carried(conn, ["worker_generic"], row_limit=9))


async def now_at(pool: Pool, turn: TurnRef) -> TurnRef:
    """The turn under the epoch that it has now."""
    found = await locate(pool, turn.agent_turn_id)
    assert found is not None
    return TurnRef.model_validate(turn.model_dump() | {"turn_epoch": found.turn_epoch})


async def test_the_first_session_makes_era_0_and_a_new_history_begins_the_next(agents: Pool) -> None:
    first, again = await enter(agents), await enter(agents)
    await rows(agents, NEW_HISTORY)
    then, still = await enter(agents), await enter(agents)
    assert first == again
    assert then == still
    assert [(each["era"], each["epoch_floor"] > 0) for each in (first, then)] == [(0, False), (1, True)]
    assert first["ledger_id"] == then["ledger_id"]
    assert await value(agents, "SELECT txid_current_if_assigned() IS NULL FROM state.enter_era()")  # it only read


async def test_of_many_sessions_at_once_one_begins_the_era(agents: Pool) -> None:
    turn = await lease(agents)
    await enter(agents)
    await rows(agents, NEW_HISTORY)
    eras = await asyncio.gather(*(enter(agents) for _ in range(8)))
    assert [era["era"] for era in eras] == [1] * 8
    assert (await head(agents))["turn_epoch"] == eras[0]["epoch_floor"] == (await now_at(agents, turn)).turn_epoch


async def test_a_turn_in_hand_goes_on_under_the_floor_and_not_under_its_old_epoch(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await commit(agents, turn)
    floor = await begin_era(agents)
    with pytest.raises(StaleTurn):
        await begin(agents, turn, 2)
    [found] = await carried(agents)
    assert (found.agent_turn_id, found.turn_epoch) == (turn.agent_turn_id, floor)
    await agents.run(lambda conn: restart_turn(conn, found, counted=False))
    assert await carried(agents) == []
    new = await now_at(agents, turn)
    await begin(agents, new, 2)
    await finish(agents, new, 2)
    assert (await head(agents))["turn_epoch"] == floor


async def test_a_child_of_an_era_is_leased_above_its_floor(agents: Pool) -> None:
    floor = await begin_era(agents)
    await sleeper(agents, "c1")
    [task] = (await forks(agents, "c1", 1)).tasks
    assert task.lease is not None
    assert (task.lease.turn_epoch, floor > 0) == (floor + 1, True)


async def test_leases_of_an_era_are_above_its_floor_however_they_are_made(agents: Pool) -> None:
    held = await lease(agents)
    await ask(agents)  # queued behind it
    floor = await begin_era(agents)
    assert (await lease(agents, BOB)).turn_epoch == floor + 1
    await rows(agents, "UPDATE resource.project_agents SET status = 'paused' WHERE agent_id = $1", CAROL)
    await rows(agents, "UPDATE state.agent_state_head SET paused_at_epoch = turn_epoch WHERE agent_id = $1", CAROL)
    await ask(agents, CAROL)
    await rows(agents, "UPDATE resource.project_agents SET status = 'active' WHERE agent_id = $1", CAROL)
    await rows(agents, "UPDATE state.agent_state_head SET paused_at_epoch = NULL WHERE agent_id = $1", CAROL)
    [leased] = await dispatch(agents, [(PROJECT, CAROL)])
    assert leased.turn_epoch == floor + 1
    mine = await now_at(agents, held)
    await begin(agents, mine)
    await finish(agents, mine)
    assert (await head(agents))["turn_epoch"] == floor + 1  # by the end of the turn before


async def test_a_report_of_a_call_from_the_era_before_is_applied(agents: Pool) -> None:
    turn = await sleeper(agents, "a", "b")
    floor = await begin_era(agents)
    await told(agents, "a")
    by_sql = await written_report(agents, turn, "b", None)
    [row] = await rows(agents, "SELECT turn_epoch, status FROM state.agent_inbox WHERE inbox_id = $1", by_sql)
    assert (row["turn_epoch"], row["status"]) == (floor, "pending")
    assert await waits(agents) == {"a": "received", "b": "waiting"}
    epochs = await rows(agents, "SELECT DISTINCT turn_epoch FROM state.turn_waiting_tools")
    assert [epoch["turn_epoch"] for epoch in epochs] == [floor]


async def test_a_turn_under_an_epoch_of_another_era_is_told(agents: Pool) -> None:
    turn = await lease(agents)
    await begin_era(agents)
    async with agents.connection() as conn:
        assert await violations(conn) == []
        await conn.execute("BEGIN")
        for table in ("agent_state_head", "agent_inbox"):
            await conn.execute(f"UPDATE state.{table} SET turn_epoch = 5 WHERE turn_epoch > 5")  # noqa: S608 -- the two
        assert {violation.rule for violation in await violations(conn)} == {"epoch_of_another_era"}
        await conn.execute("ROLLBACK")
    assert turn.turn_epoch == 1


def test_names_that_are_derived_differ_between_eras() -> None:
    floor = 29_606_888_341_504
    assert [era_of(each) for each in (0, 7, 1 << 30)] == [0, 0, 0]
    assert era_of(floor) == era_of(floor + 9) > 0
    step = StepId("turn-s2")
    assert tool_call_id(step, 0, 1) == tool_call_id(step, 0, 7) != tool_call_id(step, 0, floor)
    assert tool_call_id(step, 0, floor) == tool_call_id(step, 0, floor + 1)
