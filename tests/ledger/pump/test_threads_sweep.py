"""Conversations as the safety net, the tellers of answers and the enders of turns find them (protocol §8, §9)."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.ledger.agents import ALICE, BOB, PROJECT, ask, begin, finish, play, rows, start
from tests.support.pump.pump import assert_threads
from tests.support.pump.threads import AGAIN, RESPONSE, Talk, forward, new_ref, talk
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.thread_views import (
    list_canceled_turns,
    list_ended_messages,
    list_late_replies,
    list_open_threads,
    list_replies,
    list_stalled_threads,
    mark_replied,
    messages_of_turns,
)
from turnstile.rules.hop import NoMessage, Respond
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, ProjectId
from turnstile.schema.pump.threads import MessageId, ThreadId, ThreadRef
from turnstile.schema.wire import headers

HERE = "here"
TRACE = "1" * 32


@pytest.fixture(autouse=True)
async def threads_hold(agents: Pool) -> AsyncIterator[None]:
    """What must hold of all threads holds when the test ends."""
    yield
    async with agents.connection() as conn:
        await assert_threads(conn)


async def talk_here(pool: Pool, to: str = "a") -> Talk:
    """A thread of the target that is asked for."""
    return await talk(pool, to, thread=new_ref(worker_target=HERE), joins=False)


async def hop(made: Talk, name: MessageId, agent: AgentId = ALICE, *, seconds: float = 60) -> AgentTurnId:
    """The message is begun, and a turn of the agent is out for it."""
    await made.begun(name)
    reply = (await ask(made.pool, agent, correlation_id=name)).reply
    assert reply.agent_turn_id is not None
    assert reply.output_box_id is not None
    turn, box = reply.agent_turn_id, reply.output_box_id
    await record(made, name, turn, box, seconds)
    return turn


async def record(made: Talk, name: MessageId, turn: AgentTurnId, box: BoxId, seconds: float) -> None:
    """await_turn of a turn that was enqueued."""
    assert await made.wait(name, seconds, box, turn) == turn


async def stalled(pool: Pool, *targets: str, older: float = 0, limit: int = 9) -> list[ThreadId]:
    found = await pool.run(
        lambda conn: list_stalled_threads(conn, targets or (HERE,), older_seconds=older, row_limit=limit)
    )
    return sorted(each.thread_id for each in found)


async def still_open(
    pool: Pool, after: ThreadId | None = None, *, older: float = -1, limit: int = 9
) -> list[ThreadRef]:
    return await pool.run(
        lambda conn: list_open_threads(conn, [HERE], after=after, older_seconds=older, row_limit=limit)
    )


async def canceled_turns(pool: Pool, *targets: str) -> set[AgentTurnId]:
    found = await pool.run(lambda conn: list_canceled_turns(conn, targets or (HERE,), row_limit=9))
    return {each.agent_turn_id for each in found}


# Turns.


async def test_the_end_of_a_turn_is_found_with_its_message(agents: Pool) -> None:
    made = await talk_here(agents)
    turn = await hop(made, made.first)
    for turns in ([], [AgentTurnId("nosuch")]):
        assert await agents.run(lambda conn, turns=turns: messages_of_turns(conn, turns)) == []
    [found] = await agents.run(lambda conn: messages_of_turns(conn, [turn, AgentTurnId("nosuch")]))
    assert ThreadRef.model_validate(found.model_dump()) == made.ref
    assert found.message_id == made.first
    assert not (await made.look()).open[0].is_due
    await play(agents)
    assert (await made.look()).open[0].is_due  # although nobody has heard of it
    begun = await made.begun(made.first)
    assert (begun.was, begun.outcome, begun.error_code) == ("waiting", "success", None)
    assert begun.deliverable == {"__type__": "TextContent", "text": "so be it"}
    await made.settle(begun, RESPONSE)
    assert await agents.run(lambda conn: messages_of_turns(conn, [turn])) == []


async def test_a_hop_below_an_agent_names_its_turn_and_agent(agents: Pool) -> None:
    made = await talk_here(agents)
    turn = await hop(made, made.first)
    await play(agents)
    below = await made.do(forward("b", turn=turn), made.first)
    begun = await made.begun(below)
    assert (begun.caller_turn_id, begun.caller_agent_id) == (turn, ALICE)


async def test_turns_of_canceled_messages_are_listed_until_they_are_over(agents: Pool) -> None:
    made = await talk_here(agents)
    in_hand, queued, other = await made.join(), await made.join(), await made.join("other")
    turns = [await hop(made, in_hand), await hop(made, queued)]
    kept = await hop(made, other, BOB)
    assert await canceled_turns(agents) == set()
    await made.do(RESPONSE, made.first)
    assert await canceled_turns(agents) == set(turns)
    assert await canceled_turns(agents, "elsewhere") == set()
    listed = await agents.run(lambda conn: list_canceled_turns(conn, [HERE], row_limit=1))
    assert [(each.project_id, each.channel_id) for each in listed] == [(PROJECT, made.ref.channel_id)]
    stop = listed[0].stop("enough")
    assert stop.subject == "cg.v1r4.p1.public.cmd.sys.bridge.stop"
    assert json.loads(stop.payload) == {"agent_turn_id": listed[0].agent_turn_id, "reason": "enough"}
    await play(agents)
    assert await canceled_turns(agents) == {turns[1]}
    turn = await start(agents)
    await begin(agents, turn)
    assert await canceled_turns(agents) == {turns[1]}
    await finish(agents, turn)
    assert await canceled_turns(agents) == set()
    assert kept not in turns


async def test_what_a_message_ended_is_listed_with_its_turns(agents: Pool) -> None:
    made = await talk_here(agents)
    asked, running, waiting, new = [await made.join() for _ in range(4)]
    turn = await hop(made, asked)
    await made.begun(running)
    below = await made.do(AGAIN, waiting)
    await made.do(RESPONSE, made.first)

    async def ended(project: ProjectId, by: MessageId) -> list[tuple[MessageId, AgentTurnId | None, bool]]:
        found = await agents.run(lambda conn: list_ended_messages(conn, project, by))
        return [(each.message_id, each.agent_turn_id, each.is_in_hand) for each in found]

    expected = [(asked, turn, False), (running, None, True), (below, None, False)]
    assert await ended(PROJECT, made.first) == expected
    assert await ended(ProjectId("p2"), made.first) == []
    assert await ended(PROJECT, new) == []


async def test_a_late_turn_is_ended_by_its_own_message(agents: Pool) -> None:
    made = await talk_here(agents)
    turn = await hop(made, made.first, seconds=0)
    await made.settle(await made.begun(made.first), Respond("<late/>", system=True, expired=True))
    [found] = await agents.run(lambda conn: list_ended_messages(conn, PROJECT, made.first))
    assert found.agent_turn_id == turn
    assert await canceled_turns(agents) == {turn}
    assert await made.replies() == {made.first: "undelivered"}


# Rules.


async def test_a_thread_is_stalled_while_nobody_begins_its_message(agents: Pool) -> None:
    made = await talk_here(agents)
    assert await stalled(agents) == [made.ref.thread_id]
    assert await stalled(agents, older=60) == []
    assert await stalled(agents, "elsewhere") == []
    begun = await made.begun(made.first)
    assert await stalled(agents) == []  # its worker is the engine's business
    await made.settle(begun, AGAIN)
    assert await stalled(agents) == [made.ref.thread_id]
    await made.do(RESPONSE)
    assert await stalled(agents) == []


async def test_a_thread_is_stalled_when_its_turn_is_over_or_late(agents: Pool) -> None:
    over, late, on_time = [await talk_here(agents) for _ in range(3)]
    await hop(over, over.first)
    await play(agents)
    await hop(late, late.first, BOB, seconds=0)
    await hop(on_time, on_time.first, BOB)
    assert await stalled(agents) == sorted([over.ref.thread_id, late.ref.thread_id])
    assert await stalled(agents, older=60) == []
    assert len(await stalled(agents, limit=1)) == 1
    await over.do(RESPONSE, over.first)
    await late.settle(await late.begun(late.first), Respond("<late/>", system=True, expired=True))
    assert await stalled(agents) == []


async def test_a_thread_is_listed_once_however_much_of_it_stalls(agents: Pool) -> None:
    made = await talk_here(agents)
    await made.join()
    await made.join("b")
    assert await stalled(agents) == [made.ref.thread_id]


async def test_open_threads_are_listed_in_pages(agents: Pool) -> None:
    threads = sorted([(await talk_here(agents)).ref for _ in range(5)], key=lambda ref: ref.thread_id)
    await talk(agents)
    over = await talk_here(agents)
    await over.do(RESPONSE)
    assert await still_open(agents) == threads
    pages: list[ThreadRef] = []
    while page := await still_open(agents, pages[-1].thread_id if pages else None, limit=2):
        pages += page
    assert pages == threads
    assert await still_open(agents, older=60) == []


# Answers.


async def test_answers_are_listed_until_they_are_told(agents: Pool) -> None:
    made = await talk(
        agents,
        thread=new_ref(worker_target=HERE),
        joins=False,
        reply_to="_INBOX.x",
        correlation_id="mine",
        context_headers={"traceparent": f"00-{TRACE}-{'2' * 16}-01"},
    )
    second = await made.join()
    await made.begun(second)
    await made.do(Respond("<done>\u00e9</done>"), made.first)
    other = await talk_here(agents)
    await other.do(NoMessage())
    first, ended = await agents.run(lambda conn: list_replies(conn, made.ref.thread_id))
    assert (first.request_id, first.kind, first.reason, first.from_id) == (made.first, "reply", "responded", "a")
    assert (ended.request_id, ended.kind, ended.reason, ended.payload) == (second, "ended", "pruned", None)
    event, copy = first.event("worker.x"), first.copy_to_requester("worker.x")
    assert copy is not None
    assert copy.subject == "_INBOX.x"
    assert event.subject == "cg.v1r4.p1.public.evt.sys.pump.reply"
    assert (
        json.loads(event.payload)
        == json.loads(copy.payload)
        == {
            "thread_id": made.ref.thread_id,
            "message_id": made.first,
            "correlation_id": "mine",
            "kind": "reply",
            "reason": "responded",
            "from": "a",
            "payload": "<done>\u00e9</done>",
            "payload_card_id": f"{made.first}-reply-payload",
        }
    )
    assert event.headers[headers.MSG_ID] == f"reply-{made.first}"
    assert headers.MSG_ID not in copy.headers
    assert event.headers["traceparent"].split("-")[1] == TRACE
    assert event.headers[headers.THREAD_ID] == made.ref.thread_id
    assert ended.copy_to_requester("worker.x") is None
    assert len(await agents.run(lambda conn: list_replies(conn, made.ref.thread_id, row_limit=1))) == 1
    marked = await agents.run(lambda conn: mark_replied(conn, [first.request_id, MessageId("nosuch")]))
    assert marked == {first.request_id}
    assert await agents.run(lambda conn: list_replies(conn, made.ref.thread_id)) == [ended]
    told = await rows(agents, "SELECT announced_at FROM state.thread_replies WHERE request_id = $1", made.first)
    marked = await agents.run(lambda conn: mark_replied(conn, [first.request_id, ended.request_id]))
    assert marked == {ended.request_id}
    assert told == await rows(agents, "SELECT announced_at FROM state.thread_replies WHERE request_id = $1", made.first)
    assert await agents.run(lambda conn: list_replies(conn, made.ref.thread_id)) == []


async def test_late_answers_are_listed_for_their_target(agents: Pool) -> None:
    made, other = await talk_here(agents), await talk(agents)
    await made.do(RESPONSE)
    await other.do(RESPONSE)

    async def late(target: str, older: float, limit: int = 9) -> list[MessageId]:
        found = await agents.run(lambda conn: list_late_replies(conn, [target], older_seconds=older, row_limit=limit))
        return [each.request_id for each in found]

    assert await late(HERE, 0) == [made.first]
    assert await late(HERE, 60) == []
    assert await late(HERE, 0, limit=0) == []
    assert await late("elsewhere", 0) == []
    await agents.run(lambda conn: mark_replied(conn, [made.first]))
    assert await late(HERE, 0) == []
