"""Enqueues that do something with the turns before them: `multitask_strategy` (protocol §6, enqueue).

Guarantees: the new turn is enqueued and the others are asked to stop in one transaction, under the lock of the agent's
head, or nothing is written. Only turns of the same requester, conversation and channel are touched, and none that
another turn asked for. A queued turn ends in that transaction; one in hand has a stop in its inbox, and ends as a
stopped turn does. A repeat by correlation returns the first answer. Costs three round trips, and one for each queued
turn that ends. Never publishes.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Connection, query
from turnstile.ledger.turns.intake import LIMITS, Enqueue, Enqueued, QueuedStop, enqueue_turn, stop_queued_turn
from turnstile.ledger.turns.waiting import RequestedStop
from turnstile.schema.access import Caller
from turnstile.schema.cards import Card
from turnstile.schema.errors import Limited, Refused
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, ProjectId

NO_CONVERSATION = (
    "a multitask_strategy needs a conversation: name a conversation_id, or ask an agent whose profile keeps one"
)


class DisplacedTurn(RequestedStop):
    """A turn that makes way; `inbox_id` is that of its own row if it is queued, else that of its stop."""

    agent_turn_id: AgentTurnId


@dataclass(frozen=True, slots=True)
class MadeWay:
    """The new turn, and the turns that make way for it: with their ends if they were queued."""

    enqueued: Enqueued
    stopped: Sequence[tuple[DisplacedTurn, QueuedStop | None]] = ()
    marked: Sequence[AgentTurnId] = ()
    """The turn in hand and those below it that were marked."""


class TurnInProgress(Refused):
    """A turn of the same requester in the same conversation is in hand or queued."""

    def __init__(self, turn: AgentTurnId) -> None:
        super().__init__("turn_in_progress", f"turn {turn} of this conversation is not over: wait for it, or stop it")
        self.agent_turn_id = turn


@dataclass(frozen=True, slots=True)
class Over:
    """Who asks, and how the turns before the new one end: why, and with what if they are queued."""

    caller: Caller
    reason: str
    deliverable: Callable[[DisplacedTurn], Card]
    error: tuple[str, str]
    """The code and the text."""


EnqueueStatement: TypeAlias = Callable[[Connection, Enqueue], Awaitable[Enqueued]]
"""Writes the new turn, in the transaction of the connection."""


async def enqueue_over(pool: Pool, command: Enqueue, how: Over, enqueue: EnqueueStatement = enqueue_turn) -> MadeWay:
    """Enqueue with the strategy `reject`, `interrupt` or `rollback`.

    Raises as `enqueue`, `TurnInProgress`, and `Refused` (no_conversation).
    """
    return await pool.transact(lambda conn: make_way(conn, command, how, enqueue))


async def make_way(conn: Connection, command: Enqueue, how: Over, enqueue: EnqueueStatement = enqueue_turn) -> MadeWay:
    """As `enqueue_over`, in the transaction of the connection, which must be rolled back for what it raises.

    `enqueue` writes the new turn.
    """
    limit = command.admission.max_queued_turns
    unlimited = replace(command, admission=replace(command.admission, max_queued_turns=0))  # some may leave the queue
    enqueued = await enqueue(conn, unlimited)
    turn = enqueued.reply.agent_turn_id
    if not enqueued.is_new or turn is None:
        return MadeWay(await _as_before(conn, command, enqueued))
    verdict, *ways = await query("make_way").many(
        conn,
        project_id=command.project_id,
        agent_turn_id=turn,
        strategy=command.request.multitask_strategy,
        principal=how.caller.name,
        reason=how.reason,
        max_queued_turns=limit,
        new_box_id=command.new_output_box_id,  # a conversation that has a turn in hand has a box
    )
    match verdict["verdict"]:
        case "no_conversation":
            raise Refused("no_conversation", NO_CONVERSATION)
        case "queue_full":
            raise Limited("queue_full", LIMITS["queue_full"])
        case "turn_in_progress":
            raise TurnInProgress(verdict["agent_turn_id"])
        case _:
            pass
    turns = [DisplacedTurn.model_validate(dict(row)) for row in ways]
    stopped = [(t, await _end(conn, command.project_id, t, how.deliverable(t), how.error)) for t in turns]
    marked: list[AgentTurnId] = []
    for way in turns:
        if way.verdict != "queued":
            row = await query("mark_tree").one(
                conn, project_id=command.project_id, agent_turn_id=way.agent_turn_id, reason=how.reason, whole=False
            )
            marked += row["marked"] or []
    reply = enqueued.reply.model_copy(update={"stopped": tuple(t.agent_turn_id for t in turns)})
    return MadeWay(replace(enqueued, reply=reply), stopped, marked)


async def _end(
    conn: Connection, project: ProjectId, turn: DisplacedTurn, card: Card, error: tuple[str, str]
) -> QueuedStop | None:
    if turn.verdict != "queued":
        return None
    return await stop_queued_turn(conn, project, AgentId(turn.agent_id or ""), turn.agent_turn_id, card, *error)


async def _as_before(conn: Connection, command: Enqueue, enqueued: Enqueued) -> Enqueued:
    """The reply of the first enqueue under this correlation."""
    row = await query("made_way").one(conn, project_id=command.project_id, agent_turn_id=enqueued.reply.agent_turn_id)
    return replace(enqueued, reply=enqueued.reply.model_copy(update={"stopped": tuple(json.loads(row["stopped"]))}))


async def requester_of(conn: Connection, project: ProjectId, channel: ChannelId, turn: AgentTurnId) -> str | None:
    """Who asked for the turn, None if nobody said; raises `Refused` (unknown_turn)."""
    row = await query("turn_requester").opt(conn, project_id=project, channel_id=channel, agent_turn_id=turn)
    if row is None:
        raise Refused("unknown_turn", "the channel has no such turn")
    return row["requester"]
