"""The states and moves that were met: how each state is reached, and what each move came to."""

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.explore.expansion import Expanded


@dataclass(frozen=True, slots=True)
class Violation:
    """What went wrong, and the shortest path of moves that leads there."""

    what: str
    path: tuple[str, ...]

    def program(self) -> str:
        """The path as a program that `Explorer.replay` takes: one move a line."""
        return "\n".join(self.path)


@dataclass
class Graph:
    """Numbers states in the order in which they were met, breadth first: the first path to a state is a shortest."""

    digests: list[bytes] = field(default_factory=list[bytes])
    numbers: dict[bytes, int] = field(default_factory=dict[bytes, int])
    expanded: int = 0
    """How many states are audited, with all of their moves made."""
    transitions: int = 0
    answers: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """How often each kind of move answered what."""
    depth: int = 0
    """The longest of the shortest paths."""
    over: set[int] = field(default_factory=set[int])
    """The states in which everything is over."""
    _before: "array[int]" = field(default_factory=lambda: array("L"))
    _names: list[str] = field(default_factory=list[str])
    _numbered: dict[str, int] = field(default_factory=dict[str, int])
    _by: "array[int]" = field(default_factory=lambda: array("L"))
    _edges: "list[array[int]]" = field(default_factory=list["array[int]"])

    def add(self, digest: bytes, before: int, move: str) -> bool:
        """A state that the move leads to from the state `before`; False if it was met earlier."""
        if digest in self.numbers:
            return False
        self.numbers[digest] = len(self.digests)
        self.digests.append(digest)
        self._before.append(before)
        self._by.append(self._number(move))
        return True

    def record(self, expanded: Expanded) -> None:
        """The moves of a state; the states to which they lead are added before."""
        number = self.numbers[expanded.digest]
        while len(self._edges) <= number:
            self._edges.append(array("L"))
        edges = self._edges[number]
        for state in expanded.made:
            edges.extend((self._number(state.move) * 2 + state.repeats, self.numbers[state.digest]))
            self.answers[state.move.split()[0] if not state.move.startswith("net ") else state.move, state.answer] += 1
        self.transitions += len(expanded.made)
        self.expanded += 1
        if not expanded.left:
            self.over.add(number)

    def is_expanded(self, digest: bytes) -> bool:
        """Whether the state's moves were made."""
        number = self.numbers[digest]
        return number < len(self._edges) and bool(self._edges[number])

    def path(self, number: int) -> tuple[str, ...]:
        """The moves of a shortest path from the start."""
        path: list[str] = []
        while number:
            path.append(self._names[self._by[number]])
            number = self._before[number]
        return tuple(reversed(path))

    def unrepeatable(self) -> Iterator[Violation]:
        """Moves that change something when they are made again right away, although a repeat must not."""
        for number, edges in enumerate(self._edges):
            for place in range(0, len(edges), 2):
                name, target = edges[place], edges[place + 1]
                if name % 2 and target != number and self._edge(target, name) not in {None, target}:
                    move = self._names[name // 2]
                    yield Violation(f"{move} again changes something", (*self.path(number), move, move))

    def _edge(self, number: int, name: int) -> int | None:
        if number >= len(self._edges):
            return None
        edges = self._edges[number]
        return next((edges[place + 1] for place in range(0, len(edges), 2) if edges[place] == name), None)

    def _number(self, name: str) -> int:
        if name not in self._numbered:
            self._numbered[name] = len(self._names)
            self._names.append(name)
        return self._numbered[name]
