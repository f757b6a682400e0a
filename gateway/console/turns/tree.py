"""`/console/turns/{id}/tree`: the tree that a turn is in, with time, state and cost rolled up.

Two statements, whatever the size of the tree; of more than `MOST_TURNS` turns the first are shown.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup
from pydantic import Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Visit
from turnstile.gateway.console.rendering import render
from turnstile.gateway.console.turns.now import address
from turnstile.gateway.console.turns.rollup import (
    FAILED,
    GROUP_PAGE,
    Branch,
    Forest,
    Line,
    group_of,
    line_of,
    lines_of,
    rolled_up,
)
from turnstile.ledger.trees.tree_views import tree
from turnstile.schema.api import TOKEN
from turnstile.schema.base import Strict
from turnstile.schema.errors import Refused
from turnstile.schema.ids import AgentTurnId

MOST_TURNS: Final = 5000
_BAR: Final = 200


class TreeQuery(Strict):
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


async def tree_page(visit: Visit[TreeQuery, Any]) -> Response:
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
