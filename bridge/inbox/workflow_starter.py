"""Starts and signals a Temporal workflow for each claimed turn (protocol §6, claim).

If the workflow cannot be started, the row is given back with a delay and the reason, so an outage of Temporal only
delays turns, and an operator sees it.
Temporal gets ids only; the project is also each workflow's fairness key, so workers serve projects in turn.
"""

import logging
from collections.abc import Sequence
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import (
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDConflictPolicy,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import declare_search_attributes
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.ledger.operations.recovery import name_ledger
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import Claim
from turnstile.ledger.turns.turn_publisher import end_by_force
from turnstile.rules.turn_ends import STOP_REASON, STOPPED
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.ids import AgentTurnId, InboxId, InterruptId
from turnstile.schema.message_types import Purpose
from turnstile.schema.states import DeferReason, HeadStatus, MessageType, TurnStatus
from turnstile.schema.turns import Ring, TurnInput, TurnRef
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn

log = logging.getLogger(__name__)
RELEASE_DELAY_SECONDS = 1.0
_RPC_TIMEOUT = timedelta(seconds=5)


class Starter(Claims):
    """Starts the workflows of claimed turns, and signals them."""

    def __init__(
        self,
        pool: Pool,
        client: Client,
        publisher: Publisher,
        served: ServedTargets,
        *,
        heartbeat_timeout_seconds: float = 10.0,
        telemetry: Telemetry = SILENT,
    ) -> None:
        super().__init__(pool, publisher, served, telemetry)
        self._client = client
        self._limits = {"heartbeat_timeout_seconds": heartbeat_timeout_seconds}
        self._ledger = ""

    async def ledger(self) -> str:
        """The id of this ledger, which every workflow carries in its memo; asked once."""
        if not self._ledger:
            self._ledger = await self._pool.run(name_ledger)
        return self._ledger

    async def ring(self, claims: list[Claim]) -> None:
        """Signal the workflow of these rows' turn once; it applies them together (§7.5, greedy batch).

        A signal never starts a workflow: if there is none, the rows are released. A turn that shall stop and has not
        begun is ended here: of a tree that is stopped, most turns may still wait for their workflow.
        """
        turn = claims[0].turn()
        if any(claim.purpose is Purpose.STOP and claim.head_status is HeadStatus.DISPATCHED for claim in claims):
            how = (TurnStatus.CANCELED, STOPPED, STOP_REASON, (HeadStatus.DISPATCHED,))
            if await end_by_force(self._pool, self._publisher, turn, *how, telemetry=self._telemetry):
                self.counts.settled += len(claims)
                return
        handle = self._client.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn.agent_turn_id))
        rings = [claim.ring() for claim in claims]
        with about(turn):
            try:
                await handle.signal(AgentTurn.doorbell, rings, rpc_timeout=_RPC_TIMEOUT)
                hit(Fault.WORKFLOW_SIGNALLED)
                self.counts.signalled += len(claims)
            except (RPCError, OSError) as error:
                log.warning(
                    "turn %s: its workflow could not be signalled (%s); its rows are released",
                    turn.agent_turn_id,
                    type(error).__name__,
                )
                gone = isinstance(error, RPCError) and error.status == RPCStatusCode.NOT_FOUND
                reason = DeferReason.WORKFLOW_ENDED if gone else DeferReason.ENGINE_UNREACHABLE
                await self.release(claims, reason, RELEASE_DELAY_SECONDS)

    async def start_claimed(self, claim: Claim) -> None:
        """Start the workflow of this row's turn, or release the row."""
        turn = claim.turn()
        try:
            if await self.start(turn, attributes=_in_tree(claim)):
                hit(Fault.WORKFLOW_STARTED)
                self.counts.started += 1
                return
        except (RPCError, OSError) as error:
            log.warning(
                "turn %s: its workflow could not be started (%s); its row is released",
                turn.agent_turn_id,
                type(error).__name__,
            )
            await self.release([claim], DeferReason.ENGINE_UNREACHABLE, RELEASE_DELAY_SECONDS)
            return
        # The workflow is closed and the turn is live: the rule 'engine' restarts it, unless its end is committed soon.
        log.warning("turn %s: its workflow has ended, and the ledger says that the turn is live", turn.agent_turn_id)
        await self.release([claim], DeferReason.WORKFLOW_ENDED, 10 * RELEASE_DELAY_SECONDS)

    async def start(
        self,
        turn: TurnRef,
        reuse: WorkflowIDReusePolicy = options.TURN_ID_REUSE,
        attributes: Sequence[SearchAttributePair[str]] = (),
        conflict: WorkflowIDConflictPolicy = options.TURN_ID_CONFLICT,
    ) -> bool:
        """Start the turn's workflow unless it runs; False if it is closed and may not be started again.

        It gets these search attributes beside its own. Raises `RPCError` and `OSError` as the client does.
        """
        arguments = TurnInput.model_validate(turn.model_dump() | self._limits)
        try:
            return await self._start_workflow(turn, arguments, reuse, attributes, conflict)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT or "no mapping" not in error.message:
                raise
            # Temporal's data was wiped, and the search attributes with it: declare them again.
            await declare_search_attributes(self._client)
            return await self._start_workflow(turn, arguments, reuse, attributes, conflict)

    async def _start_workflow(
        self,
        turn: TurnRef,
        arguments: TurnInput,
        reuse: WorkflowIDReusePolicy,
        more: Sequence[SearchAttributePair[str]],
        conflict: WorkflowIDConflictPolicy,
    ) -> bool:
        attributes = TypedSearchAttributes(
            [
                SearchAttributePair(options.TURN_PROJECT, turn.project_id),
                SearchAttributePair(options.TURN_AGENT, turn.agent_id),
                SearchAttributePair(options.TURN_CHANNEL, turn.channel_id),
                SearchAttributePair(options.TURN_STATUS, "running"),
                SearchAttributePair(options.TURN_EPOCH, turn.turn_epoch),
                SearchAttributePair(options.WORKER_TARGET, turn.worker_target),
                *more,
            ]
        )
        try:
            await self._client.start_workflow(
                AgentTurn.run,
                arguments,
                id=options.turn_workflow_id(turn.agent_turn_id),
                task_queue=options.task_queue(turn.worker_target),
                id_reuse_policy=reuse,
                id_conflict_policy=conflict,
                task_timeout=options.WORKFLOW_TASK_TIMEOUT,
                search_attributes=attributes,
                memo={options.LEDGER_MEMO: await self.ledger()},
                priority=options.priority(turn.project_id),
                static_summary=f"{turn.agent_id} in {turn.project_id}",
                static_details=_details(turn),
                request_eager_start=True,
                rpc_timeout=_RPC_TIMEOUT,
            )
        except WorkflowAlreadyStartedError:
            return False
        return True


async def signal_decision(client: Client, turn: AgentTurnId, interrupt: InterruptId) -> None:
    """Let the turn's workflow look at its deadline anew, since a person let a call go; best effort.

    It gets a ring that points to no row. Whoever does not hear it is woken by the rule `suspended` instead.
    """
    handle = client.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn))
    ring = Ring(inbox_id=InboxId(interrupt), message_type=MessageType.TOOL_RESULT, correlation_id=interrupt)
    try:
        await handle.signal(AgentTurn.doorbell, [ring], rpc_timeout=_RPC_TIMEOUT)
    except (RPCError, OSError) as error:
        log.info("turn %s: its workflow did not hear of a decision: %s", turn, type(error).__name__)


def _details(turn: TurnRef) -> str:
    return "\n".join(
        (
            f"- agent **{turn.agent_id}** in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}",
            f"- turn {turn.agent_turn_id}, inbox row {turn.inbox_id}",
            f"- context box {turn.context_box_id}, output box {turn.output_box_id}",
            f"- trace {turn.trace_id}",
        )
    )


def _in_tree(claim: Claim) -> list[SearchAttributePair[str]]:
    """The attributes of a turn that another asked for."""
    if claim.root_turn_id is None or claim.parent_turn_id is None:
        return []
    return [
        SearchAttributePair(options.TURN_ROOT, claim.root_turn_id),
        SearchAttributePair(options.TURN_PARENT, claim.parent_turn_id),
    ]
