"""Boxes that callers fork or make of parts, and those that they put into an agent's pointers (protocol §6)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from tests.ledger.operations.test_retention import ended, has_box, pruned
from tests.ledger.turns.test_enqueue import packed, texts
from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CHANNEL,
    PROJECT,
    ask,
    begin,
    finish,
    finish_on,
    lease,
    play,
    rows,
    value,
)
from tests.support.waiting import in_flight, overtaken
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.boxes import agent_boxes, compose_box, fork_box, replace_boxes
from turnstile.ledger.turns.cards import box_cards, page_of_box
from turnstile.schema.cards import Card
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import (
    AgentId,
    BoxId,
    ChannelId,
    ProjectId,
    first_id,
    forked_box_id,
    made_box_id,
    new_box_id,
)
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.box_requests import CARD_LIMIT, AgentBoxes, BoxMakeRequest, BoxReplaceRequest
from turnstile.schema.wire.inbox import TEXT_LIMIT_BYTES

LOCK = "SELECT FROM boxes WHERE box_id = $1::text::uuid FOR UPDATE"


async def fork(pool: Pool, source: BoxId, new_box: BoxId | None = None, project: ProjectId = PROJECT) -> bool:
    return await pool.run(lambda conn: fork_box(conn, project, CHANNEL, source, new_box or new_box_id()))


async def replace(pool: Pool, agent: AgentId = ALICE, **boxes: Any) -> AgentBoxes:
    wanted = BoxReplaceRequest.model_validate({"agent_id": agent, **boxes})
    return await pool.run(lambda conn: replace_boxes(conn, PROJECT, CHANNEL, wanted))


def refused(code: str) -> Any:
    return pytest.raises(Refused, check=lambda error: error.code == code)


async def test_a_fork_is_the_list_as_it_is(agents: Pool) -> None:
    """Of a box that a turn is writing: what it writes later is not in the fork, and the fork is closed."""
    turn = await lease(agents)
    await begin(agents, turn)
    before, after = new_box_id(), new_box_id()
    assert await fork(agents, turn.output_box_id, before)
    await finish(agents, turn)
    assert await fork(agents, turn.output_box_id, after)
    listed = await agents.run(lambda conn: box_cards(conn, PROJECT, turn.output_box_id))
    assert await agents.run(lambda conn: box_cards(conn, PROJECT, before)) == []
    assert await agents.run(lambda conn: box_cards(conn, PROJECT, after)) == listed != []
    parents = await value(agents, "SELECT parent_ids::text FROM boxes WHERE box_id = $1::text::uuid", after)
    assert parents == f"{{{turn.output_box_id}}}"


@pytest.mark.parametrize(("cards", "most_bytes", "pages"), [(5, 1, 5), (450, 1_000_000, 3)])
async def test_a_box_is_read_in_pages_by_rows_and_by_bytes(
    agents: Pool, cards: int, most_bytes: int, pages: int
) -> None:
    box = await packed(agents, *(f"card {number}" for number in range(cards)))
    whole = await agents.run(lambda conn: box_cards(conn, PROJECT, box))
    read: list[Card] = []
    after: int | None = 0
    count = 0
    async with agents.connection() as conn:
        while after is not None:
            page = await page_of_box(conn, PROJECT, box, after=after, most_bytes=most_bytes)
            assert page is not None
            read += page[0]
            after, count = page[1], count + 1
        assert (read, count) == (whole, pages)
        assert await page_of_box(conn, PROJECT, box, after=cards, most_bytes=1) == ([], None)
        assert await page_of_box(conn, PROJECT, new_box_id(), after=0, most_bytes=1) is None


async def test_concurrent_turns_go_on_from_forks_of_one_box(agents: Pool) -> None:
    """Two may not share an output box (protocol §2.1): with forks neither waits, and each has the memory."""
    memory = await packed(agents, "said before")
    forks = [new_box_id(), new_box_id()]
    for agent, box in zip((ALICE, BOB), forks, strict=True):
        await fork(agents, memory, box)
        asked = await ask(agents, agent, output_box_id=box)
        assert asked.reply.inbox_status == "pending"
    for agent in (ALICE, BOB):
        await play(agents, agent)
    assert [(await texts(agents, box))[0] for box in forks] == ["said before"] * 2


async def test_a_repeated_fork_is_found(agents: Pool) -> None:
    source, other = await packed(agents, "a"), await packed(agents, "b")
    named = forked_box_id(PROJECT, "c")
    assert [await fork(agents, source, named) for _ in range(3)] == [True, False, False]
    assert await texts(agents, named) == ["a"]
    with refused("correlation_conflict"):
        await fork(agents, other, named)


async def test_a_fork_that_waited_for_its_twin_finds_the_twins(agents: Pool) -> None:
    source, named = await packed(agents, "a"), forked_box_id(PROJECT, "c")
    twin = overtaken(agents, lambda conn: fork_box(conn, PROJECT, CHANNEL, source, named), fork(agents, source, named))
    assert await twin is False
    assert await texts(agents, named) == ["a"]


async def test_what_is_not_there_cannot_be_forked(agents: Pool) -> None:
    source = await packed(agents, "a")
    for box, project in ((new_box_id(), PROJECT), (source, ProjectId("other"))):
        with refused("unknown_box"):
            await fork(agents, box, project=project)
    assert await value(agents, "SELECT count(*) FROM boxes WHERE parent_ids <> '{}'") == 0


def test_the_id_of_a_named_fork_tells_no_time() -> None:
    """It sorts after today's, so that no window of the audit and no walk of retention leaves it out."""
    named = [forked_box_id(PROJECT, str(number)) for number in range(50)]
    assert min(named) > first_id(datetime.now(UTC) + timedelta(days=36_500))
    assert {each[14] for each in named} == {"8"}
    assert len({*named, forked_box_id(ProjectId("other"), "0")}) == 51


async def test_a_fork_waits_for_retention_and_retention_passes_by_a_fork(agents: Pool) -> None:
    source = await packed(agents, "a")
    async with in_flight(agents, lambda conn: fork_box(conn, PROJECT, CHANNEL, source, new_box_id())):
        locked = await rows(agents, f"{LOCK} SKIP LOCKED", source)
    assert locked == []
    with refused("unknown_box"):
        await overtaken(agents, lambda conn: _removed(conn, source), fork(agents, source))


async def _removed(conn: Any, box: BoxId) -> None:
    await conn.execute("SET LOCAL turnstile.retention = 'on'")
    await conn.fetch(LOCK, box)
    await conn.execute("DELETE FROM box_cards WHERE box_id = $1::text::uuid", box)
    await conn.execute("DELETE FROM boxes WHERE box_id = $1::text::uuid", box)


async def test_forks_that_nobody_uses_go_and_those_in_use_keep_their_cards(agents: Pool) -> None:
    source = await packed(agents, "a")
    spare, named, kept = new_box_id(), forked_box_id(PROJECT, "c"), forked_box_id(PROJECT, "d")
    for box in (spare, named, kept):
        await fork(agents, source, box)
    await replace(agents, memory_context_box_id=kept)
    assert (await pruned(agents)).boxes == 3
    assert [await has_box(agents, box) for box in (source, spare, named, kept)] == [False, False, False, True]
    assert await texts(agents, kept) == ["a"]


async def test_a_memory_that_was_put_is_read_and_can_be_taken_away(agents: Pool) -> None:
    memory = await packed(agents, "remember")
    assert await replace(agents, memory_context_box_id=memory) == AgentBoxes(memory_context_box_id=memory)
    turn = await lease(agents, instruction=None)
    assert turn.context_box_id == memory
    await begin(agents, turn)
    await finish(agents, turn)
    both = AgentBoxes(memory_context_box_id=memory, last_output_box_id=turn.output_box_id)
    assert await agents.run(lambda conn: agent_boxes(conn, PROJECT, CHANNEL, ALICE)) == both
    assert await replace(agents, memory_context_box_id=None) == AgentBoxes(last_output_box_id=turn.output_box_id)
    with pytest.raises(BadRequest, match="no memory box"):
        await ask(agents, instruction=None)


async def test_a_last_output_box_that_was_put_stays_until_a_turn_ends(agents: Pool) -> None:
    """Through retention too, which otherwise knows a last output box by its turn."""
    first, put = await ended(agents), await packed(agents, "put")
    assert await replace(agents, last_output_box_id=put) == AgentBoxes(last_output_box_id=put)
    await pruned(agents)
    assert (await has_box(agents, put), await has_box(agents, first.output_box_id)) == (True, False)
    second = await ended(agents)
    last = AgentBoxes(last_output_box_id=second.output_box_id)
    assert await agents.run(lambda conn: agent_boxes(conn, PROJECT, CHANNEL, ALICE)) == last
    await pruned(agents)
    assert not await has_box(agents, put)


async def test_a_box_that_another_agents_turn_writes_is_busy(agents: Pool) -> None:
    turn = await lease(agents, BOB)
    for pointer in ("memory_context_box_id", "last_output_box_id"):
        with refused("output_box_busy"):
            await replace(agents, ALICE, **{pointer: turn.output_box_id})
    assert await value(agents, "SELECT count(*) FROM state.agent_state_pointers") == 0
    assert (await replace(agents, BOB, memory_context_box_id=turn.output_box_id)).memory_context_box_id
    await begin(agents, turn)
    await finish(agents, turn)
    assert (await replace(agents, memory_context_box_id=turn.output_box_id)).memory_context_box_id


async def test_what_replaces_nothing_says_why_in_order(agents: Pool) -> None:
    busy, nothing = (await lease(agents, BOB)).output_box_id, new_box_id()
    given = {"memory_context_box_id": nothing, "last_output_box_id": nothing}
    with refused("unknown_agent"):
        await replace(agents, AgentId("nobody"), **given)
    with refused("unknown_context_box"):
        await replace(agents, ALICE, **given)
    with refused("unknown_output_box"):
        await replace(agents, ALICE, **given | {"memory_context_box_id": busy})
    with refused("output_box_busy"):
        await replace(agents, ALICE, **dict.fromkeys(given, busy))
    for nothing_named in ({}, {"last_output_box_id": None}):
        with pytest.raises(ValidationError, match="is needed"):
            BoxReplaceRequest.model_validate({"agent_id": ALICE, **nothing_named})
    assert await agents.run(lambda conn: agent_boxes(conn, PROJECT, CHANNEL, ALICE)) == AgentBoxes()
    with refused("unknown_agent"):
        await agents.run(lambda conn: agent_boxes(conn, PROJECT, CHANNEL, AgentId("nobody")))


async def test_a_replace_passes_by_no_box_that_retention_takes(agents: Pool) -> None:
    memory = await packed(agents, "a")
    with refused("unknown_context_box"):
        await overtaken(agents, lambda conn: _removed(conn, memory), replace(agents, memory_context_box_id=memory))


async def test_a_replace_and_the_end_of_a_turn_wait_for_each_other(agents: Pool) -> None:
    """Both write the pointer: the later one has its way, and neither loses what the other does not name."""
    memory, turn = await packed(agents, "a"), await lease(agents)
    await begin(agents, turn)
    done = await overtaken(agents, lambda conn: finish_on(conn, turn), replace(agents, memory_context_box_id=memory))
    assert done == AgentBoxes(memory_context_box_id=memory, last_output_box_id=turn.output_box_id)


async def play_in(pool: Pool, conversation: str) -> TurnRef:
    """A turn of a conversation, to its end."""
    turn = await lease(pool, conversation_id=conversation)
    await begin(pool, turn)
    await finish(pool, turn)
    return turn


def of_parts(*parts: Any) -> BoxMakeRequest:
    return BoxMakeRequest.model_validate({"parts": parts})


async def make(
    pool: Pool,
    *parts: Any,
    box: BoxId | None = None,
    channel: ChannelId = CHANNEL,
    project: ProjectId = PROJECT,
) -> tuple[int, bool]:
    new = box or new_box_id()
    return await pool.run(lambda conn: compose_box(conn, project, channel, of_parts(*parts), new, "user.test"))


async def made(pool: Pool, *parts: Any) -> list[str]:
    """The types of the cards of a new box."""
    box = new_box_id()
    await make(pool, *parts, box=box)
    return [card.type for card in await pool.run(lambda conn: box_cards(conn, PROJECT, box)) or []]


async def test_a_box_of_parts_has_their_cards_in_order(agents: Pool) -> None:
    context, box = await packed(agents, "first", "second", "third"), new_box_id()
    [first, *_] = await agents.run(lambda conn: box_cards(conn, PROJECT, context)) or []
    parts = [
        {"text": "before"},
        {"box_id": context, "last": 2},
        {"card_id": first.card_id},
        {"text": "after", "type": "task.deliverable"},
        {"fields": [{"name": "sum"}]},
    ]
    assert await make(agents, *parts, box=box) == (6, True)
    cards = await agents.run(lambda conn: box_cards(conn, PROJECT, box)) or []
    assert await texts(agents, box) == ["before", "second", "third", "first", "after", "task.result_fields"]
    roles = [(card.type, card.metadata.role, card.metadata.author_id) for card in (cards[0], *cards[4:])]
    assert roles == [
        ("task.instruction", "user", "user.test"),
        ("task.deliverable", "assistant", "user.test"),
        ("task.result_fields", "system", "user.test"),
    ]
    parents = await value(agents, "SELECT parent_ids::text FROM boxes WHERE box_id = $1::text::uuid", box)
    assert parents == f"{{{context}}}"


async def test_a_part_takes_some_types_and_the_last_of_these(agents: Pool) -> None:
    turn = await lease(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    said = {"box_id": turn.output_box_id}
    assert await made(agents, said) == ["agent.thought", "task.deliverable"]
    assert await made(agents, {**said, "types": ["agent.thought", "tool.call"]}) == ["agent.thought"]
    assert await made(agents, {**said, "types": ["agent.thought"], "last": 3}) == ["agent.thought"]
    assert await made(agents, {**said, "types": ["tool.result"]}) == []


async def test_a_card_that_parts_share_is_taken_once(agents: Pool) -> None:
    a, b = await packed(agents, "a", "b"), new_box_id()
    await fork(agents, a, b)
    box = new_box_id()
    assert await make(agents, {"box_id": b, "last": 1}, {"box_id": a}, {"box_id": b}, box=box) == (2, True)
    assert await texts(agents, box) == ["b", "a"]


async def test_cards_that_are_deleted_or_expired_are_no_parts(agents: Pool) -> None:
    box = await packed(agents, "deleted", "expired", "there")
    deleted, expired, _ = [card.card_id for card in await agents.run(lambda conn: box_cards(conn, PROJECT, box)) or []]
    await rows(agents, "UPDATE cards SET deleted_at = now() WHERE card_id = $1", deleted)
    await rows(agents, "UPDATE cards SET expires_at = now() - interval '1 s' WHERE card_id = $1", expired)
    new = new_box_id()
    assert await make(agents, {"box_id": box, "last": 2}, box=new) == (1, True)
    assert await texts(agents, new) == ["there"]
    for card in (deleted, expired):
        with refused("unknown_card"):
            await make(agents, {"card_id": card})


async def test_a_repeated_box_of_parts_is_found(agents: Pool) -> None:
    source, named = await packed(agents, "a"), made_box_id(PROJECT, "c")
    parts = ({"text": "new"}, {"box_id": source})
    assert [await make(agents, *parts, box=named) for _ in range(3)] == [(2, True), (2, False), (2, False)]
    assert await texts(agents, named) == ["new", "a"]
    for other in (parts[:1], (*parts, {"text": "more"}), tuple(reversed(parts))):
        with refused("correlation_conflict"):
            await make(agents, *other, box=named)
    with refused("correlation_conflict"):
        await make(agents, *parts, box=named, channel=ChannelId("u_other"))
    assert named != forked_box_id(PROJECT, "c")


async def test_a_box_of_parts_that_waited_for_its_twin_finds_the_twins(agents: Pool) -> None:
    source, named = await packed(agents, "a"), made_box_id(PROJECT, "c")
    parts = of_parts({"box_id": source}, {"text": "new"})
    twin = overtaken(
        agents,
        lambda conn: compose_box(conn, PROJECT, CHANNEL, parts, named, "user.test"),
        make(agents, {"box_id": source}, {"text": "new"}, box=named),
    )
    assert await twin == (2, False)
    assert await texts(agents, named) == ["a", "new"]


async def test_one_missing_part_refuses_the_whole(agents: Pool) -> None:
    """What another project or channel has is missing, too, and nobody is told which it is."""
    source = await packed(agents, "a")
    [own] = await agents.run(lambda conn: box_cards(conn, PROJECT, source)) or []
    turn = await lease(agents)
    await begin(agents, turn)
    await finish(agents, turn)
    [*_, deliverable] = await agents.run(lambda conn: box_cards(conn, PROJECT, turn.output_box_id)) or []
    other = ChannelId("u_other")
    before = await value(agents, "SELECT count(*) FROM boxes"), await value(agents, "SELECT count(*) FROM cards")
    refusals: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
        ({"box_id": new_box_id()}, "unknown_box", {}),
        ({"card_id": "none"}, "unknown_card", {}),
        ({"box_id": source}, "unknown_box", {"project": ProjectId("other")}),
        ({"card_id": own.card_id}, "unknown_card", {"project": ProjectId("other")}),
        ({"box_id": turn.output_box_id}, "unknown_box", {"channel": other}),
        ({"box_id": turn.output_box_id, "last": 1}, "unknown_box", {"channel": other}),
        ({"box_id": turn.context_box_id}, "unknown_box", {"channel": other}),
        ({"card_id": deliverable.card_id}, "unknown_card", {"channel": other}),
    ]
    for part, code, where in refusals:
        with pytest.raises(Refused, match="part 2 names no", check=lambda error, code=code: error.code == code):
            await make(agents, {"text": "new"}, part, {"text": "more"}, **where)
    after = await value(agents, "SELECT count(*) FROM boxes"), await value(agents, "SELECT count(*) FROM cards")
    assert after == before
    assert await make(agents, {"box_id": source}, {"card_id": own.card_id}, channel=other) == (1, True)


async def test_a_box_of_parts_has_a_bounded_number_of_cards(agents: Pool) -> None:
    box = await packed(agents, "a")
    await rows(
        agents,
        "WITH new AS (INSERT INTO cards (card_id, tenant_id, content, metadata)"
        " SELECT 'many-' || n, $1, '{}', '{}' FROM generate_series(1, $3::int) n RETURNING card_id),"
        " box AS (INSERT INTO boxes (box_id, tenant_id) VALUES ($2::text::uuid, $1) RETURNING box_id)"
        " INSERT INTO box_cards (box_id, position, card_id) SELECT box_id, row_number() OVER (), card_id FROM new, box",
        PROJECT,
        many := new_box_id(),
        CARD_LIMIT,
    )
    assert await make(agents, {"box_id": many}) == (CARD_LIMIT, True)
    assert await make(agents, {"box_id": many, "last": CARD_LIMIT - 1}, {"box_id": box}) == (CARD_LIMIT, True)
    with refused("too_many_cards"):
        await make(agents, {"box_id": many}, {"box_id": box})
    with refused("text_too_large"):
        await make(agents, {"text": "x" * TEXT_LIMIT_BYTES}, {"text": "y"})


async def test_a_box_of_parts_waits_for_retention_and_retention_passes_by_it(agents: Pool) -> None:
    source = await packed(agents, "a")
    [card] = await agents.run(lambda conn: box_cards(conn, PROJECT, source)) or []
    parts = of_parts({"card_id": card.card_id})
    async with in_flight(agents, lambda conn: compose_box(conn, PROJECT, CHANNEL, parts, new_box_id(), "user.test")):
        locked = await rows(agents, f"{LOCK} SKIP LOCKED", source)
    assert locked == []
    kept = await value(agents, "SELECT max(box_id::text) FROM box_cards WHERE card_id = $1", card.card_id)
    assert kept != source
    new = new_box_id()
    await overtaken(agents, lambda conn: _removed(conn, kept), make(agents, {"card_id": card.card_id}, box=new))
    assert await texts(agents, new) == ["a"]  # from the box that is still there
    with refused("unknown_box"):
        await overtaken(agents, lambda conn: _removed(conn, source), make(agents, {"box_id": source}))


NO_PARTS: list[tuple[list[Any], str]] = [
    ([], "at least 1 item"),
    ([{}], "a part has one of box_id, card_id, calls, result, text and fields"),
    (["text"], "a part has one of"),
    ([{"text": "a", "card_id": "b"}], "Extra inputs"),
    ([{"box_id": "x"}], "uuid"),
    ([{"box_id": new_box_id(), "last": 0}], "greater than or equal to 1"),
    ([{"box_id": new_box_id(), "types": ["task.instructoin"]}], "task.instruction"),
    ([{"text": "a", "type": "tool.result"}], "task.instruction"),
    ([{"text": ""}], "at least 1 character"),
    ([{"fields": []}], "at least 1 item"),
    ([{"box_id": new_box_id()}] * 101, "at most 100 parts name a box"),
]


@pytest.mark.parametrize(("parts", "told"), NO_PARTS)
def test_a_part_that_is_none_is_told(parts: list[Any], told: str) -> None:
    with pytest.raises((ValidationError, BadRequest), match=told):
        of_parts(*parts)
