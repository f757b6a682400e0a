"""Conversations from the outside: turns remember, in order and apart, whoever dies in between (protocol §6)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.ledger.invariants import assert_invariants
from tests.support.processes.process import Processes
from tests.support.tenants import Ended, Tenant, turn_of
from turnstile.runtime.faults import Fault
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import ServerUnavailable
from turnstile.schema.ids import AgentTurnId, ChannelId
from turnstile.schema.profiles import Profile
from turnstile.sdk.client import BridgeClient
from turnstile.sdk.turns import Client

CHAT = {"conversation_id": "c1"}
MANY = 60


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
    answer = await Client(elsewhere).ask(agent, "three").result()
    assert answer.value == "You said: three (before that: nothing)"


async def test_python_asks_in_a_conversation(tenant: Tenant) -> None:
    await crew(tenant)
    client = Client(tenant.client)
    said: list[str] = []
    for text in ("one", "two"):
        turn = client.ask(None, text, profile_name="crew", conversation="c1")
        said.append("".join([piece async for piece in turn]))
        assert (await turn.result()).value == said[-1]
    assert said[1] == "You said: two (before that: one)"
    fresh = await client.ask(None, "three", profile_name="crew").result()
    assert fresh.value == "You said: three (before that: nothing)"


REFUSED: Sequence[tuple[str, JsonObject]] = [
    ("bad_request", {"conversation_id": "a.b"}),
    ("bad_request", {"conversation_id": "x" * 129}),
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


async def test_many_conversations_of_a_profile_are_in_order_and_apart(tenant: Tenant) -> None:
    """Two turns each, all at once; each answer names its own conversation's marker, and no other."""
    await crew(tenant)

    async def one(name: int) -> list[AgentTurnId]:
        asked: list[JsonObject] = [
            {"profile_name": "crew", "conversation_id": f"c{name}", "instruction": f"marker-{name}-{turn}"}
            for turn in (1, 2)
        ]
        return [turn_of(await tenant.ask(each, timeout=60)) for each in asked]

    turns = await asyncio.gather(*map(one, range(MANY)))
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
    assert await tenant.count("resource.project_agents", "metadata ->> 'instance_of' = 'crew'") == MANY


async def test_two_turns_remember_though_everything_was_killed_in_between(
    apart: Tenant, processes: Processes, tmp_path: Path
) -> None:
    await crew(apart)
    asked: JsonObject = {"profile_name": "crew", "instruction": "one", **CHAT, "correlation_id": "k1"}
    first = await apart.ended(turn_of(await apart.ask(asked)))
    await asyncio.gather(processes.worker.kill(), processes.bridge.kill())
    processes.bridge.env = {
        "TURNSTILE_FAULTS": f"{Fault.ENQUEUE_COMMITTED}=kill",
        "TURNSTILE_FAULTS_DIR": str(tmp_path),
    }
    await processes.ensure()
    asked |= {"instruction": "two", "correlation_id": "k2"}
    with pytest.raises(ServerUnavailable):
        await apart.ask(asked, timeout=5)
    await processes.bridge.died()
    await processes.ensure()
    again = await apart.ask(asked)
    assert again.duplicate
    ended = await apart.ended(turn_of(again))
    assert ended.deliverable() == "You said: two (before that: one)"
    assert ended.view.output_box_id == first.view.output_box_id
    assert await apart.rows("SELECT turn_count FROM state.conversations WHERE project_id = $1", apart.project) == [
        {"turn_count": 2}
    ]
    async with apart.pool.connection() as conn:
        await assert_invariants(conn)


async def talked(tenant: Tenant, count: int, **memory: str) -> list[Ended]:
    """Turns of an agent whose memory is small, one after the other."""
    policy: JsonObject = {"keep": "conversation", "max_context_tokens": 200, "keep_last_turns": 2}
    agent = await tenant.agent("chat", memory=policy | memory)
    return [await tenant.turn(agent, f"marker-{number} {'x' * 100}") for number in range(count)]


async def cuts(tenant: Tenant) -> list[dict[str, object]]:
    """What each cut says, in order."""
    return await tenant.rows(
        "SELECT content -> 'data' ->> 'first_kept_card_id' AS first, content -> 'data' ->> 'summary_error' AS error"
        " FROM cards WHERE tenant_id = $1 AND metadata ->> 'type' = 'memory.cut' ORDER BY created_at",
        tenant.project,
    )


async def test_a_conversation_that_grows_is_cut_and_goes_on(tenant: Tenant) -> None:
    ended = await talked(tenant, 12)
    assert {each.view.status for each in ended} == {"success"}
    sizes = [len(str(each.deliverable())) for each in ended]
    assert max(sizes) < 1000
    assert len(await cuts(tenant)) >= 2
    assert "marker-0 " not in str(ended[-1].deliverable())
    [kept] = await tenant.rows(
        "SELECT c.cut_position, (SELECT count(*) FROM box_cards b WHERE b.box_id = c.output_box_id) AS cards,"
        " (SELECT count(*) FROM box_cards b WHERE b.box_id = c.output_box_id AND b.position > c.cut_position) AS read"
        " FROM state.conversations c WHERE c.project_id = $1",
        tenant.project,
    )
    assert kept["cut_position"] > 0
    assert kept["read"] < kept["cards"] / 2
    asked = await tenant.rows(
        "SELECT max((metadata -> 'llm_usage' ->> 'prompt_tokens')::int) AS words FROM state.agent_steps"
        " WHERE project_id = $1",
        tenant.project,
    )
    assert asked[0]["words"] < 100


async def test_what_is_cut_off_is_summarized(tenant: Tenant) -> None:
    ended = await talked(tenant, 8, when_full="summarize", summary_model="scripted/plain")
    assert "(A summary of what was said before:)" in str(ended[-1].deliverable())
    assert {each["error"] for each in await cuts(tenant)} == {None}
    made = await tenant.rows(
        "SELECT DISTINCT metadata ->> 'type' AS type FROM cards"
        " WHERE tenant_id = $1 AND metadata ->> 'type' LIKE 'memory.%' ORDER BY type",
        tenant.project,
    )
    assert [each["type"] for each in made] == ["memory.cut", "memory.summary"]
    assert not [event for event in await tenant.events("agent.*.task") if event.payload["status"] != "success"]


async def test_a_summary_that_fails_drops_and_says_so(tenant: Tenant) -> None:
    ended = await talked(tenant, 6, when_full="summarize", summary_model="scripted/refusing")
    assert ended[-1].view.status == "success"
    assert {each["error"] for each in await cuts(tenant)} == {"model_auth"}


@pytest.mark.parametrize(
    "memory",
    [
        {"keep": "none", "max_context_tokens": 1000},
        {"keep": "conversation", "max_context_tokens": 10},
        {"keep": "conversation", "when_full": "summarize"},
        {"keep": "for ever"},
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(memory: JsonObject) -> None:
    with pytest.raises(ValueError, match="memory"):
        Profile.model_validate({"name": "p", "llm_config": {"model": "scripted/chat"}, "memory": memory})


def test_a_memory_holds_the_prompt_twice() -> None:
    asked = {"keep": "conversation", "max_context_tokens": 200}
    with pytest.raises(ValueError, match="at least twice"):
        Profile.model_validate(
            {"name": "p", "llm_config": {"model": "x"}, "memory": asked, "system_prompt_template": "x" * 500}
        )
