"""Enqueues with the strategy `steer`: an earlier turn hears the instruction, or a new one runs it (protocol §6).

Guarantees: either a steer is accepted or a turn enqueued, in one transaction. The steer's id is derived from the
enqueue's correlation, and is looked for under the lock of the agent's head, so a repeat never does the other thing.
A new turn costs five round trips, a steer eight. Never publishes.
"""

from dataclasses import dataclass
from typing import cast

from turnstile.ledger.people.multitask import MadeWay, Over, TurnInProgress, make_way
from turnstile.ledger.people.steers import AcceptedSteer, steer_turn
from turnstile.ledger.pool import Pool, Session
from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.turns.intake import Enqueue
from turnstile.schema.access import Caller
from turnstile.schema.errors import BadRequest, Refused
from turnstile.schema.ids import AgentTurnId, SteerId, asked_steer_id
from turnstile.schema.people.steers import SteerRequest


@dataclass(frozen=True, slots=True)
class Steered:
    """The steer that an enqueue became, now or before, and the turn that hears it."""

    agent_turn_id: AgentTurnId
    steer: AcceptedSteer


class _Instead(Exception):
    """Undoes the enqueue of a turn: there is an earlier steer of the same correlation, or a turn to steer."""

    def __init__(self, earlier: Steered | None, busy: AgentTurnId) -> None:
        super().__init__()
        self.earlier = earlier
        self.busy = busy


async def steer_or_enqueue(pool: Pool, command: Enqueue, how: Over) -> MadeWay | Steered:
    """Steer the newest turn of the caller in the conversation that is not over nor asked to stop; else enqueue.

    Raises as `enqueue_over` and `steer` do, and `BadRequest` without an instruction.
    """
    if command.request.instruction is None:
        raise BadRequest("the strategy steer needs an instruction: it is sent to the turn")
    return await pool.transact(lambda conn: steer_or_make_way(conn, command, how))


async def steer_or_make_way(conn: Connection, command: Enqueue, how: Over) -> MadeWay | Steered:
    """As `steer_or_enqueue`, in the transaction of the connection; raises `Again` if it must be repeated."""
    steer = asked_steer_id(command.project_id, command.request.correlation_id or command.agent_turn_id)
    if (earlier := await _found(conn, command, steer)) is not None:
        return earlier
    try:
        return await _make_way(conn, command, how, steer)
    except _Instead as instead:
        if instead.earlier is not None:
            return instead.earlier
        return await _steer(conn, command, instead.busy, how.caller, steer)


async def _make_way(conn: Connection, command: Enqueue, how: Over, steer: SteerId) -> MadeWay:
    """Enqueue a turn, behind a savepoint; raises `_Instead`."""
    async with cast("Session", conn).transaction():
        way, busy = None, AgentTurnId("")
        try:
            way = await make_way(conn, command, how)
        except TurnInProgress as error:
            busy = error.agent_turn_id
        earlier = await _found(conn, command, steer)  # a repeat may have been first, before the head was ours
        if way is None or earlier is not None:
            raise _Instead(earlier, busy)
        return way


async def _steer(conn: Connection, command: Enqueue, turn: AgentTurnId, caller: Caller, steer: SteerId) -> Steered:
    named = command.project_id, command.channel_id
    try:
        return Steered(turn, await steer_turn(conn, *named, _request(command, turn), caller, steer))
    except Refused as refused:
        if refused.code == "already_final":  # it ended since: look again
            raise Again from refused
        raise


def _request(command: Enqueue, turn: AgentTurnId) -> SteerRequest:
    return SteerRequest(agent_turn_id=turn, text=command.request.instruction or "")


async def _found(conn: Connection, command: Enqueue, steer: SteerId) -> Steered | None:
    row = await query("find_steer").opt(conn, steer_id=steer, project_id=command.project_id)
    if row is None:
        return None
    turn = AgentTurnId(row["agent_turn_id"])
    if row["request_digest"] != _request(command, turn).digest():
        raise Refused("correlation_conflict", "this correlation_id was used before, with other content")
    return Steered(turn, AcceptedSteer.model_validate({**row, "verdict": "duplicate"}))
