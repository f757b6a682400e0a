"""What a project may have under way at once: refused beyond it with nothing written, and a repeat never refused."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.ledger.agents import (
    ALICE,
    BOB,
    CAROL,
    CHANNEL,
    PROJECT,
    TARGET,
    ask,
    begin,
    command,
    finish,
    lease,
    profile,
    rows,
    send,
    stop,
)
from tests.support.pump.threads import message
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.pump.threads import ThreadLimits, send_message
from turnstile.ledger.roster import add_agent, put_profile
from turnstile.ledger.turns.intake import Enqueued, enqueue
from turnstile.schema.errors import Limited
from turnstile.schema.ids import AgentId, AgentTurnId, ProjectId
from turnstile.schema.wire import headers
from turnstile.schema.wire.inbox import EnqueueRequest
from turnstile.schema.wire.limits import Admission


async def limited(pool: Pool, admission: Admission, agent: AgentId = ALICE, **fields: str) -> Enqueued | str:
    """An enqueue held against limits: what it came to, or the limit's name."""
    incoming = {headers.PARENT_TURN_ID: fields.pop("parent")} if "parent" in fields else {}
    request = EnqueueRequest.model_validate({"agent_id": agent, "instruction": "hello", **fields})
    try:
        return await enqueue(
            pool, PROJECT, CHANNEL, request, incoming, depth_limit=20, sender="user.test", admission=admission
        )
    except Limited as error:
        return error.code


async def written(pool: Pool) -> int:
    """Rows that an enqueue writes."""
    tables = ("state.agent_inbox", "state.execution_edges", "public.cards", "public.boxes")
    return sum([len(await rows(pool, f"SELECT FROM {table}")) for table in tables])


async def test_a_queue_has_an_end_that_many_at_once_do_not_pass(agents: Pool) -> None:
    admission = Admission(max_queued_turns=5)
    done = await asyncio.gather(*(limited(agents, admission) for _ in range(20)))
    assert Counter(each if isinstance(each, str) else "accepted" for each in done) == {"accepted": 6, "queue_full": 14}
    assert len(await rows(agents, "SELECT FROM state.agent_inbox WHERE status = 'queued'")) == 5


async def test_a_full_queue_writes_nothing_and_has_room_again(agents: Pool) -> None:
    admission = Admission(max_queued_turns=1)
    turn = await lease(agents)
    waiting = await ask(agents, correlation_id="c")
    before = await written(agents)
    assert await limited(agents, admission) == "queue_full"
    assert await written(agents) == before
    assert isinstance(await limited(agents, admission, BOB), Enqueued)
    repeat = await limited(agents, admission, correlation_id="c")
    assert isinstance(repeat, Enqueued)
    assert (repeat.reply.duplicate, repeat.reply.agent_turn_id) == (True, waiting.reply.agent_turn_id)
    await stop(agents, ALICE, waiting)
    assert isinstance(await limited(agents, admission), Enqueued)
    await begin(agents, turn)


async def test_a_project_is_full_of_turns_queued_and_in_hand(agents: Pool) -> None:
    admission = Admission(max_live_turns=3)
    running = await lease(agents)  # a head, and no row any more
    await begin(agents, running)
    await ask(agents, BOB)  # a head and its row: one turn
    await ask(agents, correlation_id="c")  # a row that waits
    before = await written(agents)
    assert await limited(agents, admission, CAROL) == "project_full"
    assert await written(agents) == before
    repeat = await limited(agents, admission, correlation_id="c")
    assert isinstance(repeat, Enqueued)
    assert repeat.reply.duplicate
    await finish(agents, running)
    assert isinstance(await limited(agents, admission, CAROL), Enqueued)


async def test_another_project_is_not_full(agents: Pool) -> None:
    other = ProjectId("p2")
    await put_profile(agents, other, profile())
    await add_agent(agents, other, ALICE, "helper")
    await ask(agents)
    request = EnqueueRequest.model_validate({"agent_id": ALICE, "instruction": "hello"})
    full = Admission(max_live_turns=1)
    done = await enqueue(agents, other, CHANNEL, request, {}, depth_limit=20, sender="user.test", admission=full)
    assert done.lease is not None


async def test_children_of_a_turn_in_hand_have_as_much_again(agents: Pool) -> None:
    admission = Admission(max_live_turns=1)
    running = await lease(agents)
    await begin(agents, running)
    child = {"parent": running.agent_turn_id}
    assert await limited(agents, admission, BOB) == "project_full"
    assert await limited(agents, admission, BOB, parent=AgentTurnId("nobody")) == "project_full"
    assert isinstance(await limited(agents, admission, BOB, **child), Enqueued)
    assert await limited(agents, admission, CAROL, **child) == "project_full"
    await finish(agents, running)
    assert await limited(agents, admission, CAROL, **child) == "project_full", "its parent is over"


async def test_over_the_rate_only_a_repeat_is_answered(agents: Pool) -> None:
    over = Admission(wait_seconds=0.25)
    first = await ask(agents, correlation_id="c")
    before = await written(agents)
    assert await limited(agents, over) == "rate_limited"
    assert await written(agents) == before
    repeat = await limited(agents, over, correlation_id="c")
    assert isinstance(repeat, Enqueued)
    assert repeat.reply.agent_turn_id == first.reply.agent_turn_id
    with pytest.raises(Limited) as refused:
        await agents.run(lambda conn: send(conn, replace(command(), admission=over)))
    assert refused.value.retry_after == 0.25


async def test_a_project_has_so_many_open_threads(pool: Pool) -> None:
    limits = ThreadLimits(max_open_threads=2)

    async def begun(name: str) -> str:
        try:
            given = message(correlation_id=name)
            await pool.transact(lambda conn: send_message(conn, given, limits))
        except Limited as error:
            return error.code
        return "accepted"

    assert [await begun(name) for name in ("a", "b", "c", "a")] == ["accepted", "accepted", "threads_full", "accepted"]


async def test_the_poll_takes_projects_in_turn(agents: Pool) -> None:
    flood = [AgentId(f"flood-{number}") for number in range(40)]
    for agent in flood:
        await add_agent(agents, PROJECT, agent, "helper")
        await ask(agents, agent)
    late = [ProjectId("late-1"), ProjectId("late-2")]
    for project in late:
        await put_profile(agents, project, profile())
        await add_agent(agents, project, ALICE, "helper")
        await ask(agents, project=project)

    async def due(limit: int) -> list[tuple[ProjectId, AgentId]]:
        rows = await agents.run(lambda conn: sweep.list_due_agents(conn, [TARGET], older_seconds=0, row_limit=limit))
        return [(row.project_id, row.agent_id) for row in rows]

    found = await due(8)
    assert set(found[:3]) == {(PROJECT, flood[0]), *((project, ALICE) for project in late)}
    assert found[3:] == [(PROJECT, agent) for agent in flood[1:5]], "what the others do not use is left to the flood"
    assert len(await due(100)) == 42
