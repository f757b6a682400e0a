"""Makes the moves of a state in a place, and checks what each leaves behind.

Two things spare time. A move that changed nothing in the state before probably changes nothing here: such moves are
made one after the other and looked after once; if they did change something, each is made again by itself. And a move
that depends on its part of the world alone (`Move.part`) comes to what it came to where that part was the same; one in
`_MADE_FOR_ALL_THAT` of these is made for all that, and must come to it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import asyncpg

from lab.explore.states.auditing import Auditor
from lab.explore.states.changes import broken_by
from lab.explore.states.folding import Rows, State, fold
from lab.explore.states.place import AsksForEver, Place
from lab.explore.world import Move, Net, View, World
from turnstile.schema.errors import TurnstileError

_MADE_FOR_ALL_THAT = 50


@dataclass(frozen=True, slots=True)
class Made:
    """A move that was made: its answer, the state to which it led, and what it broke."""

    move: str
    repeats: bool
    answer: str
    digest: bytes
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expanded:
    """A state with what the audit finds there, the moves that were made, and what is not over."""

    digest: bytes
    broken: tuple[str, ...]
    made: Sequence[Made]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """A round of the net from a state: the moves that changed something, where they led, and what is not over there."""

    digest: bytes
    reached: bytes
    moves: tuple[str, ...]
    left: tuple[str, ...]
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Met:
    """A state as it was met first, and the moves that did nothing in the state before it."""

    state: State
    quiet: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Result:
    """What a move came to; `state` is None and nothing is changed if it wrote nothing."""

    made: Made
    state: State | None = None
    changed: Rows | None = None


class Explorer:
    """A place with the states that were met there. Holds each state as rows, so states are passed by digest."""

    def __init__(self, place: Place, world: World) -> None:
        self.place = place
        self.world = world
        self._met: dict[bytes, _Met] = {}
        self._audited: set[bytes] = set()
        self._auditor = Auditor(world)
        self._edges: dict[tuple[bytes, str], bytes] = {}
        self._known: dict[tuple[str, bytes], tuple[str, Rows]] = {}
        self.counts: Counter[str] = Counter()
        """Moves that were made, spared, and made although they could have been spared."""

    async def start(self) -> bytes:
        """The state of the starting ledger, which must be in the place."""
        return self.meet(self._fold(self.place.rows))

    def _fold(self, rows: Rows) -> State:
        return fold(rows, self.world.swaps, self.world.names(rows))

    def meet(self, state: State) -> bytes:
        """A state that was met elsewhere."""
        self._met.setdefault(state.digest, _Met(state))
        return state.digest

    def state(self, digest: bytes) -> State:
        """A state that was met here."""
        return self._met[digest].state

    async def expand(self, digest: bytes) -> Expanded:
        """Audit the state, and make all of its moves."""
        met = self._met[digest]
        rows = dict(met.state.rows)
        view = View(rows)
        moves = self.world.moves(view)
        broken = await self._audit(digest, rows)
        marks = self._marks(view, moves)
        foretold = {move.name: change for move in moves if (change := self._foretell(digest, rows, move, marks))}
        spared = {name: change for name, change in foretold.items() if self._may_spare()}
        quiet = [move for move in moves if move.name in met.quiet and move.name not in spared]
        results = spared | await self._make_quietly(digest, rows, quiet)
        for move in moves:
            if move.name not in results:
                results[move.name] = await self._make(digest, rows, move)
        for move in moves:
            if move.name in foretold and foretold[move.name].made.digest != results[move.name].made.digest:
                broken.append(f"{move.name} depends on more than its part of the world")
            self._remember(move, marks, results[move.name])
        unmoved = frozenset(name for name, result in results.items() if result.state is None)
        for result in results.values():
            self._edges[digest, result.made.move] = result.made.digest
            if result.state is not None:
                self._meet(result.state, unmoved)
        return Expanded(digest, tuple(broken), [r.made for r in results.values()], tuple(self.world.at_end(view)))

    async def _audit(self, digest: bytes, rows: Rows) -> list[str]:
        """What the audit and the world's checks find in the state."""
        self._audited.add(digest)
        broken = list(self.world.checks(View(rows)))
        if rules := self._auditor.wanted(rows):
            await self.place.load(rows)
            broken += await self._auditor.audit(self.place.loader, rules)
        return broken

    def _meet(self, state: State, quiet: frozenset[str] = frozenset()) -> None:
        self._met.setdefault(state.digest, _Met(state, quiet))

    def _may_spare(self) -> bool:
        self.counts["could be spared"] += 1
        return self.counts["could be spared"] % _MADE_FOR_ALL_THAT > 0

    def _marks(self, view: View, moves: Iterable[Move]) -> dict[str, bytes]:
        """The part of the world of each move that has one, as a digest."""
        parts = {move.part for move in moves if move.part}
        marks = {part: _digest(self.world.part(view, part)) for part in parts}
        return {move.name: marks[move.part] for move in moves if move.part}

    def _remember(self, move: Move, marks: Mapping[str, bytes], result: _Result) -> None:
        if move.name in marks and not result.made.broken and (move.alone or result.state is None):
            self._known[move.name, marks[move.name]] = (result.made.answer, result.changed or {})

    def _foretell(self, digest: bytes, rows: Rows, move: Move, marks: Mapping[str, bytes]) -> _Result | None:
        """What the move came to where its part was the same; None if that is not known."""
        known = self._known.get((move.name, marks.get(move.name, b"")))
        if known is None:
            return None
        answer, changed = known
        if not changed:
            return _Result(Made(move.name, move.repeats, answer, digest))
        state = self._fold({**rows, **changed})
        return _Result(Made(move.name, move.repeats, answer, state.digest), state, changed)

    async def _make_quietly(self, digest: bytes, rows: Rows, moves: Sequence[Move]) -> dict[str, _Result]:
        """Make moves of which none should change anything; none is answered if one did, or raised."""
        results: dict[str, _Result] = {}
        if moves:
            await self.place.load(rows)
        for move in moves:
            answer, broken = await self._answer(move)
            if broken:
                results.clear()
                break
            results[move.name] = _Result(Made(move.name, move.repeats, answer, digest))
        return {} if moves and await self.place.changes() else results

    async def _make(self, digest: bytes, rows: Rows, move: Move) -> _Result:
        await self.place.load(rows)
        answer, broken = await self._answer(move)
        changed = await self.place.changes()
        if not changed:
            return _Result(Made(move.name, move.repeats, answer, digest, tuple(broken)))
        broken += broken_by(rows, changed)
        state = self._fold(self.place.rows)
        return _Result(Made(move.name, move.repeats, answer, state.digest, tuple(broken)), state, changed)

    async def _answer(self, move: Move) -> tuple[str, list[str]]:
        """What the move answers, and the error that no statement may raise."""
        self.counts["made"] += 1
        try:
            return await move.do(self.place.pool), []
        except (asyncpg.PostgresError, AsksForEver, TurnstileError, LookupError) as error:
            return type(error).__name__, [f"{type(error).__name__}: {error}"]

    async def round(self, digest: bytes, *, healthy: bool) -> Round:
        """What a tick of the net makes of the state: with all reaps, or with a worker that lives."""
        net, here = self.world.net, digest
        moved: list[str] = []
        broken: list[str] = []
        for phase in ("time", "rules", "healthy" if healthy else "reaps"):
            for move in _phase(net, phase, View(dict(self._met[here].state.rows))):
                before, here = here, await self._follow(here, move, broken)
                if here != before:
                    moved.append(move.name)
        left = self.world.at_end(View(dict(self._met[here].state.rows)))
        return Round(digest, here, tuple(moved), tuple(left), tuple(broken))

    async def _follow(self, digest: bytes, move: Move, broken: list[str]) -> bytes:
        """Where the move leads; it is made unless it was."""
        if (known := self._edges.get((digest, move.name))) is not None:
            return known
        rows = dict(self._met[digest].state.rows)
        marks = self._marks(View(rows), [move])
        result = self._foretell(digest, rows, move, marks)
        if result is None or not self._may_spare():
            result = await self._make(digest, rows, move)
            self._remember(move, marks, result)
        broken += result.made.broken
        if result.state is not None:
            self._meet(result.state)
            if result.made.digest not in self._audited:
                broken += await self._audit(result.made.digest, dict(result.state.rows))
        self._edges[digest, move.name] = result.made.digest
        return result.made.digest

    async def replay(self, names: Iterable[str]) -> list[str]:
        """Make these moves from the start, one after the other; returns what they broke."""
        here = await self.start()
        broken: list[str] = []
        for name in names:
            view = View(dict(self.state(here).rows))
            net = self.world.net
            every = {move.name: move for move in (*net.rules, *net.reaps, *self.world.moves(view))}
            here = await self._follow(here, every[name], broken)
        return broken


def _phase(net: Net, phase: str, view: View) -> Iterable[Move]:
    match phase:
        case "time":
            return net.time(view)
        case "rules":
            return net.rules
        case "reaps":
            return net.reaps
        case _:
            return net.healthy(view)


def _digest(texts: Sequence[str]) -> bytes:
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).digest()
