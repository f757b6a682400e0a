"""Steers at once with ends, steps, leases and each other: each is asked with once, or skipped (hazards 1, 2, 10)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    ask,
    begin,
    finish,
    finish_on,
    lease,
    start,
    stop,
    stop_on,
)
from tests.support.ledger.calls import ask_to_stop, end, ending
from tests.support.ledger.steers import commit_asked, finish_asked, finish_asked_on, say, say_on, steers
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.queries import Again, Connection
from turnstile.ledger.turns.cards import BoxCache
from turnstile.ledger.turns.steps import begin_step
from turnstile.rules.turn_step import BegunStep
from turnstile.schema.errors import Refused, SteerWaits
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.turns import TurnRef

Transition = Callable[[Connection], Awaitable[Any]]


def steering(turn: TurnRef) -> Transition:
    """A steer, as a transition."""
    return lambda conn: say_on(conn, turn)


def beginning(turn: TurnRef, step: int = 1) -> Transition:
    """A begin, as a transition."""
    return lambda conn: begin_step(conn, turn, step, BoxCache(0))


async def running(pool: Counting) -> tuple[TurnRef, BegunStep]:
    """A turn in its first step."""
    turn = await lease(pool)
    return turn, await begin(pool, turn)


@pytest.mark.parametrize("queued", [False, True])
async def test_1_a_finish_sees_the_steer_it_waited_for(counting: Counting, queued: bool) -> None:
    turn, begun = await running(counting)
    if queued:
        await ask(counting)
    with pytest.raises(SteerWaits):
        await overtaken(counting, steering(turn), finish_asked(counting, turn, begun))
    await commit_asked(counting, turn, begun, steered=True)
    assert len((await begin(counting, turn, 2)).steers) == 1


async def test_1_a_single_finish_that_waited_for_a_steer_changes_nothing(counting: Counting) -> None:
    turn, begun = await running(counting)
    await ask(counting)  # with a next turn a finish may go on without having seen the newest head

    async def once() -> None:
        async with counting.connection() as conn:
            await finish_asked_on(conn, turn, begun)

    with pytest.raises(Again):
        await overtaken(counting, steering(turn), once())


async def test_a_steer_that_waited_for_a_finish_comes_too_late(counting: Counting) -> None:
    turn, begun = await running(counting)
    with pytest.raises(Refused) as refused:
        await overtaken(counting, lambda conn: finish_asked_on(conn, turn, begun), say(counting, turn))
    assert refused.value.code == "already_final"
    assert await steers(counting, turn) == {}


async def test_an_end_by_force_skips_the_steer_it_waited_for(counting: Counting) -> None:
    turn, _ = await running(counting)
    await ask_to_stop(counting, turn.agent_turn_id)
    ended = await overtaken(counting, steering(turn), end(counting, turn))
    [said] = await steers(counting, turn)
    assert ended.skipped_steers == [said]


async def test_a_steer_that_waited_for_an_end_by_force_comes_too_late(counting: Counting) -> None:
    turn, _ = await running(counting)
    with pytest.raises(Refused) as refused:
        await overtaken(counting, ending(turn), say(counting, turn))
    assert refused.value.code == "already_final"


async def test_a_begin_takes_the_steer_it_waited_for_or_leaves_it_to_the_next_step(counting: Counting) -> None:
    turn = await lease(counting)
    begun = await overtaken(counting, steering(turn), begin(counting, turn))
    await commit_asked(counting, turn, begun)
    after = await begin(counting, turn, 2)
    assert len((*begun.steers, *after.steers)) == 1


async def test_2_a_twin_of_a_first_attempt_asks_with_what_that_takes(counting: Counting) -> None:
    turn = await lease(counting)
    said = await say(counting, turn)
    twin = await overtaken(counting, beginning(turn), begin(counting, turn))
    assert [steer.card_id for steer in twin.steers] == [said]
    assert twin.head.step_attempt == 2


async def test_a_steer_that_waited_for_a_begin_is_the_next_step_s(counting: Counting) -> None:
    turn = await lease(counting)
    said = await overtaken(counting, beginning(turn), say(counting, turn))
    begun = await begin(counting, turn)
    assert begun.steers == ()
    await commit_asked(counting, turn, begun)
    assert [steer.card_id for steer in (await begin(counting, turn, 2)).steers] == [said]


async def test_10_steers_are_asked_with_in_the_order_of_their_locks(counting: Counting) -> None:
    turn = await lease(counting)
    second = await overtaken(counting, steering(turn), say(counting, turn))
    asked = [steer.card_id for steer in (await begin(counting, turn)).steers]
    assert (len(asked), asked[1]) == (2, second)


async def test_two_requests_of_one_correlation_are_one_steer(counting: Counting) -> None:
    turn = await lease(counting)
    second = await overtaken(
        counting, lambda conn: say_on(conn, turn, correlation_id="c"), say(counting, turn, correlation_id="c")
    )
    assert list(await steers(counting, turn)) == [second]


async def queued_turn(pool: Counting) -> tuple[TurnRef, TurnRef]:
    """A running turn, and a reference to the one that waits behind it."""
    turn, _ = await running(pool)
    waiting = (await ask(pool)).reply.agent_turn_id
    assert waiting is not None
    return turn, turn.model_copy(update={"agent_turn_id": AgentTurnId(waiting)})


async def test_a_lease_waits_for_the_steer_of_a_queued_turn(counting: Counting) -> None:
    turn, waiting = await queued_turn(counting)
    await overtaken(counting, steering(waiting), finish(counting, turn))
    assert len((await begin(counting, await start(counting))).steers) == 1


async def test_a_steer_waits_for_the_lease_of_its_turn(counting: Counting) -> None:
    turn, waiting = await queued_turn(counting)
    await overtaken(counting, lambda conn: finish_on(conn, turn), say(counting, waiting))
    assert len((await begin(counting, await start(counting))).steers) == 1


async def test_the_stop_of_a_queued_turn_skips_the_steer_it_waited_for(counting: Counting) -> None:
    _, waiting = await queued_turn(counting)
    await overtaken(counting, steering(waiting), stop(counting, ALICE, waiting.agent_turn_id))
    assert [status for status, _ in (await steers(counting, waiting)).values()] == ["skipped"]


async def test_a_steer_that_waited_for_the_stop_of_a_queued_turn_comes_too_late(counting: Counting) -> None:
    _, waiting = await queued_turn(counting)
    with pytest.raises(Refused) as refused:
        await overtaken(counting, lambda conn: stop_on(conn, ALICE, waiting.agent_turn_id), say(counting, waiting))
    assert refused.value.code == "already_final"


async def test_many_steers_at_once_beside_steps_are_each_asked_with_once(counting: Counting) -> None:
    turn = await lease(counting)
    saying = [asyncio.create_task(say(counting, turn, str(number))) for number in range(30)]
    asked: list[str] = []
    step, open_steers = 0, True
    while open_steers:
        step += 1
        begun = await begin(counting, turn, step)
        asked += [steer.card_id for steer in begun.steers]
        open_steers = not all(each.done() for each in saying) or len(asked) < len(saying)
        await commit_asked(counting, turn, begun)
    assert sorted(asked) == sorted([await each for each in saying])
    assert asked == list(await steers(counting, turn))
    await finish_asked(counting, turn, await begin(counting, turn, step + 1))
