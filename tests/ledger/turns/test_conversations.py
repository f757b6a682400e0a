"""Conversations and instances of profiles: made by their first enqueue, in its own statement (protocol §6)."""

import asyncio
import random
from typing import Any

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CHANNEL,
    PROJECT,
    ask,
    begin,
    box,
    command,
    finish,
    head,
    lease,
    play,
    profile,
    rows,
    send,
    start,
    value,
)
from tests.support.waiting import in_flight, overtaken
from turnstile.ledger.access.pages import CONVERSATION_BEGIN, TurnAt, list_turns_after
from turnstile.ledger.pool import Pool
from turnstile.ledger.roster import LOCAL, add_agent, put_profile, set_agent_status
from turnstile.ledger.turns.intake import Enqueued, enqueue
from turnstile.ledger.turns.views import find_conversations
from turnstile.schema.errors import BadRequest, Limited, Refused
from turnstile.schema.ids import AgentId, BoxId, ChannelId, ConversationId, new_box_id
from turnstile.schema.ledger_reads import ConversationLine
from turnstile.schema.profiles import Memory
from turnstile.schema.states import InboxStatus
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.limits import UNLIMITED, Admission

CREW: dict[str, Any] = {"agent": None, "profile_name": "Crew"}


async def talk(pool: Pool, conversation: str = "c1", **fields: Any) -> Enqueued:
    return await ask(pool, conversation_id=conversation, **fields)


async def kept(pool: Pool, **columns: str) -> list[dict[str, Any]]:
    """The conversations with these values."""
    where = " AND ".join(f"{name} = ${n}" for n, name in enumerate(columns, 1)) or "true"
    return await rows(pool, f"SELECT * FROM state.conversations WHERE {where} ORDER BY 1, 2, 3, 4", *columns.values())  # noqa: S608 -- names of columns


async def counts(pool: Pool) -> list[int]:
    """What a refusal must not change."""
    tables = ("state.conversations", "resource.project_agents", "state.agent_state_head", "state.agent_inbox")
    return [len(await rows(pool, f"SELECT FROM {table}")) for table in (*tables, "boxes", "cards")]


async def crew(pool: Pool, **more: Any) -> None:
    """A profile with instances."""
    await put_profile(pool, PROJECT, profile("Crew", instances=True, **more))


async def limited(pool: Pool, admission: Admission = UNLIMITED, channel: str = CHANNEL, **fields: Any) -> Enqueued:
    request = EnqueueRequest.model_validate({"instruction": "hello", **fields})
    return await enqueue(
        pool, PROJECT, ChannelId(channel), request, {}, depth_limit=20, sender="user.test", admission=admission
    )


async def test_the_turns_of_a_conversation_write_into_one_box_and_remember(agents: Pool) -> None:
    first = (await talk(agents)).reply
    second = (await talk(agents)).reply
    assert (first.inbox_status, second.inbox_status) == (InboxStatus.PENDING, InboxStatus.QUEUED)
    assert first.output_box_id == second.output_box_id
    assert (first.conversation_id, first.agent_id) == ("c1", ALICE)
    [one] = await kept(agents)
    assert (str(one["output_box_id"]), one["turn_count"]) == (first.output_box_id, 2)
    assert one["last_turn_id"] == second.agent_turn_id
    payloads = await rows(
        agents,
        "SELECT payload ->> 'conversation_id' AS name, payload #>> '{runtime_config,remember}' AS said"
        " FROM state.agent_inbox",
    )
    assert payloads == [{"name": "c1", "said": "true"}] * 2
    turn = await play(agents)
    assert (await head(agents))["active_agent_turn_id"] == second.agent_turn_id
    assert {str(turn.output_box_id)} == {first.output_box_id}
    assert len(await box(agents, turn.output_box_id)) == 2


async def test_conversations_of_other_agents_and_channels_are_others(agents: Pool) -> None:
    mine, theirs = (await talk(agents)).reply, (await talk(agents, agent=BOB)).reply
    elsewhere = (await limited(agents, channel="u_eve", agent_id=ALICE, conversation_id="c1")).reply
    other = (await talk(agents, "c2")).reply
    boxes = {each.output_box_id for each in (mine, theirs, elsewhere, other)}
    assert len(boxes) == 4
    assert len(await kept(agents)) == 4


async def test_a_repeat_in_a_conversation_is_a_repeat(agents: Pool) -> None:
    first = (await talk(agents, correlation_id="k")).reply
    before = await counts(agents)
    again = (await talk(agents, correlation_id="k")).reply
    assert (again.duplicate, again.agent_turn_id, again.conversation_id) == (True, first.agent_turn_id, "c1")
    assert await counts(agents) == before
    assert (await kept(agents))[0]["turn_count"] == 1
    with pytest.raises(Refused) as refused:
        await talk(agents, "c2", correlation_id="k")
    assert refused.value.code == "correlation_conflict"
    assert await counts(agents) == before


async def test_a_conversation_costs_one_round_trip(agents: Pool) -> None:
    for _ in range(2):
        before = agents.round_trips
        await talk(agents)
        assert agents.round_trips == before + 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"conversation_id": "a\n"},
        {"conversation_id": ""},
        {"conversation_id": "x" * 513},
        {"conversation_id": "c1", "output_box_id": new_box_id()},
        {"agent_id": None},
    ],
)
def test_what_cannot_be_meant_is_malformed(arguments: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BadRequest)):
        EnqueueRequest.model_validate({"agent_id": ALICE, "instruction": "hello", **arguments})


async def test_a_refusal_begins_no_conversation(agents: Pool) -> None:
    await crew(agents)
    await lease(agents, BOB)
    before = await counts(agents)
    with pytest.raises(Refused):
        await talk(agents, context_box_id=new_box_id())
    await talk(agents, agent=BOB)
    with pytest.raises(Limited):
        await limited(agents, Admission(max_queued_turns=1), agent_id=BOB, conversation_id="c2")
    with pytest.raises(Refused):
        await talk(agents, **CREW, context_box_id=new_box_id())
    assert [each["conversation_id"] for each in await kept(agents)] == ["c1"]
    assert [row[0] for row in [await counts(agents)]] == [before[0] + 1]


async def test_a_turn_may_not_read_the_box_of_its_conversation(agents: Pool) -> None:
    first = (await talk(agents)).reply
    with pytest.raises(BadRequest, match="must differ"):
        await talk(agents, instruction=None, context_box_id=first.output_box_id)
    asked = (await talk(agents, context_box_id=first.output_box_id)).reply  # its cards are copied, then the instruction
    assert asked.context_box_id != first.output_box_id


@pytest.mark.parametrize("who", [{}, CREW])
async def test_two_that_begin_a_conversation_at_once_make_one(agents: Pool, who: dict[str, Any]) -> None:
    await crew(agents)
    first = command(conversation_id="c1", **who)
    second = await overtaken(agents, lambda conn: send(conn, first), talk(agents, **who))
    [one] = await kept(agents)
    assert (one["turn_count"], one["agent_id"], one["last_turn_id"]) == (2, first.agent_id, second.reply.agent_turn_id)
    assert str(one["output_box_id"]) == second.reply.output_box_id == first.new_output_box_id


async def test_many_that_begin_conversations_at_once_are_in_order_and_apart(agents: Pool) -> None:
    done = await asyncio.gather(*(talk(agents, f"c{n % 3}", instruction=f"{n}") for n in range(24)))
    boxes = {
        f"c{n}": {each.reply.output_box_id for each in done if each.reply.conversation_id == f"c{n}"} for n in range(3)
    }
    assert {len(b) for b in boxes.values()} == {1}
    assert len({box for b in boxes.values() for box in b}) == 3
    assert [each["turn_count"] for each in await kept(agents)] == [8, 8, 8]


async def test_a_memory_keeps_a_conversation_of_each_channel(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("helper", memory=Memory(keep="conversation")))
    first, second = (await ask(agents)).reply, (await ask(agents)).reply
    assert first.conversation_id == second.conversation_id == ""
    assert first.output_box_id == second.output_box_id
    elsewhere = (await limited(agents, channel="u_eve", agent_id=ALICE)).reply
    assert elsewhere.output_box_id != first.output_box_id
    assert (await talk(agents)).reply.conversation_id == "c1"
    given = (await ask(agents, context_box_id=first.context_box_id)).reply
    assert given.conversation_id is None
    assert given.output_box_id != first.output_box_id
    await put_profile(agents, PROJECT, profile("helper"))
    assert (await ask(agents)).reply.conversation_id is None


async def test_settings_of_a_profile_that_another_version_replaced_count_no_more(agents: Pool) -> None:
    await put_profile(agents, PROJECT, profile("helper", memory=Memory(keep="conversation")))
    fresh = BoxId(new_box_id())
    await rows(agents, "INSERT INTO boxes (box_id, tenant_id) VALUES ($1::text::uuid, 'p1')", fresh)
    await rows(agents, "UPDATE resource.profiles SET profile_box_id = $1", fresh)
    await rows(agents, "UPDATE resource.project_agents SET profile_box_id = $1::text::uuid", fresh)
    assert (await ask(agents)).reply.conversation_id is None


async def test_an_instance_is_made_for_each_conversation(agents: Pool) -> None:
    await crew(agents, worker_target="special", tags=["a"])
    first, second = (await talk(agents, **CREW)).reply, (await talk(agents, "c2", **CREW)).reply
    again = (await talk(agents, **CREW)).reply
    assert first.agent_id == again.agent_id != second.agent_id
    assert first.output_box_id == again.output_box_id != second.output_box_id
    assert (first.inbox_status, second.inbox_status, again.inbox_status) == ("pending", "pending", "queued")
    made = await rows(agents, "SELECT * FROM resource.project_agents WHERE agent_id = $1", first.agent_id)
    assert [(row["worker_target"], row["tags"], row["metadata"], row["status"]) for row in made] == [
        ("special", '["a"]', '{"instance_of": "crew", "conversation_id": "c1"}', "active")
    ]
    assert first.agent_id is not None
    assert first.agent_id.startswith("crew-")
    edges = await rows(
        agents, "SELECT action, target_agent_id FROM state.identity_edges WHERE action = 'ensure' ORDER BY edge_id"
    )
    assert edges == [{"action": "ensure", "target_agent_id": each.agent_id} for each in (first, second)]


async def test_without_a_conversation_each_request_has_an_instance(agents: Pool) -> None:
    await crew(agents, memory=Memory(keep="conversation"))
    first, again, second = [(await ask(agents, **CREW, correlation_id=each)).reply for each in ("k", "k", "l")]
    assert (again.agent_id, again.agent_turn_id, again.duplicate) == (first.agent_id, first.agent_turn_id, True)
    assert second.agent_id != first.agent_id != (await ask(agents, **CREW)).reply.agent_id
    assert await kept(agents) == []


async def test_an_instance_runs_like_any_agent(agents: Pool) -> None:
    await crew(agents)
    asked = await talk(agents, **CREW)
    assert asked.lease is not None
    assert (asked.lease.turn_epoch, asked.lease.agent_id) == (1, asked.reply.agent_id)
    assert asked.reply.agent_id is not None
    turn = await start(agents, asked.reply.agent_id)
    await talk(agents, **CREW)
    await begin(agents, turn)
    await finish(agents, turn)
    assert (await head(agents, asked.reply.agent_id))["turn_epoch"] == 2


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("no_instances", {"agent": None, "profile_name": "helper"}),
        ("unknown_profile", {"agent": None, "profile_name": "nobody"}),
        ("agent_inactive", {"agent": None, "profile_name": "Crew", "conversation_id": "retired"}),
        ("agent_exists", {"agent": None, "profile_name": "Crew", "conversation_id": "taken"}),
    ],
)
async def test_instances_that_are_refused(agents: Pool, code: str, arguments: dict[str, Any]) -> None:
    await crew(agents)
    retired = (await talk(agents, "retired", **CREW)).reply.agent_id
    assert retired is not None
    await set_agent_status(agents, PROJECT, retired, "retire", LOCAL)
    await add_agent(agents, PROJECT, AgentId(command(**CREW, conversation_id="taken").agent_id), "helper")
    before = await counts(agents)
    with pytest.raises(Refused) as refused:
        await ask(agents, **arguments)
    assert refused.value.code == code
    assert await counts(agents) == before


async def test_instances_have_a_limit_and_those_that_are_there_pass(agents: Pool) -> None:
    await crew(agents)
    room = Admission(max_instances=2)
    named = {"profile_name": "crew"}
    for name in ("c1", "c2", "c1"):
        await limited(agents, room, conversation_id=name, **named)
    before = await counts(agents)
    with pytest.raises(Limited) as refused:
        await limited(agents, room, conversation_id="c3", **named)
    assert (refused.value.code, await counts(agents)) == ("instances_full", before)


async def test_an_instance_that_sleeps_wakes_with_its_conversation(agents: Pool) -> None:
    await crew(agents)
    first = (await talk(agents, **CREW)).reply
    await rows(agents, "UPDATE resource.project_agents SET status = 'dormant' WHERE agent_id = $1", first.agent_id)
    await talk(agents, **CREW)
    assert (
        await value(agents, "SELECT status FROM resource.project_agents WHERE agent_id = $1", first.agent_id)
        == "active"
    )


async def test_many_that_make_instances_at_once_make_one_for_each_conversation(agents: Pool) -> None:
    await crew(agents)
    done = await asyncio.gather(*(talk(agents, f"c{n % 4}", **CREW) for n in range(24)))
    assert len({each.reply.agent_id for each in done}) == 4
    assert len(await rows(agents, "SELECT FROM resource.project_agents WHERE metadata ? 'instance_of'")) == 4


async def line_of(pool: Pool, conversation: str = "c1") -> ConversationLine:
    """The conversation, as people list it."""
    name = ConversationId(conversation)
    [found] = await pool.run(lambda conn: find_conversations(conn, PROJECT, name, None, None, row_limit=2))
    return found


async def turns_after(pool: Pool, line: ConversationLine, place: TurnAt = CONVERSATION_BEGIN) -> list[TurnAt]:
    return await pool.run(lambda conn: list_turns_after(conn, PROJECT, line, place, row_limit=100))


@pytest.mark.parametrize("earlier", [0, 1])
async def test_an_enqueue_that_commits_late_lets_no_later_one_go_before_it(agents: Pool, earlier: int) -> None:
    """Of a conversation that is there, and of one that the late enqueue begins."""
    for _ in range(earlier):
        await talk(agents)
    late = command(ALICE, conversation_id="c1")
    after = await overtaken(agents, lambda conn: send(conn, late), talk(agents))
    told = await turns_after(agents, await line_of(agents))
    assert [each.agent_turn_id for each in told][earlier:] == [late.agent_turn_id, after.reply.agent_turn_id]
    assert sorted({each.conversation_seq for each in told}) == [each.conversation_seq for each in told]


async def test_who_follows_a_conversation_hears_of_each_turn_once(agents: Pool, database_url: str) -> None:
    """Enqueues that stay open for a while, and a reader that looks all the time and knows its place alone."""
    await talk(agents)
    line, pool = await line_of(agents), Pool(database_url, size=10)
    dice = random.Random(7)  # noqa: S311 -- a test's, and the same each time
    heard = await turns_after(agents, line)

    async def speak() -> None:
        for _ in range(6):
            spoken = command(ALICE, conversation_id="c1")
            async with in_flight(pool, lambda conn, spoken=spoken: send(conn, spoken)):
                await asyncio.sleep(dice.uniform(0, 0.02))

    speaking = asyncio.gather(*(speak() for _ in range(6)))
    over = False
    while not over:
        over = speaking.done()
        heard += await turns_after(agents, line, heard[-1])
    await speaking
    # what clocks say, and who is put before others in the queue, moves no place
    await rows(agents, "UPDATE state.agent_inbox SET created_at = created_at - random() * interval '1 hour'")
    assert await turns_after(agents, line) == heard
    assert len(heard) == len({each.agent_turn_id for each in heard}) == 37
    await pool.close()
