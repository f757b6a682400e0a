"""Storms of decisions on 16 connections: people, tools, timers, stops and a net that acts at once want the same calls.

Whatever the order, a question is closed once, and a call that waits for a person is never sent, timed out, answered by
its tool, or a reason to reap its turn. It takes half of `--hammer-seconds`; the long one `--tree-hammer-seconds`, ten
minutes. `--log-cli-level info` shows what happened how often.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.ledger.agents import PROJECT, TARGET, add_agents, ask, begin, claim, finish, rows, value
from tests.support.ledger.calls import ask_to_stop, end, expire, settle, tell
from tests.support.ledger.invariants import AT_ONCE
from tests.support.ledger.people import answer, decide, edit, hold, suspend_held
from tests.support.waiting import Counting
from turnstile.ledger.operations import recovery, sweep
from turnstile.ledger.operations.audit import Scope, audit
from turnstile.ledger.people.decisions import expire_interrupt, list_expired
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.ends import fence
from turnstile.ledger.turns.waiting import inject_timeouts
from turnstile.rules.holds import client_hold
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentId, InboxId, ToolCallId, interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Hold, InterruptReason
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire import headers

log = logging.getLogger(__name__)
Deed = Callable[[], Awaitable[Any]]
AGENTS = [AgentId(f"agent-{n}") for n in range(6)]
PEOPLE = ("dora", "erin", "frank")
HAPPENS = (
    *("accepted", "already_decided", "expired", "withdrawn", "duplicate", "sent by the net", "expired by the net"),
    *("stopped", "marked", "ended", "applied", "went on", "not_sent", "timed out", "reported", "not_yours"),
)
"""What each run meets at least once; a busy machine takes longer to get there."""
WATCH = """
CREATE TABLE state.seen_closings (interrupt_id text NOT NULL, status text NOT NULL);
CREATE TABLE state.seen_sendings (tool_call_id text NOT NULL, held_by text);
CREATE FUNCTION state.see_closing() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO state.seen_closings VALUES (NEW.interrupt_id, NEW.status);
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER UPDATE ON state.interrupts FOR EACH ROW
    WHEN (NEW.status <> OLD.status OR NEW.decided_by IS DISTINCT FROM OLD.decided_by)
    EXECUTE FUNCTION state.see_closing();
"""
"""Notes each closing: a second one would leave no other trace."""
WRONG = {
    "a client's call that another one answered": """
        SELECT interrupt_id FROM state.interrupts WHERE only_requester AND decided_by NOT IN (requester, 'system')""",
    "a question that is not closed exactly once": """
        SELECT q.interrupt_id FROM state.interrupts q LEFT JOIN state.seen_closings s USING (interrupt_id)
        GROUP BY q.interrupt_id, q.status HAVING count(s.status) <> (q.status <> 'open')::int""",
    "a held call that was sent": "SELECT tool_call_id FROM state.seen_sendings WHERE held_by IS NOT NULL",
    "a call that was sent without a decision": """
        SELECT s.tool_call_id FROM state.seen_sendings s JOIN state.interrupts q USING (tool_call_id)
        WHERE q.status <> 'resolved' OR q.decision NOT IN ('approve', 'edit')""",
    "a call that timed out without a decision": """
        SELECT i.inbox_id FROM state.agent_inbox i JOIN state.interrupts q ON q.tool_call_id = i.correlation_id
        WHERE i.message_type = 'timeout' AND (q.status <> 'resolved' OR q.decision NOT IN ('approve', 'edit'))""",
    "a call that its tool answered without a decision, while its turn was there": """
        SELECT i.inbox_id FROM state.agent_inbox i JOIN state.interrupts q ON q.tool_call_id = i.correlation_id
        WHERE i.message_type = 'tool_result' AND i.inbox_id NOT LIKE 'decide-%' AND q.status <> 'withdrawn'
          AND (q.status <> 'resolved' OR q.decision NOT IN ('approve', 'edit'))""",
    "a call with two results": """
        SELECT correlation_id FROM state.agent_inbox WHERE message_type IN ('tool_result', 'timeout')
        AND last_error IS NULL AND status = 'consumed' GROUP BY 1 HAVING count(*) > 1""",
    "an open question of a turn that is over": """
        SELECT q.interrupt_id FROM state.interrupts q JOIN state.turn_outcomes o USING (agent_turn_id)
        WHERE q.status = 'open'""",
    "a deadline of a call that was let go, and its head has none": """
        SELECT w.tool_call_id FROM state.turn_waiting_tools w
        JOIN state.agent_state_head h ON h.active_agent_turn_id = w.agent_turn_id
        WHERE w.wait_status = 'waiting' AND w.held_by IS NULL AND h.resume_deadline IS NULL
          AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.correlation_id = w.tool_call_id)""",
}
HELD_ONLY = """
SELECT FROM state.turn_waiting_tools w WHERE w.agent_turn_id = $1 AND w.wait_status IN ('waiting', 'received')
  AND NOT EXISTS (SELECT FROM state.agent_inbox i WHERE i.agent_turn_id = $1 AND i.archived_at IS NULL
                  AND i.message_type IN ('tool_result', 'timeout'))  -- the loser of another call, not settled yet
HAVING count(*) > 0 AND bool_and(w.wait_status = 'waiting' AND w.held_by IS NOT NULL)
"""


class Storms:
    """What all clients share: the dice, the end, and what happened how often."""

    def __init__(self, pool: Counting, seed: int, seconds: float) -> None:
        self.pool = pool
        self.dice = random.Random(seed)  # noqa: S311 -- dice
        began = time.monotonic()
        self.end, self.last_end = began + seconds, began + 10 * seconds
        self.count: Counter[str] = Counter()

    @property
    def on(self) -> bool:
        now = time.monotonic()
        return now < self.end or (now < self.last_end and not all(self.count[what] for what in HAPPENS))

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    async def tried(self, deed: Deed, name: str | None = None) -> Any:
        """What the deed returns; None if the turn was past it, or the ledger refused it, which is counted."""
        try:
            done = await deed()
        except StaleTurn:
            return None
        except Refused as refused:
            self.count[refused.code] += 1
            return None
        if name is not None:
            self.count[name] += 1
        return done

    def hold(self, *, is_clients: bool) -> Hold:
        """Any question, or a call that its client runs; a third expires at once."""
        seconds = 0.02 if self.chance(0.3) else 3600.0
        if is_clients:
            if_gone = self.dice.choice(("timeout", "cancel"))
            return client_hold("search", seconds, if_gone).model_copy(update={"action_digest": "d"})
        reasons = (InterruptReason.TOOL_CALL, InterruptReason.INPUT_REQUIRED)
        return hold(expires_after_seconds=seconds, reason=self.dice.choice(reasons))

    async def decided(self, turn: TurnRef, call: str, who: str) -> None:
        decision = self.dice.choice((Decision.APPROVE, Decision.APPROVE, *Decision))
        made = edit(turn, call, {"q": who}) if decision is Decision.EDIT else None
        given = answer(decision, edit=made, response=who, digest=decision.value)
        for _ in range(self.dice.choice((1, 1, 2))):
            done = await self.tried(lambda: decide(self.pool, call, given, who=who))
            if done is not None:
                self.count[done.verdict] += 1

    async def reported(self, call: str) -> None:
        if (done := await self.tried(lambda: tell(self.pool, call))) is not None:
            self.count["reported"] += not done.reply.duplicate

    async def applied(self, turn: TurnRef) -> None:
        """The workflow's part: time out what is late, apply what is there, and go on."""
        late = await expire(self.pool, turn)
        self.count["timed out"] += sum(ring.message_type == "timeout" for ring in late)
        due = await rows(
            self.pool,
            "SELECT inbox_id FROM state.agent_inbox WHERE agent_turn_id = $1 AND archived_at IS NULL"
            " AND message_type IN ('tool_result', 'timeout')",
            turn.agent_turn_id,
        )
        done = await settle(self.pool, turn, *(InboxId(row["inbox_id"]) for row in due))
        self.count["applied"] += done.applied
        if done.status is HeadStatus.RUNNING and await begin(self.pool, turn, 2):
            await finish(self.pool, turn, 2)
            self.count["went on"] += 1

    async def stopped(self, turn: TurnRef) -> None:
        await ask_to_stop(self.pool, turn.agent_turn_id)
        await end(self.pool, turn)

    async def marked(self, turn: TurnRef) -> None:
        await mark_tree(self.pool, PROJECT, turn.agent_turn_id, "enough", whole=False)
        await end(self.pool, turn)

    async def storm(self, agent: AgentId, number: int) -> None:
        """A turn that waits for people and tools, and everything that can happen to it at once; then its end."""
        calls = [f"{agent}-{number}-{n}" for n in range(self.dice.randrange(1, 4))]
        free = [f"{agent}-{number}-free"] if self.chance(0.4) else []
        is_clients = self.chance(0.3)
        await ask(self.pool, agent, incoming={headers.SENDER: PEOPLE[0]} if is_clients else None)
        [turn] = [each.turn() for each in await claim(self.pool, agent, row_limit=50) if each.verdict == "start"]
        await begin(self.pool, turn)
        asked: dict[str, Hold | None] = dict.fromkeys(free) | {call: self.hold(is_clients=is_clients) for call in calls}
        seconds = self.dice.choice((0.0, 0.03, 60.0))
        if not await self.tried(lambda: suspend_held(self.pool, turn, asked, wait_seconds=seconds)):
            return  # the net has reaped it as a silent turn
        deeds: list[Deed] = []
        for call in calls:
            people = self.dice.sample(PEOPLE, self.dice.randrange(1, 3))
            deeds += [lambda call=call, who=who: self.decided(turn, call, who) for who in people]
            deeds += [lambda call=call: self.reported(call)] * self.dice.randrange(2)
            deeds += [lambda call=call: expire_interrupt(self.pool, interrupt_id(ToolCallId(call)))]
        deeds += [lambda call=call: self.reported(call) for call in free]
        deeds += [lambda: self.applied(turn)] * 2
        if self.chance(0.3):
            how, name = self.dice.choice(((self.stopped, "stopped"), (self.marked, "marked"), (self.over, "ended")))
            deeds.append(lambda: self.tried(lambda: how(turn), name))
        self.dice.shuffle(deeds)
        await asyncio.gather(self.crowd(turn, calls[0]), *map(self.tried, deeds))
        self.count["storms"] += 1
        await self.finish(turn, [*calls, *free])

    async def over(self, turn: TurnRef) -> None:
        await end(self.pool, turn)

    async def crowd(self, turn: TurnRef, call: str) -> None:
        """Hold one row that many want, so that they come to it together and go on at the same moment."""
        held, key = self.dice.choice(
            (
                ("SELECT FROM state.agent_state_head WHERE agent_id = $1 FOR UPDATE", turn.agent_id),
                ("SELECT FROM state.turn_waiting_tools WHERE tool_call_id = $1 FOR UPDATE", call),
                ("SELECT FROM state.interrupts WHERE tool_call_id = $1 FOR UPDATE", call),
            )
        )
        async with self.pool.connection() as conn, conn.transaction():
            await conn.fetch(held, key)
            await asyncio.sleep(self.dice.random() * 0.04)

    async def finish(self, turn: TurnRef, calls: list[str]) -> None:
        """Let the turn go on if nothing holds it, and end it else."""
        for call in calls:
            await self.reported(call)
        await self.tried(lambda: self.applied(turn))
        await self.tried(lambda: end(self.pool, turn), "ended")

    async def client(self, agent: AgentId) -> None:
        number = 0
        while self.on:
            await self.storm(agent, number)
            number += 1

    async def net(self) -> None:
        """The rules of the safety net, for which everything is late at once."""
        run, known = self.pool.run, [TARGET]
        while self.on:
            for each in await run(lambda conn: list_expired(conn, known, older_seconds=0, row_limit=9)):
                self.count["expired by the net"] += await expire_interrupt(self.pool, each.interrupt_id)
            self.count["sent by the net"] += await self.send()
            for turn in await run(lambda conn: sweep.list_overdue(conn, known, older_seconds=-0.01, row_limit=9)):
                late = await run(lambda conn, turn=turn: inject_timeouts(conn, turn))
                self.count["timed out"] += sum(ring.message_type == "timeout" for ring in late)
            await self.reap()
            await asyncio.sleep(0.01)

    async def send(self) -> int:
        """What rule `command` sends, noted with who holds it at that moment."""
        async with self.pool.connection() as conn, conn.transaction():
            found = await sweep.retry_commands(conn, [TARGET], older_seconds=-1, row_limit=20)
            calls = [each.tool_call_id for each in found]
            await conn.fetch(
                "INSERT INTO state.seen_sendings SELECT tool_call_id, held_by FROM state.turn_waiting_tools"
                " WHERE tool_call_id = ANY ($1::text[])",
                calls,
            )
        return len(calls)

    async def reap(self) -> None:
        """What rule `running_reap` finds; a turn that waits for people alone is never among it."""
        async with self.pool.connection() as conn, conn.transaction():
            await conn.fetch("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found = await recovery.list_silent(conn, [TARGET], older_seconds=0, row_limit=20)
            for turn in found:
                assert turn.status != HeadStatus.SUSPENDED or not await conn.fetch(HELD_ONLY, turn.agent_turn_id)
        for turn in found[: self.chance(0.05)]:
            done = await self.tried(lambda turn=turn: fence(self.pool, turn, TurnStatus.FAILED, "reaped", "reaped"))
            self.count["reaped"] += done is not None


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[Counting]:
    """The agents behind a counting pool of 16 connections, and a worker that has been there for long."""
    pool = Counting(database_url, size=16)
    await add_agents(pool, *AGENTS)
    async with pool.connection() as conn:
        await conn.execute(WATCH)
        await conn.fetch(
            "INSERT INTO state.workers (worker_target, instance, started_at, last_seen_at)"
            " VALUES ($1, 'w', now() - interval '1 day', now() + interval '1 day')",
            TARGET,
        )
    yield pool
    await pool.close()


async def test_storms_of_decisions_close_each_question_once_and_send_nothing_that_is_held(
    counting: Counting, hammer_seconds: float
) -> None:
    await hammer(counting, hammer_seconds / 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_storms_of_ten_minutes_send_nothing_that_is_held(counting: Counting, tree_hammer_seconds: float) -> None:
    await hammer(counting, tree_hammer_seconds)


async def hammer(counting: Counting, seconds: float) -> None:
    """Storms for so long, by six clients and the net; then nothing may be wrong."""
    seed = time.time_ns()
    log.info("seed %d", seed)
    storms = Storms(counting, seed, seconds)
    async with asyncio.TaskGroup() as group:
        for agent in AGENTS:
            group.create_task(storms.client(agent))
        group.create_task(storms.net())
    closed = await rows(counting, "SELECT status, decision, count(*) AS n FROM state.interrupts GROUP BY 1, 2")
    told = {f"{row['status']} {row['decision'] or ''}".strip(): row["n"] for row in closed}
    log.info("%s; questions %s", dict(storms.count), told)
    assert counting.deadlocks == 0
    async with counting.connection() as conn:
        await conn.execute("ANALYZE")
    assert (await audit(counting, Scope(), AT_ONCE, row_limit=20)).violations == []
    assert {what: found for what, sql in WRONG.items() if (found := await rows(counting, sql))} == {}
    assert await value(counting, "SELECT count(*) FROM state.interrupts WHERE status = 'open'") == 0
    for what in HAPPENS:
        assert storms.count[what], what
