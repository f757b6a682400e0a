"""Every id policy, timeout and retry policy of the workflows and activities.

None is left to a default. A change here is a change of behaviour and belongs in the changelog. Limits that a running
workflow depends on are in its input, not here, since a replay must see the same value.
"""

import hashlib
from datetime import timedelta

from temporalio.common import Priority, RetryPolicy, SearchAttributeKey, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.workflow import ActivityCancellationType

from turnstile.schema.ids import AgentTurnId, ProjectId
from turnstile.schema.ids import workflow_id as _workflow_id

TURN_ID_REUSE = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
"""A failed run can be started again; a completed one cannot."""
TURN_ID_RESTART = WorkflowIDReusePolicy.ALLOW_DUPLICATE
"""Used by the safety net, which has checked that the turn is still active in the ledger."""
TURN_ID_CONFLICT = WorkflowIDConflictPolicy.USE_EXISTING
"""A second claim of a running turn finds the running workflow."""
TURN_ID_CARRY = WorkflowIDConflictPolicy.TERMINATE_EXISTING
"""A turn carried over into a new era of the ledger gets a workflow of its new epoch, in place of the one that runs."""
WORKFLOW_TASK_TIMEOUT = timedelta(seconds=3)
"""A workflow task lost with its worker runs again after this."""

STEP_START_TO_CLOSE = timedelta(hours=24)
"""Never reached normally: a model call has its own deadline, and a dead worker misses its heartbeats."""
STEP_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=10),
    maximum_attempts=0,
)
"""Unlimited, for crashes, restarts and servers that are down. Model errors are counted in the ledger instead."""
STEP_CANCELLATION = ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
"""A stopped step ends its turn itself; the workflow must not close before that."""

SETTLE_START_TO_CLOSE = timedelta(seconds=30)
SETTLE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=5),
    maximum_attempts=0,
)
"""For local activities of one or two round trips, retried until the ledger answers."""
DEADLINE_LOOK = timedelta(milliseconds=200)
"""The least time until a thread asks again about a turn past its deadline: the ledger's clock decides."""
OVERDUE_LOOK = timedelta(seconds=5)
"""How soon a suspended turn without a deadline, as after its timeouts were injected, looks what is due."""

THREAD_ID_REUSE = WorkflowIDReusePolicy.ALLOW_DUPLICATE
"""A thread whose messages are all settled has ended; the next message starts it again."""


def look_again(times: int) -> timedelta:
    """How long to wait after so many looks in a row at a deadline that the ledger's clock had not reached."""
    return min(DEADLINE_LOOK * 2 ** min(times - 1, 10), OVERDUE_LOOK) if times else timedelta()


_FAIRNESS_KEY_LIMIT = 64

TURN_PROJECT = SearchAttributeKey.for_keyword("TurnProject")
TURN_AGENT = SearchAttributeKey.for_keyword("TurnAgent")
TURN_CHANNEL = SearchAttributeKey.for_keyword("TurnChannel")
TURN_STATUS = SearchAttributeKey.for_keyword("TurnStatus")
TURN_EPOCH = SearchAttributeKey.for_int("TurnEpoch")
WORKER_TARGET = SearchAttributeKey.for_keyword("WorkerTarget")
TURN_ROOT = SearchAttributeKey.for_keyword("TurnRoot")
TURN_PARENT = SearchAttributeKey.for_keyword("TurnParent")
SEARCH_ATTRIBUTES = (
    *(TURN_PROJECT, TURN_AGENT, TURN_CHANNEL, TURN_STATUS, TURN_EPOCH, WORKER_TARGET),
    *(TURN_ROOT, TURN_PARENT),
)
"""The last two are set on turns that another turn asked for (protocol §12.9)."""

LEDGER_MEMO = "ledger"
"""The memo of a turn's workflow that has the id of the ledger which started it (protocol §8)."""


def task_queue(worker_target: str) -> str:
    """The task queue of a worker target."""
    return f"turnstile.{worker_target}"


def priority(project: ProjectId) -> Priority:
    """The fairness key by which projects share the workers of a task queue; activities and later runs inherit it.

    An engine without fairness ignores it. The engine takes keys of at most 64 bytes.
    """
    key = project if len(project) <= _FAIRNESS_KEY_LIMIT else hashlib.sha256(project.encode()).hexdigest()
    return Priority(fairness_key=key)


def turn_workflow_id(turn: AgentTurnId) -> str:
    """The workflow id of a turn."""
    return _workflow_id(turn)


def turn_of(workflow: str) -> AgentTurnId:
    """The turn of a workflow id made by `turn_workflow_id`."""
    return AgentTurnId(workflow.removeprefix(_workflow_id(AgentTurnId(""))))
