"""A world of turns: all moves of its cast, its net, and what is not over (protocol §6 to §8)."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.explore.actors.bridge import bridge
from lab.explore.actors.cast import Cast, gated, of_turn, part_of, prepare, turn_ref
from lab.explore.actors.client import enqueues, steers, stops
from lab.explore.actors.forks import begin_fork, forks, marks
from lab.explore.actors.people import people
from lab.explore.actors.spending import limit_day, operators, unsettled
from lab.explore.actors.tools import waits, wipe
from lab.explore.actors.workers import steps
from lab.explore.net import LEDGER_RULES, REAPS, rule_move
from lab.explore.states.folding import Rows
from lab.explore.world import AT_ONCE, Move, Net, View, World
from turnstile.ledger.operations.audit import Bounds
from turnstile.ledger.pool import Pool


def turn_moves(cast: Cast, view: View) -> list[Move]:
    """Every move of this cast in this state."""
    moves: list[Move] = []
    for script in cast.scripts:
        if script.letter not in cast.children:
            asks = Move(
                f"enqueue {script.letter}", gated(lambda pool, s=script: enqueues(pool, s)), single=not script.over
            )
            moves.append(of_turn(script, asks))
        row = view.find("agent_inbox", inbox_id=script.inbox)
        if row is None:
            continue
        moves += marks(cast, script) + stops(cast, script, view) + steers(cast, script)
        if row["turn_epoch"] and view.find("workflows", agent_turn_id=script.turn) is not None:
            turn = turn_ref(script, row)
            late = steps(cast, script, turn, view) + waits(cast, script, turn, view) + people(cast, script, view)
            moves += [of_turn(script, move) for move in late]
    moves += forks(cast, view) + bridge(cast, view)
    moves += operators(cast, view)
    if any(script.spends for script in cast.scripts):  # what one turn reserves, another lacks
        moves = [replace(move, part="", alone=False) for move in moves]
    if cast.wipes and any(row["known"] for row in view.table("workflows")):
        moves.append(Move("wipe", wipe, part="live", alone=True))
    return moves


def world_of(name: str, says: str, cast: Cast, *, bounds: Bounds = AT_ONCE) -> World:
    """The world of this cast."""
    return World(
        name=name,
        says=says,
        prepare=lambda pool: _prepare(pool, cast),
        moves=lambda view: turn_moves(cast, view),
        net=net_of(cast),
        at_end=not_over,
        names=_fresh_boxes if any(script.box or script.talk for script in cast.scripts) else lambda _: {},
        part=_part_of(cast),
        checks=lambda view: [*_broken(view), *_passed_by(cast, view), *_mixed(view)],
        bounds=bounds,
    )


async def _prepare(pool: Pool, cast: Cast) -> None:
    """The roster, what the project may spend, and the turns that have asked for children."""
    await prepare(pool, dict.fromkeys(script.agent for script in cast.scripts))
    if cast.day:
        await limit_day(pool, cast.day)
    for fork in cast.forks:
        if fork.parent not in cast.children:
            await enqueues(pool, cast.by(fork.parent))
            await begin_fork(pool, cast, fork)


def _fresh_boxes(rows: Rows) -> Mapping[str, str]:
    """A turn that is stopped in the queue gets a box with a drawn id, if it is in a conversation or its box is held by
    another agent: named by the turn.
    """
    ended = [json.loads(text) for (table, _), text in rows.items() if table == "turn_outcomes"]
    return {
        row["output_box_id"]: f"{row['agent_turn_id'][-1] * 8}-0000-7000-8000-00000000000f"
        for row in ended
        if "-0000-7000-8000-" not in row["output_box_id"]
    }


def _part_of(cast: Cast) -> Callable[[View, str], Sequence[str]]:
    if any(script.box or script.talk or script.strategy for script in cast.scripts):
        return _whole
    return _part_of_tree if cast.forks else part_of


def _part_of_tree(view: View, part: str) -> Sequence[str]:
    """As in other worlds; but the end of a turn writes into the rows of its parent and its children."""
    kind, _, letter = part.partition(" ")
    ends = kind in {"end", "ask"} and view.find("turn_outcomes", agent_turn_id=f"turn_{letter}") is None
    return _whole(view, part) if ends else part_of(view, part)


def _whole(view: View, part: str) -> Sequence[str]:
    """Turns that share a box write into each other's part of the world: each move depends on all of it."""
    return [part, *view.texts(("",))]


def _broken(view: View) -> list[str]:
    """The end of a turn settles what asked for it (§6 stop); later stops find that it is over, and write nothing."""
    over = {row["agent_turn_id"] for row in view.table("turn_outcomes")}
    stops = view.all("agent_inbox", message_type="stop", archived_at=None)
    broken = [f"{row['agent_turn_id']} is over, and its stop is live" for row in stops if row["agent_turn_id"] in over]
    running = view.all("pmo_batches", status="running")
    return broken + [f"{row['batch_id']} runs, and is decided by its counts" for row in running if _is_decided(row)]


def _passed_by(cast: Cast, view: View) -> list[str]:
    """A turn that ended by its own step although a steer waited and another step was allowed."""
    ended = view.all("turn_outcomes", status="success", tool_result_card_id=None)
    early = [
        row["agent_turn_id"]
        for row in ended
        for script in cast.scripts
        if script.turn == row["agent_turn_id"]
        and len(view.all("agent_steps", agent_turn_id=script.turn)) < len(script.steps)
    ]
    skipped = view.all("steers", status="skipped")
    return [f"{row['agent_turn_id']} ended past {row['steer_id']}" for row in skipped if row["agent_turn_id"] in early]


def _mixed(view: View) -> list[str]:
    """A turn that reads, or writes beside, what a turn of another channel made (§6, walls between channels)."""
    channels = {row["agent_turn_id"]: row["channel_id"] for row in view.all("agent_inbox", message_type="turn")}
    if len({*channels.values()}) < 2:
        return []
    makers = {row["card_id"]: row["metadata"].get("agent_turn_id") for row in view.table("cards")}
    within: dict[str, set[str]] = {}
    for row in view.table("box_cards"):
        within.setdefault(row["box_id"], set()).add(channels.get(makers.get(row["card_id"]), ""))
    mixed = [
        (row["agent_turn_id"], box, channel)
        for row in view.all("agent_inbox", message_type="turn")
        for box in (row["payload"].get("context_box_id"), row["payload"].get("output_box_id"))
        for channel in within.get(box, set()) - {row["channel_id"], ""}
    ]
    return [f"{turn} is of another channel than a card in its box {box}, of {channel}" for turn, box, channel in mixed]


def _is_decided(batch: Mapping[str, Any]) -> bool:
    """Whether the counts of a batch decide it (§6, join)."""
    needed, won, left = batch["k"], batch["success_count"], batch["open_count"]
    if batch["fail_fast"] and batch["failed_count"]:
        return True
    return left == 0 or (batch["join_mode"] != "all" and (won >= needed or won + left < needed))


def not_over(view: View) -> list[str]:
    """What is not over yet: turns without an outcome, heads that are busy, rows that are live, ends not announced."""
    left = [
        f"{row['agent_id']} is {row['status']}" for row in view.table("agent_state_head") if row["status"] != "idle"
    ]
    for row in view.table("agent_inbox"):
        if row["archived_at"] is None:
            left.append(f"{row['inbox_id']} is {row['status']}")
        if row["message_type"] in {"turn", "ui_action"} and not view.find("turn_outcomes", inbox_id=row["inbox_id"]):
            left.append(f"{row['agent_turn_id']} has no outcome")
    left += [f"{row['batch_id']} is open" for row in view.table("pmo_batches") if row["open_count"]]
    left += [f"{row['batch_id']} runs" for row in view.all("pmo_batches", status="running")]
    left += [f"{row['interrupt_id']} is open" for row in view.all("interrupts", status="open")]
    left += [f"{row['steer_id']} is {row['status']}" for row in view.table("steers") if row["settled_at"] is None]
    left += [f"the node of {row['agent_turn_id']} is open" for row in view.all("turn_nodes", ended=False)]
    left += [f"{row['agent_turn_id']} is not announced" for row in view.all("turn_outcomes", announced_at=None)]
    return left + unsettled(view)


def net_of(cast: Cast) -> Net:
    """The net of a world with this cast, and the worker that lives."""
    return Net(
        rules=[rule_move(name) for name in LEDGER_RULES],
        time=lambda view: [move for move in turn_moves(cast, view) if move.name.startswith(("deadline ", "due "))],
        reaps=[rule_move(name) for name in REAPS],
        healthy=lambda view: _healthy(cast, view),
    )


def _healthy(cast: Cast, view: View) -> Iterable[Move]:
    """What the worker of each turn in hand does next: apply what is due, begin, or commit what its script says.

    A bridge takes the commands of calls that ask for children.
    """
    for move in forks(cast, view):
        if move.name.startswith(("open ", "fork ")):
            yield move
    for script in cast.scripts:
        head = view.find("agent_state_head", active_agent_turn_id=script.turn)
        if head is None:
            continue
        commits = ("call", "go-on", "cut", "steered", "finish", "terminate")
        verbs = {
            "suspended": ("apply",),
            "dispatched": ("begin",),
            "running": commits if head["step_attempt"] else ("begin",),
        }[head["status"]]
        moves = {move.name: move for move in turn_moves(cast, view)}
        number = str(head["step_count"] + 1)
        for verb in verbs:
            names = [name.split() for name in moves if name.startswith(f"{verb} {script.letter} ")]
            named = [name for name in names if verb == "apply" or name[2] == number]
            if named:
                yield moves[" ".join(named[0])]
                break
