"""Deletions: the verbs that begin and show them, and the rule that carries them out (protocol §6, §8).

A request commits the deletion and answers at once; from then on the ledger admits nothing new of what it names. At each
tick a bridge stops the turns that still run and lets the ledger remove, a bounded piece a transaction, what has ended.
Any bridge goes on with what another left. Publishes nothing but stops; costs one look at an empty index per tick.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnstile.bridge.publishing.stop import stop_turn
from turnstile.bridge.safety.rules import SafetyRule
from turnstile.bridge.serving.micro_service import VerbRequest
from turnstile.ledger.operations.deletion import (
    RunningDeletion,
    advance_deletion,
    get_deletion,
    list_running_deletions,
    request_deletion,
)
from turnstile.ledger.operations.recovery import RunTransition
from turnstile.ledger.pool import Pool
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import Refused
from turnstile.schema.states import ReplyStatus
from turnstile.schema.wire.deletion_requests import (
    ConversationDeleteRequest,
    DeleteReply,
    DeletionReply,
    DeletionRequest,
    EndUserDeleteRequest,
)
from turnstile.schema.wire.inbox import StopRequest

REASON = "what it belongs to is being deleted"
AT_ONCE = 20
"""Deletions that one tick works on."""
PIECES = 50
"""Transactions of one deletion in one tick, so that a large one delays no other rule for long."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """The verbs and the rule over one ledger."""

    pool: Pool
    publisher: Publisher
    telemetry: Telemetry = SILENT

    async def conversation_delete(self, request: VerbRequest) -> DeleteReply:
        """Delete a conversation.

        Raises `Refused` (forbidden, unknown_conversation, ambiguous, conversation_changed).
        """
        caller, body = request.operator(), request.parse(ConversationDeleteRequest)
        requested = await self.pool.run(
            lambda conn: request_deletion(
                conn,
                request.project_id,
                request.channel_id,
                caller.name,
                conversation=body.conversation_id,
                agent=body.agent_id,
                seen=body.last_turn_id,
            )
        )
        hit(Fault.DELETION_REQUESTED)
        return _accepted(requested.deletion_id, requested.verdict)

    async def end_user_delete(self, request: VerbRequest) -> DeleteReply:
        """Delete an end user with all their turns; raises `Refused` (forbidden, unknown_end_user)."""
        caller, body = request.operator(), request.parse(EndUserDeleteRequest)
        requested = await self.pool.run(
            lambda conn: request_deletion(
                conn, request.project_id, request.channel_id, caller.name, end_user=body.end_user
            )
        )
        hit(Fault.DELETION_REQUESTED)
        return _accepted(requested.deletion_id, requested.verdict)

    async def deletion_get(self, request: VerbRequest) -> DeletionReply:
        """How far a deletion is; raises `Refused` (forbidden, unknown_deletion)."""
        request.operator()
        body = request.parse(DeletionRequest)
        deletion = await self.pool.run(lambda conn: get_deletion(conn, request.project_id, body.deletion_id))
        if deletion is None:
            raise Refused("unknown_deletion", "the project has no such deletion")
        return DeletionReply(status=ReplyStatus.ACCEPTED, deletion=deletion)

    def rule(self) -> SafetyRule[RunningDeletion]:
        """The rule of the safety net."""
        return SafetyRule("deletion", self._find, self._mend)

    async def _find(self, run: RunTransition) -> Sequence[RunningDeletion]:
        """The deletions that are not done, the one that was worked on longest ago first."""
        return await run(lambda conn: list_running_deletions(conn, row_limit=AT_ONCE))

    async def _mend(self, running: Sequence[RunningDeletion]) -> int:
        """Go on with each; returns how many are done with it."""
        done = 0
        for deletion in running:
            done += await self._go_on(deletion)
        return done

    async def _go_on(self, deletion: RunningDeletion) -> bool:
        """Do pieces of it until it is done, must wait, or has had its share; True if it is done."""
        for _ in range(PIECES):
            step = await self.pool.run(lambda conn: advance_deletion(conn, deletion.deletion_id))
            hit(Fault.DELETION_ADVANCED)
            if step.phase == "done":
                hit(Fault.DELETION_DONE)
                return True
            if step.phase != "removes":
                for turn in step.live:  # asked again at each tick; one that does not stop in time is fenced (rule stop)
                    stop = StopRequest(agent_turn_id=turn, reason=REASON, cascade="all")
                    await stop_turn(self.pool, self.publisher, deletion.project_id, stop, self.telemetry)
                return False
        return False


def _accepted(deletion: str, verdict: str) -> DeleteReply:
    return DeleteReply(status=ReplyStatus.ACCEPTED, deletion_id=deletion, duplicate=verdict == "duplicate")
