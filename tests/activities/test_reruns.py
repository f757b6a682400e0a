"""What a turn that is run again asks its model: what the turn had asked at that step (protocol §6, rerun)."""

from typing import Any

import pytest

from tests.activities.test_compaction import DROPS
from tests.support.ledger.agents import ALICE, PROJECT, ask
from tests.support.ledger.invariants import assert_invariants
from tests.support.ledger.reruns import again
from tests.support.ledger.steers import say
from tests.support.ledger.talks import Said, Talk, told
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import put_profile
from turnstile.runtime.ports import ModelRequest
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.turns import StepEnds


async def rerun(talk: Talk, turn: AgentTurnId, **fields: Any) -> tuple[Said, list[ModelRequest]]:
    """Run a turn of the talk again to its end; returns it and what its model was asked."""
    before = len(talk.cast.asked)
    await again(talk.pool, turn, **fields)
    said = await talk.play()
    return said, talk.cast.asked[before:]


async def test_a_rerun_asks_what_the_turn_had_asked(pool: Pool) -> None:
    """From each step, of a turn in a conversation that has gone on since; and a rerun of the rerun."""
    talk = await Talk(pool).begun(None)
    said = [await talk.say(number) for number in range(1, 5)]
    second = said[1]
    first_step, second_step = talk.cast.asked[2:4]
    again_from_first, asked = await rerun(talk, second.turn, from_step=1)
    assert asked[0].messages == first_step.messages
    assert told(asked[1]) == told(second_step) == [1, 2]
    # the scripted model calls its tool in step 1 of each turn
    from_second, asked = await rerun(talk, second.turn, from_step=2)
    assert asked[0].messages == second_step.messages
    assert from_second.status == "success"
    _, twice = await rerun(talk, from_second.turn, from_step=1)
    assert twice[0].messages == second_step.messages
    _, once = await rerun(talk, again_from_first.turn, from_step=2)
    assert len(once[0].messages) == len(second_step.messages)
    assert once[0].messages[:-2] == second_step.messages[:-2]
    async with pool.connection() as conn:
        await assert_invariants(conn)


async def test_who_goes_on_in_a_reruns_box_knows_what_was_asked_and_done(pool: Pool) -> None:
    talk = await Talk(pool).begun(None)
    said = [await talk.say(number) for number in range(1, 4)]
    for step in (1, 2):
        branch, _ = await rerun(talk, said[1].turn, from_step=step)
        await ask(pool, ALICE, "m-9 next", output_box_id=branch.output_box_id)
        await talk.play()
        assert told(talk.cast.asked[-1]) == [1, 2, 9]
    async with pool.connection() as conn:
        await assert_invariants(conn)


async def test_a_rerun_reads_its_memory_from_the_cut_of_then(pool: Pool) -> None:
    talk = await Talk(pool).begun(DROPS)
    said: list[Said] = []
    firsts: dict[AgentTurnId, ModelRequest] = {}
    for number in range(1, 25):
        before = len(talk.cast.asked)
        said.append(await talk.say(number))
        firsts[said[-1].turn] = talk.cast.asked[before]
    cuts = [number for number, each in enumerate(said) if each.compactions]
    assert len(cuts) > 2
    between = said[cuts[1] + 1]
    assert not between.compactions
    _, asked = await rerun(talk, between.turn, from_step=1)
    assert asked[0].messages == firsts[between.turn].messages
    cutting = said[cuts[1]]
    from_cut, _ = await rerun(talk, cutting.turn, from_step=1)
    assert len(from_cut.compactions) == len(cutting.compactions)
    after_cut, asked = await rerun(talk, cutting.turn, from_step=2)
    assert not after_cut.compactions
    assert told(asked[0]) == told(firsts[cutting.turn])
    async with pool.connection() as conn:
        await assert_invariants(conn)


@pytest.mark.parametrize("step", [1, 2])
async def test_what_was_said_to_a_step_is_said_again(pool: Pool, step: int) -> None:
    """A steer that the step took is in the copy, where its model finds it as before."""
    talk = await Talk(pool).begun(None)
    turn = await talk.begin(1)
    for number in (1, 2):
        if number == step:
            await say(pool, turn, "m-7 mind this")
        result = await talk.step(turn, number)
    assert isinstance(result, StepEnds)
    was_asked = talk.cast.asked[step - 1]
    assert told(was_asked) == [1, 7]
    _, asked = await rerun(talk, turn.agent_turn_id, from_step=step)
    assert asked[0].messages == was_asked.messages
    async with pool.connection() as conn:
        await assert_invariants(conn)


async def test_tools_and_profile_are_those_of_now(pool: Pool) -> None:
    talk = await Talk(pool).begun(None, system_prompt_template="before")
    said = await talk.say(1)
    await put_profile(pool, PROJECT, talk.profile(None, system_prompt_template="now"))
    _, asked = await rerun(talk, said.turn)
    assert asked[0].messages[0].content == "now"
    assert asked[0].messages[1:] == talk.cast.asked[0].messages[1:]
