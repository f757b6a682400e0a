"""Conversations from the outside: turns remember, in order and apart (protocol §6, §7.3)."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from pydantic import JsonValue

from tests.support.conditions import until
from tests.support.gateway import serving, token_of
from tests.support.tenants import Tenant, turn_of
from tests.support.tools import call_of, calling, hand_of
from tests.turnstile.support import turnstile
from turnstile.bridge.verbs import handlers
from turnstile.schema import verbs
from turnstile.schema.access import Caller, GatewayRole
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import CardType
from turnstile.schema.ids import AgentTurnId, ChannelId
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.nats_turns import NatsBackend
from turnstile.sdk.turns import Client

CHAT = {"conversation_id": "c1"}
CUT_MEMORY: JsonObject = {"keep": "conversation", "max_context_tokens": 60, "keep_last_turns": 1}
FULL = 3
"""So many turns of ten words fit in that; the next one cuts."""
TEN_WORDS = "one two three four five six seven eight nine ten"


async def crew(tenant: Tenant) -> None:
    await tenant.profile("Crew", "chat", instances=True)


async def test_a_turn_remembers_what_was_said_in_its_conversation(tenant: Tenant) -> None:
    agent = await tenant.agent("chat")
    for conversation, before in (
        ("c1", "nothing"),
        ("c2", "nothing"),
        ("c1", "hello c1"),
        ("c1", "hello c1; hello c1"),
    ):
        ended = await tenant.turn(agent, f"hello {conversation}", conversation_id=conversation)
        assert ended.deliverable() == f"You said: hello {conversation} (before that: {before})"
        assert ended.view.conversation_id == conversation
    assert (await tenant.turn(agent, "alone")).deliverable() == "You said: alone (before that: nothing)"


async def test_a_box_is_read_for_one_turn_of_a_conversation(tenant: Tenant) -> None:
    agent = await tenant.agent("chat")
    given = (await tenant.turn(agent, "from a box")).view.context_box_id
    answers = [
        (await tenant.turn(agent, "one", **CHAT, context_box_id=given)).deliverable(),
        (await tenant.turn(agent, "two", **CHAT)).deliverable(),
    ]
    assert answers[0] == "You said: from a box\n\none (before that: nothing)"
    assert answers[1] == "You said: two (before that: one)"


async def test_a_profile_keeps_a_conversation_of_its_channel(tenant: Tenant) -> None:
    agent = await tenant.agent("chat", memory={"keep": "conversation"})
    await tenant.turn(agent, "one")
    assert (await tenant.turn(agent, "two")).deliverable() == "You said: two (before that: one)"
    elsewhere = BridgeClient(tenant.stack.conn, tenant.project, ChannelId("u_eve"))
    answer = await Client.over(NatsBackend(tenant.stack.conn, elsewhere)).ask(agent, "three").result()
    assert answer.value == "You said: three (before that: nothing)"


async def test_python_asks_in_a_conversation(tenant: Tenant) -> None:
    await crew(tenant)
    client = Client.over(NatsBackend(tenant.stack.conn, tenant.client))
    said: list[str] = []
    for text in ("one", "two"):
        turn = client.ask(None, text, profile_name="crew", conversation="c1")
        said.append("".join([piece async for piece in turn]))
        assert (await turn.result()).value == said[-1]
    assert said[1] == "You said: two (before that: one)"
    fresh = await client.ask(None, "three", profile_name="crew").result()
    assert fresh.value == "You said: three (before that: nothing)"


async def test_a_conversation_is_stopped_from_every_door(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a caller their own turns, the queued ones before they begin; of an operator all. A repeat is harmless."""
    me, eve = Caller("me"), Caller("eve")
    monkeypatch.setenv("TURNSTILE_PRINCIPAL", "me")
    monkeypatch.setattr(handlers, "MOST_STOPPED", 2)
    token = await token_of(tenant.stack, tenant.project, GatewayRole.OPERATOR)

    async def enqueue(caller: Caller, *steps: JsonObject, conversation: str = "c1") -> AgentTurnId:
        said = json.dumps({"steps": steps})
        fields: JsonObject = {"agent_id": hand.agent, "instruction": said, "conversation_id": conversation}
        return turn_of(await tenant.client.call(verbs.ENQUEUE, fields, caller=caller))

    async def stop(caller: Caller, **fields: JsonValue) -> JsonObject:
        return await tenant.client.request("conversation.stop", {"conversation_id": "c1", **fields}, caller=caller)

    async with hand_of(tenant) as hand, serving(tenant.stack) as url:
        await tenant.profile(f"{hand.agent}-profile", "talks", allowed_tools=["search"])
        asleep = await enqueue(me, calling("search"))
        await hand.called(call_of(asleep))
        elsewhere = await enqueue(me, {"text": "done"}, conversation="c2")
        second, theirs, third = [await enqueue(caller, {"text": "late"}) for caller in (me, eve, me)]
        first_page = await stop(me)
        assert (first_page["stopped"], first_page["others"], first_page["more"]) == ([third, second], 1, True)
        rest = await Client.over(NatsBackend(tenant.stack.conn, tenant.client)).conversation("c1").stop("enough")
        assert (rest.stopped, rest.others) == ((asleep,), 1)
        for turn in (asleep, second, third):
            view = (await hand.ended(turn)).view
            assert (view.status, view.error_code) == ("canceled", "stopped")
            assert bool((view.stats or {}).get("steps")) is (turn == asleep), "a queued turn began"
        assert (await hand.ended(theirs)).view.status == (await hand.ended(elsewhere)).view.status == "success"
        assert (await stop(me))["stopped"] == []
        assert (await stop(me, conversation_id="nobody"))["error_code"] == "unknown_conversation"
        assert (await stop(me, agent_id="nobody"))["error_code"] == "unknown_conversation"
        again = await enqueue(eve, calling("search"))
        await hand.called(call_of(again))
        async with Client(url, token=token) as client:
            assert (await client.conversation("c1").stop()).stopped == (again,)
        assert (await hand.ended(again)).view.status == "canceled"
        options = ("--config", tenant.stack.config, "--project", tenant.project)
        ran = await turnstile("conversation", "stop", "c1", *options, cwd=tenant.stack.directory)
        assert (ran.code, ran.out) == (0, "0 turns will end\n"), ran.err


REFUSED: Sequence[tuple[str, JsonObject]] = [
    ("bad_request", {"conversation_id": "a\n"}),
    ("bad_request", {"conversation_id": "x" * 513}),
    ("bad_request", {"conversation_id": ""}),
    ("bad_request", {"conversation_id": "c1", "output_box_id": "01a20068-5f33-71eb-a3ad-c6251d3f51a4"}),
    ("bad_request", {"agent_id": None}),
    ("unknown_context_box", {"conversation_id": "c1", "context_box_id": "01a20068-5f33-71eb-a3ad-c6251d3f51a4"}),
    ("no_instances", {"agent_id": None, "profile_name": "alice-profile"}),
    ("unknown_profile", {"agent_id": None, "profile_name": "nobody"}),
]


async def test_what_is_refused_begins_nothing(tenant: Tenant) -> None:
    agent = await tenant.agent("chat")
    for code, fields in REFUSED:
        asked: JsonObject = {"agent_id": agent, "instruction": "hello", **fields}
        reply = await tenant.ask({name: value for name, value in asked.items() if value is not None})
        assert (reply.status, reply.error_code) == ("rejected", code), fields
    assert await tenant.count("state.conversations") == 0
    assert await tenant.count("resource.project_agents") == 1


async def test_a_conversation_of_another_project_is_another(tenant: Tenant) -> None:
    other = tenant.named(f"{tenant.project}-b")
    for each in (tenant, other):
        agent = await each.agent("chat")
        assert (await each.turn(agent, "hello", **CHAT)).deliverable() == "You said: hello (before that: nothing)"


@pytest.mark.parametrize("many", [16, pytest.param(60, marks=pytest.mark.long)])
async def test_many_conversations_of_a_profile_are_in_order_and_apart(tenant: Tenant, many: int) -> None:
    """Two turns each, all at once; each answer names its own conversation's marker, and no other."""
    await crew(tenant)

    async def one(name: int) -> list[AgentTurnId]:
        asked: list[JsonObject] = [
            {"profile_name": "crew", "conversation_id": f"c{name}", "instruction": f"marker-{name}-{turn}"}
            for turn in (1, 2)
        ]
        return [turn_of(await tenant.ask(each, timeout=60)) for each in asked]

    turns = await asyncio.gather(*map(one, range(many)))
    await tenant.all_ended([turn for pair in turns for turn in pair], timeout=60)
    found = await tenant.rows(
        "SELECT o.agent_turn_id, c.content ->> 'text' AS said FROM state.turn_outcomes o"
        " JOIN cards c ON c.card_id = o.deliverable_card_id WHERE o.project_id = $1",
        tenant.project,
    )
    said = {row["agent_turn_id"]: row["said"] for row in found}
    for name, (first, second) in enumerate(turns):
        assert said[first] == f"You said: marker-{name}-1 (before that: nothing)"
        assert said[second] == f"You said: marker-{name}-2 (before that: marker-{name}-1)"
    assert await tenant.count("resource.project_agents", "metadata ->> 'instance_of' = 'crew'") == many


async def test_a_conversation_goes_on_after_its_cut(tenant: Tenant) -> None:
    agent = await tenant.agent("echo", memory=CUT_MEMORY)
    for _ in range(FULL):
        await tenant.turn(agent, TEN_WORDS)
    ended = await tenant.turn(agent, TEN_WORDS)
    assert len(ended.steps) == 2
    assert ended.deliverable() == f"You said: {TEN_WORDS}"
    told = [event.payload["phase"] for event in await tenant.events("agent.*.step")]
    assert told[-5:] == ["started", "completed", "started", "planning", "completed"]


async def test_a_turn_that_is_stopped_while_its_memory_is_summed_up_cuts_nothing(tenant: Tenant) -> None:
    sums_up = {**CUT_MEMORY, "when_full": "summarize", "summary_model": "scripted/unending"}
    agent = await tenant.agent("echo", memory=sums_up)
    for _ in range(FULL):
        await tenant.turn(agent, TEN_WORDS)
    turn = turn_of(await tenant.enqueue(agent, TEN_WORDS))

    async def asked() -> bool:
        events = await tenant.events("agent.*.step")
        return (events[-1].payload["phase"], events[-1].payload["metadata"]) == (
            "planning",
            {"model": "scripted/unending"},
        )

    await until(asked, 25, "a summary is asked for")
    await tenant.client.request("stop", {"agent_turn_id": turn})
    ended = await tenant.ended(turn)
    assert ended.view.status == "canceled"
    assert CardType.THOUGHT not in ended.types()
    assert await tenant.count("state.agent_steps", "metadata ? 'compaction'") == 0
    assert (await tenant.turn(agent, "short", conversation_id="c2")).deliverable() == "You said: short"
