"""`wake_me` in the ledger: an agent goes on later, once, for its requester, within the root's budget (protocol §20)."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.ledger.agents import ALICE, begin, drain, rows, start, value
from tests.support.ledger.budgets import budget, limit
from tests.support.ledger.calls import sleeper, suspend, tell
from tests.support.ledger.schedules import bridge_of, firings, make_due
from tests.support.ledger.trees import parent
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.schedules import put_wake
from turnstile.schema.delegation.arguments import WakeArguments, arguments_of
from turnstile.schema.delegation.refusals import DelegationRefused
from turnstile.schema.errors import Refused

ADA = {"CG-Sender": "ada"}
LATER: dict[str, Any] = {"instruction": "look again", "in_seconds": 3600}


async def wakes(pool: Pool, call: str, *, depth: int = 20, most: int = 0, **arguments: Any) -> str:
    """The schedule of the call, which asks to be woken in an hour unless `arguments` say otherwise."""
    asked = await parent(pool, call)
    wanted = WakeArguments.model_validate(arguments or LATER)
    schedule, _ = await pool.run(lambda conn: put_wake(conn, asked, wanted, depth_limit=depth, most=most))
    return schedule


async def refusal(pool: Pool, call: str, **how: Any) -> str:
    """Why the call is refused."""
    with pytest.raises(Refused) as refused:
        await wakes(pool, call, **how)
    return refused.value.code


async def woken(pool: Pool, schedule: str) -> str | None:
    """The turn of a wake, whose time comes now, or the code of its refusal."""
    await make_due(pool, name=schedule)
    await bridge_of(pool).look()
    [(turn, code)] = await firings(pool, schedule)
    return turn or code


async def spent(pool: Pool, turn: str, tokens: int) -> None:
    """Book what a turn that is over has used: of its own budget, and of the project's where that comes from."""
    await rows(
        pool,
        "WITH own AS (UPDATE state.budgets SET spent_tokens = $2, past_tokens = $2 WHERE budget_id = $1 RETURNING *)"
        " UPDATE state.budgets b SET spent_tokens = b.spent_tokens + $2 FROM own"
        " WHERE b.budget_id = ANY (own.from_tokens)",
        turn,
        tokens,
    )


async def test_a_call_puts_one_wake_and_its_turn_goes_on_for_the_requester(counting: Counting) -> None:
    turn = await sleeper(counting, "c1", conversation_id="talk", incoming=ADA)
    schedule, again = await asyncio.gather(wakes(counting, "c1"), wakes(counting, "c1"))
    assert schedule == again == "wake-c1"
    await tell(counting, "c1")
    await make_due(counting, name=schedule)
    await asyncio.gather(*(bridge_of(counting).look() for _ in range(3)))
    [(made, code)] = await firings(counting, schedule)
    assert code is None
    [row] = await rows(
        counting,
        "SELECT payload ->> 'conversation_id' AS talk, context_headers ->> 'CG-Sender' AS sender, status,"
        " context_headers ->> 'CG-Recursion-Depth' AS depth, context_headers ->> 'CG-Parent-Turn-Id' AS parent"
        " FROM state.agent_inbox WHERE agent_turn_id = $1",
        made,
    )
    assert row == {"talk": "talk", "sender": "ada", "status": "queued", "depth": "1", "parent": turn.agent_turn_id}


async def test_outside_a_conversation_it_goes_on_with_the_boxes_of_its_turn(counting: Counting) -> None:
    turn = await sleeper(counting, "c1")
    made = await woken(counting, await wakes(counting, "c1"))
    [row] = await rows(
        counting,
        "SELECT i.payload ->> 'output_box_id' AS box, i.payload #>> '{runtime_config,remember}' AS remember,"
        " (SELECT count(*) FROM box_cards c WHERE c.box_id = (i.payload ->> 'context_box_id')::uuid) AS cards"
        " FROM state.agent_inbox i WHERE i.agent_turn_id = $1",
        made,
    )
    assert (row["box"], row["remember"], row["cards"]) == (turn.output_box_id, "true", 2)


async def test_what_is_refused(counting: Counting) -> None:
    turn = await sleeper(counting, "c1", "c2", incoming={"CG-Recursion-Depth": "3"})
    past = datetime.now(UTC) - timedelta(seconds=1)
    assert await refusal(counting, "c1", instruction="x", at=past) == "wake_is_past"
    assert await refusal(counting, "c1", instruction="x", at=past + timedelta(days=400)) == "wake_is_too_late"
    assert await refusal(counting, "c1", depth=4) == "recursion_depth_exceeded"
    assert await wakes(counting, "c1", most=1) == await wakes(counting, "c1", most=1)
    assert await refusal(counting, "c2", most=1) == "too_many_wakes"
    await tell(counting, "c2")
    assert await refusal(counting, "c2") == "parent_over"
    for arguments in ({"instruction": "x"}, {**LATER, "at": "2030-01-01T00:00:00Z"}, {**LATER, "in_seconds": -1}):
        with pytest.raises(DelegationRefused, match="wake_me: invalid arg"):
            arguments_of("wake_me", WakeArguments, arguments)
    assert turn.agent_id == ALICE


async def test_of_two_calls_that_race_for_the_last_wake_one_gets_it(counting: Counting) -> None:
    await sleeper(counting, "c1", "c2")
    first, second = await parent(counting, "c1"), WakeArguments.model_validate(LATER)
    late = refusal(counting, "c2", most=1)
    assert (
        await overtaken(counting, lambda conn: put_wake(conn, first, second, depth_limit=20, most=1), late)
        == "too_many_wakes"
    )
    assert await value(counting, "SELECT count(*) FROM resource.schedules") == 1


async def test_an_end_of_the_turn_leaves_its_wake_or_forbids_it(counting: Counting) -> None:
    """Whichever is first: a wake that was put outlives its turn, and a turn that is over puts none."""
    await sleeper(counting, "c1", "c2")
    asked, wanted = await parent(counting, "c1"), WakeArguments.model_validate(LATER)
    await overtaken(counting, lambda conn: put_wake(conn, asked, wanted, depth_limit=20, most=0), drain(counting))
    assert await value(counting, "SELECT count(*) FROM resource.schedules") == 1
    assert await wakes(counting, "c1") == "wake-c1"  # a repeat
    assert await refusal(counting, "c2") == "parent_over"


@pytest.mark.parametrize("daily", [None, 5000])
async def test_all_wakes_of_a_root_share_what_is_left_of_its_budget(counting: Counting, daily: int | None) -> None:
    """Also where the project has a budget of its own, to which the root's went back; and a wake of a wake."""
    if daily is not None:
        await limit(counting, max_tokens=daily)
    root = await sleeper(counting, "c1", "c2", budget={"max_tokens": 1000})
    schedules = [await wakes(counting, call) for call in ("c1", "c2")]
    for call in ("c1", "c2"):
        await tell(counting, call)
    await drain(counting)
    await spent(counting, root.agent_turn_id, 300)
    first = await woken(counting, schedules[0])
    assert first is not None
    assert (await budget(counting, first))["max_tokens"] == 700
    turn = await start(counting)
    await begin(counting, turn)
    await suspend(counting, turn, "c3")
    third = await wakes(counting, "c3")
    await tell(counting, "c3")
    await drain(counting)
    await spent(counting, first, 200)
    second = await woken(counting, schedules[1])
    assert second is not None
    assert (await budget(counting, second))["max_tokens"] == 500
    assert await woken(counting, third) == "budget_exceeded"  # 500 are the second's until it ends
