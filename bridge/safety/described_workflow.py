"""Temporal's description of one workflow, read for the signs of life in it (protocol §8, rules *engine* and *reap*)."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

from temporalio.api.enums.v1 import PendingActivityState, PendingWorkflowTaskState
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

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
    def read(cls, found: WorkflowExecutionDescription) -> Self:
        """What the description says."""
        pending = found.raw_description.pending_activities
        times = [each.last_heartbeat_time for each in pending]
        beats = [each.ToDatetime(UTC) for each in times if each.seconds]
        bounds = [each.activity_options.heartbeat_timeout for each in pending if each.state == _STARTED]
        proven = [each.ToTimedelta() for each in bounds if each.ToTimedelta()]
        task = found.raw_description.pending_workflow_task
        return cls(
            known=True,
            open=found.status is WorkflowExecutionStatus.RUNNING,
            heartbeat=max(beats, default=None),
            proven=min(proven, default=None),
            is_queued=task.state == _TASK_SCHEDULED or any(each.state == _SCHEDULED for each in pending),
        )
