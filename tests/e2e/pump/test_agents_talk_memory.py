"""Turns that remember what they were asked (protocol §6): their instruction is in their output box too, once."""

from typing import cast

import pytest

from tests.support.tenants import Ended, Tenant
from tests.support.tools import call_of, calling, hand_of, shown
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType

REMEMBER: JsonObject = {"remember": True}


def heard(ended: Ended) -> list[list[str]]:
    """What the model was asked last."""
    return shown(ended.deliverable())["messages"]


async def test_later_turns_on_a_box_know_what_was_asked(tenant: Tenant) -> None:
    agent = await tenant.agent("plain")
    first = await tenant.turn(agent, "one", runtime_config=REMEMBER)
    box = first.view.output_box_id
    await tenant.turn(agent, "two", output_box_id=box)
    guessing: JsonObject = {**REMEMBER, "model": "scripted/guesses"}
    await tenant.turn(agent, "three", output_box_id=box, runtime_config=guessing)
    mirror: JsonObject = {**REMEMBER, "model": "scripted/mirror"}
    last = await tenant.turn(agent, "four", output_box_id=box, runtime_config=mirror)
    assert [(role, content) for role, content in heard(last) if role in {"user", "assistant"}] == [
        ("user", "one"),
        ("assistant", "It is done.\n\nIt is done."),
        ("user", "three"),
        ("assistant", "I will look it up."),
        ("assistant", "I know it anyway."),
        ("user", "four"),
    ]
    assert first.types() == ["task.instruction", "agent.thought", "task.deliverable"]
    [told] = [event for event in await tenant.events("agent.*.step") if event.payload.get("new_card_ids")][-1:]
    assert not [card for card in cast("list[str]", told.payload["new_card_ids"]) if card.endswith("instruction")]


async def test_the_steps_of_one_turn_hear_it_once(tenant: Tenant) -> None:
    async with hand_of(tenant) as hand:
        turn = await hand.suspended(calling("nosuch"), calling("search"), runtime_config=REMEMBER)
        await hand.report(call_of(turn, step=2))
        ended = await hand.ended(turn)
    assert [role for role, _ in heard(ended)] == ["user", "assistant", "tool", "assistant", "tool"]
    assert ended.types().count("task.instruction") == 1


@pytest.mark.parametrize("model", ["refusing", "breaks_late"])
async def test_a_turn_that_fails_keeps_it_too(tenant: Tenant, model: str) -> None:
    agent = await tenant.agent(model)
    failed = await tenant.turn(agent, "try it", runtime_config=REMEMBER)
    assert failed.view.status == "failed"
    assert failed.types()[0] == CardType.INSTRUCTION
    again: JsonObject = {"model": "scripted/mirror"}
    after = await tenant.turn(agent, "and now", output_box_id=failed.view.output_box_id, runtime_config=again)
    asked = heard(after)
    assert asked[0] == ["user", "try it"]
    assert asked[-1] == ["user", "and now"]


async def test_only_its_own_instruction_is_kept_of_a_context(tenant: Tenant) -> None:
    """The cards of a box that it was given stay there."""
    agent = await tenant.agent("plain")
    before = await tenant.turn(agent, "the context")
    kept = await tenant.turn(agent, "more", context_box_id=before.view.output_box_id, runtime_config=REMEMBER)
    assert kept.types() == ["task.instruction", "agent.thought", "task.deliverable"]
    bare = await tenant.turn(agent, None, context_box_id=before.view.context_box_id, runtime_config=REMEMBER)
    assert bare.types() == ["agent.thought", "task.deliverable"]
