"""Conversations with two at once: what a settle prunes while it is begun, joined, asked for or settled elsewhere."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.ledger.agents import value
from tests.support.pump.pump import assert_threads
from tests.support.pump.threads import AGAIN, LIMITS, RESPONSE, Talk, forward, message, sent_by, talk
from tests.support.waiting import Counting, in_flight, overtaken, until_waiting
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.hops import await_turn, begin_message
from turnstile.ledger.pump.threads import ThreadLimits, send_message
from turnstile.ledger.queries import Connection
from turnstile.rules.hop import Effect, NoMessage, Respond
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId, new_box_id, uuid7
from turnstile.schema.pump.threads import MessageId

TWO = ThreadLimits(max_open=2)


@pytest.fixture
async def counted(database_url: str) -> AsyncIterator[Counting]:
    """A pool that saw no deadlock, on threads that hold together."""
    pool = Counting(database_url, name="test")
    yield pool
    async with pool.connection() as conn:
        await assert_threads(conn)
    await pool.close()
    assert pool.deadlocks == 0


def beginning(made: Talk, name: MessageId) -> Callable[[Connection], Any]:
    """begin_message as a transition."""
    run = uuid7()
    return lambda conn: begin_message(conn, made.ref, name, run)


def awaiting(made: Talk, name: MessageId) -> Callable[[Connection], Any]:
    """await_turn as a transition."""
    turn, box = AgentTurnId(f"turn-of-{name}"), new_box_id()
    return lambda conn: await_turn(conn, made.ref, name, turn, box, deadline_seconds=60)


async def test_of_two_twins_one_goes(counted: Counting) -> None:
    one = message(correlation_id="c")
    two = message(correlation_id="c")
    second = await overtaken(counted, lambda conn: send_message(conn, one, LIMITS), sent_by(counted, two))
    assert (second.message_id, second.thread, second.duplicate) == (one.message_id, one.thread, True)
    assert await value(counted, "SELECT count(*) FROM state.threads") == 1


async def test_of_two_twins_that_join_one_goes(counted: Counting) -> None:
    made = await talk(counted)
    one, two = (message("b", made.ref, correlation_id="c") for _ in range(2))
    second = await overtaken(counted, lambda conn: send_message(conn, one, LIMITS), sent_by(counted, two))
    assert (second.message_id, second.duplicate) == (one.message_id, True)
    assert len(await made.lines()) == 2


async def test_a_twin_with_other_content_is_a_conflict(counted: Counting) -> None:
    one, two = message(correlation_id="c"), message(correlation_id="c", request_digest="other")
    with pytest.raises(Refused) as refused:
        await overtaken(counted, lambda conn: send_message(conn, one, LIMITS), sent_by(counted, two))
    assert refused.value.code == "correlation_conflict"


async def test_two_that_join_at_once_do_not_overfill_a_thread(counted: Counting) -> None:
    made = await talk(counted, limits=TWO)
    one, two = (message("a", made.ref) for _ in range(2))
    with pytest.raises(Refused, match="2 messages in flight, 2 in all"):
        await overtaken(counted, lambda conn: send_message(conn, one, TWO), sent_by(counted, two, TWO))


async def test_two_that_join_at_once_open_one_segment(counted: Counting) -> None:
    made = await talk(counted)
    one, two = (message("b", made.ref) for _ in range(2))
    await overtaken(counted, lambda conn: send_message(conn, one, LIMITS), sent_by(counted, two))
    assert len({line.segment_id for line in await made.lines()}) == 2


@pytest.mark.parametrize("effect", [RESPONSE, NoMessage(), AGAIN, forward("b")], ids=lambda each: type(each).__name__)
async def test_a_message_is_settled_once(counted: Counting, effect: Effect) -> None:
    made = await talk(counted)
    begun = await made.begun(made.first)
    await overtaken(counted, made.settling(begun, effect), made.settle(begun, RESPONSE))
    again = await made.begun((await made.lines())[-1].message_id) if effect in (AGAIN, forward("b")) else None
    assert len(await made.lines()) == (1 if again is None else 2)
    assert len(await made.answers()) == (1 if again is None else 0)


async def test_two_requests_answered_at_once_are_answered_once_each(counted: Counting) -> None:
    made = await talk(counted)
    second = await made.join()
    one, two = await made.begun(made.first), await made.begun(second)
    await overtaken(counted, made.settling(one, RESPONSE), made.settle(two, RESPONSE))
    assert await made.replies() == {made.first: "responded", second: "pruned"}


async def test_a_request_begun_while_its_segment_is_pruned_is_canceled(counted: Counting) -> None:
    """Its handler has it in hand, and has been told of a place that is no more."""
    made = await talk(counted)
    second = await made.join()
    begun = await made.begun(made.first)
    await overtaken(counted, beginning(made, second), made.settle(begun, RESPONSE))
    assert await made.replies() == {made.first: "responded", second: "pruned"}
    assert await made.begin(second) is None
    assert (await made.row())["status"] == "ended"
    assert await value(counted, "SELECT count(*) FROM state.thread_segments") == 1, "a place for what did not move"


async def test_a_request_that_moved_is_begun_where_it_is_now(counted: Counting) -> None:
    """The begin that waited does not see the segment yet: it must neither miss the message nor count an attempt."""
    made = await talk(counted)
    second = await made.join()
    begun = await made.begun(made.first)
    moved = await overtaken(counted, made.settling(begun, RESPONSE), made.begin(second))
    assert moved is not None
    assert (moved.was, moved.attempt, moved.listener) == ("pending", 1, "a")
    assert moved.segment_id != begun.segment_id
    await made.settle(moved, RESPONSE)
    assert await made.replies() == {made.first: "responded", second: "responded"}


async def test_a_message_canceled_while_it_is_begun_is_not_begun(counted: Counting) -> None:
    made = await talk(counted)
    below = await made.do(forward("b"), await made.join())
    begun = await made.begun(made.first)
    assert await overtaken(counted, made.settling(begun, RESPONSE), made.begin(below)) is None


async def test_a_turn_that_is_out_when_its_message_is_canceled_is_known(counted: Counting) -> None:
    made = await talk(counted)
    second = await made.join()
    begun = await made.begun(made.first)
    await made.begun(second)
    await overtaken(counted, awaiting(made, second), made.settle(begun, RESPONSE))
    line = (await made.lines())[1]
    assert (line.status, line.agent_turn_id) == ("canceled", f"turn-of-{second}")


async def test_a_message_canceled_before_its_turn_is_out_does_not_wait(counted: Counting) -> None:
    made = await talk(counted)
    second = await made.join()
    begun = await made.begun(made.first)
    await made.begun(second)
    assert await overtaken(counted, made.settling(begun, RESPONSE), made.wait(second)) is None
    assert (await made.lines())[1].agent_turn_id is None


async def test_a_message_that_joins_a_segment_as_it_ends_goes_to_a_new_one(counted: Counting) -> None:
    made = await talk(counted)
    begun = await made.begun(made.first)
    second = await overtaken(counted, made.settling(begun, RESPONSE), made.join())
    assert (await made.row())["status"] == "open"
    assert await made.begun(second) is not None
    assert len({line.segment_id for line in await made.lines()}) == 2


async def test_a_thread_does_not_end_before_a_message_that_joins_it(counted: Counting) -> None:
    made = await talk(counted)
    begun, send = await made.begun(made.first), message("a", made.ref)
    await overtaken(counted, lambda conn: send_message(conn, send, LIMITS), made.settle(begun, RESPONSE))
    assert (await made.row())["status"] == "open"
    assert [each.message_id for each in (await made.look()).open] == [send.message_id]


async def test_settles_of_one_thread_wait_for_each_other_and_others_do_not(counted: Counting) -> None:
    made, other = await talk(counted), await talk(counted)
    begun = await made.begun(made.first)
    joined = [await made.begun(await made.join()) for _ in range(3)]
    async with in_flight(counted, made.settling(begun, AGAIN)):
        tasks = [asyncio.create_task(made.settle(each, AGAIN)) for each in joined]
        await until_waiting(counted, len(tasks))
        await other.do(RESPONSE)
    versions = [(await task).version for task in tasks]
    assert len(set(versions)) == 3
    assert (await made.row())["message_count"] == 8


class Hammer:
    """Workers that take up whatever is open in one thread, and settle it by dice, often twice."""

    def __init__(self, made: Talk, dice: random.Random, end: float) -> None:
        self.made = made
        self.dice = dice
        self.end = end

    def effect(self) -> Effect:
        """Mostly what keeps a conversation going."""
        late = Respond("<late/>", system=True, expired=True)
        return self.dice.choice([forward("b"), forward("c"), AGAIN, AGAIN, RESPONSE, RESPONSE, late, NoMessage()])

    async def work(self) -> None:
        """Until the end, and then until nothing is open."""
        while (found := (await self.made.look()).open) or time.monotonic() < self.end:
            if not found:
                await asyncio.sleep(0.01)
                continue
            name = self.dice.choice(found[:3]).message_id
            begun = await self.made.begin(name)
            if begun is None:
                continue
            if self.dice.random() < 0.3:
                await self.made.wait(name)
            ends = time.monotonic() > self.end
            effects = [RESPONSE if ends else self.effect() for _ in range(self.dice.choice([1, 1, 2]))]
            await asyncio.gather(*(self.made.settle(begun, effect) for effect in effects))

    async def ask(self) -> list[MessageId]:
        """Messages from outside, as many as the thread takes."""
        asked: list[MessageId] = []
        while time.monotonic() < self.end:
            try:
                asked.append(await self.made.join(self.dice.choice("ab")))
            except Refused:
                await asyncio.sleep(0.01)
        return asked


async def test_whatever_happens_at_once_every_request_is_answered_once(
    counted: Counting, open_pool: Callable[..., Pool], hammer_seconds: float
) -> None:
    """Threads are hammered until each way to an answer was gone: a busy machine comes by fewer of them in a second."""
    seed, reasons = time.time_ns(), set[str]()
    dice = random.Random(seed)  # noqa: S311 -- dice
    for _ in range(20):
        made = await talk(counted, limits=ThreadLimits(max_open=8, max_hops=12, max_messages=1_000_000))
        hammer = Hammer(made, dice, time.monotonic() + hammer_seconds / 3)
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(hammer.work())
            asks = [group.create_task(hammer.ask()) for _ in range(2)]
        asked = {made.first, *(name for task in asks for name in task.result())}
        answers = await made.answers()
        assert ({answer.request_id for answer in answers}, len(answers)) == (asked, len(asked)), seed
        assert (await made.row())["status"] == "ended"
        reasons |= {answer.reason.value for answer in answers}
        if reasons >= {"responded", "pruned", "ended"}:
            return
    raise AssertionError((seed, reasons))
