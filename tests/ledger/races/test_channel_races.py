"""Two channels that name a box of nobody at one moment: where one writes, the other neither reads nor writes.

Hazard 21 in docs/hazards.md, and the walls of protocol §6.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from tests.ledger.turns.test_enqueue import packed, texts
from tests.support.ledger.agents import ALICE, BOB, CAROL, CHANNEL, PROJECT, command, rows, send
from tests.support.ledger.calls import sleeper
from tests.support.ledger.trees import child, forks, parent
from tests.support.waiting import Counting, in_flight, overtaken, until_waiting
from turnstile.ledger.queries import Connection
from turnstile.ledger.turns.boxes import agent_boxes, compose_box, fork_box, put_conversation, replace_boxes
from turnstile.ledger.turns.intake import Enqueued
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentId, BoxId, ChannelId, new_box_id
from turnstile.schema.wire.box_requests import BoxMakeRequest, BoxReplaceRequest
from turnstile.schema.wire.conversation_requests import ConversationPutRequest

RED, BLUE = ChannelId("u_red"), CHANNEL
Second = Callable[[Counting, BoxId], Coroutine[Any, Any, str]]


def asking(agent: AgentId, channel: ChannelId, **fields: Any) -> Callable[[Connection], Awaitable[Enqueued]]:
    """An enqueue in a channel, as a transition."""
    sent = replace(command(agent, **fields), channel_id=channel)
    return lambda conn: send(conn, sent)


async def code_of(asked: Awaitable[Any]) -> str:
    """`accepted`, or why not."""
    try:
        await asked
    except Refused as refused:
        return refused.code
    return "accepted"


async def enqueues(pool: Counting, channel: ChannelId = BLUE, **fields: Any) -> str:
    """Bob is asked: the code."""
    return await code_of(pool.run(asking(BOB, channel, **fields)))


async def delegates(pool: Counting, **fields: Any) -> str:
    """The one child of blue's call: the code of its task."""
    task = child(await parent(pool, "call"), 0, CAROL, **fields)
    await forks(pool, "call", tasks=[task])
    [row] = await rows(pool, "SELECT coalesce(error_code, 'accepted') AS code FROM state.pmo_batch_tasks")
    return row["code"]


async def points(pool: Counting, **boxes: BoxId) -> str:
    """Blue sets Carol's pointers: the code."""
    wanted = BoxReplaceRequest.model_validate({"agent_id": CAROL, **boxes})
    return await code_of(pool.run(lambda conn: replace_boxes(conn, PROJECT, BLUE, wanted)))


async def remembers(pool: Counting, box: BoxId) -> str:
    """Carol is asked to go on from her memory, which is this box: the code."""
    await points(pool, memory_context_box_id=box)
    return await code_of(pool.run(asking(CAROL, BLUE, instruction=None)))


async def converses(pool: Counting, box: BoxId) -> str:
    """Blue makes a conversation of what is in the box."""
    wanted = ConversationPutRequest.model_validate({"conversation_id": "c", "add_box_id": box})
    return await code_of(pool.run(lambda conn: put_conversation(conn, PROJECT, BLUE, wanted, new_box_id())))


WAITING: dict[str, tuple[Second, str]] = {
    "context": (lambda pool, box: enqueues(pool, instruction=None, context_box_id=box), "unknown_context_box"),
    "context that is copied": (lambda pool, box: enqueues(pool, context_box_id=box), "unknown_context_box"),
    "memory": (remembers, "unknown_context_box"),
    "output": (lambda pool, box: enqueues(pool, output_box_id=box), "unknown_output_box"),
    "conversation": (converses, "unknown_box"),
    "child that inherits": (lambda pool, box: delegates(pool, inherits=(box,)), "unknown_context_box"),
    "child that writes": (lambda pool, box: delegates(pool, output_box_id=box), "unknown_output_box"),
}


@pytest.mark.parametrize("second", WAITING)
async def test_what_names_a_box_waits_for_another_channels_turn_that_writes_there(
    counting: Counting, second: str
) -> None:
    shared = await packed(counting, "of nobody")
    await sleeper(counting, "call", agent=BOB)
    act, code = WAITING[second]
    assert await overtaken(counting, asking(ALICE, RED, output_box_id=shared), act(counting, shared)) == code
    assert await texts(counting, shared) == ["of nobody"]


READING: dict[str, tuple[dict[str, Any], str]] = {
    "context": ({"instruction": None}, "unknown_output_box"),
    "context that is copied": ({"instruction": "go"}, "accepted"),
}


@pytest.mark.parametrize("first", READING)
@pytest.mark.parametrize("waits", [True, False], ids=["at once", "later"])
async def test_a_box_that_another_channels_turn_reads_is_not_written(
    counting: Counting, first: str, *, waits: bool
) -> None:
    """The enqueue that reads is first. A box of which it took a copy is free: what is written later is not in that."""
    shared = await packed(counting, "of nobody")
    fields, code = READING[first]
    reads, writes = asking(ALICE, RED, context_box_id=shared, **fields), enqueues(counting, output_box_id=shared)
    if waits:
        found = await overtaken(counting, reads, writes)
    else:
        await counting.run(reads)
        found = await writes
    assert found == code


async def test_a_pointer_to_a_box_that_another_channels_turn_reads_is_none(counting: Counting) -> None:
    """It was set before: a delegation that goes on gets a box of its own, and one that names this box is refused."""
    shared = await packed(counting, "of nobody")
    await sleeper(counting, "call", agent=BOB)
    assert await points(counting, last_output_box_id=shared) == "accepted"
    reads = asking(ALICE, RED, instruction=None, context_box_id=shared)
    assert await overtaken(counting, reads, delegates(counting, output_box_id=shared)) == "unknown_output_box"
    found = await counting.run(lambda conn: agent_boxes(conn, PROJECT, BLUE, CAROL))
    assert found.last_output_box_id is None
    assert await points(counting, last_output_box_id=shared) == "unknown_output_box"


async def test_a_copy_has_nothing_of_a_turn_that_is_in_flight(counting: Counting) -> None:
    """Boxes are copied as one statement sees them, and pointers are judged when they are used: neither waits."""
    shared = await packed(counting, "of nobody")
    forked, made = new_box_id(), new_box_id()
    parts = BoxMakeRequest.model_validate({"parts": [{"box_id": shared}]})
    async with in_flight(counting, asking(ALICE, RED, output_box_id=shared)):
        assert await counting.run(lambda conn: fork_box(conn, PROJECT, BLUE, shared, forked))
        await counting.run(lambda conn: compose_box(conn, PROJECT, BLUE, parts, made, "dora"))
        assert await points(counting, memory_context_box_id=shared) == "accepted"
    assert await texts(counting, forked) == await texts(counting, made) == ["of nobody"]
    found = await counting.run(lambda conn: agent_boxes(conn, PROJECT, BLUE, CAROL))
    assert found.memory_context_box_id is None


async def test_two_that_read_where_the_other_writes_do_not_wait_for_each_other(counting: Counting) -> None:
    for _ in range(8):
        one, two = await packed(counting, "one"), await packed(counting, "two")
        codes = await asyncio.gather(
            enqueues(counting, RED, instruction=None, context_box_id=one, output_box_id=two),
            enqueues(counting, BLUE, instruction=None, context_box_id=two, output_box_id=one),
        )
        first, second = sorted(codes)
        assert first == "accepted"
        assert second in ("unknown_context_box", "unknown_output_box")


async def test_channels_that_read_one_box_do_not_wait_for_each_other(counting: Counting) -> None:
    shared = await packed(counting, "of nobody")
    async with in_flight(counting, asking(ALICE, RED, instruction=None, context_box_id=shared)):
        assert await enqueues(counting, instruction=None, context_box_id=shared) == "accepted"


async def test_cards_that_expire_lock_their_boxes_in_order(counting: Counting) -> None:
    """A statement that lets several expire waits for the first of all their boxes, and holds none behind it."""
    boxes = sorted([await packed(counting, f"{number}") for number in range(12)])
    late = """
        UPDATE public.cards c SET expires_at = now()
        FROM (SELECT p.card_id FROM public.box_cards p ORDER BY p.box_id DESC) o WHERE c.card_id = o.card_id"""
    hold = "SELECT FROM state.hold_boxes($1, '{}', ARRAY[$2::text::uuid])"
    async with counting.connection() as conn, conn.transaction():
        await conn.fetch(hold, PROJECT, boxes[0])
        expiring = asyncio.ensure_future(counting.run(lambda conn: conn.fetch(late)))
        await until_waiting(counting)
        for box in boxes[1:]:
            await asyncio.wait_for(conn.fetch(hold, PROJECT, box), 25)
    await expiring
