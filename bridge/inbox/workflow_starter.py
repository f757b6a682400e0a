"""Claimed turns as workflows (protocol §6, claim): where inbox and Temporal meet.

A claim whose workflow cannot be started is given back with a delay at once, so that Temporal's absence costs nothing
but time. Ids only enter Temporal, and of each workflow its project, which takes turns with the others at the workers.
"""

import logging
from datetime import timedelta

from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import declare_search_attributes
from turnstile.bridge.inbox.claims import Claims
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import Claim
from turnstile.runtime.faults import Fault, hit
from turnstile.runtime.log_context import about
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.turns import TurnInput, TurnRef
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn

log = logging.getLogger(__name__)
RELEASE_DELAY_SECONDS = 1.0
_RPC_TIMEOUT = timedelta(seconds=5)


class Starter(Claims):
    """Starts the workflows of claimed turns, and rings at them."""

    def __init__(
        self,
        pool: Pool,
        client: Client,
        publisher: Publisher,
        served: ServedTargets,
        *,
        heartbeat_timeout_seconds: float = 10.0,
        quick_steps: bool = False,
        telemetry: Telemetry = SILENT,
    ) -> None:
        super().__init__(pool, publisher, served, telemetry)
        self._client = client
        self._limits = {"heartbeat_timeout_seconds": heartbeat_timeout_seconds, "quick_steps": quick_steps}

    async def ring(self, claims: list[Claim]) -> None:
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
                await self.release(claims, RELEASE_DELAY_SECONDS)

    async def start_claimed(self, claim: Claim) -> None:
        """Start its workflow, or give the row back."""
        turn = claim.turn()
        try:
            if await self.start(turn):
                hit(Fault.WORKFLOW_STARTED)
                self.counts.started += 1
                return
        except (RPCError, OSError) as error:
            log.warning("turn %s: could not be started (%s): given back", turn.agent_turn_id, type(error).__name__)
            await self.release([claim], RELEASE_DELAY_SECONDS)
            return
        # Completed, yet the ledger has it in hand: the rule 'engine' starts it again, or what ended it shows soon.
        log.warning("turn %s: its workflow has ended, its head has not", turn.agent_turn_id)
        await self.release([claim], 10 * RELEASE_DELAY_SECONDS)

    async def start(self, turn: TurnRef, reuse: WorkflowIDReusePolicy = options.TURN_ID_REUSE) -> bool:
        """Start the turn's workflow, or find it running; False if it is closed and may not be started again.

        Raises `RPCError` and `OSError` as the client does.
        """
        given = TurnInput.model_validate(turn.model_dump() | self._limits)
        try:
            return await self._start_workflow(turn, given, reuse)
        except RPCError as error:
            if error.status != RPCStatusCode.INVALID_ARGUMENT or "no mapping" not in error.message:
                raise
            # An engine whose data was wiped has forgotten the search attributes: declare them again.
            await declare_search_attributes(self._client)
            return await self._start_workflow(turn, given, reuse)

    async def _start_workflow(self, turn: TurnRef, given: TurnInput, reuse: WorkflowIDReusePolicy) -> bool:
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
        try:
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
        except WorkflowAlreadyStartedError:
            return False
        return True


def _details(turn: TurnRef) -> str:
    return "\n".join(
        (
            f"- agent **{turn.agent_id}** in {turn.project_id}/{turn.channel_id}, epoch {turn.turn_epoch}",
            f"- turn {turn.agent_turn_id}, inbox row {turn.inbox_id}",
            f"- context box {turn.context_box_id}, output box {turn.output_box_id}",
            f"- trace {turn.trace_id}",
        )
    )
