"""What a world is: a starting ledger, and the moves that its actors may make in a state (docs/exploration.md).

An actor holds nothing: whatever it knows is in the rows, or follows from them. So a move stands for any number of
actors of its kind, for one that stopped for ever before it (nobody makes the move), and for one that comes late (the
move may be made in every later state, too).
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lab.explore.states.folding import Rows
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool

AGES = 100 * 365 * 24 * 3600.0
AT_ONCE = Bounds(grace_seconds=AGES, claim_seconds=AGES, stranded_seconds=0.0, depth_limit=1_000_000)
"""No grace for what one statement must keep, and no end of it for what the net mends: that is shown by itself."""


class View:
    """A state's rows by table, for the predicates of moves."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._tables: dict[str, list[Mapping[str, Any]]] = {}
        for (table, _), text in rows.items():
            self._tables.setdefault(table, []).append(_read(text))

    def table(self, name: str) -> list[Mapping[str, Any]]:
        """All rows of a table."""
        return self._tables.get(name, [])

    def find(self, table: str, **columns: Any) -> Mapping[str, Any] | None:
        """A row with these values; None if there is none."""
        for row in self.table(table):
            if all(row[name] == value for name, value in columns.items()):
                return row
        return None

    def texts(self, words: Sequence[str] = (), *, tables: Sequence[str] = ()) -> list[str]:
        """The rows that name one of these words, and those of these tables."""
        named = tuple(words)
        return [text for (table, _), text in self._rows.items() if table in tables or _names(text, named)]

    def all(self, table: str, **columns: Any) -> list[Mapping[str, Any]]:
        """All rows with these values."""
        return [row for row in self.table(table) if all(row[name] == value for name, value in columns.items())]


@lru_cache(maxsize=200_000)
def _read(text: str) -> Mapping[str, Any]:
    return json.loads(text)


@lru_cache(maxsize=200_000)
def _names(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that an actor may do. `name` says all of it, so that a path of names can be replayed."""

    name: str
    do: Callable[[Pool], Awaitable[str]]
    """Returns in a word what came of it; raises what no statement may raise."""
    repeats: bool = True
    """Whether the same move again, right after it, must change nothing."""
    single: bool = True
    """Whether it is one statement, after at most a reading one; only such moves are run at once with others."""
    skips: bool = False
    """Whether it skips inbox rows that somebody else holds (`SKIP LOCKED`)."""
    part: str = ""
    """What it depends on as long as it changes nothing, in a word that `World.part` knows; none: on everything."""
    alone: bool = False
    """Whether it depends on that part also where it changes something, and changes nothing else."""


@dataclass(frozen=True, slots=True)
class Net:
    """The safety net of a world: its rules as moves, in the order in which a tick runs them."""

    rules: Sequence[Move]
    time: Callable[[View], Iterable[Move]] = field(default=lambda _: ())
    """What passes between two ticks: the deadlines that are ahead."""
    reaps: Sequence[Move] = ()
    """Rules that end, or start again, what nobody works on. They are taken where the net is alone."""
    healthy: Callable[[View], Iterable[Move]] = field(default=lambda _: ())
    """What a worker that lives does after a tick, in order; without reaps this must end everything, too."""


@dataclass(frozen=True, slots=True)
class World:
    """A starting ledger and its moves."""

    name: str
    says: str
    prepare: Callable[[Pool], Awaitable[None]]
    moves: Callable[[View], Sequence[Move]]
    """The moves that somebody may make in the state, the net's rules among them."""
    net: Net
    at_end: Callable[[View], Sequence[str]]
    """What is not over yet, one word for each; empty at the end of every path that the net takes."""
    swaps: Sequence[Mapping[str, str]] = ()
    """Renamings that map the world onto itself."""
    part: Callable[[View, str], Sequence[str]] = field(default=lambda view, _: view.texts(("",)))
    """The rows of a part of the world, such as those of one turn and its agent's head (`Move.part`)."""
    checks: Callable[[View], Sequence[str]] = field(default=lambda _: ())
    """What is wrong in a state, where the audit has no rule for it."""
    names: Callable[[Rows], Mapping[str, str]] = field(default=lambda _: {})
    """Ids that statements draw, renamed in the order of appearance."""
    bounds: Bounds = AT_ONCE
