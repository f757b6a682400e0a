"""A tree of turns rolled up, and the lines of it that a page shows. Pure.

A turn with many children shows those that failed or go on, and the others folded by state; a link opens such a group, a
page at a time. So a tree of thousands is a page that can be read.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from turnstile.gateway.console.turns.waits import counted
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.descriptions import TreeTurn

FEW: Final = 25
"""So many children are all shown."""
STANDING_OUT: Final = 20
"""Of more children, so many that failed or go on are shown."""
MOST_LINES: Final = 300
"""Beyond these, children are folded whatever they are."""
GROUP_PAGE: Final = 200
FAILED: Final = frozenset({TurnStatus.FAILED, TurnStatus.TIMEOUT})
_OVER: Final = frozenset(TurnStatus)


@dataclass(slots=True)
class Sums:
    """What turns took together."""

    turns: int = 0
    steps: int = 0
    tokens: int = 0
    cost: float | None = None
    states: Counter[str] = field(default_factory=Counter[str])
    begin: datetime | None = None
    end: datetime | None = None
    """None while one of them goes on."""
    live: int = 0

    def add(self, node: TreeTurn) -> None:
        """One turn."""
        sums = Sums(1, node.steps, node.tokens, node.cost, Counter([node.status]), node.created_at, node.ended_at)
        sums.live = int(node.status not in _OVER)
        self.join(sums)

    def join(self, other: "Sums") -> None:
        """Others."""
        self.turns += other.turns
        self.steps += other.steps
        self.tokens += other.tokens
        if other.cost is not None:
            self.cost = (self.cost or 0.0) + other.cost
        self.states.update(other.states)
        self.begin = min(filter(None, (self.begin, other.begin)), default=None)
        self.end = max(filter(None, (self.end, other.end)), default=None)
        self.live += other.live

    @property
    def failed(self) -> int:
        """Turns that failed or ran out of time."""
        return sum(self.states[status] for status in FAILED)


@dataclass(slots=True)
class Branch:
    """A turn with all below it."""

    node: TreeTurn
    depth: int
    whole: Sums
    children: "list[Branch]" = field(default_factory=list["Branch"])

    @property
    def stands_out(self) -> bool:
        """Whether it or something below it failed, or goes on."""
        return self.whole.failed > 0 or self.whole.live > 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the page: a turn, or a group of children of one state."""

    branch: Branch
    """The turn; of a group the parent."""
    depth: int
    sums: Sums
    words: tuple[str, ...] = ()
    status: str | None = None
    """Of a group its state."""


@dataclass(frozen=True, slots=True)
class Forest:
    """The turns of a tree that may be seen, rolled up."""

    tops: Sequence[Branch]
    by_turn: Mapping[AgentTurnId, Branch]
    whole: Sums


def rolled_up(nodes: Sequence[TreeTurn]) -> Forest:
    """The tree of nodes that come parents first; one whose parent is not among them is a top."""
    by_turn: dict[AgentTurnId, Branch] = {}
    tops: list[Branch] = []
    for node in nodes:
        above = None if node.parent_turn_id is None else by_turn.get(node.parent_turn_id)
        sums = Sums()
        sums.add(node)
        branch = by_turn[node.agent_turn_id] = Branch(node, 0 if above is None else above.depth + 1, sums)
        (tops if above is None else above.children).append(branch)
    for branch in reversed(by_turn.values()):
        parent = branch.node.parent_turn_id
        if parent is not None and parent in by_turn:
            by_turn[parent].whole.join(branch.whole)
    whole = Sums()
    for top in tops:
        whole.join(top.whole)
    return Forest(tops, by_turn, whole)


def lines_of(tops: Sequence[Branch]) -> list[Line]:
    """The lines of the page for these branches; the indent begins with them."""
    room = [MOST_LINES]
    base = min((top.depth for top in tops), default=0)
    return [line for top in tops for line in _lines(top, base, room)]


def group_of(parent: Branch, status: str) -> list[Branch]:
    """The children of one state, in order."""
    return [child for child in parent.children if child.node.status == status]


def line_of(branch: Branch, base: int) -> Line:
    """The line of a turn."""
    return Line(branch, branch.depth - base, branch.whole, tuple(_words(branch)))


def _lines(branch: Branch, base: int, room: list[int]) -> Iterator[Line]:
    room[0] -= 1
    yield line_of(branch, base)
    lines, folded = _chosen(branch.children, room[0])
    for child in lines:
        if room[0] <= 0:
            folded = [*folded, child]
        else:
            yield from _lines(child, base, room)
    groups: dict[str, Sums] = {}
    for child in folded:
        groups.setdefault(child.node.status, Sums()).join(child.whole)
    counts = Counter(child.node.status for child in folded)
    for status, sums in groups.items():
        room[0] -= 1
        words = (counted(counts[status], "turn"), *([f"{sums.failed} failed below"] if sums.failed else []))
        yield Line(branch, branch.depth - base + 1, sums, words, status)


def _chosen(children: Sequence[Branch], room: int) -> tuple[Sequence[Branch], Sequence[Branch]]:
    """The children that have a line, and those that are folded."""
    if len(children) <= FEW and len(children) <= room:
        return children, ()
    standing = [child for child in children if child.stands_out][: min(STANDING_OUT, max(room, 0))]
    taken = {child.node.agent_turn_id for child in standing}
    return standing, [child for child in children if child.node.agent_turn_id not in taken]


def _words(branch: Branch) -> Iterator[str]:
    """What people should know of a turn beside its state."""
    node = branch.node
    below = branch.whole.failed - (node.status in FAILED)
    if below:
        yield f"{below:,} failed below"
    live = branch.whole.live - (node.status not in _OVER)
    if live:
        yield f"{live:,} running below"
    if node.stopping:
        yield "is being stopped"
    if node.stop_reason:
        yield f"stopped: {node.stop_reason}"
    if node.parent_turn_id is not None and not node.waited:
        yield "no turn waits for it"
