"""Many clients at once, with duplicates, repeats, crashes, fences and killed backends: in the end the invariants hold.

`--hammer-seconds 60` hammers for longer. `--log-cli-level info` shows what happened how often.
"""

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import asyncpg

from tests.support.ledger.agents import (
    PROJECT,
    TARGET,
    add_agents,
    announce,
    begin,
    command,
    commit,
    dispatch,
    drain,
    finish,
    locate,
    rows,
    send,
    stop,
)
from tests.support.ledger.calls import (
    ask_to_stop,
    call_record,
    end,
    expire,
    result_card,
    settle,
    suspend,
    tell,
    write_card,
    written_report,
)
from tests.support.ledger.invariants import assert_invariants
from turnstile.ledger.operations import sweep
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.ends import fence, recall_step
from turnstile.ledger.turns.intake import Enqueue
from turnstile.ledger.turns.lease import AgentKey, Claim, claim_inbox, release_claims
from turnstile.ledger.turns.waiting import inject_timeouts
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId
from turnstile.schema.states import DeferReason, HeadStatus, MessageType, TurnStatus
from turnstile.schema.turns import TurnRef

T = TypeVar("T")
log = logging.getLogger(__name__)
CLIENTS = 8
AGENTS = [AgentId(f"a{n}") for n in range(6)]
KEYS: list[AgentKey] = [(PROJECT, agent) for agent in AGENTS]


QUEUED = "SELECT agent_id, agent_turn_id FROM state.queued_turns ORDER BY random() LIMIT 3"
LIVE = """
SELECT active_agent_turn_id, updated_at < now() - interval '0.2 seconds' AS quiet
FROM state.agent_state_head WHERE status <> 'idle'
"""
BACKLOG = 30
HAPPENS = (
    *("enqueues", "finished", "twins", "repeats", "crashes", "fenced", "stopped", "killed", "stale", "calls"),
    *("reports", "reports by SQL", "silent tools", "applied", "asked to stop", "ended by stop", "commands again"),
)
"""What each run meets at least once; a busy machine takes longer to get there."""


class Crash(Exception):
    """The client is gone in the middle of its work."""


class Hammer:
    """What all clients share: the seed's dice, the end, what was answered, and what happened how often."""

    def __init__(self, seed: int, seconds: float, eyes: Pool) -> None:
        self.eyes = eyes  # whom nobody kills
        self.dice = random.Random(seed)  # noqa: S311 -- dice
        began = time.monotonic()
        self.end, self.last_end = began + seconds, began + 10 * seconds
        self.accepted: dict[str, AgentTurnId] = {}
        self.boxes: list[BoxId] = []
        self.count: Counter[str] = Counter()

    @property
    def over(self) -> int:
        """How many turns have ended, or nearly: twins and repeats are counted as they come."""
        return sum(self.count[how] for how in ("finished", "fenced", "stopped", "ended by stop"))

    @property
    def on(self) -> bool:
        now = time.monotonic()
        return now < self.end or (now < self.last_end and not all(self.count[what] for what in HAPPENS))

    def some(self) -> list[AgentKey]:
        """A few agents, as they rang."""
        return self.dice.sample(KEYS, 2)

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    async def maybe_twice(self, do: Callable[[], Awaitable[T]]) -> T:
        """Once; or twice at the same time, as two tries of one engine do; or twice in a row."""
        how = self.dice.random()
        if how < 0.15:
            self.count["twins"] += 1
            done = await asyncio.gather(do(), do(), return_exceptions=True)
            for each in done:
                if isinstance(each, BaseException) and not isinstance(each, StaleTurn):
                    raise each
            answers = [each for each in done if not isinstance(each, BaseException)]
            if not answers:
                raise StaleTurn("both")
            return answers[0]
        if how < 0.25:
            self.count["repeats"] += 1
            await do()
        if how > 0.99:
            self.count["crashes"] += 1
            raise Crash
        return await do()

    async def ask(self, pool: Pool) -> None:
        name = f"c{self.dice.randrange(100_000)}" if self.chance(0.8) else self.dice.choice([*self.accepted, "c0"])
        # What a correlation asks for follows from it, so that a repeat has the same content.
        fixed = random.Random(name)  # noqa: S311
        agent = fixed.choice(AGENTS)
        reused = {0: "alone", 1: "shared"}.get(fixed.randrange(4))
        box = None if reused is None else self.boxes[AGENTS.index(agent) if reused == "alone" else -1]
        sent = command(agent, correlation_id=name, output_box_id=box)

        async def one(what: Enqueue) -> AgentTurnId | None:
            return (await pool.run(lambda conn: send(conn, what))).reply.agent_turn_id

        answers = await asyncio.gather(
            self.maybe_twice(lambda: one(sent)),
            *([one(command(agent, correlation_id=name, output_box_id=box))] if self.chance(0.2) else []),
        )
        for answer in answers:
            assert answer is not None
            assert self.accepted.setdefault(name, answer) == answer
        self.count["enqueues"] += 1

    async def work(self, pool: Pool, claimed: Claim) -> None:
        turn = claimed.turn()
        if self.chance(0.05):
            await pool.run(
                lambda conn: release_claims(conn, [turn.inbox_id], DeferReason.ENGINE_UNREACHABLE, delay_seconds=0.01)
            )
            return
        await self.maybe_twice(lambda: begin(pool, turn))
        steps = self.dice.randrange(3)
        for step in range(1, steps + 1):
            if self.chance(0.5):
                await self.call(pool, turn, step)
            else:
                await self.maybe_twice(lambda step=step: commit(pool, turn, step))
            await self.maybe_twice(lambda step=step: begin(pool, turn, step + 1))
        await self.maybe_twice(lambda: finish(pool, turn, steps + 1))
        self.count["finished"] += 1

    async def call(self, pool: Pool, turn: TurnRef, step: int) -> None:
        """A step that calls tools, the tools, and the wait for them, which others may help to end."""
        names = [f"{turn.agent_turn_id}-{step}-{number}" for number in range(self.dice.randrange(1, 4))]
        seconds = self.dice.random() * 0.1
        done = await self.maybe_twice(lambda: suspend(pool, turn, *names, step=step, wait_seconds=seconds))
        if done.step_metadata != call_record(turn, step, *names).metadata:
            return  # another worker committed it otherwise
        self.count["calls"] += len(names)
        tools = [self.tool(pool, turn, name) for name in names]
        ended = await asyncio.gather(*tools, self.wait(pool, turn), return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each

    async def tool(self, pool: Pool, turn: TurnRef, name: str) -> None:
        """Answers soon, late or never; over the verb, often more than once, or by SQL."""
        await asyncio.sleep(self.dice.random() * 0.15)
        how = self.dice.random()
        if how < 0.15:
            self.count["silent tools"] += 1
        elif how < 0.3:
            wrong = {"author_id": "tool.other"} if self.chance(0.3) else {}
            made = result_card(turn, name, **wrong)
            if not self.chance(0.1):
                await write_card(self.eyes, made)
            with suppress(asyncpg.UniqueViolationError):  # another worker made the same step and has had its answer
                await written_report(self.eyes, turn, name, made.card_id)
                self.count["reports by SQL"] += 1
        else:
            done = await self.maybe_twice(lambda: tell(pool, name))
            self.count["reports"] += not done.reply.duplicate

    async def wait(self, pool: Pool, turn: TurnRef) -> None:
        """Until the turn goes on; gives it up to the safety net after a while."""
        give_up = time.monotonic() + 0.5
        while time.monotonic() < give_up:
            rings = await self.maybe_twice(lambda: expire(pool, turn))
            if rings:
                await self.maybe_twice(lambda rings=rings: settle(pool, turn, *(ring.inbox_id for ring in rings)))
            for each in await pool.run(lambda c: claim_inbox(c, [(PROJECT, turn.agent_id)], [TARGET], row_limit=3)):
                if each.verdict == "signal":
                    await self.hear(pool, each)
            where = await pool.run(lambda conn: recall_step(conn, turn, 0))
            if not where.gate or where.head_status is HeadStatus.RUNNING:
                return
            await asyncio.sleep(0.01)
        raise Crash

    async def hear(self, pool: Pool, claimed: Claim) -> None:
        """What a workflow does that a doorbell wakes: whichever client has claimed the row."""
        turn = claimed.turn()
        if claimed.message_type == MessageType.STOP:
            ended = await self.maybe_twice(lambda: end(pool, turn))
            self.count["ended by stop"] += ended.result == "done"
        else:
            done = await self.maybe_twice(lambda: settle(pool, turn, claimed.inbox_id))
            self.count["applied"] += len(done.rows)

    async def client(self, pool: Pool) -> None:
        """Asks, claims and works until the end."""
        while self.on:
            try:
                if self.chance(0.6) and len(self.accepted) < self.over + BACKLOG:
                    await self.ask(pool)
                claimed = await pool.run(lambda conn: claim_inbox(conn, self.some(), [TARGET], row_limit=1))
                for each in claimed:
                    if each.verdict == "start":
                        await self.work(pool, each)
                    elif each.verdict == "signal":
                        await self.hear(pool, each)
            except StaleTurn:
                self.count["stale"] += 1
            except Crash:
                pass

    async def net(self, pool: Pool, eyes: Pool) -> None:
        """The safety net with deadlines of a fraction of a second, and an impatient user who stops turns."""
        while self.on:
            await pool.run(lambda c: sweep.release_stale_claims(c, [TARGET], older_seconds=0.2, row_limit=50))
            await pool.run(lambda c: sweep.retry_dispatched(c, [TARGET], older_seconds=0.2, row_limit=50))
            idle = await pool.run(lambda c: sweep.list_stranded(c, [TARGET], row_limit=50))
            self.count["stranded"] += len(await dispatch(pool, idle))
            done = await pool.run(lambda c: sweep.list_unannounced(c, [TARGET], older_seconds=0.0, row_limit=500))
            await announce(pool, [each.agent_turn_id for each in done])
            for row in await rows(eyes, QUEUED):
                if self.chance(0.2):
                    self.count["stopped"] += await stop(pool, row["agent_id"], row["agent_turn_id"]) is not None
            await self.sweep_calls(pool)
            for row in await rows(eyes, LIVE):
                if self.chance(0.15):
                    await self.ask_to_stop(pool, row["active_agent_turn_id"])
                if self.chance(0.5 if row["quiet"] else 0.02):
                    await self.fence(pool, row["active_agent_turn_id"])

    async def sweep_calls(self, pool: Pool) -> None:
        """The rules for suspended and stopping turns, and for commands that nobody answers."""
        for turn in await pool.run(lambda c: sweep.list_overdue(c, [TARGET], older_seconds=0.1, row_limit=50)):
            await pool.run(lambda c, turn=turn: inject_timeouts(c, turn))
        for turn in await pool.run(lambda c: sweep.list_stops_overdue(c, [TARGET], older_seconds=0.1, row_limit=50)):
            await self.fence(pool, turn.agent_turn_id)
        silent = await pool.run(lambda c: sweep.retry_commands(c, [TARGET], older_seconds=0.05, row_limit=50))
        self.count["commands again"] += len(silent)

    async def ask_to_stop(self, pool: Pool, turn: AgentTurnId) -> None:
        """Ask a turn to stop, wherever it is, often twice."""
        try:
            found = await self.maybe_twice(lambda: ask_to_stop(pool, turn))
        except Crash:
            return
        self.count["asked to stop"] += found.verdict == "accepted"

    async def fence(self, pool: Pool, turn: AgentTurnId) -> None:
        ref = await locate(pool, turn)
        if ref is None:
            return
        try:
            ended = await self.maybe_twice(lambda: fence(pool, ref, TurnStatus.FAILED, "reaped", "reaped"))
        except (StaleTurn, Crash):
            return
        self.count["fenced"] += ended.result == "done"

    async def kill(self, pool: Pool) -> None:
        """Ends a random backend of a client, again and again."""
        while self.on:
            victim = "SELECT pid FROM pg_stat_activity WHERE application_name = 'hammer' ORDER BY random() LIMIT 1"
            self.count["killed"] += len(await rows(pool, f"SELECT pg_terminate_backend(pid) FROM ({victim}) v"))  # noqa: S608
            await asyncio.sleep(self.dice.random() * 0.2)


async def test_hammer(pool: Pool, open_pool: Callable[..., Pool], hammer_seconds: float) -> None:
    seed = time.time_ns()
    log.info("seed %d", seed)
    hammer = Hammer(seed, hammer_seconds, pool)
    await add_agents(pool, *AGENTS)
    for agent in (*AGENTS, AGENTS[0]):  # a box for each to reuse, and one that all share
        sent = command(agent)
        await pool.run(lambda conn, sent=sent: send(conn, sent))
        hammer.boxes.append(sent.new_output_box_id)
    await drain(pool)
    async with asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(hammer.client(open_pool(size=3, name="hammer")))
        group.create_task(hammer.net(open_pool(size=2, name="hammer"), pool))
        group.create_task(hammer.kill(pool))
    await drain(pool)
    async with pool.connection() as conn:
        await conn.execute("ANALYZE")
        await assert_invariants(conn)
    asked = await rows(
        pool, "SELECT correlation_id, agent_turn_id FROM state.agent_inbox WHERE correlation_id LIKE 'c%'"
    )
    kept = {row["correlation_id"]: row["agent_turn_id"] for row in asked}
    assert hammer.accepted.items() <= kept.items()
    log.info("%s", dict(hammer.count))
    for what in HAPPENS:
        assert hammer.count[what], what
