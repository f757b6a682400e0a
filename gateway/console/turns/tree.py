"""`/console/turns/{id}/tree`: the tree that a turn is in, with time, state and cost rolled up.

Two statements, whatever the size of the tree; of more than `MOST_TURNS` turns the first are shown. A turn with many
children shows those that failed or go on, and the others folded by state; a link opens such a group, a page at a time.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup
from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.turns.now import address
from turnstile.gateway.console.turns.waits import counted
from turnstile.ledger.trees.tree_views import tree
from turnstile.schema.api import TOKEN
from turnstile.schema.base import Strict
from turnstile.schema.errors import Refused
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


MOST_TURNS: Final = 5000
_BAR: Final = 200


class TreePageQuery(Strict):
    """Which part of the tree."""

    of: str | None = Field(default=None, pattern=TOKEN)
    """The turn whose branch is shown; the whole tree without it."""
    state: str | None = Field(default=None, pattern="^[a-z_]{1,32}$")
    """Only its children of this state, a page of them."""
    page: int = Field(default=1, ge=1, le=MOST_TURNS)


@dataclass(frozen=True, slots=True)
class ShownLine:
    """A line with its bar and its link."""

    line: Line
    bar: Markup
    href: str


async def tree_page(visit: Visit[TreePageQuery, Any]) -> Response:
    """The tree, or a branch of it, or a group of children."""
    principal, query = visit.principal, visit.query
    view = await visit.console.turns.described(principal, AgentTurnId(visit.path["turn_id"]))
    nodes = await visit.console.pool.run(
        lambda conn: tree(
            conn, principal.project_id, view.agent_turn_id, channel=principal.channel_id, row_limit=MOST_TURNS + 1
        )
    )
    forest, here = rolled_up(nodes[:MOST_TURNS]), f"/console/turns/{part(view.agent_turn_id)}/tree"
    branch = _wanted(forest, query.of)
    newer = older = None
    if branch is not None and query.state is not None:
        group = group_of(branch, query.state)
        begin = (query.page - 1) * GROUP_PAGE
        lines = [line_of(member, branch.depth) for member in (branch, *group[begin : begin + GROUP_PAGE])]
        chosen = {"of": query.of, "state": query.state}
        newer = address(here, {**chosen, "page": query.page - 1}) if query.page > 1 else None
        older = address(here, {**chosen, "page": query.page + 1}) if len(group) > begin + GROUP_PAGE else None
    else:
        lines = lines_of(forest.tops if branch is None else [branch])
    begin_at, end_at = _span(forest if branch is None else branch)
    return render(
        visit,
        "turns/tree.html",
        turn=view,
        top=forest.tops[0].node.agent_id if forest.tops else view.agent_id,
        here=here,
        lines=[ShownLine(line, _bar(line, begin_at, end_at), _href(here, line)) for line in lines],
        whole=(forest if branch is None else branch).whole,
        began=begin_at,
        ended=end_at,
        branch=branch,
        above=_above(forest, branch),
        group=query.state if branch is not None else None,
        cut=len(nodes) > MOST_TURNS,
        most=MOST_TURNS,
        newer=newer,
        older=older,
        address=address,
    )


def _wanted(forest: Forest, turn: str | None) -> Branch | None:
    if turn is None:
        return None
    branch = forest.by_turn.get(AgentTurnId(turn))
    if branch is None:
        raise Refused("unknown_turn", "the tree has no such turn")
    return branch


def _above(forest: Forest, branch: Branch | None) -> list[Branch]:
    """The turns above a branch, the root first."""
    branches: list[Branch] = []
    while branch is not None and (parent := branch.node.parent_turn_id) is not None:
        branch = forest.by_turn.get(parent)
        branches += [branch] if branch is not None else []
    return branches[::-1]


def _span(part: Forest | Branch) -> tuple[datetime, datetime]:
    """From when to when the bars reach."""
    now = datetime.now(UTC)
    whole = part.whole
    begin = whole.begin or now
    return begin, max(now if whole.live or whole.end is None else whole.end, begin)


def _bar(line: Line, begin: datetime, end: datetime) -> Markup:
    """When a turn waited and ran, with a thin line over all below it; drawn to the page's scale."""
    seconds = max((end - begin).total_seconds(), 0.001)

    def x(at: datetime) -> float:
        return min(max((at - begin).total_seconds() / seconds, 0.0), 1.0) * _BAR

    def rect(kind: str, since: datetime, until: datetime, y: int, height: int) -> Markup:
        return Markup('<rect class="tl-{}" x="{}" y="{}" width="{}" height="{}" rx="1"/>').format(
            kind, f"{x(since):.1f}", y, f"{max(x(until) - x(since), 1.5):.1f}", height
        )

    parts: list[Markup] = []
    node, sums = line.branch.node, line.sums
    until = end if sums.live or sums.end is None else sums.end
    if line.status is not None or sums.turns > 1:
        parts.append(rect("whole", sums.begin or begin, until, 12, 2))
    if line.status is None:
        over = node.ended_at or end
        begun = node.started_at or over
        parts.append(rect("queue", node.created_at, begun, 3, 6))
        if node.started_at is not None:
            failed = node.status in FAILED
            parts.append(rect("failed" if failed else "live" if node.ended_at is None else "step", begun, over, 2, 8))
    return Markup('<svg class="treebar" viewBox="0 0 {} 16" width="{}" height="16" aria-hidden="true">{}</svg>').format(
        _BAR, _BAR, Markup("").join(parts)
    )


def _href(here: str, line: Line) -> str:
    """Where a line leads: to the turn, or to its group."""
    turn = line.branch.node.agent_turn_id
    if line.status is not None:
        return address(here, {"of": turn, "state": line.status})
    return f"/console/turns/{part(turn)}"
