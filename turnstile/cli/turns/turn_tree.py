"""`turnstile turn tree`: a tree of turns, once or live, with what each and its subtree took.

A failing branch is marked down to the turn that failed: a turn that failed itself with `✗`, one above it with `!`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from turnstile.cli.output import clean
from turnstile.cli.session import Session
from turnstile.cli.turns.lookup import require_turn
from turnstile.cli.turns.turn_report import duration
from turnstile.ledger.trees.tree_views import TreeNode, tree
from turnstile.schema.ids import AgentTurnId

if TYPE_CHECKING:
    from turnstile.ledger.pool import Pool

_GOOD, _OPEN = "success", frozenset({"queued", "dispatched", "running", "suspended"})
_STYLES = {_GOOD: "green", "partial": "yellow", "failed": "red", "timeout": "red", "canceled": "dim"}


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a turn and all turns below it took, and whether one of them failed."""

    turns: int
    tokens: int
    cost: float | None
    failed: bool


def roll_up(nodes: Sequence[TreeNode]) -> Mapping[AgentTurnId, Rolled]:
    """The sums of each turn and its subtree; parents come before children."""
    sums: dict[AgentTurnId, Rolled] = {}
    below: dict[AgentTurnId | None, list[Rolled]] = defaultdict(list)
    for node in reversed(nodes):
        parts = below[node.agent_turn_id]
        costs = [each for each in (node.cost, *(part.cost for part in parts)) if each is not None]
        rolled = Rolled(
            turns=1 + sum(part.turns for part in parts),
            tokens=node.tokens + sum(part.tokens for part in parts),
            cost=sum(costs) if costs else None,
            failed=_failed(node) or any(part.failed for part in parts),
        )
        sums[node.agent_turn_id] = rolled
        below[node.parent_turn_id].append(rolled)
    return sums


def _failed(node: TreeNode) -> bool:
    return node.status in {"failed", "timeout"}


def picture(nodes: Sequence[TreeNode], now: datetime) -> Tree:
    """The tree as it is drawn."""
    sums = roll_up(nodes)
    drawn: dict[AgentTurnId, Tree] = {}
    root = Tree(_label(nodes[0], sums, now), guide_style="dim")
    drawn[nodes[0].agent_turn_id] = root
    for node in nodes[1:]:
        above = drawn.get(node.parent_turn_id, root) if node.parent_turn_id is not None else root
        drawn[node.agent_turn_id] = above.add(_label(node, sums, now))
    return root


def _label(node: TreeNode, sums: Mapping[AgentTurnId, Rolled], now: datetime) -> Text:
    rolled = sums[node.agent_turn_id]
    mark = "✗ " if _failed(node) else "! " if rolled.failed else ""
    text = Text(mark, style="red")
    text.append(clean(node.agent_id), style="bold")
    if node.label:
        text.append(f" ({clean(node.label)})")
    status = "stopping" if node.stopping else node.status
    text.append(f" {status}", style=_STYLES.get(status, "cyan"))
    if node.error_code:
        text.append(f" {clean(node.error_code)}", style="red")
    text.append(f"  {duration(node.created_at, node.ended_at or now)}")
    text.append(_spent(node.tokens, node.cost))
    if rolled.turns > 1:
        text.append(f"  with all {rolled.turns} turns{_spent(rolled.tokens, rolled.cost)}", style="dim")
    text.append(f"  {node.agent_turn_id}", style="dim")
    return text


def _spent(tokens: int, cost: float | None) -> str:
    parts = [f"{tokens:,} tokens" if tokens else "", f"${cost:.4f}" if cost else ""]
    shown = ", ".join(filter(None, parts))
    return f" {shown}" if shown else ""


async def show_tree(session: Session, turn: str, *, follow: bool, interval: float) -> None:
    """Print the tree, or redraw it until every turn is over; raises `Refused` (`unknown_turn`, `ambiguous_turn`)."""
    async with session.ledger() as pool:
        found = (await require_turn(pool, session.project, turn)).agent_turn_id
        nodes = await _read(pool, session, found)
        if not follow:
            _print(session, nodes)
        elif session.out.as_json:
            await _lines(pool, session, found, nodes, interval)
        else:
            await _live(pool, session, found, nodes, interval)


def _print(session: Session, nodes: Sequence[TreeNode]) -> None:
    if session.out.as_json:
        session.out.document(nodes)
    else:
        session.out.show(picture(nodes, datetime.now(UTC)))


async def _read(pool: "Pool", session: Session, turn: AgentTurnId) -> list[TreeNode]:
    return await pool.run(lambda conn: tree(conn, session.project, turn))


def _is_open(nodes: Sequence[TreeNode]) -> bool:
    return any(node.status in _OPEN for node in nodes)


async def _live(pool: "Pool", session: Session, turn: AgentTurnId, nodes: list[TreeNode], interval: float) -> None:
    with Live(picture(nodes, datetime.now(UTC)), console=session.out.console, auto_refresh=False) as live:
        live.refresh()
        while _is_open(nodes):
            await asyncio.sleep(interval)
            nodes = await _read(pool, session, turn)
            live.update(picture(nodes, datetime.now(UTC)), refresh=True)


async def _lines(pool: "Pool", session: Session, turn: AgentTurnId, nodes: list[TreeNode], interval: float) -> None:
    shown: dict[AgentTurnId, TreeNode] = {}
    while True:
        for node in nodes:
            if shown.get(node.agent_turn_id) != node:
                shown[node.agent_turn_id] = node
                session.out.json_line(node)
        if not _is_open(nodes):
            return
        await asyncio.sleep(interval)
        nodes = await _read(pool, session, turn)
