"""Forks and joins: whoever takes a forked call's command, deadlines of batches, the marks of stops (protocol §6, join).

A child has the ids of its script, so that a fork that is made again, or goes on, makes the same one.
"""

from collections.abc import Sequence

from lab.explore.actors.cast import BOB, PROJECT, Cast, Fork, Script, gated
from lab.explore.actors.workers import begin, call
from lab.explore.net import claim
from lab.explore.statements import statement
from lab.explore.world import Move, View
from turnstile.ledger.delegation.targets import Kind, find_targets
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection
from turnstile.ledger.trees.batches import (
    UNLIMITED_FORK,
    ChildTurn,
    ParentCall,
    batch_of,
    enqueue_children,
    expire_batch,
    find_call,
    open_batch,
)
from turnstile.ledger.trees.marks import mark_tree
from turnstile.ledger.turns.views import locate_turn
from turnstile.schema.cards import Card, CardType, JsonContent, Role, TextContent, make_card
from turnstile.schema.ids import BoxId, turn_card_id
from turnstile.schema.turns import TurnRef


def forks(cast: Cast, view: View) -> list[Move]:
    """What bridges and the time may do to the calls that are forked."""
    moves: list[Move] = []
    for fork in cast.forks:
        parent = cast.by(fork.parent)
        call_id, children = parent.call(1, "x"), list(enumerate(map(cast.by, fork.children)))
        if view.find("turn_waiting_tools", tool_call_id=call_id) is None:
            continue
        moves.append(Move(f"open {fork.name}", gated(lambda pool, f=fork, p=parent, c=children: _open(pool, f, p, c))))
        batch = view.find("pmo_batches", parent_tool_call_id=call_id)
        if batch is None:
            continue
        moves.append(_enqueue(f"fork {fork.name}", parent, children))
        if fork.start == "asked":  # as a fork of more than one statement does
            moves += [_enqueue(f"fork {fork.name} {child[1].letter}", parent, [child]) for child in children]
        batch_id: str = batch["batch_id"]
        if batch["status"] == "running" and batch["deadline_at"] > "2090":
            moves.append(Move(f"due {fork.name}", lambda pool, b=batch_id: _pass(pool, b)))
        moves.append(Move(f"decide {fork.name}", lambda pool, b=batch_id: _decide(pool, b), skips=True))
    return moves


def marks(cast: Cast, script: Script) -> list[Move]:
    """The mark that comes before a stop; a bridge may die between the two."""
    if not cast.forks or script.letter not in cast.stops:
        return []

    async def mark(pool: Pool) -> str:
        return f"marked {len((await mark_tree(pool, PROJECT, script.turn, 'enough', whole=False)).turns)}"

    return [Move(f"mark {script.letter}", mark)]


async def begin_fork(pool: Pool, cast: Cast, fork: Fork) -> None:
    """Bring the fork's parent, which is leased, to where the world starts."""
    parent = cast.by(fork.parent)
    turn = await _begun(pool, parent)
    await call(pool, parent, turn, 1, ["x"])
    if fork.start == "asked":
        return
    children = list(enumerate(map(cast.by, fork.children)))
    await _open(pool, fork, parent, children)
    await _enqueue("", parent, children).do(pool)
    for _, child in children:
        if fork.start == "begun":
            await _begun(pool, child)
        else:
            await claim(pool, [(PROJECT, child.agent)])


async def _begun(pool: Pool, script: Script) -> TurnRef:
    """The turn in its first step."""
    await claim(pool, [(PROJECT, script.agent)])
    turn = await pool.run(lambda conn: locate_turn(conn, PROJECT, script.turn))
    if turn is None:
        raise LookupError(script.turn)
    await begin(pool, turn, 1)
    return turn


async def _call(conn: Connection, parent: Script) -> ParentCall:
    call = await find_call(conn, PROJECT, parent.call(1, "x"))
    if call is None:
        raise LookupError(parent.call(1, "x"))
    return call


async def _open(pool: Pool, fork: Fork, parent: Script, children: Sequence[tuple[int, Script]]) -> str:
    asks = await pool.run(lambda conn: _call(conn, parent))
    tasks = [_child(asks, place, script) for place, script in children]
    return "opened" if await pool.run(lambda conn: open_batch(conn, asks, fork.batch, tasks)) else "duplicate"


def _enqueue(name: str, parent: Script, children: Sequence[tuple[int, Script]]) -> Move:
    async def do(pool: Pool) -> str:
        asks = await pool.run(lambda conn: _call(conn, parent))
        box = await _box_of_bob(pool, parent) if any(script.strategy for _, script in children) else None
        tasks = [_child(asks, place, script, box) for place, script in children]
        batch = batch_of(asks)
        children_made = await pool.run(lambda conn: enqueue_children(conn, asks, tasks, batch, UNLIMITED_FORK))
        return " ".join(c.verdict for c in children_made) or "nothing"

    return Move(name, gated(do), single=not any(script.strategy for _, script in children))


async def _box_of_bob(pool: Pool, parent: Script) -> BoxId | None:
    """Where `BOB` writes or wrote last, as the channel of the call sees it."""
    named: tuple[Kind, str] = ("agent", BOB)
    targets = await pool.run(lambda conn: find_targets(conn, PROJECT, parent.channel, parent.turn, [named]))
    return targets[named].output_box_id


async def _pass(pool: Pool, batch_id: str) -> str:
    await pool.run(lambda conn: statement("pass_batch_deadline").many(conn, batch_id=batch_id))
    return "passed"


async def _decide(pool: Pool, batch_id: str) -> str:
    return "decided" if await expire_batch(pool, batch_id) else "not due"


def _child(asks: ParentCall, place: int, script: Script, box: BoxId | None = None) -> ChildTurn:
    return ChildTurn(
        task_index=place,
        agent_id=script.agent,
        profile_box_id=asks.profile_box_id,
        agent_turn_id=script.turn,
        inbox_id=script.inbox,
        new_context_box_id=script.box_id("c"),
        new_output_box_id=script.box_id("d"),
        cards=_cards(asks, script),
        inherits=(box,) if box is not None and script.strategy == "clone" else (),
        output_box_id=box if script.strategy == "reuse" else None,
        traceparent=script.traceparent,
    )


def _cards(asks: ParentCall, script: Script) -> list[Card]:
    return [
        make_card(
            turn_card_id(script.turn, "instruction"),
            CardType.INSTRUCTION,
            Role.USER,
            TextContent(text="hello"),
            author=asks.agent_id,
            turn=script.turn,
        ),
        make_card(
            turn_card_id(script.turn, "parent"),
            CardType.PARENT_POINTER,
            Role.SYSTEM,
            JsonContent(data={"agent_turn_id": asks.agent_turn_id}),
            author="system",
            turn=script.turn,
        ),
    ]
