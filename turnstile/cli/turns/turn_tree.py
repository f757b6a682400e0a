"""`turnstile turn tree`: a tree of turns, once or live, with what each and its subtree took.

A failing branch is marked down to the turn that failed: a turn that failed itself with `✗`, one above it with `!`.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from turnstile.cli.budgets.budget_report import budget_line
from turnstile.cli.output import clean
from turnstile.cli.session import Session
from turnstile.cli.turns.lookup import require_of_client, turn_request
from turnstile.cli.turns.turn_report import duration_between
from turnstile.schema.amounts import money
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.ledger_reads import ReadRequest, TurnRead
from turnstile.schema.wire.descriptions import TreeTurn
from turnstile.sdk.nats_turns import turn_in

_CHILDREN_OF_MANY = 8
"""Children of a turn that are shown live where the terminal has fewer lines than the tree has turns."""
_MADE = re.compile(r"(-[0-9a-f]{6})[0-9a-f]{18}$")
"""The end of the id of an agent that was made for its turn, which is cut here; `turn show` has the whole of it."""
_GOOD, _OPEN = "success", frozenset({"queued", "dispatched", "running", "suspended"})
_STYLES = {_GOOD: "green", "partial": "yellow", "failed": "red", "timeout": "red", "canceled": "dim"}


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a turn and all turns below it took, and whether one of them failed."""

    turns: int
    tokens: int
    cost: float | None
    failed: bool


def roll_up(nodes: Sequence[TreeTurn]) -> Mapping[AgentTurnId, Rolled]:
    """The sums of each turn and its subtree; parents come before children."""
    sums: dict[AgentTurnId, Rolled] = {}
    below: dict[AgentTurnId | None, list[Rolled]] = defaultdict(list)
    for node in reversed(nodes):
        parts = below[node.agent_turn_id]
        costs = [p for p in (node.cost, *(part.cost for part in parts)) if p is not None]
        rolled = Rolled(
            turns=1 + sum(part.turns for part in parts),
            tokens=node.tokens + sum(part.tokens for part in parts),
            cost=sum(costs) if costs else None,
            failed=_failed(node) or any(part.failed for part in parts),
        )
        sums[node.agent_turn_id] = rolled
        below[node.parent_turn_id].append(rolled)
    return sums


def _failed(node: TreeTurn) -> bool:
    return node.status in {"failed", "timeout"}


def picture(nodes: Sequence[TreeTurn], now: datetime, most: int | None = None) -> Tree:
    """The tree as it is drawn; of each turn's children the first `most`, and a line that counts the others."""
    sums = roll_up(nodes)
    root = Tree(_label(nodes[0], sums, now), guide_style="dim")
    drawn = {nodes[0].agent_turn_id: root}
    children: Counter[AgentTurnId] = Counter()
    others: dict[AgentTurnId, Counter[str]] = defaultdict(Counter)
    for node in nodes[1:]:
        parent = node.parent_turn_id
        if parent is None or parent not in drawn:
            continue  # below one that is only counted
        children[parent] += 1
        if most is not None and children[parent] > most:
            others[parent][_status(node)] += 1
        else:
            drawn[node.agent_turn_id] = drawn[parent].add(_label(node, sums, now))
    for parent, counts in others.items():
        text = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items()))
        drawn[parent].add(Text(f"and {counts.total():,} more: {text}", style="dim", no_wrap=True, overflow="ellipsis"))
    return root


def _status(node: TreeTurn) -> str:
    return "stopping" if node.stopping else node.status


def _label(node: TreeTurn, sums: Mapping[AgentTurnId, Rolled], now: datetime) -> Text:
    rolled = sums[node.agent_turn_id]
    mark = "✗ " if _failed(node) else "! " if rolled.failed else ""
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(mark, style="red")
    text.append(_MADE.sub(r"\1…", clean(node.agent_id)), style="bold")
    if node.label:
        text.append(f" ({clean(node.label)})")
    status = _status(node)
    text.append(f" {status}", style=_STYLES.get(status, "cyan"))
    if node.error_code:
        text.append(f" {clean(node.error_code)}", style="red")
    text.append(f"  {duration_between(node.created_at, node.ended_at or now)}")
    text.append(_spent(node.tokens, node.cost))
    if node.budget is not None:
        text.append(f"  budget {budget_line(node.budget)}", style="yellow")
    if rolled.turns > 1:
        text.append(f"  with all {rolled.turns} turns{_spent(rolled.tokens, rolled.cost)}", style="dim")
    text.append(f"  {node.agent_turn_id}", style="dim")
    return text


def _spent(tokens: int, cost: float | None) -> str:
    parts = [f"{tokens:,} tokens" if tokens else "", money(cost) if cost else ""]
    text = ", ".join(filter(None, parts))
    return f" {text}" if text else ""


Read = Callable[[], Awaitable[Sequence[TreeTurn]]]
"""Reads the tree anew."""


async def show_tree(session: Session, turn: str, *, follow: bool, interval: float) -> None:
    """Print the tree, or redraw it until every turn is over; raises `Refused` (`unknown_turn`, `ambiguous_turn`)."""
    async with _reading(session, turn) as read:
        nodes = await read()
        if not follow:
            _print(session, nodes)
        elif session.out.as_json:
            await _lines(session, read, nodes, interval)
        else:
            await _live(session, read, nodes, interval)


@asynccontextmanager
async def _reading(session: Session, turn: str) -> AsyncGenerator[Read]:
    """Reads the tree of a turn; for an operator over NATS that of all channels."""
    async with session.client() as client:
        reply = await session.read_if_operator(client, turn_request(turn))
        if reply is None:
            view = await require_of_client(session, client, turn)
            yield lambda: session.patiently(view.tree)
            return
        page = TurnRead(agent_turn_id=turn_in(reply).agent_turn_id, tree=True)

        async def read() -> Sequence[TreeTurn]:
            nodes: list[TreeTurn] = []
            after: object = None
            while True:
                request = ReadRequest(turn=page.model_copy(update={"after": after}))
                more = await session.read_on(client.bridge, request)
                nodes += more.tree
                if (after := more.next) is None:
                    return nodes

        yield read


def _print(session: Session, nodes: Sequence[TreeTurn]) -> None:
    if session.out.as_json:
        session.out.document(nodes)
    else:
        session.out.show(picture(nodes, datetime.now(UTC)))


def _is_open(nodes: Sequence[TreeTurn]) -> bool:
    return any(node.status in _OPEN for node in nodes)


async def _live(session: Session, read: Read, nodes: Sequence[TreeTurn], interval: float) -> None:
    console = session.out.console

    def drawn() -> Tree:
        most = None if len(nodes) < console.height or not console.is_terminal else _CHILDREN_OF_MANY
        return picture(nodes, datetime.now(UTC), most)

    with Live(drawn(), console=console, auto_refresh=False) as live:
        live.refresh()
        while _is_open(nodes):
            await asyncio.sleep(interval)
            nodes = await read()
            live.update(drawn(), refresh=True)


async def _lines(session: Session, read: Read, nodes: Sequence[TreeTurn], interval: float) -> None:
    printed: dict[AgentTurnId, TreeTurn] = {}
    while True:
        for node in nodes:
            if printed.get(node.agent_turn_id) != node:
                printed[node.agent_turn_id] = node
                session.out.json_line(node)
        if not _is_open(nodes):
            return
        await asyncio.sleep(interval)
        nodes = await read()
