"""The table of fault points: which of them each kind of turn, and each verb that makes one possible, passes."""

from tests.support.faults import points
from tests.support.faults.points import BEGINS, ENDS, REPORTS, STEPS
from turnstile.runtime.faults import Fault

_OUT = (Fault.CALLS_COMMITTED, Fault.CALLS_PUBLISHED)
_COMMITTED = (Fault.STEP_COMMITTED, Fault.STEP_PUBLISHED)
_DECIDED = (Fault.DECISION_COMMITTED, Fault.DECISION_PUBLISHED)
_STEERED = (Fault.STEER_COMMITTED, Fault.STEER_PUBLISHED)
_THREAD = (
    Fault.THREAD_SENT,
    Fault.MESSAGE_BEGUN,
    Fault.MESSAGE_SETTLED,
    Fault.MESSAGE_PUBLISHED,
    Fault.REPLY_ANNOUNCED,
)
PASSED: dict[str, tuple[Fault, ...]] = {
    "plain": (
        *BEGINS,
        *STEPS,
        *ENDS,
    ),
    "tool": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *REPORTS,
        *ENDS,
    ),
    "reported_by_sql": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.REPORTS_APPLIED,
    ),
    "stopped_running": (
        *BEGINS,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.STEP_BEGUN,
        Fault.STOP_COMMITTED,
        Fault.STOP_PUBLISHED,
        Fault.TREE_MARKED,
    ),
    "stopped_queued": (
        *STEPS,
        *REPORTS,
        *ENDS,
        Fault.ENQUEUE_COMMITTED,
        Fault.ENQUEUE_PUBLISHED,
        Fault.CLAIM_TAKEN,
        Fault.STOP_COMMITTED,
        Fault.TREE_MARKED,
    ),
    "action": (
        *BEGINS,
        *_OUT,
        *REPORTS,
        *ENDS,
        Fault.STEP_BEGUN,
    ),
    "forked": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.REPORTS_APPLIED,
        Fault.BATCH_OPENED,
        Fault.CHILDREN_ENQUEUED,
    ),
    "fork_expired": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.REPORTS_APPLIED,
        Fault.TIMEOUTS_INJECTED,
        Fault.BATCH_OPENED,
        Fault.CHILDREN_ENQUEUED,
        Fault.BATCH_EXPIRED,
    ),
    "delegated": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *REPORTS,
        *ENDS,
        Fault.CHILDREN_ENQUEUED,
    ),
    "provisioned": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *REPORTS,
        *ENDS,
        Fault.AGENT_CHANGED,
    ),
    "steered": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *_COMMITTED,
        *REPORTS,
        *_STEERED,
        *ENDS,
        Fault.TURN_STEERED,
    ),
    "approved": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *REPORTS,
        *_DECIDED,
        *ENDS,
    ),
    "unasked": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.REPORTS_APPLIED,
        Fault.INTERRUPT_EXPIRED,
    ),
    "unknown_call": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *_DECIDED,
        *ENDS,
        Fault.WORKFLOW_SIGNALLED,
        Fault.CALL_BEGUN,
        Fault.OUTCOME_SETTLED,
        Fault.OUTCOME_PUBLISHED,
        Fault.REPORTS_APPLIED,
    ),
    "tool_asks": (
        *BEGINS,
        *STEPS,
        *_OUT,
        *REPORTS,
        *_DECIDED,
        *ENDS,
        Fault.CALL_STEPPED,
        Fault.QUESTION_COMMITTED,
        Fault.QUESTION_PUBLISHED,
    ),
    "rerun": (
        *STEPS,
        *ENDS,
        Fault.RERUN_COMMITTED,
        Fault.RERUN_PUBLISHED,
        Fault.CLAIM_TAKEN,
        Fault.WORKFLOW_STARTED,
    ),
    "budgeted": (
        *BEGINS,
        *STEPS,
        *ENDS,
        Fault.ATTEMPT_RESERVED,
    ),
    "cut": (
        *BEGINS,
        *STEPS,
        *ENDS,
        Fault.SUMMARY_ANSWERED,
        Fault.MEMORY_CUT,
        Fault.STEP_PUBLISHED,
    ),
    "interrupting": (
        *BEGINS,
        *STEPS,
        *ENDS,
        Fault.WAY_MADE,
        Fault.WAY_PUBLISHED,
        Fault.WORKFLOW_SIGNALLED,
        Fault.STOP_PUBLISHED,
    ),
    "rolling_back": (
        *BEGINS,
        *STEPS,
        *ENDS,
        Fault.WAY_MADE,
        Fault.WAY_PUBLISHED,
        Fault.WORKFLOW_SIGNALLED,
        Fault.STOP_PUBLISHED,
    ),
    "steering": (
        *STEPS,
        *_COMMITTED,
        *_STEERED,
        *ENDS,
        Fault.ENQUEUE_COMMITTED,
        Fault.ENQUEUE_PUBLISHED,
        Fault.TURN_STEERED,
    ),
    "thread": (*_THREAD,),
    "agent_thread": (
        *STEPS,
        *_COMMITTED,
        *ENDS,
        *_THREAD,
        Fault.CLAIM_TAKEN,
        Fault.WORKFLOW_STARTED,
        Fault.HOP_ENQUEUED,
    ),
    "roster": (
        Fault.PROFILE_STORED,
        Fault.TOOL_STORED,
        Fault.TOOL_REMOVED,
        Fault.AGENT_CHANGED,
        Fault.AGENT_PUBLISHED,
    ),
    "boxes": (
        Fault.BOX_FORKED,
        Fault.BOX_MADE,
        Fault.BOX_REPLACED,
        Fault.CONVERSATION_PUT,
    ),
    "files": (
        Fault.FILE_ANNOUNCED,
        Fault.FILE_READY,
        Fault.FILE_REMOVED,
        Fault.FILE_FORGOTTEN,
    ),
    "spending": (
        *STEPS,
        *REPORTS,
        *ENDS,
        Fault.CLAIM_TAKEN,
        Fault.ATTEMPT_RESERVED,
        Fault.BUDGET_RAISED,
        Fault.PROJECT_LIMITED,
    ),
    "deleted": (
        Fault.DELETION_REQUESTED,
        Fault.DELETION_ADVANCED,
        Fault.DELETION_DONE,
    ),
    "scheduled": (
        *STEPS,
        *ENDS,
        Fault.CLAIM_TAKEN,
        Fault.WORKFLOW_STARTED,
        Fault.SCHEDULE_STORED,
        Fault.SCHEDULE_FIRED,
        Fault.SCHEDULE_PUBLISHED,
    ),
    "pushed": (
        Fault.RECEIVER_SET,
        Fault.RECEIVER_REMOVED,
        Fault.PUSH_CLAIMED,
        Fault.PUSH_SENT,
        Fault.PUSH_RECORDED,
    ),
}
"""The points that a play of each kind passes if nothing fails, its children and what makes way for it included."""


def shown() -> str:
    """The table on paper: a line for each kind, with its points."""
    table = {**points.PASSED, **PASSED}
    wide = max(map(len, table))
    lines = [f"{kind:{wide}} {len(passed):3} {' '.join(sorted(passed))}" for kind, passed in table.items()]
    pairs = sum(map(len, table.values()))
    walked = {point for points in table.values() for point in points}
    return "\n".join([*lines, f"{len(table)} kinds, {len(walked)} of {len(Fault)} points, {pairs} pairs"])
