"""The stop verb, and the fence for turns that do not stop in time (protocol §6 stop, §8).

Whatever its state, the turn ends with one outcome, one deliverable and one `task` event. A running or suspended turn is
asked through its inbox, so that it keeps its partial results; one that has not begun is ended here.
"""

import asyncio
import logging
from collections.abc import Sequence

from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.operations.sweep import MarkedTurn
from turnstile.ledger.people.multitask import requester_of
from turnstile.ledger.pool import Pool
from turnstile.ledger.trees.marks import mark_tree, rings_of
from turnstile.ledger.turns.turn_publisher import end_by_force, end_dispatched, end_queued
from turnstile.ledger.turns.views import describe_turn
from turnstile.ledger.turns.waiting import RequestedStop, request_stop
from turnstile.rules.turn_ends import STOP_REASON, STOPPED, Lease
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.access import Caller
from turnstile.schema.errors import Refused, ServerUnavailable
from turnstile.schema.ids import AgentTurnId, ChannelId, InboxId, ProjectId, uuid7
from turnstile.schema.states import ReplyStatus, TurnStatus
from turnstile.schema.turns import TurnRef
from turnstile.schema.wire.inbox import StopReply, StopRequest

log = logging.getLogger(__name__)
_TRIES = 20


async def stop_turn(
    pool: Pool,
    publisher: Publisher,
    project: ProjectId,
    request: StopRequest,
    telemetry: Telemetry = SILENT,
    *,
    channel: ChannelId | None = None,
    caller: Caller | None = None,
) -> StopReply:
    """Stop the turn; raises `Refused` (unknown_turn). `accepted` means that it will end, not that it has ended.

    A channel stops its own turns. A caller who does not operate stops turns that it has asked for; else `Refused`
    (not_yours), and nothing is changed.
    """
    inbox_id = InboxId(uuid7())
    turn_id = request.agent_turn_id
    if channel is not None:
        await _check_stop(pool, project, channel, turn_id, caller)
    tree = await mark_tree(pool, project, turn_id, request.reason, whole=request.cascade == "all")
    hit(Fault.TREE_MARKED)
    reply = await _stop_one(pool, publisher, project, request, inbox_id, stop_reason(caller), telemetry)
    if len(tree.turns) > 1 or (tree.turns and tree.turns[0] != turn_id):
        rings = await pool.run(lambda conn: rings_of(conn, [turn_id]))
        await publish_best_effort(publisher, *(ring.doorbell(SENDER, "stop") for ring in rings))
    ended_itself = False
    if reply.already_final and turn_id in tree.turns:  # its last step was on its way, or the mark ended it
        view = await pool.run(lambda conn: describe_turn(conn, project, turn_id))
        ended_itself = view is None or view.error_code != STOPPED
    return reply.model_copy(update={"marked": len(tree.turns) - ended_itself, "on_their_way": tree.on_their_way})


async def _stop_one(
    pool: Pool,
    publisher: Publisher,
    project: ProjectId,
    request: StopRequest,
    inbox_id: InboxId,
    error: str,
    telemetry: Telemetry,
) -> StopReply:
    """Ask the turn to end, or end it here, with this `error`, if it has not begun."""
    turn_id = request.agent_turn_id
    for _ in range(_TRIES):
        stop = await pool.run(lambda conn: request_stop(conn, project, turn_id, request.reason, inbox_id))
        hit(Fault.STOP_COMMITTED)
        reply = StopReply(status=ReplyStatus.ACCEPTED, agent_turn_id=turn_id, inbox_id=stop.inbox_id)
        match stop.verdict:
            case "unknown_turn":
                raise Refused("unknown_turn", "the project has no such turn")
            case "already_final":
                return reply.model_copy(update={"already_final": True})
            case "queued":
                if await end_queued(pool, publisher, project, stop, turn_id, error, telemetry):
                    return reply
            case "dispatched":
                if await end_dispatched(pool, publisher, project, turn_id, error, telemetry):
                    return reply
            case "duplicate":
                await ring_stop(publisher, project, stop, turn_id)
                return reply.model_copy(update={"duplicate": True})
            case _:
                await ring_stop(publisher, project, stop, turn_id)
                return reply
        await asyncio.sleep(0.05)  # its status changed between the two statements: try again
    raise ServerUnavailable(f"turn {turn_id} could not be stopped now: try again")


async def _check_stop(
    pool: Pool, project: ProjectId, channel: ChannelId, turn: AgentTurnId, caller: Caller | None
) -> None:
    requester = await pool.run(lambda conn: requester_of(conn, project, channel, turn))  # it never changes
    if caller is not None and not caller.operates and requester != caller.name:
        raise Refused("not_yours", "somebody else asked for this turn: its requester or an operator may stop it")


def stop_reason(caller: Caller | None) -> str:
    """The `error` of a turn that is stopped before it begins; it says who did it, if that is known."""
    return STOP_REASON if caller is None else f"{STOP_REASON} by {caller.name}"


async def fence_stopped(pool: Pool, publisher: Publisher, turn: TurnRef, telemetry: Telemetry = SILENT) -> bool:
    """End by force a turn that did not stop in time; False if it had ended itself."""
    return await end_by_force(pool, publisher, turn, TurnStatus.CANCELED, STOPPED, STOP_REASON, telemetry=telemetry)


async def end_marked(
    pool: Pool, publisher: Publisher, marked: Sequence[MarkedTurn], telemetry: Telemetry = SILENT
) -> int:
    """End turns that are marked and wait in a queue; returns how many. The others were leased meanwhile."""
    ended = 0
    for turn in marked:
        stop = RequestedStop.model_validate(turn.model_dump() | {"verdict": "queued", "turn_epoch": 0})
        ended += await end_queued(pool, publisher, turn.project_id, stop, turn.agent_turn_id, STOP_REASON, telemetry)
    return ended


async def ring_stop(publisher: Publisher, project: ProjectId, stop: RequestedStop, turn_id: AgentTurnId) -> None:
    """Publish the doorbell of a stop."""
    if stop.worker_target is None:
        return
    values = stop.model_dump() | {"project_id": project, "agent_turn_id": turn_id}
    lease = Lease.model_validate(values)
    await publish_best_effort(publisher, lease.doorbell(SENDER, "stop"))
    hit(Fault.STOP_PUBLISHED)
