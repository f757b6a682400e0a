"""Conversations in the ledger (protocol §9): what is sent, begun and settled, and what each effect makes of a chain."""

from collections.abc import AsyncIterator

import pytest

from tests.support.databases import Databases
from tests.support.ledger.agents import PROJECT, rows, value
from tests.support.pump.pump import assert_threads
from tests.support.pump.threads import AGAIN, RESPONSE, USER, Talk, forward, message, new_ref, sent_by, talk
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.hops import settle_message
from turnstile.ledger.pump.thread_views import find_thread, list_replies, list_threads
from turnstile.ledger.pump.threads import SHOWN, ThreadLimits, look_at_thread
from turnstile.ledger.queries import Connection
from turnstile.rules.hop import Iterate, NoMessage, Respond
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import ChannelId, ProjectId, new_box_id, uuid7
from turnstile.schema.pump.threads import MessageId, ThreadId
from turnstile.temporal.converters import PAYLOAD_LIMIT_BYTES

FEW = ThreadLimits(max_messages=5, max_hops=3, max_open=2)


@pytest.fixture(scope="module")
async def pool(databases: Databases, migrated: str) -> AsyncIterator[Pool]:
    """One database for all threads of this module, which do not meet; what must hold of all of them is asked last."""
    name = await databases.create(migrated)
    made = Pool(databases.url(name), name="test")
    yield made
    async with made.connection() as conn:
        await assert_threads(conn)
    await made.close()
    await databases.drop(name)


# Sending.


async def test_a_message_opens_a_thread(pool: Pool) -> None:
    send = message("a", payload="<a>hello</a>", context_headers={"traceparent": "00-1-2-01"}, reply_to="_INBOX.x")
    sent = await sent_by(pool, send)
    assert sent.thread == send.thread
    assert (sent.message_id, sent.duplicate) == (send.message_id, False)
    made = Talk(pool, sent.thread, sent.message_id)
    assert await made.shape() == ["user.anna > a request pending"]
    row = await made.row()
    assert (row["status"], row["requester"], row["message_count"], row["version"]) == ("open", USER, 1, 1)
    look = await made.look()
    assert [(each.message_id, each.status, each.listener) for each in look.open] == [(made.first, "pending", "a")]
    assert (look.open_count, look.chains) == (1, ("user.anna.a",))
    kept = "SELECT c.metadata ->> 'type' FROM cards c JOIN state.thread_messages m ON m.payload_card_id = c.card_id"
    assert await value(pool, f"{kept} WHERE m.message_id = $1", made.first) == "pump.message"
    begun = await made.begun(made.first)
    assert begun.model_dump(include={"payload", "from_id", "kind", "hop", "depth", "requester", "listener"}) == {
        "payload": "<a>hello</a>",
        "from_id": USER,
        "kind": "request",
        "hop": 0,
        "depth": 1,
        "requester": USER,
        "listener": "a",
    }
    assert begun.context_headers == {"traceparent": "00-1-2-01"}
    assert begun.parent_id is begun.parent_listener is begun.output_box_id is begun.caller_turn_id is None


async def test_a_message_joins_the_top_segment_of_its_listener_or_opens_one(pool: Pool) -> None:
    made = await talk(pool)
    await made.do(forward("b"))
    await made.join("a")
    await made.join("b")
    await made.join("b")
    lines = await made.lines()
    first, below, joined, other, again = (line.segment_id for line in lines)
    assert first == joined
    assert other == again
    assert len({first, below, other}) == 3
    assert [line.chain for line in lines] == [f"user.anna.{chain}" for chain in ("a", "a.b", "a", "b", "b")]


@pytest.mark.parametrize(
    "changed",
    [
        {"requester": "user.other"},
        {"channel_id": ChannelId("private")},
        {"project_id": ProjectId("p2")},
        {"thread_id": ThreadId("nosuch")},
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_a_thread_that_is_not_the_requesters_own_is_unknown(pool: Pool, changed: dict[str, str]) -> None:
    made = await talk(pool)
    requester = {name: text for name, text in changed.items() if name == "requester"}
    ref = made.ref.model_copy(update={name: text for name, text in changed.items() if name != "requester"})
    with pytest.raises(Refused, match=r"^there is no such thread of yours$") as refused:
        await sent_by(pool, message("a", ref, **requester))
    assert refused.value.code == "unknown_thread"
    assert len(await made.lines()) == 1


async def test_a_repeat_is_the_message_that_was_sent(pool: Pool) -> None:
    send = message(correlation_id=uuid7())
    sent = await sent_by(pool, send)
    lost = await sent_by(pool, send)  # whose answer nobody heard
    assert lost == sent
    assert not lost.duplicate
    repeat = await sent_by(pool, message(correlation_id=send.correlation_id))
    assert (repeat.thread, repeat.message_id, repeat.duplicate) == (sent.thread, sent.message_id, True)
    made = Talk(pool, sent.thread, sent.message_id, FEW)
    joined = message("a", made.ref, correlation_id=uuid7())
    await sent_by(pool, joined, FEW)
    again = await sent_by(pool, message("a", made.ref, correlation_id=joined.correlation_id), FEW)
    assert (again.message_id, again.duplicate) == (joined.message_id, True)  # although the thread is full by now
    with pytest.raises(Refused, match="2 messages in flight"):
        await made.join()
    assert len(await made.lines()) == 2


async def test_a_correlation_with_other_content_is_a_conflict(pool: Pool) -> None:
    send = message(correlation_id=uuid7())
    made = await sent_by(pool, send)
    for thread in (None, made.thread):
        with pytest.raises(Refused) as refused:
            await sent_by(pool, message("a", thread, correlation_id=send.correlation_id, request_digest="other"))
        assert refused.value.code == "correlation_conflict"
    elsewhere = new_ref(project_id="p2")
    other = await sent_by(pool, message("a", correlation_id=send.correlation_id, thread=elsewhere, joins=False))
    assert other.message_id != made.message_id


async def test_a_full_thread_is_busy(pool: Pool) -> None:
    made = await talk(pool, limits=FEW)
    second = await made.join()
    before = await made.row()
    with pytest.raises(Refused, match=r"2 messages in flight, 2 in all") as refused:
        await made.join("b")
    assert refused.value.code == "busy"
    assert await made.row() == before
    await made.do(NoMessage(), second)
    for _ in range(3):
        await made.do(NoMessage(), await made.join())
    with pytest.raises(Refused, match=r"1 messages in flight, 5 in all"):
        await made.join()


async def test_text_that_cannot_be_stored_leaves_nothing(pool: Pool) -> None:
    for send in (message(payload="nu\0l"), message("nu\0l")):
        with pytest.raises(BadRequest):
            await sent_by(pool, send)
        assert await pool.run(lambda conn, ref=send.thread: find_thread(conn, ref.project_id, ref.thread_id)) is None


# Beginning.


async def test_each_run_that_begins_a_message_is_an_attempt(pool: Pool) -> None:
    made = await talk(pool)
    first = await made.begin(made.first, run="one")
    repeat = await made.begin(made.first, run="one")  # the answer was lost
    assert first is not None
    assert repeat is not None
    assert (first.was, first.attempt) == ("pending", 1)
    assert (repeat.was, repeat.attempt) == ("handling", 1)
    second = await made.begun(made.first)
    assert (second.was, second.attempt) == ("handling", 2)
    await made.settle(second, NoMessage())
    assert await made.begin(made.first) is None
    assert await made.begin(MessageId("nosuch")) is None


async def test_a_message_that_waits_for_a_turn_is_no_attempt(pool: Pool) -> None:
    made = await talk(pool)
    await made.begun(made.first)
    box = new_box_id()
    turn = await made.wait(made.first, 60, box)
    begun = await made.begun(made.first)
    assert (begun.was, begun.attempt, begun.agent_turn_id, begun.output_box_id) == ("waiting", 1, turn, box)
    assert (begun.is_overdue, begun.outcome) == (False, None)
    deadline = begun.deadline
    await made.wait(made.first, 1000, box)
    assert (await made.begun(made.first)).deadline == deadline  # a repeat does not put it off
    await made.settle(begun, NoMessage())
    assert await made.wait(made.first) is None


async def test_a_late_turn_is_overdue(pool: Pool) -> None:
    made = await talk(pool)
    await made.begun(made.first)
    await made.wait(made.first, 0)
    assert (await made.begun(made.first)).is_overdue


async def test_a_waiting_message_is_not_begun_by_others(pool: Pool) -> None:
    """await_turn is for a message that was begun."""
    made = await talk(pool)
    assert await made.wait(made.first) is None
    assert await made.shape() == ["user.anna > a request pending"]


@pytest.mark.parametrize("field", ["project_id", "thread_id"])
async def test_a_message_is_reached_in_its_own_thread_only(pool: Pool, field: str) -> None:
    """Whoever knows the id of a message of another project, or of another thread, can do nothing with it."""
    made, other = await talk(pool), await talk(pool)
    wrong = "p2" if field == "project_id" else other.ref.thread_id
    stranger = Talk(pool, made.ref.model_copy(update={field: wrong}), made.first)
    assert await stranger.begin(made.first) is None
    begun = await made.begun(made.first)
    before = await made.row()
    assert await stranger.wait(made.first) is None
    for effect in (NoMessage(), RESPONSE, AGAIN, forward("b")):
        await stranger.settle(begun, effect)
    assert await made.row() == before
    assert await made.shape() == ["user.anna > a request handling"]
    if field == "project_id":
        look = await stranger.look()
        assert (look.open, look.open_count, look.chains) == ((), 0, ())


async def test_a_thread_that_is_gone_has_nothing_open(pool: Pool) -> None:
    """So that a workflow of one that retention took away ends, whatever it heard before."""
    made = await talk(pool)
    before = await made.look()
    await rows(pool, "DELETE FROM state.threads WHERE thread_id = $1", made.ref.thread_id)
    gone = await made.look()
    assert gone.open == ()
    assert gone.version > before.version


async def test_what_belongs_to_a_thread_goes_with_it(pool: Pool) -> None:
    made = await talk(pool)
    await made.do(forward("b"))
    await made.do(RESPONSE, await made.do(RESPONSE))
    await rows(pool, "DELETE FROM state.threads WHERE thread_id = $1", made.ref.thread_id)
    for table in ("segments", "messages", "replies"):
        left = f"SELECT count(*) FROM state.thread_{table} WHERE thread_id = $1"  # noqa: S608 -- three names
        assert await value(pool, left, made.ref.thread_id) == 0


# Settling.


async def test_a_forward_opens_a_segment_below(pool: Pool) -> None:
    made = await talk(pool)
    below = await made.do(forward("b", turn="t1"))
    begun = await made.begun(below)
    assert (begun.kind, begun.from_id, begun.parent_listener, begun.depth, begun.hop) == ("request", "a", "a", 2, 1)
    assert begun.caller_turn_id == "t1"
    assert begun.request_id == made.first
    third = await made.begun(await made.do(forward("c"), below))
    assert third.caller_turn_id == "t1"  # of the nearest agent above
    await made.do(forward("a"), third.message_id)
    assert (await made.lines())[-1].chain == "user.anna.a.b.c.a"
    assert len({line.segment_id for line in await made.lines()}) == 4
    assert (await made.look()).chains == tuple(f"user.anna.{chain}" for chain in ("a", "a.b", "a.b.c", "a.b.c.a"))
    assert await made.replies() == {}


async def test_every_forward_opens_a_segment_of_its_own(pool: Pool) -> None:
    made = await talk(pool)
    back = await made.do(RESPONSE, await made.do(forward("b")))
    again = await made.do(forward("b"), back)
    first, second = [line.segment_id for line in await made.lines() if line.chain.endswith("a.b")]
    assert first != second
    assert (await made.begun(again)).output_box_id is None


async def test_a_self_call_stays_in_its_place(pool: Pool) -> None:
    made = await talk(pool)
    below = await made.do(forward("b"))
    again = await made.do(AGAIN, below)
    told = await made.do(Iterate("<error/>", system=True), again)
    assert await made.shape() == [
        "user.anna > a request forward",
        "a > a.b request self",
        "b > a.b self self",
        "system > a.b system pending",
    ]
    assert len({line.segment_id for line in (await made.lines())[1:]}) == 1
    await made.do(RESPONSE, told)
    assert (await made.shape())[-1] == "b > a response pending"


async def test_a_settlement_says_what_it_did_and_a_repeat_that_it_did_nothing(pool: Pool) -> None:
    made = await talk(pool)
    below = await made.do(forward("b"))
    mine = await made.join()
    await made.begun(below)
    begun = await made.begun(mine)
    settled = [
        await pool.transact(lambda conn: settle_message(conn, made.ref, begun, RESPONSE, made.limits)) for _ in range(2)
    ]
    assert [(each.effect, each.canceled) for each in settled] == [("respond", 1), (None, 0)]
    assert settled[1].thread == await made.look()


async def test_what_joins_a_thread_has_its_own_context(pool: Pool) -> None:
    ours, theirs = {"traceparent": "00-1-2-01"}, {"traceparent": "00-3-4-01"}
    made = await talk(pool, context_headers=ours)
    joined = await made.join("b", context_headers=theirs)
    mine, theirs_below = await made.do(forward("c"), made.first), await made.do(forward("c"), joined)
    assert (await made.begun(mine)).context_headers == ours
    assert (await made.begun(theirs_below)).context_headers == theirs
    for name in (mine, theirs_below):
        await made.do(RESPONSE, await made.do(RESPONSE, name))
    replies = await pool.run(lambda conn: list_replies(conn, made.ref.thread_id))
    assert {reply.request_id: reply.context_headers for reply in replies} == {made.first: ours, joined: theirs}


async def test_a_response_goes_to_the_caller_and_ends_its_segment(pool: Pool) -> None:
    made = await talk(pool)
    last = await made.do(forward("c"), await made.do(forward("b")))
    back = await made.do(RESPONSE, last)
    assert (await made.look()).chains == ("user.anna.a", "user.anna.a.b")
    await made.do(Respond("<error/>", system=True), back)
    assert await made.shape() == [
        "user.anna > a request forward",
        "a > a.b request forward",
        "b > a.b.c request respond",
        "c > a.b response respond",
        "b > a system pending",
    ]
    assert await made.replies() == {}
    await made.do(RESPONSE)
    [answer] = await made.answers()
    assert (answer.request_id, answer.kind, answer.reason, answer.from_id) == (made.first, "reply", "responded", "a")
    assert answer.payload == "<done/>"
    row = await made.row()
    assert (row["status"], row["end_reason"]) == ("ended", "responded")
    look = await made.look()
    assert (look.open, look.chains) == ((), ())


async def test_a_message_of_the_pump_at_the_top_is_the_answer(pool: Pool) -> None:
    made = await talk(pool)
    await made.do(Respond("<huh/>", system=True))
    [answer] = await made.answers()
    assert (answer.kind, answer.reason, answer.payload) == ("reply", "undelivered", "<huh/>")


async def test_a_request_that_comes_to_nothing_hears_that_it_ended(pool: Pool) -> None:
    made = await talk(pool)
    await made.do(NoMessage(), await made.do(forward("b")))
    [answer] = await made.answers()
    assert (answer.kind, answer.reason, answer.payload, answer.from_id) == ("ended", "ended", None, None)
    row = await made.row()
    assert (row["status"], row["end_reason"]) == ("ended", "ended")
    assert row["ended_at"] is not None
    assert (await made.look()).chains == ()


async def test_a_response_ends_all_that_is_below_whoever_asked(pool: Pool) -> None:
    """Three requests joined one segment; the answer to one of them ends what another had under way below."""
    made = await talk(pool)
    second, third = await made.join(), await made.join()
    deep = await made.do(forward("c"), await made.do(forward("b"), second))
    other = await made.join("other")
    await made.begun(deep)
    await made.do(AGAIN, third)
    await made.do(RESPONSE, made.first)
    shape = await made.shape()
    assert "b > a.b.c request canceled" in shape
    assert "a > a self canceled" in shape
    assert await made.replies() == {made.first: "responded", second: "pruned", third: "pruned"}
    assert [answer.kind for answer in await made.answers()] == ["reply", "ended", "ended"]
    look = await made.look()
    assert [each.message_id for each in look.open] == [other]
    assert look.chains == ("user.anna.other",)
    assert await made.begin(deep) is None
    await made.do(RESPONSE, other)
    assert (await made.row())["status"] == "ended"


async def test_an_answer_that_waits_at_the_segment_is_lost_with_it(pool: Pool) -> None:
    made = await talk(pool)
    second = await made.join()
    await made.do(RESPONSE, await made.do(forward("b"), second))
    await made.do(RESPONSE, made.first)
    assert (await made.shape())[-1] == "b > a response canceled"
    assert await made.replies() == {made.first: "responded", second: "pruned"}
    assert (await made.row())["status"] == "ended"


async def test_requests_that_nobody_had_begun_move_to_a_fresh_segment(pool: Pool) -> None:
    made = await talk(pool)
    second, third, begun = await made.join(), await made.join(), await made.join()
    await made.begun(begun)
    await made.do(RESPONSE, made.first)
    assert await made.replies() == {made.first: "responded", begun: "pruned"}
    look = await made.look()
    assert [(each.message_id, each.status) for each in look.open] == [(second, "pending"), (third, "pending")]
    assert look.chains == ("user.anna.a",)
    segments = {line.message_id: line.segment_id for line in await made.lines()}
    assert segments[second] == segments[third]
    assert segments[second] != segments[made.first] == segments[begun]
    fourth = await made.join()
    assert {line.message_id: line.segment_id for line in await made.lines()}[fourth] == segments[second]
    for each in (second, third, fourth):
        await made.do(NoMessage(), each)
    assert (await made.row())["status"] == "ended"


async def test_no_segment_is_made_where_nothing_moves(pool: Pool) -> None:
    made = await talk(pool)
    other = await made.join("b")
    await made.do(RESPONSE, made.first)
    assert (await made.look()).chains == ("user.anna.b",)
    await made.do(NoMessage(), other)


async def test_what_waits_further_down_does_not_move(pool: Pool) -> None:
    made = await talk(pool)
    second = await made.join()
    await made.do(forward("a"), second)  # a request that nobody begins, but of a segment below
    await made.do(RESPONSE, made.first)
    assert (await made.shape())[-1] == "a > a.a request canceled"
    assert await made.replies() == {made.first: "responded", second: "pruned"}


async def test_a_late_turn_is_canceled_and_its_caller_hears(pool: Pool) -> None:
    made = await talk(pool)
    below = await made.do(forward("b"))
    await made.begun(below)
    await made.wait(below, 0)
    begun = await made.begun(below)
    await made.settle(begun, Respond("<late/>", system=True, expired=True))
    assert await made.shape() == [
        "user.anna > a request forward",
        "a > a.b request timeout canceled",
        "b > a system pending",
    ]
    assert (await made.lines())[1].ended_at is not None
    await made.settle(begun, RESPONSE)  # the turn, after all
    assert len(await made.lines()) == 3


async def test_what_comes_late_changes_nothing(pool: Pool) -> None:
    made = await talk(pool)
    second = await made.join()
    slow = await made.begun(second)
    begun = await made.begun(made.first)
    await made.settle(begun, RESPONSE)
    before, shape = await made.row(), await made.shape()
    for late in (slow, begun):
        for effect in (RESPONSE, NoMessage(), AGAIN, forward("b"), Respond("<x/>", system=True, expired=True)):
            answer = await made.settle(late, effect)
            assert (answer.open, answer.version) == ((), before["version"])
    assert await made.row() == before
    assert await made.shape() == shape
    assert len(await made.answers()) == 2


async def test_too_many_hops_end_a_request(pool: Pool) -> None:
    made = await talk(pool, limits=FEW)
    other = await made.join()
    last = made.first
    for _ in range(3):
        last = await made.do(AGAIN, last)
    await made.do(forward("b"), last)
    assert (await made.shape())[-1] == "a > a self limit"
    assert await made.replies() == {made.first: "limit"}
    assert (await made.row())["status"] == "open"
    await made.do(NoMessage(), other)


async def test_a_response_is_never_one_hop_too_many(pool: Pool) -> None:
    made = await talk(pool, limits=FEW)
    last = made.first
    for name in "bcd":
        last = await made.do(forward(name), last)
    back = await made.do(RESPONSE, last)
    assert (await made.begun(back)).hop == 4
    await made.do(AGAIN, await made.do(RESPONSE, back))
    assert (await made.shape())[-1] == "c > a.b response limit"
    assert await made.replies() == {made.first: "limit"}
    assert (await made.row())["end_reason"] == "limit"


async def test_too_many_messages_end_a_request(pool: Pool) -> None:
    made = await talk(pool, limits=FEW)
    second = await made.join()
    third = await made.do(AGAIN, second)
    await made.do(NoMessage(), third)
    for _ in range(2):
        second = await made.join()
        await made.do(NoMessage(), second)
    await made.do(AGAIN, made.first)
    assert (await made.replies())[made.first] == "limit"
    row = await made.row()
    assert (row["message_count"], row["status"], row["end_reason"]) == (5, "ended", "limit")


async def test_an_ended_thread_is_opened_again_by_a_message(pool: Pool) -> None:
    made = await talk(pool)
    await made.do(RESPONSE)
    before = (await made.lines())[0].segment_id
    second = await made.join()
    row = await made.row()
    assert (row["status"], row["end_reason"], row["ended_at"]) == ("open", None, None)
    assert (await made.lines())[-1].segment_id != before
    assert [each.message_id for each in (await made.look()).open] == [second]
    await made.do(RESPONSE, second)
    assert await made.replies() == {made.first: "responded", second: "responded"}


async def test_the_version_rises_with_every_change(pool: Pool) -> None:
    made = await talk(pool)
    versions = [(await made.look()).version]
    other = await made.join()
    versions.append((await made.look()).version)
    below = await made.do(forward("b"), made.first)
    versions.append((await made.look()).version)
    again = await made.do(AGAIN, below)
    versions.append((await made.look()).version)
    await made.begun(again)
    await made.wait(again)
    versions.append((await made.look()).version)
    versions += [(await made.settle(await made.begun(name), RESPONSE)).version for name in (again, other)]
    assert versions == sorted(set(versions))


# Looking.


async def test_a_look_shows_first_what_is_due(pool: Pool) -> None:
    made = await talk(pool)
    for seconds in (300, 100, 200):
        name = await made.join()
        await made.begun(name)
        await made.wait(name, seconds)
    await made.join()
    open_now = (await made.look()).open
    assert [each.status for each in open_now] == ["pending", "pending", "waiting", "waiting", "waiting"]
    assert open_now[0].message_id == made.first
    deadlines = [each.deadline for each in open_now if each.deadline is not None]
    assert deadlines == sorted(deadlines)
    assert [each.is_due for each in open_now] == [True, True, False, False, False]


async def test_a_look_fits_into_one_payload_however_much_is_open(pool: Pool) -> None:
    """Also where names of no listener at all are long and every character of them is four bytes."""
    name = "n" * 59
    made = await talk(pool, name, requester="r" * 128)
    for number in range(SHOWN):
        to = name if number % 2 else "\U0001f479" * 126 + f"{number}"
        sent = await made.join(to, requester="r" * 128)
        await made.begun(sent)
        if number > SHOWN // 2:
            await made.wait(sent)
    await made.do(forward(name), made.first)
    look = await made.look()
    assert (len(look.open), look.open_count) == (SHOWN, SHOWN + 1)
    now = (await made.row())["created_at"]
    late = tuple(each.model_copy(update={"deadline": now}) for each in look.open)
    full = look.model_copy(update={"canceled": tuple(MessageId(uuid7()) for _ in range(SHOWN)), "open": late})
    assert len(full.model_dump_json()) < PAYLOAD_LIMIT_BYTES
    assert all(len(chain) <= 200 for chain in look.chains)


async def test_threads_are_listed_and_found_by_project(pool: Pool) -> None:
    project = ProjectId(uuid7())
    one = await talk(pool, thread=new_ref(project_id=project), joins=False)
    two = await talk(pool, thread=new_ref(project_id=project), joins=False)
    await one.do(RESPONSE)
    listed = await pool.run(lambda conn: list_threads(conn, project, None, row_limit=9))
    assert [(each.thread_id, each.status, each.open_count, each.message_count) for each in listed] == [
        (two.ref.thread_id, "open", 1, 1),
        (one.ref.thread_id, "ended", 0, 1),
    ]
    assert listed[1].end_reason == "responded"
    only = await pool.run(lambda conn: list_threads(conn, project, "open", row_limit=9))
    assert [each.thread_id for each in only] == [two.ref.thread_id]
    assert len(await pool.run(lambda conn: list_threads(conn, project, None, row_limit=1))) == 1
    assert await pool.run(lambda conn: find_thread(conn, project, one.ref.thread_id)) == listed[1]
    assert await pool.run(lambda conn: find_thread(conn, PROJECT, one.ref.thread_id)) is None
    unknown = new_ref(project_id=project)
    assert (await pool.run(lambda conn: look_at_thread(conn, unknown))).open == ()


async def test_a_message_ends_after_it_was_begun(pool: Pool) -> None:
    """Also one that is begun while a transaction that cancels it is under way."""
    made = await talk(pool)
    second = await made.join()
    first = await made.begun(made.first)

    async def settle(conn: Connection) -> None:
        await made.begun(second)
        await settle_message(conn, made.ref, first, RESPONSE, made.limits)

    await pool.transact(settle)
    for line in await made.lines():
        assert line.begun_at is not None
        assert line.ended_at is not None
        assert line.begun_at <= line.ended_at, line
