"""Compares ledger and Temporal, and mends where they disagree (protocol §8, rules *engine* and *reap*).

The ledger decides. A live turn whose workflow is missing or closed is started again from its head: a sleeping turn
keeps its deadline, a running turn repeats at most the step that had not committed. An open workflow whose turn is over
is closed. A visibility query finds suspects; since visibility lags, `describe` confirms each, and the ledger is queried
again before anything changes. Workflows of turns that this ledger does not know are ignored, since several databases
may share a Temporal.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflowservice.v1 import ListWorkflowExecutionsRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import ensure_engine
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.inbox.workflow_starter import Starter
from turnstile.bridge.publishing.endings import end_by_force
from turnstile.ledger.operations.recovery import (
    EndedTurn,
    Run,
    confirm_in_hand,
    list_in_hand,
    list_over,
    list_silent,
    list_undispatched,
    restart_turn,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import ServerUnavailable, StaleTurn
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn

log = logging.getLogger(__name__)
T = TypeVar("T")
V = TypeVar("V")
Live = TypeVar("Live", bound=LiveTurn)
MAX_RESTARTS = 3
DISPATCH_TIMEOUT = "dispatch_timeout"
REAPED = "timeout_reaped_by_watchdog"
FRESH_SECONDS = 5.0
"""A head that changed less than this ago is not checked: its workflow may not be visible yet."""
OVER_SECONDS = 10.0
"""A workflow that is open so long after its turn's end is cancelled."""
TERMINATE_SECONDS = 60.0
"""A workflow that is open so long after its turn's end is terminated."""
_AT_ONCE = 16
_ROW_LIMIT = 500
_RPC_TIMEOUT = timedelta(seconds=10)
_STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
_REFUSED = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.OUT_OF_RANGE)
"""Statuses with which Temporal refuses this one workflow every time. Any other status is trouble of Temporal itself:
a call that it does not answer in time ends as CANCELLED."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """Temporal's description of a turn's workflow."""

    known: bool = False
    open: bool = False
    heartbeat: datetime | None = None
    """The latest heartbeat of its pending activities."""
    proven: timedelta | None = None
    """Temporal has had a sign of life of a running activity within this, its heartbeat timeout, by its own clock."""

    def is_silent(self, since: datetime, older_seconds: float) -> bool:
        """Whether it has an open run without a sign of life for `older_seconds`, that is, since this time.

        The time is the ledger's and heartbeats have Temporal's, so what Temporal itself has proven goes first.
        """
        if self.proven is not None and self.proven.total_seconds() <= older_seconds:
            return False
        return self.open and (self.heartbeat is None or self.heartbeat < since)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Finds and mends disagreements between ledger and Temporal. Holds clients only."""

    pool: Pool
    client: Client
    starter: Starter
    publisher: Publisher
    served: ServedTargets
    telemetry: Telemetry = SILENT

    async def list_lost(self, run: Run, *, fresh_seconds: float = FRESH_SECONDS) -> list[LiveTurn]:
        """Live turns without an open workflow, except leased turns that were never started (rule *dispatched_reap*)."""
        visible = set(await self._visible())
        suspects = [
            turn
            async for turn in list_in_hand(run, self.served.now(), older_seconds=fresh_seconds)
            if turn.agent_turn_id not in visible
        ]
        found = await for_each(suspects, self._describe)
        lost = [
            turn
            for turn, flow in zip(suspects, found, strict=True)
            if not flow.open and (flow.known or turn.status is not HeadStatus.DISPATCHED)
        ]
        return await run(lambda conn: confirm_in_hand(conn, lost)) if lost else []

    async def bring_back(self, lost: Sequence[LiveTurn], *, counted: bool = True) -> int:
        """Start each turn again from its head, or end it after `MAX_RESTARTS`; returns how many were mended."""
        mended = await for_each(lost, lambda turn: self._bring_back(turn, counted=counted))
        await self.starter.claim([(turn.project_id, turn.agent_id) for turn in lost], "engine")
        return sum(mended)

    async def list_over(self, run: Run) -> list[EndedTurn]:
        """Turns that ended at least `OVER_SECONDS` ago and have an open workflow according to visibility."""
        visible = await self._visible()
        return await run(lambda conn: list_over(conn, visible, older_seconds=OVER_SECONDS)) if visible else []

    async def close(self, over: Sequence[EndedTurn]) -> int:
        """Cancel the workflow of each turn, or terminate it after `TERMINATE_SECONDS`; returns how many were open."""
        return sum(await for_each(over, self._close))

    async def list_undispatched(self, run: Run, *, older_seconds: float) -> list[LiveTurn]:
        """Turns leased `older_seconds` ago and not begun, although a worker is present, without an open workflow."""
        late = await run(
            lambda conn: list_undispatched(conn, self.served.now(), older_seconds=older_seconds, row_limit=_ROW_LIMIT)
        )
        return [turn for turn, flow in await self._described(late) if not flow.open]

    async def reap_undispatched(self, late: Sequence[LiveTurn]) -> int:
        """End each turn whose workflow is closed; returns how many were ended.

        A turn whose workflow is open by now is left alone. A turn without any workflow is started: Temporal may have
        been away.
        """
        return sum(await for_each(late, self._reap_undispatched))

    async def list_silent(self, run: Run, *, older_seconds: float) -> list[LiveTurn]:
        """Turns whose head did not change and whose activities sent no heartbeat for `older_seconds`.

        Only turns for whose target a worker is present.
        """
        quiet = await run(
            lambda conn: list_silent(conn, self.served.now(), older_seconds=older_seconds, row_limit=_ROW_LIMIT)
        )
        flows = await self._described(quiet)
        return [turn for turn, flow in flows if flow.is_silent(turn.silent_since, older_seconds)]

    async def reap_silent(self, quiet: Sequence[LiveTurn]) -> int:
        """Start each turn again with a new workflow, or end it after `MAX_RESTARTS`; returns how many were mended."""
        return sum(await for_each(quiet, self._reap_silent))

    async def _visible(self) -> list[AgentTurnId]:
        """The turns with an open workflow, according to visibility."""
        await ensure_engine(self.client)
        targets = self.served.now()
        if not targets:
            return []  # a standby, which serves nothing else
        queues = ", ".join(f"'{options.task_queue(target)}'" for target in targets)
        request = ListWorkflowExecutionsRequest(
            namespace=self.client.namespace,
            query=f"WorkflowType = 'AgentTurn' AND ExecutionStatus = 'Running' AND TaskQueue IN ({queues})",
            page_size=1000,
        )
        found: list[AgentTurnId] = []
        try:
            while True:  # the raw call: `Client.list_workflows` would decode search attributes that are not needed
                page = await self.client.workflow_service.list_workflow_executions(
                    request, retry=True, timeout=_RPC_TIMEOUT
                )
                found += [options.turn_of(each.execution.workflow_id) for each in page.executions]
                if not page.next_page_token:
                    return found
                request.next_page_token = page.next_page_token
        except (RPCError, OSError) as error:
            raise ServerUnavailable(f"Temporal: {error}") from error

    async def _described(self, turns: Sequence[Live]) -> list[tuple[Live, Workflow]]:
        if turns:
            await ensure_engine(self.client)
        return list(zip(turns, await for_each(turns, self._describe), strict=True))

    async def _describe(self, turn: LiveTurn) -> Workflow:
        try:
            found = await self._handle(turn.agent_turn_id).describe(rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Workflow()
            raise
        pending = found.raw_description.pending_activities
        times = [each.last_heartbeat_time for each in pending]
        beats = [each.ToDatetime(UTC) for each in times if each.seconds]
        bounds = [each.activity_options.heartbeat_timeout for each in pending if each.state == _STARTED]
        proven = [each.ToTimedelta() for each in bounds if each.ToTimedelta()]
        is_open = found.status is WorkflowExecutionStatus.RUNNING
        return Workflow(known=True, open=is_open, heartbeat=max(beats, default=None), proven=min(proven, default=None))

    async def _bring_back(self, turn: LiveTurn, *, counted: bool) -> bool:
        if counted and turn.restart_count >= MAX_RESTARTS:
            return not (await self._describe(turn)).open and await self._reap(turn)
        return await self._restart(turn, counted=counted)

    async def _restart(self, turn: LiveTurn, *, counted: bool) -> bool:
        await self.starter.start(turn, options.TURN_ID_RESTART)
        try:
            times = await self.pool.run(lambda conn: restart_turn(conn, turn, counted=counted))
        except StaleTurn:
            return False
        log.warning("turn %s had no workflow; started again (%d of %d)", turn.agent_turn_id, times, MAX_RESTARTS)
        return True

    async def _reap(self, turn: LiveTurn) -> bool:
        if turn.status is HeadStatus.DISPATCHED:
            return await self._reap_dispatched(turn)
        reason = f"no sign of life after {MAX_RESTARTS} restarts"
        return await end_by_force(
            self.pool, self.publisher, turn, TurnStatus.FAILED, REAPED, reason, telemetry=self.telemetry
        )

    async def _reap_dispatched(self, turn: LiveTurn) -> bool:
        reason = "no worker began the turn in time"
        dispatched = (HeadStatus.DISPATCHED,)
        return await end_by_force(
            *(self.pool, self.publisher, turn, TurnStatus.TIMEOUT, DISPATCH_TIMEOUT, reason, dispatched),
            telemetry=self.telemetry,
        )

    async def _reap_undispatched(self, turn: LiveTurn) -> bool:
        flow = await self._describe(turn)
        if flow.open:
            return False
        if not flow.known:
            try:
                await self.starter.start(turn)
            except RPCError as error:
                if error.status not in _REFUSED:
                    raise
                log.warning("turn %s cannot be started: %s", turn.agent_turn_id, error.status.name)
            else:
                return False  # started now, or begun and over since `_describe`: the next tick decides
        return await self._reap_dispatched(turn)

    async def _reap_silent(self, turn: LiveTurn) -> bool:
        used_up = turn.restart_count >= MAX_RESTARTS
        if used_up and not await self._reap(turn):
            return False
        await self._terminate(turn.agent_turn_id, "no sign of life")
        return used_up or await self._restart(turn, counted=True)

    async def _close(self, turn: EndedTurn) -> bool:
        if turn.over_seconds > TERMINATE_SECONDS:
            return await self._terminate(turn.agent_turn_id, "its turn is over")
        try:
            await self._handle(turn.agent_turn_id).cancel(rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def _terminate(self, turn: AgentTurnId, reason: str) -> bool:
        try:
            await self._handle(turn).terminate(reason=reason, rpc_timeout=_RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    def _handle(self, turn: AgentTurnId) -> WorkflowHandle[AgentTurn, Any]:
        return self.client.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn))


async def for_each(items: Sequence[T], action: Callable[[T], Awaitable[V]]) -> list[V]:
    """Call `action` for each item, `_AT_ONCE` at a time; returns the results in order.

    Raises `ServerUnavailable` if Temporal did not answer one of the calls.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(item: T) -> V:
        async with gate:
            return await action(item)

    done = await asyncio.gather(*map(one, items), return_exceptions=True)
    results: list[V] = []
    for each in done:
        if isinstance(each, RPCError | OSError):
            raise ServerUnavailable(f"Temporal: {each}") from each
        if isinstance(each, BaseException):
            raise each
        results.append(each)
    return results
