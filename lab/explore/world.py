"""What a world is: a starting ledger, and the moves that its actors may make in a state (docs/exploration.md).

An actor holds nothing: whatever it knows is in the rows, or follows from them. So a move stands for any number of
actors of its kind, for one that stopped for ever before it (nobody makes the move), and for one that comes late (the
move may be made in every later state, too).
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lab.explore.folding import Rows
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool

AGES = 100 * 365 * 24 * 3600.0
AT_ONCE = Bounds(grace_seconds=AGES, claim_seconds=AGES, stranded_seconds=0.0, depth_limit=1_000_000)
"""No grace for what one statement must keep, and no end of it for what the safety net mends: that is shown by itself."""


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

    def footprint(self, words: Sequence[str]) -> bytes:
        """The rows that name one of these words, and of each head that names none whose it is."""
        told = [text for text in self._rows.values() if any(word in text for word in words)]
        told += [
            f"{row['agent_id']} {row['status']} {row['active_agent_turn_id']} {row['turn_epoch']}"
            for row in self.table("agent_state_head")
        ]
        return hashlib.blake2b("\n".join(told).encode(), digest_size=16).digest()

    def all(self, table: str, **columns: Any) -> list[Mapping[str, Any]]:
        """All rows with these values."""
        return [row for row in self.table(table) if all(row[name] == value for name, value in columns.items())]


@lru_cache(maxsize=200_000)
def _read(text: str) -> Mapping[str, Any]:
    return json.loads(text)


@dataclass(frozen=True, slots=True)
class Move:
    """One thing that an actor may do. `name` says all of it, so that a path of names can be replayed."""

    name: str
    do: Callable[[Pool], Awaitable[str]]
    """Returns in a word what came of it; raises what no statement may raise."""
    repeats: bool = True
    """Whether the same move again, right after it, must change nothing."""
    part: str = ""
    """The part of the world (`World.parts`) on which alone it depends as long as it changes nothing."""
    alone: bool = False
    """Whether it depends on its part alone also where it changes something, and changes nothing else."""


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
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The words by which the rows of a part name it, such as the ids of one turn."""
    bounds: Bounds = AT_ONCE
