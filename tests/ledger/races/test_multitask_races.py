"""Enqueues with a strategy against ends, leases, stops and each other (hazards 1 and 5, and the lock order)."""

import asyncio
import random
from contextlib import suppress

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    PROJECT,
    begin,
    dispatch,
    finish,
    finish_on,
    head,
    locate,
    rows,
    start,
    stop,
    value,
)
from tests.support.ledger.calls import ask_to_stop, end, stop_on
from tests.support.ledger.multitask import EVE, ME, again, over, over_on, plain
from tests.support.waiting import Counting, overtaken
from turnstile.ledger.people.multitask import MadeWay
from turnstile.ledger.people.steered_enqueues import Steered
from turnstile.ledger.trees.marks import mark_tree
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId
from turnstile.schema.states import TurnStatus

AGENTS = (ALICE, BOB)
LIVE = "SELECT agent_id, agent_turn_id FROM state.agent_inbox WHERE archived_at IS NULL AND message_type = 'turn'"


async def test_an_end_that_waits_for_an_interrupt_leases_the_new_turn(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    await begin(counting, turn)
    waits = await plain(counting)
    done = await overtaken(counting, over_on("interrupt"), finish(counting, turn))
    assert done.next_turn_id not in {None, waits.reply.agent_turn_id}
    assert (done.status, (await head(counting))["status"]) == (TurnStatus.SUCCESS, "dispatched")


async def test_an_interrupt_that_waits_for_an_end_stops_what_the_end_has_leased(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    await begin(counting, turn)
    waits = await plain(counting)
    made = await overtaken(counting, lambda conn: finish_on(conn, turn), again(counting, "interrupt"))
    assert [(found.agent_turn_id, found.verdict) for found, _ in made.stopped] == [
        (waits.reply.agent_turn_id, "dispatched")
    ]


async def test_an_interrupt_that_waits_for_a_stop_finds_it(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    await begin(counting, turn)
    made = await overtaken(counting, lambda conn: stop_on(conn, turn), again(counting, "rollback"))
    assert made.enqueued.reply.stopped == (turn.agent_turn_id,)
    assert await value(counting, "SELECT count(*) FROM state.agent_inbox WHERE message_type = 'stop'") == 1


async def test_of_two_at_once_the_second_finds_the_first(counting: Counting) -> None:
    second = await overtaken(counting, over_on("interrupt"), again(counting, "interrupt"))
    assert len(second.enqueued.reply.stopped) == 1
    with pytest.raises(Refused) as refused:
        await overtaken(counting, over_on("interrupt", who=EVE), over(counting, "reject", who=EVE))
    assert refused.value.code == "turn_in_progress"


async def test_of_two_repeats_at_once_one_enqueues(counting: Counting) -> None:
    await plain(counting)
    first = over_on("interrupt", correlation_id="k")
    second = await overtaken(counting, first, again(counting, "interrupt", correlation_id="k"))
    assert second.enqueued.reply.duplicate
    assert len(second.enqueued.reply.stopped) == 1
    assert await value(counting, "SELECT count(*) FROM state.agent_inbox WHERE correlation_id = 'k'") == 1


async def test_of_two_repeats_of_a_steer_at_once_one_is_new(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    first = over_on("steer", correlation_id="k")
    second = await overtaken(counting, first, over(counting, "steer", correlation_id="k"))
    assert isinstance(second, Steered)
    assert (second.agent_turn_id, second.steer.is_new) == (turn.agent_turn_id, False)
    assert await value(counting, "SELECT count(*) FROM state.steers") == 1


async def test_a_steer_that_waits_for_the_end_of_its_turn_is_a_turn(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    await begin(counting, turn)
    made = await overtaken(counting, lambda conn: finish_on(conn, turn), over(counting, "steer"))
    assert isinstance(made, MadeWay)
    assert made.enqueued.lease is not None


async def test_an_end_that_waits_for_a_steer_sees_it(counting: Counting) -> None:
    await plain(counting)
    turn = await start(counting)
    await begin(counting, turn)
    done = await overtaken(counting, over_on("steer"), finish(counting, turn))
    assert done.result == "done"
    assert await value(counting, "SELECT status FROM state.steers") == "skipped"


async def test_a_storm_of_strategies_ends_without_a_deadlock(counting: Counting) -> None:
    """Two principals, two conversations, two agents; what one asks never touches the other's turns."""
    dice = random.Random(7)  # noqa: S311 -- a test's choices
    going = True
    theirs: list[str] = []

    async def clients(who: str, strategies: tuple[str, ...]) -> None:
        for _ in range(20):
            agent, conversation = dice.choice(AGENTS), dice.choice(("c1", "c2"))
            strategy = dice.choice(strategies)
            try:
                made = await over(counting, strategy, who=who, agent=agent, conversation=conversation)
            except Refused as error:
                assert error.code == "turn_in_progress"  # noqa: PT017 -- most are not refused
                continue
            if isinstance(made, MadeWay) and who == EVE:
                theirs.append(str(made.enqueued.reply.agent_turn_id))

    async def worker(agent: AgentId) -> None:
        while going:
            await dispatch(counting, [(PROJECT, agent)])
            active = (await head(counting, agent))["active_agent_turn_id"]
            turn = None if active is None else await locate(counting, AgentTurnId(active))
            if turn is None:
                await asyncio.sleep(0.001)
                continue
            with suppress(StaleTurn):  # a stop or another worker was first
                if dice.random() < 0.3:
                    await begin(counting, turn, 0)
                    await finish(counting, turn)
                else:
                    await end(counting, turn)

    async def stopper() -> None:
        while going:
            live = await rows(counting, LIVE)
            for row in dice.sample(live, min(2, len(live))):
                turn = AgentTurnId(row["agent_turn_id"])
                await mark_tree(counting, PROJECT, turn, "enough", whole=False)
                await ask_to_stop(counting, turn)
                await stop(counting, AgentId(row["agent_id"]), turn)
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        works = [group.create_task(worker(agent)) for agent in AGENTS]
        works.append(group.create_task(stopper()))
        mine = ("interrupt", "rollback", "reject", "steer", "interrupt")
        asks = [asyncio.create_task(clients(ME, mine)) for _ in range(4)]
        asks += [asyncio.create_task(clients(EVE, ("reject",))) for _ in range(2)]
        await asyncio.gather(*asks)
        going = False
        await asyncio.gather(*works)
    touched = await rows(
        counting,
        "SELECT i.agent_turn_id FROM state.agent_inbox i, jsonb_array_elements_text(i.payload #> '{multitask,stopped}')"
        " s (id) WHERE s.id = ANY ($1::text[])",
        theirs,
    )
    assert theirs
    assert touched == []
    assert await value(counting, "SELECT count(*) FROM state.agent_inbox WHERE payload ? 'rolled_back_by'") > 0
