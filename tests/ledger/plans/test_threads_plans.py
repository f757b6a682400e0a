"""Statements on conversations touch as much of a long thread, among many that are over, as of a new one.

As in `test_plans`: planned while the tables are empty, and nothing is analyzed afterwards.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.ledger.plans.test_plans import FILL as TURNS
from tests.ledger.plans.test_plans import Explained, Explaining, assert_cheap
from tests.support.databases import Databases
from tests.support.ledger.agents import ALICE, BOB, PROJECT, add_agents, ask, drain, play
from tests.support.pump.threads import RESPONSE, Talk, message, new_ref, sent_by
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.schema.ids import new_box_id, uuid7
from turnstile.schema.pump.threads import MessageId, ThreadId

PAST = 20_000
TARGETS = ["here"]
LONG = new_ref(thread_id=ThreadId("long"), worker_target="here")
"""A thread with a past: half of all messages are its own."""
OF = "CASE WHEN n % 2 = 0 THEN 'long' ELSE 'th' || n % 4000 END"
FILL = [
    *(
        statement
        for statement in TURNS
        if any(table in statement for table in (".agent_inbox", ".turn_outcomes", ".cards"))
    ),
    """INSERT INTO state.threads (thread_id, project_id, channel_id, worker_target, requester, status, updated_at)
    SELECT 'th' || n, 'p1', 'public', 'here', 'user.anna', 'ended', now() - interval '1 day'
    FROM generate_series(0, $1::int / 5) n""",
    f"""INSERT INTO state.thread_segments (segment_id, thread_id, lineage, listener, status)
    SELECT 'sg' || n, {OF}, ARRAY['sg' || n], 'a', 'pruned' FROM generate_series(1, $1::int) n""",  # noqa: S608
    f"""INSERT INTO state.thread_messages (message_id, thread_id, project_id, number, request_id, hop, segment_id,
    from_id, kind, payload_card_id, status, agent_turn_id, ended_by, correlation_id, created_at)
    SELECT 'pm' || n, {OF}, 'p1', n, 'pm' || n, 0, 'sg' || n, 'user.anna', 'request', 'c' || n,
    CASE WHEN n % 10 < 2 THEN 'canceled' ELSE 'handled' END, 't' || n, CASE WHEN n % 10 < 2 THEN 'pm' || n - 1 END,
    'o' || n, now() - interval '1 day' FROM generate_series(1, $1::int) n""",  # noqa: S608
    f"""INSERT INTO state.thread_replies (request_id, thread_id, kind, reason, payload_card_id, announced_at)
    SELECT 'pm' || n, {OF}, 'reply', 'responded', 'c' || n, now() FROM generate_series(1, $1::int) n""",  # noqa: S608
]
Statement = Callable[[Connection], Awaitable[object]]


@dataclass(frozen=True)
class Live:
    """What is going on in the long thread when the statements run."""

    pending: MessageId
    begun: MessageId
    waiting: MessageId
    ended: MessageId
    """It was answered, which nobody knows yet, and ended another one, whose turn goes on."""
    segment: str
    turn: str


async def live(pool: Pool) -> Live:
    """Two top segments: in one messages of every status; the other has ended, and taken an agent's turn with it."""
    made = Talk(pool, LONG, MessageId(""))
    ended, lost = await made.join("b"), await made.join("b")
    for name in (lost, waiting := await made.join()):
        await made.begun(name)
    await ask(pool, ALICE, correlation_id=lost)
    reply = (await ask(pool, BOB, correlation_id=waiting)).reply
    assert await made.wait(waiting, 0, reply.output_box_id, reply.agent_turn_id)
    await play(pool, BOB)
    await made.do(RESPONSE, ended)
    begun = await made.join()
    await made.begun(begun)
    pending = await made.join()
    segment = next(line.segment_id for line in reversed(await made.lines()) if line.message_id == pending)
    return Live(pending, begun, waiting, ended, segment, str(reply.agent_turn_id))


def statements(now: Live) -> Mapping[str, Statement]:
    """Every statement of a send, a hop and the safety net, in an order in which each has something to do."""
    thread: dict[str, Any] = {"project_id": PROJECT, "thread_id": LONG.thread_id}
    alone = {"thread_id": LONG.thread_id}
    rules = {"worker_targets": TARGETS, "row_limit": 9}
    served = {"listeners": ["a", "b"], "payloads": [], "silent_seconds": 300}
    begins = {**thread, "begun_by": uuid7(), **served}
    ends = {**alone, "message_id": now.begun, "status": "handled", "effect": "respond", "ended_by": None}
    prunes = {**alone, "segment_id": now.segment, "fresh_segment_id": uuid7(), "ended_by": now.begun}
    waits = {"agent_turn_id": "t", "output_box_id": new_box_id(), "deadline_seconds": 9}
    sends = {**alone, "message_id": uuid7(), "request_id": now.begun, "cause_id": now.begun, "hop": 1}
    outside = dict.fromkeys(("correlation_id", "request_digest", "reply_to", "context_headers"))
    placed = {"segment_id": now.segment, "from_id": "a", "kind": "self", "payload_card_id": "c", **outside}
    given: dict[str, dict[str, Any]] = {
        "find_message": {"correlation_id": now.pending, "project_id": PROJECT},
        "lock_thread": thread,
        "count_open_messages": alone,
        "top_segment": {**alone, "listener": "a"},
        "begin_message": {**begins, "message_id": now.pending},
        "own_box": {"project_id": PROJECT, "segment_id": now.segment, "new_box_id": new_box_id()},
        "await_turn": {**thread, **waits, "message_id": now.begun},
        "end_message": ends,
        "add_message": {**sends, **placed},
        "prune_segment": prunes,
        "close_requests": {**alone, "request_ids": [now.begun, now.ended], "reason": "pruned"},
        "close_thread": {**alone, "reason": "responded"},
        "look_at_thread": {**thread, "row_limit": 50},
        "list_ended_messages": {"project_id": PROJECT, "ended_by": now.ended},
        "list_replies": {**alone, "row_limit": 9},
        "list_late_replies": {**rules, "older_seconds": -9},
        "mark_replied": {"request_ids": [now.ended]},
        "messages_of_turns": {"agent_turn_ids": [now.turn]},
        "list_canceled_turns": rules,
        "list_stalled_threads": {**rules, "older_seconds": -9},
        "find_request": {"message_id": now.begun, "segment_id": now.segment},
        "list_unserved": {**rules, "older_seconds": -9, "silent_seconds": 30},
        "list_open_threads": {**rules, "older_seconds": -9, "after_thread_id": ""},
    }
    return {name: partial(query(name).many, **arguments) for name, arguments in given.items()}


NOBODY = MessageId("")
NAMES = list(statements(Live(NOBODY, NOBODY, NOBODY, NOBODY, "", "")))


@dataclass(frozen=True)
class Old:
    """A session that has known its database since it was empty, and what goes on there now."""

    session: Explaining
    now: Live


@pytest.fixture(scope="module")
async def old(databases: Databases, migrated: str) -> AsyncIterator[Old]:
    """Each statement is planned while the database is empty; then it gets its past."""
    name = await databases.create(migrated)
    pool = Pool(databases.url(name), size=3)
    await add_agents(pool, ALICE, BOB)
    async with pool.connection() as conn:
        session = Explaining(conn)
        await sent_by(pool, message("a", LONG, joins=False))
        first = await live(pool)
        for statement in statements(first).values():
            await statement(session)
        await drain(pool)
        async with pool.connection() as filling:
            for fill in ("SET session_replication_role = replica", *FILL, "SET session_replication_role = origin"):
                await filling.fetch(fill, *([PAST] if "$1" in fill else []))
        session.explains = True
        yield Old(session, await live(pool))
    await pool.close()
    await databases.drop(name)


@pytest.mark.parametrize("name", NAMES)
async def test_a_statement_does_not_read_the_past(old: Old, name: str) -> None:
    with pytest.raises(Explained):
        await statements(old.now)[name](old.session)
    assert_cheap(old.session.plan)
