"""Agents in several conversations and several messages of one: queues, memories, what a response ends, what it cost."""

import asyncio
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.conditions import until
from tests.support.ledger.invariants import assert_invariants
from tests.support.paths import ROOT
from tests.support.processes.stack import Stack
from tests.support.pump.pump import ORGANISM, Caller, assert_threads, calling_in, pump_config
from tests.support.pump.troupe import (
    ACTORS,
    TROUPE,
    Brief,
    Job,
    Memo,
    Note,
    asked,
    hire,
    play,
    respond,
    send,
    text_in,
    think,
    verdict,
)
from tests.support.tenants import Ended
from tests.support.tools import calling, hand_of
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentId
from turnstile.schema.pump.primitives import SystemErrorMessage
from turnstile.schema.wire.inbox import SendReply

pytestmark = pytest.mark.stack(pump_config(listeners=[ORGANISM, TROUPE]), ACTORS)

PAGE = ROOT / "docs" / "pump.md"
SLOWLY: JsonObject = {"delay_seconds": 0.5}
HANGS: JsonObject = {"text": "too late", "delay_seconds": 60}


@pytest.fixture
async def caller(here: Stack) -> AsyncIterator[Caller]:
    """A client in a project of its own with its agents; when the test ends, what protocol §2 and §9 say holds."""
    async with calling_in(here) as caller:
        await hire(caller.tenant, "alice", "bob", "carol")
        yield caller
        async with here.pool.connection() as conn:
            await assert_threads(conn)
            await assert_invariants(conn)
        stored = await caller.stored()
        assert sorted(stored) == sorted(set(stored)) == sorted(caller.events)


async def turns_of(caller: Caller, sent: SendReply) -> list[Ended]:
    """The turns of a thread, in the order of its messages."""
    lines = await caller.messages(sent)
    return [await caller.tenant.ended(line.agent_turn_id) for line in lines if line.agent_turn_id is not None]


async def heads(caller: Caller) -> dict[str, tuple[str, bool, int]]:
    """Each agent's status, whether it holds a box, and how many turns wait for it."""
    rows = await caller.tenant.rows(
        "SELECT h.agent_id, h.status, h.output_box_id IS NOT NULL AS holds, (SELECT count(*) FROM state.queued_turns q"
        " WHERE q.agent_id = h.agent_id AND q.project_id = h.project_id) AS queued"
        " FROM state.agent_state_head h WHERE h.project_id = $1",
        caller.tenant.project,
    )
    return {row["agent_id"]: (row["status"], row["holds"], row["queued"]) for row in rows}


async def until_heads(caller: Caller, **wanted: tuple[str, bool, int]) -> None:
    """Returns when these agents stand so."""

    async def there() -> bool:
        return wanted.items() <= (await heads(caller)).items()

    await until(there, 25, f"the heads are {wanted}")


async def test_several_agents_work_in_one_thread(caller: Caller) -> None:
    first = await caller.send("alice", Brief(play=play({**think("hm"), **SLOWLY}, respond("from alice"))))
    second = await caller.send("bob", Note(play=play(verdict("from bob"))), thread_id=first.thread_id)
    third = await caller.send("broker", Job(to="bob", play=play(verdict("below"))), thread_id=first.thread_id)
    assert text_in(await caller.heard(first)) == "from alice"
    assert text_in(await caller.heard(second), "said") == "from bob"
    assert text_in(await caller.heard(third), "said") == "bob said below (1)"


async def test_an_agent_in_two_threads_queues_and_keeps_them_apart(caller: Caller) -> None:
    """It remembers of each thread what was said there alone."""
    words = ["apple", "pear", "plum"]
    plays = [Brief(play=play({**think(f"of {word}"), **SLOWLY}, send("clerk", do="say", what=word))) for word in words]
    sent = [await caller.send("alice", p) for p in plays]
    assert len({each.thread_id for each in sent}) == 3
    for word, each in zip(words, sent, strict=True):
        told = str(asked(await caller.heard(each)))
        assert f"<done><said>{word}</said></done>" in told
        assert [other for other in words if other in told] == [word]
    rows = await caller.tenant.rows(
        "SELECT started_at, ended_at FROM state.turn_outcomes WHERE project_id = $1 ORDER BY started_at",
        caller.tenant.project,
    )
    assert len(rows) == 9
    assert all(one["ended_at"] <= next_["started_at"] for one, next_ in pairwise(rows))


async def test_a_turn_that_is_late_in_the_queue_is_stopped_there(caller: Caller) -> None:
    memos = [Memo(play=play(HANGS)) for _ in range(2)]
    first, second = [await caller.send("carol", memo) for memo in memos]
    heard = [await caller.heard(each) for each in (first, second)]
    timeout = SystemErrorMessage.timeout().to_xml().decode()
    assert [(each.reason, each.payload) for each in heard] == [("undelivered", timeout)] * 2
    ends = [each.view for sent in (first, second) for each in await turns_of(caller, sent)]
    assert [(end.status, end.error_code) for end in ends] == [("canceled", "stopped")] * 2
    await until_heads(caller, carol=("idle", False, 0))


async def test_messages_that_join_an_agents_segment_share_its_memory(caller: Caller) -> None:
    """What the first was told decides what the second hears; that response ends the segment, and the first with it."""
    first = await caller.send("alice", Brief(play=play({**think("of the first"), **SLOWLY}, respond("remembered"))))
    await until_heads(caller, alice=("running", True, 0))
    joined = await caller.send("alice", Brief(play=play()), thread_id=first.thread_id)
    assert text_in(await caller.heard(joined)) == "remembered"
    assert (await caller.heard(first)).reason == "pruned"
    turns = await turns_of(caller, first)
    assert len({turn.view.output_box_id for turn in turns}) == 1


async def test_messages_that_come_at_once_find_one_memory(caller: Caller) -> None:
    """Whichever of them is asked first: a segment has one box."""
    first = await caller.send("alice", Brief(play=play(HANGS)))
    joining = (caller.send("alice", Brief(play=play(HANGS)), thread_id=first.thread_id) for _ in range(5))
    await asyncio.gather(*joining)
    await until_heads(caller, alice=("running", True, 5))
    rows = await caller.tenant.rows(
        "SELECT i.agent_turn_id, i.payload ->> 'output_box_id' AS box, s.output_box_id::text AS memory"
        " FROM state.agent_inbox i JOIN state.thread_messages m ON m.message_id = i.correlation_id"
        " JOIN state.thread_segments s ON s.segment_id = m.segment_id"
        " WHERE i.project_id = $1 AND i.message_type = 'turn' ORDER BY m.number",
        caller.tenant.project,
    )
    assert len(rows) == 6
    assert len({row["box"] for row in rows} | {row["memory"] for row in rows}) == 1
    await caller.tenant.client.request("stop", {"agent_turn_id": rows[0]["agent_turn_id"]})


async def test_a_new_segment_of_a_thread_begins_with_nothing(caller: Caller) -> None:
    first = await caller.send("alice", Brief(play=play(think("a secret"), respond("done"))))
    assert text_in(await caller.heard(first)) == "done"
    brief = Brief(play=play())
    again = await caller.send("alice", brief, thread_id=first.thread_id)
    assert asked(await caller.heard(again)) == [("user", f"Message from external:client:\n{brief.to_xml().decode()}")]


async def test_a_response_stops_turns_in_hand_asleep_and_queued(caller: Caller, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with hand_of(caller.tenant, agent=AgentId("hand")) as hand:
        await hire(caller.tenant, "bob", allowed_tools=["search"])
        first = await caller.send("broker", Job(gate=str(gate)))

        async def waits() -> bool:
            return gate.with_suffix(".begun").exists()

        await until(waits, 25, "the broker waits")
        jobs = [
            Job(to="alice", play=play(HANGS)),
            Job(to="bob", play=play(calling("search"))),
            Job(to="alice", play=play(HANGS)),
        ]
        below: list[SendReply] = []
        for number, job in enumerate(jobs):
            below.append(await caller.send("broker", job, thread_id=first.thread_id))
            await until_heads(caller, alice=("running", True, number // 2))
        [command] = await hand.heard()
        await until_heads(caller, alice=("running", True, 1), bob=("suspended", True, 0))
        gate.touch()
        assert text_in(await caller.heard(first), "said") == "gate"
        for each in below:
            heard = await caller.heard(each)
            assert (heard.kind, heard.reason) == ("ended", "pruned")
        await until_heads(caller, alice=("idle", False, 0), bob=("idle", False, 0))
        ends = [each.view for each in await turns_of(caller, first)]
        assert [(end.status, end.error_code) for end in ends] == [("canceled", "stopped")] * 3
        before = await caller.chain(first)
        assert (await hand.answer(command.call)).status == "accepted"
        assert await hand.settled(command.call) == ("consumed", "already_settled")
        assert await caller.chain(first) == before
    flow = caller.tenant.stack.temporal.get_workflow_handle(f"thread-{first.thread_id}")
    await asyncio.wait_for(flow.result(), 25)
    assert text_in(await caller.ask("alice", Brief(play=play(respond("free"))))) == "free"


def documented() -> str:
    """The query of docs/pump.md, its parameter as asyncpg has it."""
    [found] = re.findall(r"```sql\n(SELECT m\.number.*?);\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found.replace(":'thread'", "$1")


async def test_a_documented_query_tells_of_edges_turns_and_cost(caller: Caller) -> None:
    priced: JsonObject = {"usage": {"total_tokens": 100}, "response_cost": 0.25}
    below = play({**verdict("fine"), **priced})
    lines: list[Any] = [
        [{**calling("nosuch"), **priced}, {**send("broker", to="bob", play=below), **priced}],
        {"text": "done"},
    ]
    sent = await caller.send("alice", Brief(play=play(*lines)))
    other = await caller.send("alice", Brief(play=play({**respond("other"), **priced})))
    for each in (sent, other):
        await caller.heard(each)
    rows = await caller.tenant.rows(documented(), sent.thread_id)
    assert [(row["from_id"], row["listener"], row["place"], row["effect"]) for row in rows] == [
        ("external:client", "alice", 1, "forward"),
        ("alice", "broker", 2, "forward"),
        ("broker", "bob", 3, "respond"),
        ("bob", "broker", 2, "respond"),
        ("broker", "alice", 1, "respond"),
    ]
    alice, handler, bob, _, again = rows
    assert (handler["edge_id"], handler["outcome"], handler["steps"], handler["cost"]) == (None, None, None, None)
    assert (alice["outcome"], alice["steps"], alice["tokens"], alice["cost"]) == ("success", 2, 200, 0.5)
    assert (bob["parent_turn_id"], bob["recursion_depth"]) == (alice["agent_turn_id"], 1)
    assert (bob["steps"], bob["tokens"], bob["cost"], again["steps"]) == (1, 100, 0.25, 1)
    assert {row["thread_cost"] for row in rows} == {0.75}
    assert {row["thread_tokens"] for row in rows} == {300 + again["tokens"]}
    assert len({row["trace_id"] for row in rows if row["trace_id"] is not None}) == 1
    [line] = await caller.tenant.rows(documented(), other.thread_id)
    assert (line["thread_cost"], line["steps"]) == (0.25, 1)
