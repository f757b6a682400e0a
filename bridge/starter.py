"""Claims, and the workflows they start (protocol §6, claim): where inbox and Temporal meet.

A claim whose workflow cannot be started is given back with a delay at once, so that Temporal's absence costs nothing
but time. Many agents are claimed by one statement and started concurrently, but never more than `START_LIMIT` agents
at a time. Ids only enter Temporal, and of each workflow its project, which takes turns with the others at the workers.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from bridge.endings import end_by_force
from bridge.engine import declare_search_attributes
from bridge.telling import SENDER, tell
from ledger.lease import AgentKey, Claim, claim_inbox, release_claims
from ledger.pool import Pool
from ledger.views import locate_turn
from schema.events import Address, InboxProgress
from schema.faults import Fault, hit
from schema.ids import AgentTurnId
from schema.logs import about
from schema.ports import Publisher
from schema.states import TurnStatus
from schema.telemetry import SILENT, Metric, Telemetry
from schema.turns import TurnInput, TurnRef
from workflows import options
from workflows.agent_turn import AgentTurn

log = logging.getLogger(__name__)
CLAIM_LIMIT = 64
START_LIMIT = 64
"""Agents of one statement: what it starts is in flight at once."""
RELEASE_DELAY_SECONDS = 1.0
_RPC_TIMEOUT = timedelta(seconds=5)


@dataclass(slots=True)
class ClaimCounts:
    """What became of claimed rows, for metrics."""

    started: int = 0
    signalled: int = 0
    settled: int = 0
    released: int = 0
    by_reason: dict[str, int] = field(default_factory=dict[str, int])


class Starter:
    """Claims due rows for the served worker targets and starts their turns."""

    def __init__(
        self,
        pool: Pool,
        client: Client,
        publisher: Publisher,
        worker_targets: Sequence[str],
        *,
        heartbeat_timeout_seconds: float = 10.0,
        telemetry: Telemetry = SILENT,
    ) -> None:
        self._pool = pool
        self._client = client
        self._publisher = publisher
        self._worker_targets = tuple(worker_targets)
        self._heartbeat_timeout = heartbeat_timeout_seconds
        self._telemetry = telemetry
        self.counts = ClaimCounts()

    async def claim(self, agents: Iterable[AgentKey], reason: str) -> None:
        """Take what is due for these agents and start it; raises `ServerUnavailable` while the ledger is away."""
        waiting = deque(dict.fromkeys(agents))
        while waiting:
            wanted = [waiting.popleft() for _ in range(min(START_LIMIT, len(waiting)))]
            claims = await self._pool.run(
                lambda conn: claim_inbox(conn, wanted, self._worker_targets, row_limit=CLAIM_LIMIT)  # noqa: B023 -- awaited here
            )
            hit(Fault.CLAIM_TAKEN)
            self.counts.by_reason[reason] = self.counts.by_reason.get(reason, 0) + len(claims)
            bells: dict[AgentTurnId | None, list[Claim]] = {}
            for claim in claims:
                self._telemetry.meter.count(Metric.CLAIMS, verdict=claim.verdict)
                if claim.verdict == "signal":
                    bells.setdefault(claim.agent_turn_id, []).append(claim)
            await asyncio.gather(*map(self._settle, claims), *map(self._signal, bells.values()))
            waiting.extend(_unfinished(claims))

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
                await self._start(claim)
            case "signal":
                pass  # rung together with the others of its turn
            case "consumed" | "skipped" | "deferred":
                self.counts.settled += 1
                await self._tell(claim, claim.last_error or claim.verdict)
            case "error":
                self.counts.settled += 1
                log.error("inbox row %s breaks the protocol: marked error", claim.inbox_id)
                await self._tell(claim, "protocol_violation")
                await self._fence(claim)

    async def _signal(self, claims: list[Claim]) -> None:
        """Ring once at the workflow of the turn that these rows are for; it applies them together (§7.5, greedy batch).

        Signals need a running workflow, never make one.
        """
        turn = claims[0].turn()
        handle = self._client.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn.agent_turn_id))
        rings = [claim.ring() for claim in claims]
        with about(turn):
            try:
                await handle.signal(AgentTurn.doorbell, rings, rpc_timeout=_RPC_TIMEOUT)
                hit(Fault.WORKFLOW_SIGNALLED)
                self.counts.signalled += len(claims)
            except (RPCError, OSError) as error:
                log.warning("turn %s: could not be rung (%s): given back", turn.agent_turn_id, type(error).__name__)
                await self._release(claims, RELEASE_DELAY_SECONDS)

    async def _start(self, claim: Claim) -> None:
        turn = claim.turn()
        try:
            await self.start(turn)
            hit(Fault.WORKFLOW_STARTED)
            self.counts.started += 1
        except WorkflowAlreadyStartedError:
            # Completed, yet the ledger has it in hand: the rule 'engine' starts it again, or what ended it shows soon.
            log.warning("turn %s: its workflow has ended, its head has not", turn.agent_turn_id)
            await self._release([claim], 10 * RELEASE_DELAY_SECONDS)
        except (RPCError, OSError) as error:
            log.warning("turn %s: could not be started (%s): given back", turn.agent_turn_id, type(error).__name__)
            await self._release([claim], RELEASE_DELAY_SECONDS)

    async def start(self, turn: TurnRef, reuse: WorkflowIDReusePolicy = options.TURN_ID_REUSE) -> None:
        """Start the turn's workflow, or find it running; raises what the client raises."""
        given = TurnInput(**turn.model_dump(), heartbeat_timeout_seconds=self._heartbeat_timeout)
        try:
            await self._start_workflow(turn, given, reuse)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT or "no mapping" not in error.message:
                raise
            # An engine whose data was wiped has forgotten the search attributes: declare them again.
            await declare_search_attributes(self._client)
            await self._start_workflow(turn, given, reuse)

    async def _start_workflow(self, turn: TurnRef, given: TurnInput, reuse: WorkflowIDReusePolicy) -> None:
        attributes = TypedSearchAttributes(
            [
                SearchAttributePair(options.TURN_PROJECT, turn.project_id),
                SearchAttributePair(options.TURN_AGENT, turn.agent_id),
                SearchAttributePair(options.TURN_CHANNEL, turn.channel_id),
                SearchAttributePair(options.TURN_STATUS, "running"),
                SearchAttributePair(options.TURN_EPOCH, turn.turn_epoch),
                SearchAttributePair(options.WORKER_TARGET, turn.worker_target),
            ]
        )
        await self._client.start_workflow(
            AgentTurn.run,
            given,
            id=options.turn_workflow_id(turn.agent_turn_id),
            task_queue=options.task_queue(turn.worker_target),
            id_reuse_policy=reuse,
            id_conflict_policy=options.TURN_ID_CONFLICT,
            task_timeout=options.WORKFLOW_TASK_TIMEOUT,
            search_attributes=attributes,
            priority=options.priority(turn.project_id),
            static_summary=f"{turn.agent_id} in {turn.project_id}",
            static_details=_details(turn),
            request_eager_start=True,
            rpc_timeout=_RPC_TIMEOUT,
        )

    async def _release(self, claims: Sequence[Claim], delay: float) -> None:
        self.counts.released += len(claims)
        self._telemetry.meter.count(Metric.CLAIMS_RELEASED, len(claims))
        rows = [claim.inbox_id for claim in claims]
        await self._pool.run(lambda conn: release_claims(conn, rows, delay_seconds=delay))

    async def _fence(self, claim: Claim) -> None:
        """A turn that an illegal row names gets its outcome, if an agent has it in hand."""
        turn_id = claim.agent_turn_id
        if turn_id is None:
            return
        turn = await self._pool.run(lambda conn: locate_turn(conn, claim.project_id, turn_id))
        if turn is None or turn.agent_id != claim.agent_id:
            return  # an illegal row of one agent never ends another's turn
        reason = "its inbox row broke the protocol"
        await end_by_force(
            *(self._pool, self._publisher, turn, TurnStatus.FAILED, "protocol_violation", reason),
            telemetry=self._telemetry,
        )

    async def _tell(self, claim: Claim, reason: str) -> None:
        address = Address(
            project_id=claim.project_id,
            channel_id=claim.channel_id,
            agent_id=claim.agent_id,
            agent_turn_id=claim.agent_turn_id,
            turn_epoch=claim.turn_epoch or 0,
            context=claim.context_headers,
            sender=SENDER,
        )
        progress = InboxProgress.model_validate({"inbox_id": claim.inbox_id, "status": claim.verdict, "reason": reason})
        await tell(self._publisher, address.inbox_progress(progress))


def _unfinished(claims: Sequence[Claim]) -> list[AgentKey]:
    """Agents that may have more rows than one claim takes."""
    taken = Counter((claim.project_id, claim.agent_id) for claim in claims)
    return [agent for agent, count in taken.items() if count >= CLAIM_LIMIT]


def _details(turn: TurnRef) -> str:
    return "\n".join(
        (
            f"- agent **{turn.agent_id}** in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}",
            f"- turn {turn.agent_turn_id}, inbox row {turn.inbox_id}",
            f"- context box {turn.context_box_id}, output box {turn.output_box_id}",
            f"- trace {turn.trace_id}",
        )
    )
