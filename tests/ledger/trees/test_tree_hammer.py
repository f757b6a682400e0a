"""Storms of forks on 16 connections: parents and children end, are marked, answered and expire together, some twice.

It takes half of `--hammer-seconds`; the long one `--tree-hammer-seconds`, ten minutes. `--log-cli-level info` shows
what happened how often.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, get_args

import pytest

from tests.support.ledger.agents import PROJECT, TARGET, add_agents, ask, begin, claim, finish, rows, stop, value
from tests.support.ledger.calls import ask_to_stop, end, expire, settle, suspend, tell
from tests.support.ledger.invariants import AT_ONCE
from tests.support.ledger.trees import child, forks, in_hand, parent
from tests.support.waiting import Counting
from turnstile.ledger.operations import sweep
from turnstile.ledger.operations.audit import Scope, audit
from turnstile.ledger.trees.batches import ForkedTask, ForkLimits, delegate, expire_batch
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.ends import end_by_fallback, fence
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.arguments import Join, Losers
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, InboxId
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.schema.turns import TurnRef

log = logging.getLogger(__name__)
Deed = Callable[[], Awaitable[Any]]
PARENTS = [AgentId(f"parent-{n}") for n in range(5)]
SHARED = [AgentId(f"shared-{n}") for n in range(4)]
HAPPENS = (
    *(
        "success",
        "failed",
        "reaped",
        "stopped",
        "stopped in the queue",
        "forked and ended at once",
        "marked",
        "applied",
    ),
    *("expired", "went on", "fenced by the net", "refused forks", "delegated"),
)
"""What each run meets at least once; a busy machine takes longer to get there."""
WATCH = """
CREATE TABLE state.seen_decisions (batch_id text NOT NULL);
CREATE FUNCTION state.see_decision() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO state.seen_decisions VALUES (NEW.batch_id);
    RETURN NULL;
END $$;
CREATE TRIGGER seen AFTER UPDATE ON state.pmo_batches FOR EACH ROW
    WHEN (NEW.decided_at IS DISTINCT FROM OLD.decided_at OR NEW.status <> OLD.status)
    EXECUTE FUNCTION state.see_decision();
"""
"""Notes each decision: a second one of a batch would find the first one's rows and leave no other trace."""
OPEN = """
SELECT i.agent_turn_id, i.agent_id, i.status = 'queued' AS queued
FROM (SELECT $1 AS id UNION SELECT n.agent_turn_id FROM state.turn_nodes n WHERE n.root_turn_id = $1) t
JOIN state.agent_inbox i ON i.agent_turn_id = t.id AND i.message_type = 'turn'
WHERE NOT EXISTS (SELECT FROM state.turn_outcomes o WHERE o.agent_turn_id = t.id)
"""
ESCAPED = """
SELECT c.agent_turn_id FROM state.turn_nodes c JOIN state.turn_nodes p ON p.agent_turn_id = c.parent_turn_id
WHERE c.waited AND NOT c.ended AND c.stopping_at IS NULL AND p.stopping_at IS NOT NULL
  AND NOT state.is_let_finish(c.agent_turn_id)
"""
WRONG = {
    "a batch that is not decided exactly once": """
        SELECT b.batch_id FROM state.pmo_batches b LEFT JOIN state.seen_decisions d USING (batch_id)
        GROUP BY b.batch_id HAVING count(d.batch_id) <> 1""",
    "a batch that is answered and withdrawn, or neither": """
        SELECT b.batch_id FROM state.pmo_batches b
        LEFT JOIN state.agent_inbox i ON i.inbox_id = 'join-' || b.batch_id
        LEFT JOIN state.execution_edges e ON e.edge_id = 'join-' || b.batch_id || '-response'
        WHERE (b.status = 'withdrawn') <> (i.inbox_id IS NULL) OR (i.inbox_id IS NULL) <> (e.edge_id IS NULL)
           OR b.status <> coalesce(i.payload ->> 'status', 'withdrawn')""",
    "a batch whose counts are not those of its tasks": """
        SELECT b.batch_id FROM state.pmo_batches b JOIN state.pmo_batch_tasks t USING (batch_id) GROUP BY b.batch_id
        HAVING b.open_count <> 0 OR b.task_count <> count(*)
            OR b.success_count <> count(*) FILTER (WHERE t.status = 'success')
            OR b.failed_count <> count(*) FILTER (WHERE t.status NOT IN ('success', 'partial'))""",
    "a task that is not its turn's outcome": """
        SELECT t.batch_task_id FROM state.pmo_batch_tasks t
        LEFT JOIN state.turn_outcomes o ON o.agent_turn_id = t.current_agent_turn_id
        WHERE t.current_agent_turn_id IS NOT NULL
          AND (t.status, t.error_code, t.deliverable_card_id)
              IS DISTINCT FROM (o.status, o.error_code, o.deliverable_card_id)""",
    "a child without a task, or a task's turn without a node": """
        SELECT n.agent_turn_id FROM state.turn_nodes n
        FULL JOIN state.pmo_batch_tasks t ON t.current_agent_turn_id = n.agent_turn_id
        WHERE (n.waited AND t.batch_id IS NULL) OR (t.current_agent_turn_id IS NOT NULL AND n.waited IS NOT TRUE)""",
    "a child that was made under a mark": """
        SELECT c.agent_turn_id FROM state.turn_nodes c JOIN state.turn_nodes p ON p.agent_turn_id = c.parent_turn_id
        JOIN state.agent_inbox i ON i.agent_turn_id = c.agent_turn_id AND i.message_type = 'turn'
        WHERE i.created_at > p.stopping_at""",
    "a node that is not closed": "SELECT agent_turn_id FROM state.turn_nodes WHERE NOT ended OR stopping_at IS NULL",
    "a live row of a turn that is over": """
        SELECT i.inbox_id FROM state.agent_inbox i JOIN state.turn_outcomes o USING (agent_turn_id)
        WHERE i.archived_at IS NULL AND i.message_type = 'turn'""",
}


class Storms:
    """What all clients share: the dice, the end, and what happened how often."""

    happens = HAPPENS

    def __init__(self, pool: Counting, seed: int, seconds: float) -> None:
        self.pool = pool
        self.dice = random.Random(seed)  # noqa: S311 -- dice
        began = time.monotonic()
        self.end, self.last_end = began + seconds, began + 10 * seconds
        self.count: Counter[str] = Counter()

    @property
    def on(self) -> bool:
        now = time.monotonic()
        return now < self.end or (now < self.last_end and not all(self.count[what] for what in self.happens))

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def budget(self) -> JsonObject | None:
        """What a turn may spend."""
        return None

    async def think(self, turn: TurnRef) -> None:
        """What a turn does before its end."""

    async def tried(self, deed: Deed, name: str | None = None) -> Any:
        """What the deed returns; None if the turn was past it."""
        try:
            done = await deed()
        except StaleTurn:
            return None
        except Refused:
            self.count["refused forks"] += 1
            return None
        if name is not None:
            self.count[name] += 1
        return done

    async def fork(self, name: str) -> Sequence[ForkedTask]:
        """A fork of a call into 2 to 6 children, by any plan; some share agents, some have queued before."""
        dice, count = self.dice, self.dice.randrange(2, 7)
        call = await parent(self.pool, name)
        agents = [dice.choice(SHARED) if self.chance(0.4) else None for _ in range(count)]
        tasks = [child(call, n, each, budget=self.budget()) for n, each in enumerate(agents)]
        made = await forks(
            self.pool,
            name,
            tasks=tasks,
            limits=ForkLimits(max_queued_turns=dice.choice((0, 0, 3))),
            join=dice.choice(get_args(Join)),
            k=dice.randrange(1, count + 1),
            losers=dice.choice(get_args(Losers)),
            fail_fast=self.chance(0.2),
            partial_at_deadline=self.chance(0.5),
            deadline_seconds=dice.choice((900.0, 900.0, 0.02)),
        )
        self.count["batches"] += 1
        return made.tasks

    async def sleeping(self, turn: TurnRef, name: str) -> bool:
        """Have the turn wait for a call that is forked, and often for another that is due at once."""
        names = [name, f"{name}-due"] if self.chance(0.5) else [name]
        waits = [self.dice.choice((60.0, 60.0, 0.0)), 0.0][: len(names)]
        if await self.tried(lambda: begin(self.pool, turn)) is None:
            return False
        return await self.tried(lambda: suspend(self.pool, turn, *names, waits=waits)) is not None

    async def of_parent(self, turn: TurnRef, name: str) -> list[Deed]:
        """What may happen to a turn that waits for its batch."""
        pool, batch = self.pool, f"batch-{name}"

        async def apply() -> None:
            rings = await expire(pool, turn)
            ids = [InboxId(f"join-{batch}"), *(ring.inbox_id for ring in rings)]
            done = await settle(pool, turn, *ids)
            self.count["applied"] += len(done.rows)
            if done.status is HeadStatus.RUNNING and await begin(pool, turn, 2):
                await finish(pool, turn, 2)
                self.count["went on"] += 1

        async def mark() -> None:
            done = await mark_tree(pool, PROJECT, turn.agent_turn_id, "enough", whole=self.chance(0.3))
            self.count["marked"] += len(done.turns)

        async def give_up() -> None:
            self.count["expired"] += await expire_batch(pool, batch)

        deeds: list[Deed] = [apply, apply, give_up, give_up]
        if self.chance(0.3):
            deeds += [mark, mark]
        if self.chance(0.2):
            deeds += [lambda: self.ended(turn), lambda: self.ended(turn)][: self.dice.randrange(1, 3)]
        return deeds

    async def ended(self, turn: TurnRef) -> None:
        """End a turn in hand, by one of the ways there are."""
        await self.think(turn)
        how = self.dice.choice(("success", "failed", "reaped", "stopped"))
        match how:
            case "success":
                await finish(self.pool, turn)
            case "failed":
                await end_by_fallback(self.pool, turn, TurnStatus.FAILED, "broken", "it broke")
            case "reaped":
                await fence(self.pool, turn, TurnStatus.FAILED, "reaped", "reaped")
            case _:
                await ask_to_stop(self.pool, turn.agent_turn_id)
                await end(self.pool, turn)
        self.count[how] += 1

    async def of_child(self, task: ForkedTask, depth: int) -> list[Deed]:
        """What may happen to a child, and to its own children."""
        turn, pool = task.agent_turn_id, self.pool
        if turn is None:
            return []
        if task.lease is None:
            return [lambda: self.stop_queued(task.agent_id, turn)] * self.dice.randrange(3)
        try:
            ref = await in_hand(pool, turn)
        except AssertionError:  # the net was first
            return []
        name = f"{turn}-call"
        how = self.dice.random()
        if how < 0.35 and depth < 2 and await self.sleeping(ref, name):
            if how < 0.15:
                self.count["forked and ended at once"] += 1
                return [lambda: self.fork(name), lambda: self.ended(ref)]
            below = await self.tried(lambda: self.fork(name)) or ()
            deeds = await self.of_parent(ref, name)
            for each in below:
                deeds += await self.of_child(each, depth + 1)
            return deeds
        if how < 0.9:
            await self.tried(lambda: begin(pool, ref))
        return [lambda: self.ended(ref)] * self.dice.choice((1, 1, 2))

    async def stop_queued(self, agent: AgentId, turn: AgentTurnId) -> bool:
        done = await stop(self.pool, agent, turn) is not None
        self.count["stopped in the queue"] += done
        return done

    async def storm(self, agent: AgentId, number: int) -> None:
        """A parent with its tree, and everything that can happen to it at once; then the end of what is left."""
        name = f"{agent}-{number}"
        await ask(self.pool, agent, budget=self.budget())
        [top] = [each.turn() for each in await claim(self.pool, agent, row_limit=50) if each.verdict == "start"]
        assert await self.sleeping(top, name)
        deeds = await self.of_parent(top, name)
        if self.chance(0.1):
            await self.delegate(name)
        elif self.chance(0.2):
            deeds += [lambda: self.fork(name)] * self.dice.randrange(1, 3)
        else:
            for task in await self.fork(name):
                deeds += await self.of_child(task, 1)
        self.dice.shuffle(deeds)
        await asyncio.gather(self.crowd(top, name), *map(self.tried, deeds))
        self.count["storms"] += 1
        await self.finish(top, name)

    async def crowd(self, top: TurnRef, name: str) -> None:
        """Hold one row that many want, so that they come to it together and go on at the same moment."""
        held, key = self.dice.choice(
            (
                ("SELECT FROM state.pmo_batches WHERE batch_id = $1 FOR UPDATE", f"batch-{name}"),
                ("SELECT FROM state.turn_nodes WHERE agent_turn_id = $1 FOR UPDATE", top.agent_turn_id),
                ("SELECT FROM state.turn_waiting_tools WHERE tool_call_id = $1 FOR UPDATE", name),
            )
        )
        async with self.pool.connection() as conn, conn.transaction():
            await conn.fetch(held, key)
            await asyncio.sleep(self.dice.random() * 0.04)

    async def delegate(self, name: str) -> None:
        """A child that nobody waits for, and the answer to its call."""
        call = await parent(self.pool, name)
        await self.tried(lambda: delegate(self.pool, call, child(call, 0, self.dice.choice(SHARED))), "delegated")
        await tell(self.pool, name)

    async def finish(self, top: TurnRef, name: str) -> None:
        """Answer the parent if its batch is decided, and end what is left of the tree."""
        for deed in (await self.of_parent(top, name))[:1]:
            await self.tried(deed)
        while left := await rows(self.pool, OPEN, top.agent_turn_id):
            for row in left:
                if row["queued"]:
                    await self.stop_queued(row["agent_id"], row["agent_turn_id"])
                else:
                    await self.tried(lambda row=row: self.reap(row["agent_turn_id"]))
            await self.expire_all()

    async def reap(self, turn: AgentTurnId) -> None:
        try:
            ref = await in_hand(self.pool, turn)
        except AssertionError:
            return  # over, or leased this moment
        await fence(self.pool, ref, TurnStatus.FAILED, "reaped", "reaped")
        self.count["fenced by the net"] += 1

    async def expire_all(self) -> None:
        due = await self.pool.run(lambda conn: sweep.list_undecided(conn, [TARGET], older_seconds=0, row_limit=50))
        for each in due:
            self.count["expired"] += await expire_batch(self.pool, each.batch_id)

    async def client(self, agent: AgentId) -> None:
        number = 0
        while self.on:
            await self.storm(agent, number)
            number += 1

    async def net(self) -> None:
        """The safety net, at once and again and again; no child has escaped a cascade at any moment."""
        run, known = self.pool.run, [TARGET]
        while self.on:
            await self.expire_all()
            for each in await run(lambda c: sweep.list_marked_queued(c, known, older_seconds=0.01, row_limit=9)):
                await self.stop_queued(each.agent_id, each.agent_turn_id)
            for turn in await run(lambda c: sweep.list_marked_in_hand(c, known, older_seconds=0.05, row_limit=9)):
                await self.tried(lambda turn=turn: self.reap(turn.agent_turn_id))
            assert await rows(self.pool, ESCAPED) == []
            await asyncio.sleep(0.01)


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[Counting]:
    """The agents behind a counting pool of 16 connections."""
    pool = Counting(database_url, size=16)
    await add_agents(pool, *PARENTS, *SHARED)
    async with pool.connection() as conn:
        await conn.execute(WATCH)
    yield pool
    await pool.close()


async def test_storms_of_trees_never_deadlock_and_decide_each_batch_once(
    counting: Counting, hammer_seconds: float
) -> None:
    await hammer(counting, hammer_seconds / 2)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_storms_of_ten_minutes_never_deadlock(counting: Counting, tree_hammer_seconds: float) -> None:
    await hammer(counting, tree_hammer_seconds)


async def hammer(counting: Counting, seconds: float, kind: type[Storms] = Storms) -> None:
    """Storms for so long, by five clients and the net; then nothing may be wrong."""
    seed = time.time_ns()
    log.info("seed %d", seed)
    storms = kind(counting, seed, seconds)
    async with asyncio.TaskGroup() as group:
        for agent in PARENTS:
            group.create_task(storms.client(agent))
        group.create_task(storms.net())
    await storms.expire_all()
    decided = await rows(counting, "SELECT status, count(*) AS n FROM state.pmo_batches GROUP BY 1 ORDER BY 1")
    log.info("%s; batches %s", dict(storms.count), {row["status"]: row["n"] for row in decided})
    assert counting.deadlocks == 0
    async with counting.connection() as conn:
        await conn.execute("ANALYZE")
    assert (await audit(counting, Scope(), AT_ONCE, row_limit=20)).violations == []
    assert {what: found for what, sql in WRONG.items() if (found := await rows(counting, sql))} == {}
    assert await value(counting, "SELECT count(*) FROM state.pmo_batches") > 0
    for what in storms.happens:
        assert storms.count[what], what
