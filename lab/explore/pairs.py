"""Pairs of moves that can wait for one another's locks, run truly at once.

In a state of the search, one move runs in a transaction that is held open until the other waits for it, and commits
then; so in both orders. Where one waits, both meet in the middle, too: a third session holds a row, the first stops
there with the locks that it has, the second runs into these, and the row is released. No deadlock may come of it, and
the end must be that of one order or of the other.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any, TypeVar

import asyncpg

from lab.explore.expansion import Explorer
from lab.explore.graph import Graph, Violation
from lab.explore.states.folding import Key, Rows, fold
from lab.explore.states.place import LonePool, LostWrites, Place
from lab.explore.world import Move, View, World
from turnstile.ledger.histories import connect_to_host
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.schema.errors import TurnstileError

T = TypeVar("T")
_LOOK_SECONDS = 0.002
_LIMIT_SECONDS = 20.0
_STATES_A_PAIR = 2
_ROWS_A_PAIR = 4
_LOCKED = ("pmo_batches", "turn_waiting_tools", "agent_state_head", "turn_nodes")
_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@dataclass
class PairsReport:
    """What came of the pairs of one world."""

    world: str
    counts: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])

    def summary(self) -> str:
        """The counts in a line."""
        return ", ".join(f"{count} {what}" for what, count in self.counts.items())


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two moves of a state that both write, and the rows at which they may meet: written ones, heads and calls."""

    digest: bytes
    first: str
    second: str
    rows: tuple[Key, ...]


class _WatchedPool(Pool):
    """A pool of the ledger that counts the deadlocks which its retry would hide. Gathered writes are lost."""

    deadlocks = 0

    def __init__(self, url: str, *, size: int, name: str) -> None:
        super().__init__(url, size=size, name=name)
        self.soon = LostWrites(self.run)

    async def run(self, transition: Callable[[Connection], Awaitable[T]]) -> T:
        """As a pool does."""

        async def watched(conn: Connection) -> T:
            try:
                return await transition(conn)
            except asyncpg.DeadlockDetectedError:
                self.deadlocks += 1
                raise

        return await super().run(watched)


async def try_pairs(url: str, world: World, *, most: int, states: int = 400, first_only: bool = False) -> PairsReport:
    """Run at most so many pairs of moves, found in the first states of the search."""
    report = PairsReport(world.name)
    place = Place(url)
    await place.open()
    try:
        explorer = Explorer(place, world)
        graph = Graph()
        pairs = await _find_pairs(explorer, graph, states)
        report.counts["pairs"] = min(most, len(pairs))
        async with _arena(url, explorer) as arena:
            for pair in pairs[:most]:
                for what in await arena.meet(pair, report.counts):
                    path = (*graph.path(graph.numbers[pair.digest]), f"{pair.first} at once with {pair.second}")
                    report.violations.append(Violation(what, path))
                if report.violations and first_only:
                    break
    finally:
        await place.close()
    return report


async def _find_pairs(explorer: Explorer, graph: Graph, states: int) -> list[_Pair]:
    """The pairs of moves that write, each in the first states where both do."""
    graph.add(await explorer.start(), 0, "")
    pairs: dict[tuple[str, str], list[_Pair]] = {}
    while graph.expanded < min(states, len(graph.digests)):
        digest = graph.digests[graph.expanded]
        expanded = await explorer.expand(digest)
        for state in expanded.made:
            graph.add(state.digest, graph.numbers[digest], state.move)
        graph.record(expanded)
        moves = {move.name: move for move in explorer.world.moves(View(dict(explorer.state(digest).rows)))}
        wrote = {
            m.move: _written(explorer, digest, m.digest)
            for m in expanded.made
            if m.digest != digest and moves[m.move].single
        }
        for first, second in combinations_with_replacement(sorted(wrote), 2):
            known = pairs.setdefault((first, second), [])
            if len(known) < _STATES_A_PAIR:
                known.append(
                    _Pair(digest, first, second, tuple(sorted(wrote[first] | wrote[second], key=_first_locked)))
                )
    return [pair for place in range(_STATES_A_PAIR) for known in pairs.values() for pair in known[place : place + 1]]


def _written(explorer: Explorer, before: bytes, after: bytes) -> set[Key]:
    """The rows of a state that a move changed, where renaming is left aside, and those that many moves lock."""
    old, new = dict(explorer.state(before).rows), dict(explorer.state(after).rows)
    return {key for key, text in old.items() if new.get(key) != text or key[0] in _LOCKED}


def _first_locked(key: Key) -> tuple[int, Key]:
    return _LOCKED.index(key[0]) if key[0] in _LOCKED else len(_LOCKED), key


@dataclass
class _Arena:
    """The sessions that two moves need to run at once, and one that watches."""

    explorer: Explorer
    held: LonePool
    pools: tuple[_WatchedPool, _WatchedPool]
    watch: Any
    holder: Any

    async def meet(self, pair: _Pair, counts: Counter[str]) -> list[str]:
        """Run the pair in every way; returns what went wrong."""
        rows = dict(self.explorer.state(pair.digest).rows)
        moves = self._moves(rows)
        first, second = moves[pair.first], moves[pair.second]
        orders = [(first, second), (second, first)] if first is not second else [(first, first)]
        ends = [await self._in_turn(rows, *order) for order in orders]
        ends += [await self._in_turn(rows, one) for one, other in orders if other.skips]
        broken: list[str] = []
        waited = False
        for one, other in orders:
            counts["runs"] += 1
            if await self._overtaken(rows, one, other):
                waited = True
                counts["waited"] += 1
            broken += await self._judge(ends, f"{one.name} is held, {other.name} comes")
        for one, other in orders if waited else []:
            for key in _to_hold(pair, first, second):
                counts["runs"] += 1
                await self._in_the_middle(rows, one, other, key)
                broken += await self._judge(ends, f"{one.name} and {other.name} meet at {' '.join(key)}")
        deadlocks = sum(pool.deadlocks for pool in self.pools)
        for pool in self.pools:
            pool.deadlocks = 0
        return [*broken, *([f"{pair.first} and {pair.second}: {deadlocks} deadlocks"] if deadlocks else [])]

    def _moves(self, rows: Rows) -> dict[str, Move]:
        return {move.name: move for move in self.explorer.world.moves(View(rows))}

    async def _in_turn(self, rows: Rows, *moves: Move) -> Rows:
        """The end of these moves, one after the other."""
        place = self.explorer.place
        await place.load(rows)
        for move in moves:
            await _tried(move, place.pool)
        return await self._end()

    async def _end(self) -> Rows:
        """What the moves left behind.

        A deliverable made from outside quotes what was in the box when it was made, and the answer to a fork quotes
        the deliverable. And a turn that ends while a
        cascade rings for it leaves that ring to whoever claims it.
        """
        place = self.explorer.place
        await place.changes()
        world = self.explorer.world
        rows = dict(fold(place.rows, world.swaps, world.names(place.rows)).rows)
        over = {f"cascade-{key}" for table, key in rows if table == "turn_outcomes"}
        quotes = {f"{key.removeprefix('batch-')}-result" for table, key in rows if table == "pmo_batches"}
        return {
            key: text
            for key, text in rows.items()
            if not (key[0] == "cards" and (key[1].endswith("-deliverable") or key[1] in quotes))
            and not (key[0] == "agent_inbox" and key[1] in over)
        }

    async def _judge(self, ends: Sequence[Rows], how: str) -> list[str]:
        end = await self._end()
        if end in ends:
            return []
        differ = min((_difference(end, e) for e in ends), key=len)
        return [f"{how}: the end is that of no order: {differ}"]

    async def _overtaken(self, rows: Rows, first: Move, second: Move) -> bool:
        """The first is held before its commit until the second waits or is done; returns whether it waited."""
        await self.explorer.place.load(rows)
        async with self.held.session.transaction():
            await _tried(first, self.held)
            task = asyncio.ensure_future(_tried(second, self.pools[1]))
            waited = await self._until_stuck(task)
        await asyncio.wait_for(task, _LIMIT_SECONDS)
        return waited

    async def _in_the_middle(self, rows: Rows, first: Move, second: Move, key: Key) -> None:
        """A row that both write is held until both have come as far as they can."""
        await self.explorer.place.load(rows)
        async with self.holder.transaction():
            await self.holder.execute("SELECT explore.hold($1, $2)", *key)
            one = asyncio.ensure_future(_tried(first, self.pools[0]))
            await self._until_stuck(one)
            other = asyncio.ensure_future(_tried(second, self.pools[1]))
            await self._until_stuck(one, other)
        await asyncio.wait_for(asyncio.gather(one, other), _LIMIT_SECONDS)

    async def _until_stuck(self, *tasks: "asyncio.Future[Any]") -> bool:
        """Wait until each of the tasks is done or waits for a lock; returns whether one waits."""
        while left := sum(not task.done() for task in tasks):
            if await self.watch.fetchval(_WAITING) >= left:
                return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False


def _difference(end: Rows, other: Rows) -> str:
    """The columns in which two ends differ."""
    names: list[str] = []
    for key in sorted(end.keys() | other.keys()):
        one, two = (json.loads(rows.get(key, "{}")) for rows in (end, other))
        names += [
            f"{' '.join(key)} {name}: {one.get(name)!r} for {two.get(name)!r}"
            for name in sorted(one.keys() | two.keys())
            if one.get(name) != two.get(name)
        ]
    return "; ".join(names)


async def _tried(move: Move, pool: Pool) -> str:
    """What the move answers: an error is judged by the end that it leaves."""
    try:
        return await move.do(pool)
    except TurnstileError as error:
        return type(error).__name__


def _to_hold(pair: _Pair, first: Move, second: Move) -> Sequence[Key]:
    """The rows at which both can be made to meet: one that skips held rows does not wait there."""
    skips = first.skips or second.skips
    return [key for key in pair.rows if not (skips and key[0] == "agent_inbox")][:_ROWS_A_PAIR]


@asynccontextmanager
async def _arena(url: str, explorer: Explorer) -> AsyncGenerator[_Arena]:
    async with AsyncExitStack() as stack:
        pools = (_WatchedPool(url, size=2, name="explore"), _WatchedPool(url, size=2, name="explore"))
        held = LonePool(url)
        for pool in (*pools, held):
            stack.push_async_callback(pool.close)
        held.hold(await stack.enter_async_context(held.connection()))
        sessions = [await connect_to_host(url), await connect_to_host(url)]
        for session in sessions:
            stack.push_async_callback(session.close)
        yield _Arena(explorer, held, pools, *sessions)
