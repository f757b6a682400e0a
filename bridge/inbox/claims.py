"""Claims (protocol §6): take due inbox rows, start or signal their turns, settle the rest, release what failed.

Subclasses start and signal a claimed turn: as a workflow (`workflow_starter`), or as a task of a service
(`inbox_service`). One statement claims the rows of many agents, whose turns are started concurrently.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.publishing.best_effort import SENDER, publish_best_effort
from turnstile.ledger.operations.sweep import reject
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import AgentKey, Claim, claim_inbox, release_claims
from turnstile.ledger.turns.turn_publisher import end_by_force
from turnstile.ledger.turns.views import locate_turn
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Metric, Telemetry
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.message_types import Purpose
from turnstile.schema.states import DeferReason, TurnStatus
from turnstile.schema.wire.events import InboxProgress, TurnAddress
from turnstile.schema.wire.headers import SENDER as SENDER_HEADER

log = logging.getLogger(__name__)
CLAIM_LIMIT = 64
_RUNG = ("doorbell", "enqueue")
"""Reasons of claims whose rows have had their doorbell. For what the safety net finds or makes, the claim rings."""
START_LIMIT = 64
"""Agents of one claim statement. All turns that it claims are started at the same time."""


@dataclass(slots=True)
class ClaimCounts:
    """Claimed rows by outcome, for metrics."""

    started: int = 0
    signalled: int = 0
    settled: int = 0
    released: int = 0
    by_reason: dict[str, int] = field(default_factory=dict[str, int])


class Claims(ABC):
    """Claims due rows of the worker targets that are served at the moment of the claim."""

    def __init__(self, pool: Pool, publisher: Publisher, served: ServedTargets, telemetry: Telemetry = SILENT) -> None:
        self._pool = pool
        self._publisher = publisher
        self._served = served
        self._telemetry = telemetry
        self.counts = ClaimCounts()

    @abstractmethod
    async def start_claimed(self, claim: Claim) -> None:
        """Start the turn of this row if it is not running yet."""

    @abstractmethod
    async def ring(self, claims: list[Claim]) -> None:
        """Signal the running turn that all of these rows belong to."""

    async def claim(self, agents: Iterable[AgentKey], reason: str) -> None:
        """Claim the due rows of these agents and handle each; raises `ServerUnavailable` while the ledger is away.

        Rows of the safety net are rung for here, so that who listens on NATS hears of each row.
        """
        waiting = deque(dict.fromkeys(agents))
        while waiting:
            rows = [waiting.popleft() for _ in range(min(START_LIMIT, len(waiting)))]
            claims = await self._pool.run(
                lambda conn: claim_inbox(conn, rows, self._served.now(), row_limit=CLAIM_LIMIT)  # noqa: B023 -- awaited here
            )
            hit(Fault.CLAIM_TAKEN)
            await self.settle(claims, reason)
            if reason not in _RUNG:
                await publish_best_effort(self._publisher, *(claim.doorbell(SENDER, reason) for claim in claims))
            waiting.extend(_unfinished(claims))

    async def settle(self, claims: Sequence[Claim], reason: str) -> None:
        """Start, signal or settle what these claimed rows are for, all at the same time."""
        self.counts.by_reason[reason] = self.counts.by_reason.get(reason, 0) + len(claims)
        bells: dict[AgentTurnId | None, list[Claim]] = {}
        for claim in claims:
            self._telemetry.meter.count(Metric.CLAIMS, verdict=claim.verdict)
            if claim.verdict == "signal":
                bells.setdefault(claim.agent_turn_id, []).append(claim)
        work = [*map(self._settle, claims), *map(self.ring, bells.values())]
        await (work[0] if len(work) == 1 else asyncio.gather(*work))  # one alone begins at once

    async def _settle(self, claim: Claim) -> None:
        with about(
            project_id=claim.project_id,
            agent_id=claim.agent_id,
            agent_turn_id=claim.agent_turn_id,
            turn_epoch=claim.turn_epoch,
        ):
            await self._settle_one(claim)

    async def _settle_one(self, claim: Claim) -> None:
        match claim.verdict:
            case "start":
                await self.start_claimed(claim)
            case "signal":
                pass  # `ring` signals the turn once for all of its rows
            case "consumed" | "skipped" | "deferred":
                self.counts.settled += 1
                await self._publish_progress(claim, claim.last_error or claim.verdict)
            case "error":
                self.counts.settled += 1
                await self._refuse(claim)
                await self._publish_progress(claim, "protocol_violation")
                await self._fence(claim)

    async def _refuse(self, claim: Claim) -> None:
        """Log and record in the ledger who sent an illegal row and which rule it breaks."""
        sender, why = claim.context_headers.get(SENDER_HEADER, "unknown"), _flaw(claim)
        log.error("inbox row %s by %r breaks the protocol and is marked error: %s", claim.inbox_id, sender[:128], why)
        ids = {"inbox_id": claim.inbox_id, "correlation_id": (claim.correlation_id or "")[:128]}
        await self._pool.run(
            lambda conn: reject(conn, claim.project_id, f"sql:{sender}", "protocol_violation", why, ids)
        )

    async def release(self, claims: Sequence[Claim], reason: DeferReason, delay: float) -> None:
        """Give the rows back for this reason, to be claimed again after `delay` seconds."""
        self.counts.released += len(claims)
        self._telemetry.meter.count(Metric.CLAIMS_RELEASED, len(claims))
        rows = [claim.inbox_id for claim in claims]
        await self._pool.run(lambda conn: release_claims(conn, rows, reason, delay_seconds=delay))

    async def _fence(self, claim: Claim) -> None:
        """End the live turn that an illegal row names as failed, if it is a turn of the row's agent."""
        turn_id = claim.agent_turn_id
        if turn_id is None:
            return
        turn = await self._pool.run(lambda conn: locate_turn(conn, claim.project_id, turn_id))
        if turn is None or turn.agent_id != claim.agent_id:
            return  # an illegal row of one agent never ends another's turn
        reason = "its inbox row broke the protocol"
        await end_by_force(
            self._pool,
            self._publisher,
            turn,
            TurnStatus.FAILED,
            "protocol_violation",
            reason,
            telemetry=self._telemetry,
        )

    async def _publish_progress(self, claim: Claim, reason: str) -> None:
        address = TurnAddress.of(claim, claim.context_headers, SENDER)
        progress = InboxProgress.model_validate({"inbox_id": claim.inbox_id, "status": claim.verdict, "reason": reason})
        await publish_best_effort(self._publisher, address.inbox_progress(progress))


def _flaw(claim: Claim) -> str:
    """The rule of the claim (protocol §6) that a row breaks."""
    if claim.agent_turn_id is None or not claim.turn_epoch or claim.correlation_id is None:
        return "it lacks a turn, an epoch or a correlation"
    match claim.purpose:
        case Purpose.REPORT:
            return "its correlation is no call of this agent"
        case Purpose.MODEL_TURN | Purpose.TOOL_TURN | Purpose.STOP:
            return "its turn is another agent's, or one that nobody enqueued"
        case Purpose.RECORD:
            return "a row of its message_type is never due"
        case None:
            return "its message_type is unknown"


def _unfinished(claims: Sequence[Claim]) -> list[AgentKey]:
    """Agents that may have more due rows than this claim took."""
    taken = Counter((claim.project_id, claim.agent_id) for claim in claims)
    return [agent for agent, count in taken.items() if count >= CLAIM_LIMIT]
