"""Who has words in what led to a call does not decide about it (protocol §13.3), by whatever verb the words came.

Each way is a person who acts and then decides: refused as `own_words`, also for those who operate, unless the rule says
`requester_may_decide`. A person who only let calls pass, or turned them down without a word, stays free to decide.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.e2e.people.asking import PAY, Person, asked, people
from tests.support.conditions import until
from tests.support.delegation import CHIEF, staff, steps, task
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import Hand, call_of, calling, definition, hand_of
from turnstile.schema.access import Caller
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.wire.inbox import EnqueueReply
from turnstile.sdk.client import accepted
from turnstile.sdk.interrupts import Interrupt

pytestmark = pytest.mark.shared_stack

ADA = "ada"
PAYS = calling(("pay", {"amount": 500}))
SEARCHES = calling("search")
SAYS = calling(("ask_human", {"question": "Which?"}))
DONE: JsonObject = {"text": "done"}


async def by(tenant: Tenant, verb: str, asking: JsonObject, name: str = ADA) -> JsonObject:
    """An accepted request of a person who operates."""
    reply = await tenant.client.request(verb, asking, caller=Caller(name, operates=True))
    assert reply["status"] == "accepted", reply
    return reply


async def steered(hand: Hand, turn: AgentTurnId) -> None:
    """Said to the turn, before the step that makes the call."""
    await by(hand.tenant, "steer", {"agent_turn_id": turn, "text": "pay 500"})
    await hand.report(call_of(turn), "found")


async def edited(hand: Hand, turn: AgentTurnId) -> None:
    """Arguments of an earlier call."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "edit", arguments={"amount": 400})
    await hand.heard()
    await hand.report(call_of(turn), "paid")


async def answered(hand: Hand, turn: AgentTurnId) -> None:
    """The answer to an earlier question."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "respond", response="that one")


async def responded(hand: Hand, turn: AgentTurnId) -> None:
    """The result of an earlier call, in its tool's place."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "respond", response={"paid": True})


async def rejected(hand: Hand, turn: AgentTurnId) -> None:
    """Why an earlier call was turned down."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "reject", message="pay 500 instead")


async def reported(hand: Hand, turn: AgentTurnId) -> None:
    """The result of an earlier call, by hand."""
    given: JsonObject = {"tool_call_id": call_of(turn), "status": "success", "result": "pay 500"}
    await hand.send(given, {"CG-Sender": ADA})


async def approved(hand: Hand, turn: AgentTurnId) -> None:
    """An earlier call that was let pass has no words."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "approve")
    await hand.called(call_of(turn))
    await hand.report(call_of(turn), "paid")


async def turned_down(hand: Hand, turn: AgentTurnId) -> None:
    """An earlier call that was turned down without a word."""
    [held] = await asked(hand, turn)
    await Person(hand.tenant, ADA).decides(held, "reject")


Act = Callable[[Hand, AgentTurnId], Awaitable[None]]
WORDS: list[tuple[Act, JsonObject]] = [
    *((steered, SEARCHES), (reported, SEARCHES), (answered, SAYS)),
    *((edited, PAYS), (responded, PAYS), (rejected, PAYS)),
]
NO_WORDS: list[tuple[Act, JsonObject]] = [(approved, PAYS), (turned_down, PAYS)]


def offering(tenant: Tenant, rule: Any = True) -> Any:
    """An agent whose payments wait for a person."""
    tools = (PAY, definition())
    return hand_of(tenant, *tools, interrupt_on={"pay": rule}, allowed_tools=["pay", "search", "ask_human"])


async def second(hand: Hand, turn: AgentTurnId, step: int = 2) -> Interrupt:
    """The open question about the payment of a step."""

    async def there() -> Interrupt | None:
        found = await people(hand.tenant).interrupts(agent_turn_id=turn)
        return next((each for each in found if each.view.tool_call_id == call_of(turn, 0, step)), None)

    return await until(there, 25, f"step {step} of {turn} asks")


async def code_of(deciding: Awaitable[object]) -> str | None:
    """The code of the refusal; None if it is accepted."""
    try:
        await deciding
    except Refused as refused:
        return refused.code
    return None


@pytest.mark.parametrize(("act", "first"), WORDS, ids=lambda each: getattr(each, "__name__", ""))
async def test_who_has_words_in_a_turn_does_not_approve_what_follows(
    tenant: Tenant, act: Act, first: JsonObject
) -> None:
    async with offering(tenant) as hand:
        turn = await hand.start(first, PAYS, DONE)
        if first is SEARCHES:
            await hand.called(call_of(turn))
        await act(hand, turn)
        held = await second(hand, turn)
        for decision in ("approve", "reject"):
            assert await code_of(Person(tenant, ADA).decides(held, decision)) == "own_words"
        await Person(tenant, "ben").decides(held, "approve")


@pytest.mark.parametrize(("act", "first"), NO_WORDS, ids=lambda each: getattr(each, "__name__", ""))
async def test_who_only_let_calls_pass_may_go_on_deciding(tenant: Tenant, act: Act, first: JsonObject) -> None:
    async with offering(tenant) as hand:
        turn = await hand.start(first, PAYS, DONE)
        await act(hand, turn)
        await Person(tenant, ADA).decides(await second(hand, turn), "approve")


async def test_where_the_requester_may_decide_so_may_who_has_words(tenant: Tenant) -> None:
    async with offering(tenant, {"requester_may_decide": True}) as hand:
        turn = await hand.start(PAYS, PAYS, DONE)
        await rejected(hand, turn)
        await Person(tenant, ADA).decides(await second(hand, turn), "approve")


async def test_what_is_said_after_a_call_was_made_is_not_in_it(tenant: Tenant) -> None:
    async with offering(tenant) as hand:
        turn = await hand.start(PAYS, PAYS, DONE)
        [held] = await asked(hand, turn)
        await by(tenant, "steer", {"agent_turn_id": turn, "text": "go on"})
        await Person(tenant, ADA).decides(held, "approve")
        await hand.called(call_of(turn))
        await hand.report(call_of(turn), "paid")
        assert await code_of(Person(tenant, ADA).decides(await second(hand, turn), "approve")) == "own_words"


async def test_words_in_a_turn_that_is_run_again_count(tenant: Tenant) -> None:
    """Ben runs again what ada had asked for: both have words in it."""
    async with offering(tenant) as hand:
        made = await by(tenant, "enqueue", {"agent_id": hand.agent, "instruction": json.dumps({"steps": [PAYS, DONE]})})
        turn = turn_of(accepted(EnqueueReply, made))
        [held] = await asked(hand, turn)
        await Person(tenant, "cleo").decides(held, "reject")
        await hand.ended(turn)
        again = turn_of(EnqueueReply.model_validate(await by(tenant, "rerun", {"agent_turn_id": turn}, "ben")))
        held = await second(hand, again, 1)
        assert await code_of(Person(tenant, ADA).decides(held, "approve")) == "own_words"
        assert await code_of(Person(tenant, "ben").decides(held, "approve")) == "own_request"
        await Person(tenant, "cleo").decides(held, "approve")


async def test_words_above_and_below_count_where_they_fed_the_call(tenant: Tenant) -> None:
    """Ada speaks to a child that ends, then its parent pays; and to a parent, then its child pays."""
    async with offering(tenant) as hand:
        await staff(tenant, tools=["pay", "search"], interrupt_on={"pay": True})
        below = task(f"{hand.agent}-profile", steps(SEARCHES, DONE), wait=True)
        pays = task(f"{hand.agent}-profile", steps(PAYS, DONE), wait=True)
        asks = [calling(("delegate_async", each)) for each in (below, pays)]
        turn = turn_of(await tenant.enqueue(CHIEF, steps(asks[0], PAYS, DONE)))
        [command] = await hand.heard()
        child = AgentTurnId(command.headers["CG-Turn-Id"])
        await steered(hand, child)
        assert await code_of(Person(tenant, ADA).decides(await second(hand, turn), "approve")) == "own_words"
        other = turn_of(await tenant.enqueue(CHIEF, steps(SEARCHES, asks[1], DONE)))
        await by(tenant, "stop", {"agent_turn_id": turn})
        await hand.called(call_of(other))
        await steered(hand, other)
        node = await child_of(tenant, other)
        held = await second(hand, node, 1)
        assert await code_of(Person(tenant, ADA).decides(held, "approve")) == "own_words"
        await Person(tenant, "ben").decides(held, "approve")


async def child_of(tenant: Tenant, turn: AgentTurnId) -> AgentTurnId:
    """The turn that a turn waits for."""

    async def there() -> AgentTurnId | None:
        found = await tenant.rows("SELECT agent_turn_id FROM state.turn_nodes WHERE parent_turn_id = $1", turn)
        return AgentTurnId(found[0]["agent_turn_id"]) if found else None

    return await until(there, 25, f"{turn} has a child")
