"""Compares ledger and Temporal, and mends where they disagree (protocol §8, rules *engine* and *reap*).

The ledger decides. A live turn whose workflow is missing or closed is started again from its head: a sleeping turn
keeps its deadline, a running turn repeats at most the step that had not committed. An open workflow whose turn is over,
or that carries this ledger's id and whose turn it does not know, is closed. Visibility names suspects; since it lags,
`describe` confirms each, and the ledger is queried again before anything changes. Workflows of other ledgers are
ignored, since several databases may share a Temporal.

What a look costs does not depend on how many turns sleep: it asks which workflows closed since the last one, and
whether as many are open as turns are in hand. All of them are listed at the first look, where the numbers differ,
where Temporal is another one, and every `list_seconds`.
"""

import logging
import math
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from turnstile.bridge.engine import ensure_engine
from turnstile.bridge.inbox.served_targets import ServedTargets
from turnstile.bridge.inbox.workflow_starter import Starter
from turnstile.bridge.safety.visibility import RPC_TIMEOUT, Visibility, for_each
from turnstile.ledger.operations.recovery import (
    InHand,
    OverTurn,
    RunTransition,
    confirm_in_hand,
    count_in_hand,
    find_in_hand,
    list_in_hand,
    list_not_in_hand,
    list_over,
    list_silent,
    list_undispatched,
    list_unknown,
    restart_turn,
)
from turnstile.ledger.pool import Pool
from turnstile.ledger.turns.lease import LiveTurn
from turnstile.ledger.turns.turn_publisher import end_by_force
from turnstile.runtime.ports import Publisher
from turnstile.runtime.telemetry import SILENT, Telemetry
from turnstile.schema.errors import StaleTurn
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.states import HeadStatus, TurnStatus
from turnstile.workflows import options
from turnstile.workflows.agent_turn import AgentTurn

log = logging.getLogger(__name__)
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
UNKNOWN_SECONDS = 60.0
"""A workflow of this ledger is closed when its turn was unknown at two looks that far apart."""
LIST_SECONDS = 600.0
_RELIST_SECONDS = 5.0
"""A list this recent serves the next rule of the same tick."""
_ROW_LIMIT = 500
_OVERLAP = timedelta(seconds=60)
"""How late a closed workflow may become visible. After that, a closed workflow that no list has is gone."""
_REFUSED = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.OUT_OF_RANGE)
"""Statuses with which Temporal refuses this one workflow every time. Any other status is trouble of Temporal itself:
a call that it does not answer in time ends as CANCELLED."""


_SCHEDULED = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
_STARTED = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
_TASK_SCHEDULED = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_SCHEDULED


@dataclass(frozen=True, slots=True)
class Workflow:
    """Temporal's description of a turn's workflow."""

    known: bool = False
    open: bool = False
    heartbeat: datetime | None = None
    """The latest heartbeat of its pending activities."""
    proven: timedelta | None = None
    """Temporal has had a sign of life of a running activity within this, its heartbeat timeout, by its own clock."""
    is_queued: bool = False
    """An activity or a workflow task of it waits for a worker that has time: another run would wait behind it."""

    def is_silent(self, since: datetime, older_seconds: float) -> bool:
        """Whether it has an open run without a sign of life for `older_seconds`, that is, since this time.

        The time is the ledger's and heartbeats have Temporal's, so what Temporal itself has proven goes first.
        """
        if self.is_queued or (self.proven is not None and self.proven.total_seconds() <= older_seconds):
            return False
        return self.open and (self.heartbeat is None or self.heartbeat < since)

    @classmethod
    def read(cls, execution: WorkflowExecutionDescription) -> Self:
        """What the description says."""
        pending = execution.raw_description.pending_activities
        times = [activity.last_heartbeat_time for activity in pending]
        beats = [t.ToDatetime(UTC) for t in times if t.seconds]
        bounds = [activity.activity_options.heartbeat_timeout for activity in pending if activity.state == _STARTED]
        proven = [bound.ToTimedelta() for bound in bounds if bound.ToTimedelta()]
        task = execution.raw_description.pending_workflow_task
        return cls(
            known=True,
            open=execution.status is WorkflowExecutionStatus.RUNNING,
            heartbeat=max(beats, default=None),
            proven=min(proven, default=None),
            is_queued=task.state == _TASK_SCHEDULED or any(a.state == _SCHEDULED for a in pending),
        )


@dataclass(frozen=True, slots=True)
class UnknownTurn:
    """A turn that this ledger does not know, and whose open workflow carries the ledger's id."""

    agent_turn_id: AgentTurnId


@dataclass(slots=True)
class Looks:
    """What the looks of this process saw. Without it, as after a start, the next look lists everything."""

    engine: str = ""
    """The namespace of the last look."""
    compared_at: float = -math.inf
    """When no live turn was missing in a list of all open workflows."""
    listed_at: float = -math.inf
    surplus: dict[AgentTurnId, WorkflowExecutionInfo] = field(default_factory=dict[AgentTurnId, WorkflowExecutionInfo])
    """The open workflows of the last list whose turns were not in hand."""
    latest_close: datetime | None = None
    settled: frozenset[str] = frozenset()
    """Closed runs that visibility still lists, and whose turn is over or has another workflow."""
    unknown: dict[AgentTurnId, float] = field(default_factory=dict[AgentTurnId, float])
    """Unknown turns of this ledger, and when each was first seen."""

    def are_of(self, engine: str) -> None:
        """Forget what was seen of another Temporal."""
        if engine != self.engine:
            self.engine, self.latest_close, self.settled = engine, None, frozenset()
            self.compared_at = self.listed_at = -math.inf


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Finds and mends disagreements between ledger and Temporal. Holds clients, and what its last looks saw."""

    pool: Pool
    client: Client
    starter: Starter
    publisher: Publisher
    served: ServedTargets
    telemetry: Telemetry = SILENT
    list_seconds: float = LIST_SECONDS
    """How often all open workflows are listed although nothing speaks for it."""
    looks: Looks = field(default_factory=Looks)

    async def list_lost(self, run: RunTransition, *, fresh_seconds: float = FRESH_SECONDS) -> list[LiveTurn]:
        """Live turns without an open workflow, except leased turns that were never started (rule *dispatched_reap*)."""
        if not self.served.now():
            return []  # a standby, which serves nothing else
        opened, in_hand = await self._count(run, fresh_seconds)
        if opened < in_hand.older or _is_past(self.looks.compared_at, self.list_seconds):
            return await self._list_all_lost(run, fresh_seconds)
        return await self._list_lately_lost(run)

    async def _list_all_lost(self, run: RunTransition, fresh_seconds: float) -> list[LiveTurn]:
        targets = self.served.now()
        if self.looks.latest_close is None:
            self.looks.latest_close = await self.visibility.latest_close(targets)
        opened = await self._list_open(run)
        suspects = list_in_hand(run, targets, older_seconds=fresh_seconds, but=opened)
        lost = await self._confirm(run, [turn async for turn in suspects])
        # After a loss the next look lists them too, and sees whether it was mended.
        self.looks.compared_at = -math.inf if lost else time.monotonic()
        return lost

    async def _list_lately_lost(self, run: RunTransition) -> list[LiveTurn]:
        looks, targets = self.looks, self.served.now()
        after = looks.latest_close and looks.latest_close - _OVERLAP
        closed = await self.visibility.list_closed(targets, after=after)
        ended = [c.agent_turn_id for c in closed if c.run_id not in looks.settled]
        suspects = await run(lambda conn: find_in_hand(conn, targets, ended)) if ended else []
        lost = await self._confirm(run, suspects)
        unsettled = {turn.agent_turn_id for turn in lost}
        looks.settled = frozenset(c.run_id for c in closed if c.agent_turn_id not in unsettled)
        looks.latest_close = max((c.closed_at for c in closed), default=looks.latest_close)
        return lost

    async def _confirm(self, run: RunTransition, suspects: Sequence[LiveTurn]) -> list[LiveTurn]:
        flows = await for_each(suspects, self._describe)
        lost = [
            turn
            for turn, flow in zip(suspects, flows, strict=True)
            if not flow.open and (flow.known or turn.status is not HeadStatus.DISPATCHED)
        ]
        return await run(lambda conn: confirm_in_hand(conn, lost)) if lost else []

    async def bring_back(self, lost: Sequence[LiveTurn], *, counted: bool = True) -> int:
        """Start each turn again from its head, or end it after `MAX_RESTARTS`; returns how many were mended."""
        mended = await for_each(lost, lambda turn: self._bring_back(turn, counted=counted))
        await self.starter.claim([(turn.project_id, turn.agent_id) for turn in lost], "engine")
        return sum(mended)

    async def list_over(self, run: RunTransition) -> list[OverTurn]:
        """Turns that ended at least `OVER_SECONDS` ago and have an open workflow."""
        surplus = list(await self._list_surplus(run))
        over = await run(lambda conn: list_over(conn, surplus, older_seconds=OVER_SECONDS)) if surplus else []
        still = await self._list_still_open([turn.agent_turn_id for turn in over])
        return [turn for turn in over if turn.agent_turn_id in still]

    async def close(self, over: Sequence[OverTurn]) -> int:
        """Cancel the workflow of each turn, or terminate it after `TERMINATE_SECONDS`; returns how many were open."""
        return sum(await for_each(over, self._close))

    async def list_unknown(self, run: RunTransition, *, older_seconds: float = UNKNOWN_SECONDS) -> list[UnknownTurn]:
        """Turns that the ledger has not known for `older_seconds`, and that have an open workflow of this ledger."""
        surplus = await self._list_surplus(run)
        rows = await run(lambda conn: list_unknown(conn, list(surplus))) if surplus else []
        ours = [turn for turn in rows if await self._is_ours(surplus[turn])]
        now = time.monotonic()
        self.looks.unknown = {turn: self.looks.unknown.get(turn, now) for turn in await self._list_still_open(ours)}
        return [UnknownTurn(turn) for turn, since in self.looks.unknown.items() if now - since >= older_seconds]

    async def close_unknown(self, unknown: Sequence[UnknownTurn]) -> int:
        """Terminate the workflow of each turn; returns how many were open."""
        reason = "the ledger does not know its turn"
        return sum(await for_each(unknown, lambda turn: self._terminate(turn.agent_turn_id, reason)))

    async def list_undispatched(self, run: RunTransition, *, older_seconds: float) -> list[LiveTurn]:
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

    async def list_silent(self, run: RunTransition, *, older_seconds: float) -> list[LiveTurn]:
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

    @property
    def visibility(self) -> Visibility:
        """What Temporal lists and counts."""
        return Visibility(self.client)

    async def _count(self, run: RunTransition, fresh_seconds: float) -> tuple[int, InHand]:
        """The number of open workflows, and then the number of turns in hand."""
        targets = self.served.now()
        self.looks.are_of(await self.visibility.engine())
        opened = await self.visibility.count_open(targets)
        return opened, await run(lambda conn: count_in_hand(conn, targets, older_seconds=fresh_seconds))

    async def _list_open(self, run: RunTransition) -> Collection[AgentTurnId]:
        """The turns with an open workflow, according to visibility; keeps those that are not in hand."""
        opened = await self.visibility.list_open(self.served.now())
        surplus = await run(lambda conn: list_not_in_hand(conn, list(opened)))
        self.looks.surplus = {turn: opened[turn] for turn in surplus}
        self.looks.listed_at = time.monotonic()
        return opened.keys()

    async def _list_surplus(self, run: RunTransition) -> dict[AgentTurnId, WorkflowExecutionInfo]:
        """The open workflows whose turns were not in hand; listed anew if there are more than turns in hand."""
        if not self.served.now():
            return {}
        opened, in_hand = await self._count(run, 0)
        if _is_past(self.looks.listed_at, _RELIST_SECONDS if opened > in_hand.in_hand else self.list_seconds):
            await self._list_open(run)
        return self.looks.surplus

    async def _list_still_open(self, turns: Sequence[AgentTurnId]) -> list[AgentTurnId]:
        """Those of these surplus turns whose workflow is open; the others are none any more."""
        flows = await for_each(turns, self._describe_turn)
        for turn, flow in zip(turns, flows, strict=True):
            if not flow.open:
                self.looks.surplus.pop(turn, None)
        return [turn for turn in turns if turn in self.looks.surplus]

    async def _is_ours(self, flow: WorkflowExecutionInfo) -> bool:
        """Whether the workflow carries this ledger's id."""
        memo = flow.memo.fields.get(options.LEDGER_MEMO)
        if memo is None:
            return False
        try:
            [ledger] = await self.client.data_converter.decode([memo], [str])
        except (ApplicationError, RuntimeError, ValueError):  # not to be read here, so it is of others
            return False
        return ledger == await self.starter.ledger()

    async def _described(self, turns: Sequence[Live]) -> list[tuple[Live, Workflow]]:
        if turns:
            await ensure_engine(self.client)
        return list(zip(turns, await for_each(turns, self._describe), strict=True))

    async def _describe(self, turn: LiveTurn) -> Workflow:
        return await self._describe_turn(turn.agent_turn_id)

    async def _describe_turn(self, turn: AgentTurnId) -> Workflow:
        try:
            execution = await self._handle(turn).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return Workflow()
            raise
        return Workflow.read(execution)

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
            self.pool,
            self.publisher,
            turn,
            TurnStatus.TIMEOUT,
            DISPATCH_TIMEOUT,
            reason,
            dispatched,
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

    async def _close(self, turn: OverTurn) -> bool:
        if turn.over_seconds > TERMINATE_SECONDS:
            return await self._terminate(turn.agent_turn_id, "its turn is over")
        try:
            await self._handle(turn.agent_turn_id).cancel(rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    async def _terminate(self, turn: AgentTurnId, reason: str) -> bool:
        try:
            await self._handle(turn).terminate(reason=reason, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True

    def _handle(self, turn: AgentTurnId) -> WorkflowHandle[AgentTurn, Any]:
        return self.client.get_workflow_handle_for(AgentTurn.run, options.turn_workflow_id(turn))


def _is_past(moment: float, seconds: float) -> bool:
    """Whether a moment, by the monotonic clock, is at least that long ago."""
    return time.monotonic() - moment >= seconds
