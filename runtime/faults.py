"""Fault points: named lines after each commit and each publish, where a test can make a process fail once.

`TURNSTILE_FAULTS="step.committed=kill,claim.taken=throw"` arms points. `TURNSTILE_FAULTS_DIR` names a directory where
each point that struck leaves a file, so that it strikes once even across restarts. Without these variables, as in
production, `hit` does nothing and costs a dictionary look-up.
"""

import os
import signal
from enum import StrEnum
from pathlib import Path


class Fault(StrEnum):
    """Every place where a crash must be harmless."""

    ENQUEUE_COMMITTED = "enqueue.committed"
    ENQUEUE_PUBLISHED = "enqueue.published"
    WAY_MADE = "way.made"
    WAY_PUBLISHED = "way.published"
    RERUN_COMMITTED = "rerun.committed"
    RERUN_PUBLISHED = "rerun.published"
    CLAIM_TAKEN = "claim.taken"
    WORKFLOW_STARTED = "workflow.started"
    TURN_CARRIED = "turn.carried"
    WORKFLOW_SIGNALLED = "workflow.signalled"
    STEP_BEGUN = "step.begun"
    MODEL_ANSWERED = "model.answered"
    SUMMARY_ANSWERED = "summary.answered"
    MEMORY_CUT = "memory.cut"
    STEP_COMMITTED = "step.committed"
    STEP_PUBLISHED = "step.published"
    CALLS_COMMITTED = "calls.committed"
    CALLS_PUBLISHED = "calls.published"
    CALL_BEGUN = "call.begun"
    OUTCOME_SETTLED = "outcome.settled"
    OUTCOME_PUBLISHED = "outcome.published"
    REPORT_COMMITTED = "report.committed"
    REPORT_PUBLISHED = "report.published"
    REPORTS_APPLIED = "reports.applied"
    TIMEOUTS_INJECTED = "timeouts.injected"
    CALL_STEPPED = "call.stepped"
    QUESTION_COMMITTED = "question.committed"
    QUESTION_PUBLISHED = "question.published"
    DECISION_COMMITTED = "decision.committed"
    DECISION_PUBLISHED = "decision.published"
    INTERRUPT_EXPIRED = "interrupt.expired"
    STOP_COMMITTED = "stop.committed"
    STOP_PUBLISHED = "stop.published"
    TURN_STEERED = "turn.steered"
    STEER_COMMITTED = "steer.committed"
    STEER_PUBLISHED = "steer.published"
    RECEIVER_SET = "receiver.set"
    RECEIVER_REMOVED = "receiver.removed"
    SCHEDULE_STORED = "schedule.stored"
    SCHEDULE_FIRED = "schedule.fired"
    SCHEDULE_PUBLISHED = "schedule.published"
    PUSH_CLAIMED = "push.claimed"
    PUSH_SENT = "push.sent"
    PUSH_RECORDED = "push.recorded"
    TREE_MARKED = "tree.marked"
    BATCH_OPENED = "batch.opened"
    CHILDREN_ENQUEUED = "children.enqueued"
    BATCH_EXPIRED = "batch.expired"
    ATTEMPT_RESERVED = "attempt.reserved"
    BUDGET_RAISED = "budget.raised"
    PROJECT_LIMITED = "project.limited"
    BOX_FORKED = "box.forked"
    BOX_MADE = "box.made"
    BOX_REPLACED = "box.replaced"
    CONVERSATION_PUT = "conversation.put"
    DELETION_REQUESTED = "deletion.requested"
    DELETION_ADVANCED = "deletion.advanced"
    DELETION_DONE = "deletion.done"
    PROFILE_STORED = "profile.stored"
    TOOL_STORED = "tool.stored"
    TOOL_REMOVED = "tool.removed"
    AGENT_CHANGED = "agent.changed"
    AGENT_PUBLISHED = "agent.published"
    FILE_ANNOUNCED = "file.announced"
    FILE_READY = "file.ready"
    FILE_REMOVED = "file.removed"
    FILE_FORGOTTEN = "file.forgotten"
    TURN_FINISHED = "turn.finished"
    TURN_PUBLISHED = "turn.published"
    TURN_ANNOUNCED = "turn.announced"
    THREAD_SENT = "thread.sent"
    MESSAGE_BEGUN = "message.begun"
    HOP_ENQUEUED = "hop.enqueued"
    MESSAGE_SETTLED = "message.settled"
    MESSAGE_PUBLISHED = "message.published"
    REPLY_ANNOUNCED = "reply.announced"


class FaultStruckError(Exception):
    """A fault point that was armed with `throw`."""


def hit(point: Fault) -> None:
    """Fail here, once, if the environment armed this point: `kill` ends the process, `throw` raises."""
    armed = os.environ.get("TURNSTILE_FAULTS")
    if not armed:
        return
    actions = dict(part.split("=", 1) for part in armed.split(",") if "=" in part)
    action = actions.get(point.value)
    if action is None or not _first_time(point):
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FaultStruckError(point.value)


def _first_time(point: Fault) -> bool:
    where = os.environ.get("TURNSTILE_FAULTS_DIR")
    if where is None:
        return True
    try:
        (Path(where) / point.value).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
