"""What tools ask people under the calls that they run (protocol §13.8).

Guarantees: a question is opened once for each key of a call, while that call waits and its turn is not being stopped.
It does not hold the call, whose time stands still until it is closed. Each is one round trip. Never publishes.
"""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Json, JsonValue

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import Tolerant
from turnstile.schema.errors import Refused
from turnstile.schema.ids import InterruptId, ProjectId, ToolCallId, asked_interrupt_id
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Hold, InterruptStatus

MOST_OPEN = 100
"""Questions of one call that may be open at once."""

_REFUSALS = {
    "unknown_call": "the project has no such call",
    "parent_over": "the call waits no more: its turn is over, or it was answered",
    "parent_stopping": "the turn that asks is being stopped: it asks nobody any more",
    "not_sent": "the call was not sent to its tool: it waits for something else first",
    "key_conflict": "the call has asked for something else by this key: give each its own",
    "too_many_questions": f"{MOST_OPEN} questions of the call are open: wait for an answer",
}


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """What a call's tool asks; `digest` is the hash of all of it, so that a repeat is known."""

    key: str
    digest: str
    hold: Hold


class CallQuestion(Tolerant):
    """A question of a call's tool, and what became of it."""

    interrupt_id: InterruptId
    status: InterruptStatus
    call_digest: str
    decision: Decision | None
    response: Json[JsonValue] | None
    """With `respond`: the answer."""
    comment: str | None
    """With `reject`: why."""


class OpenedQuestion(Tolerant):
    """A question that is there; `expires_at` of one that was opened now."""

    verdict: Literal["accepted", "duplicate"]
    expires_at: datetime | None = None


async def find_call_question(conn: Connection, project: ProjectId, call: ToolCallId, key: str) -> CallQuestion | None:
    """What the call's tool has asked by this key."""
    named = asked_interrupt_id(call, key)
    return await query("find_call_question").opt_as(conn, CallQuestion, project_id=project, interrupt_id=named)


async def ask_under_call(
    conn: Connection, project: ProjectId, call: ToolCallId, question: ToolQuestion
) -> OpenedQuestion:
    """Open the question, or find it; raises `Refused` with the code of why nobody is asked."""
    hold = question.hold
    request = {
        "key": question.key,
        "digest": question.digest,
        "message": hold.message,
        "response_schema": hold.response_schema,
        "requester_may_decide": hold.requester_may_decide,
        "open_seconds": hold.expires_after_seconds,
        "most_open": MOST_OPEN,
    }
    row = await query("ask_under_call").one(conn, project_id=project, tool_call_id=call, asked=json.dumps(request))
    answer = json.loads(row["asked"])
    if (code := answer["verdict"]) not in {"accepted", "duplicate"}:
        raise Refused(code, _REFUSALS[code])
    return OpenedQuestion.model_validate(answer)
