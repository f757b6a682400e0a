"""What a turn's stream shows: every card that people see, once and in order, however the turn ended (§14.2)."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.e2e.gateway.test_streams import WORDS, begun, follow
from tests.e2e.people.asking import PAY, asked
from tests.support.conditions import until
from tests.support.gateway import Folded, Sent
from tests.support.tenants import Tenant
from tests.support.tools import Hand, calling, definition, hand_of
from turnstile.gateway.events.feed import SHOWN
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId

pytestmark = pytest.mark.shared_stack

SPEAKS: JsonObject = {"text": WORDS, "chunks": 75, "delay_seconds": 0.02}
TOOLS = (PAY, definition("search"))
Ending = Callable[[httpx.AsyncClient, Hand], Awaitable[AgentTurnId]]


async def stopped(web: httpx.AsyncClient, turn: AgentTurnId) -> None:
    answer = await web.post(f"/v1/turns/{turn}/stop", json={"reason": "enough"})
    assert answer.status_code == 202, answer.text


async def asleep(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """Stopped with two calls out, of which one has been answered."""
    turn = await hand.suspended(calling(("search", {"q": "a"}), ("search", {"q": "b"})), {"text": "never"})

    async def both() -> bool:
        return len({command.call for command in hand.commands}) == 2

    await until(both, 25, "both calls are out")
    await hand.report(hand.commands[0].call, "found")
    await stopped(web, turn)
    return turn


async def held(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """Stopped while a person is asked."""
    turn = await hand.start(calling(("pay", {"amount": 5})))
    await asked(hand, turn)
    await stopped(web, turn)
    return turn


async def speaking(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """Stopped in the middle of an answer."""
    turn = await hand.start(SPEAKS)
    await follow(web, f"/v1/turns/{turn}/events", Folded(), cut_after=5)
    await stopped(web, turn)
    return turn


async def queued(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """Stopped before it began."""
    before = await hand.start(SPEAKS)
    turn = await begun(web, json.dumps({"steps": [SPEAKS]}))
    await stopped(web, turn)
    await stopped(web, before)
    await hand.tenant.ended(before)
    return turn


async def edited(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """A call that a person edited."""
    turn = await hand.start(calling(("pay", {"amount": 5})), {"text": "Paid."})
    [interrupt] = await asked(hand, turn)
    path = f"/v1/interrupts/{interrupt.id}"
    digest = (await web.get(path)).json()["action_digest"]
    decision = {"decision": "edit", "action_digest": digest, "arguments": {"amount": 3}}
    answer = await web.post(f"{path}/decision", json=decision)
    assert answer.status_code == 200, answer.text
    await hand.called(interrupt.view.tool_call_id)
    await hand.report(interrupt.view.tool_call_id, "done")
    return turn


async def edited_and_stopped(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """A call that a person edited, in a turn that was stopped before its tool answered."""
    turn = await hand.start(calling(("pay", {"amount": 5})))
    [interrupt] = await asked(hand, turn)
    path = f"/v1/interrupts/{interrupt.id}"
    digest = (await web.get(path)).json()["action_digest"]
    await web.post(f"{path}/decision", json={"decision": "edit", "action_digest": digest, "arguments": {"amount": 3}})
    await hand.called(interrupt.view.tool_call_id)
    await stopped(web, turn)
    return turn


async def steered(web: httpx.AsyncClient, hand: Hand) -> AgentTurnId:
    """Told something that its next step asks with."""
    turn = await hand.start({"text": "a draft", "delay_seconds": 0.5}, {"text": "better"})
    await hand.until_head(status="running")
    assert (await web.post(f"/v1/turns/{turn}/steer", json={"text": "be brief"})).status_code == 202
    return turn


@pytest.mark.parametrize("ending", [asleep, held, speaking, queued, edited, edited_and_stopped, steered])
async def test_each_card_that_people_see_comes_once(web: httpx.AsyncClient, tenant: Tenant, ending: Ending) -> None:
    async with hand_of(tenant, *TOOLS, interrupt_on={"pay": True}) as hand:
        turn = await ending(web, hand)
        path = f"/v1/turns/{turn}/events"
        live, late = Folded(), Placed()
        following = asyncio.create_task(follow(web, path, live))
        ended = await tenant.ended(turn)
        assert await following
    made = [card.card_id for card in ended.cards if card.type in SHOWN]
    assert await follow(web, path, late)
    assert (late.doubled, late.lost, late.outcome == live.outcome) == (0, 0, True)
    assert list(live.cards) == list(late.cards)
    assert sorted(late.cards) == sorted(made)
    assert ended.view.deliverable_card_id in late.cards
    calls = [card for card in late.cards.values() if card["type"] == "tool.call"]
    if ending in (edited, edited_and_stopped):
        assert [card["content"]["arguments"]["amount"] for card in calls] == [5, 3]
        kinds = [card["type"] for card in late.cards.values()]
        assert kinds[kinds.index("tool.result") - 1] == "tool.call"
    whole, ids = list(late.cards), late.places
    for place in range(1, len(whole)):  # a client that comes back behind any card gets the rest
        back = Folded()
        back.last = ids[place - 1]
        await follow(web, path, back)
        assert list(back.cards) == whole[place:]


class Placed(Folded):
    """Keeps the ids of the events that show cards."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[str] = []

    def take(self, sent: Sent) -> None:
        if sent.event == "card" and sent.id is not None:
            self.places.append(sent.id)
        super().take(sent)
