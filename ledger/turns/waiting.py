"""Calls that wait for results: report, apply, time out; and the stop of a turn (protocol §6, §7.5, §7.6).

Guarantees: each waiting row has one winner and each call one `tool.result` in the output box, for any number and order
of reports; a repeat writes nothing. Each is one round trip. Never publishes: the caller rings the doorbell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import Json
from pydantic_core import to_json

from turnstile.ledger.files.artifacts import file_parts
from turnstile.ledger.pool import Pool
from turnstile.ledger.queries import Again, Connection, query
from turnstile.ledger.turns.steps import gate
from turnstile.rules.turn_ends import Lease
from turnstile.schema.base import Tolerant
from turnstile.schema.cards import FilePart, ToolError, ToolResultContent
from turnstile.schema.errors import Refused, StaleTurn
from turnstile.schema.ids import AgentId, AgentTurnId, ChannelId, InboxId, ProjectId, ToolCallId, uuid7
from turnstile.schema.states import HeadStatus, ReplyStatus, TurnStatus
from turnstile.schema.turns import Ring, TurnRef
from turnstile.schema.wire import headers
from turnstile.schema.wire.descriptions import CallView
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.inbox import RESULT_LIMIT_BYTES, ReportReply, ReportRequest

_REFUSALS = {
    "unknown_call": "the project has no such call",
    "not_your_call": "the call belongs to another turn, agent or depth than the report says",
    "not_sent": "the call was not sent to its tool: it waits for something else first",
    "unknown_card": "the project has no such card",
    "not_its_card": "the card is no tool.result for this call by a service (tool.…, sys.…) or the system",
}


@dataclass(frozen=True, slots=True)
class Reported:
    """The reply to the tool, and the agent to ring for; `ring` is None for a repeat."""

    reply: ReportReply
    ring: Lease | None


class SettledRow(Tolerant):
    """The final status of an inbox row; `flaw` says why its card, written by `author`, may not answer `call`."""

    inbox_id: InboxId
    status: str
    reason: str | None
    call: ToolCallId
    author: str
    flaw: str | None


class AppliedReports(Tolerant):
    """The turn after its reports were applied: the calls that it still waits for, and the earliest deadline."""

    result: Literal["done"]
    status: HeadStatus
    deadline: datetime | None
    updated_at: datetime
    waiting: list[ToolCallId]
    waiting_tools: list[str]
    """The tool of each of them."""
    applied: int
    """How many calls have their result now, by these reports."""
    context_headers: ContextHeaders
    rows: Json[list[SettledRow]]


StopVerdict = Literal["accepted", "duplicate", "already_final", "queued", "dispatched", "unknown_turn", "again"]


class RequestedStop(Tolerant):
    """What a stop found; the caller must end `queued` and `dispatched` turns itself."""

    verdict: StopVerdict
    inbox_id: InboxId | None
    agent_id: AgentId | None
    channel_id: ChannelId
    turn_epoch: int
    worker_target: str | None
    context_headers: ContextHeaders


async def report(
    pool: Pool, project: ProjectId, request: ReportRequest, incoming: Mapping[str, str] | None = None
) -> Reported:
    """Record a report of a call; raises `Refused` with the code of the rule that it breaks.

    Tools use it through the bridge, other services directly. `incoming` are the report's headers; turn, agent and depth
    in them, if given, must be the call's.
    """
    files = request.files
    parts = await pool.run(lambda conn: file_parts(conn, project, files)) if files else ()
    content = _content(request, parts)
    inbox_id = InboxId(uuid7())
    return await pool.run(lambda conn: report_call(conn, project, request, content, inbox_id, incoming or {}))


async def report_call(
    conn: Connection,
    project: ProjectId,
    request: ReportRequest,
    content: str | None,
    inbox_id: InboxId,
    incoming: Mapping[str, str],
) -> Reported:
    """Run the statement once; raises `Again` if it must be repeated."""
    row = await query("report_call").one(
        conn,
        project_id=project,
        tool_call_id=request.tool_call_id,
        inbox_id=inbox_id,
        status=request.status,
        after_execution=request.after_execution,
        tool_result_card_id=request.tool_result_card_id,
        content=content,
        context_headers=headers.dumps(headers.context_headers(incoming)),
        claimed_turn_id=incoming.get(headers.TURN_ID),
        claimed_agent_id=incoming.get(headers.AGENT_ID),
        claimed_depth=headers.depth(incoming) if headers.DEPTH in incoming else None,
    )
    verdict = row["verdict"]
    if verdict == "again":
        raise Again
    if verdict not in {"accepted", "duplicate"}:
        raise Refused(verdict, _REFUSALS[verdict])
    reply = ReportReply(
        status=ReplyStatus.ACCEPTED,
        tool_call_id=request.tool_call_id,
        inbox_id=row["inbox_id"],
        duplicate=verdict == "duplicate" and row["inbox_id"] != inbox_id,  # else our own answer was lost
    )
    return Reported(
        reply,
        None if reply.duplicate or row["worker_target"] is None else _lease_to_ring(project, row["inbox_id"], row),
    )


def _lease_to_ring(project: ProjectId, inbox_id: InboxId, row: "Mapping[str, object]") -> Lease:
    values = dict(row)
    values |= {"project_id": project, "inbox_id": inbox_id}
    return Lease.model_validate(values)


def _content(request: ReportRequest, parts: tuple[FilePart, ...]) -> str | None:
    """The content of an inline result's card; None if the report names a card."""
    if request.tool_result_card_id is not None:
        return None
    error = request.error
    if error is None and request.status is not TurnStatus.SUCCESS:  # v1r4's card reader wants one
        why = "the tool gave no reason" if request.result is None else "see the result"
        error = ToolError(code=f"tool_{request.status.value}", message=why)
    if sum(len(to_json(part)) for part in (request.result, error) if part is not None) > RESULT_LIMIT_BYTES:
        raise Refused(
            "result_too_large",
            f"an inline result is limited to {RESULT_LIMIT_BYTES} bytes: report a shorter one or a card",
        )
    return ToolResultContent(
        status=request.status,
        after_execution=request.after_execution,
        result=request.result,
        error=error,
        parts=parts,
    ).model_dump_json(exclude={"after_execution"} if request.after_execution is None else None)


async def apply_reports(conn: Connection, turn: TurnRef, inbox_ids: Sequence[InboxId]) -> AppliedReports:
    """Apply these reports; raises `StaleTurn` if the gate is closed."""
    row = await query("apply_reports").opt(conn, **gate(turn), inbox_ids=list(inbox_ids))
    if row is None:
        raise StaleTurn(f"turn {turn.agent_turn_id} epoch {turn.turn_epoch} lost its gate")
    if row["result"] == "again":
        raise Again
    return AppliedReports.model_validate(dict(row))


async def inject_timeouts(conn: Connection, turn: TurnRef) -> list[Ring]:
    """Inject timeouts for the calls past their deadline; returns all rows that are due, none if the gate is closed.

    Raises `Again` if the turn's state changed meanwhile.
    """
    due = await query("inject_timeouts").many(conn, **gate(turn))
    if any(row["inbox_id"] is None for row in due):
        raise Again
    return [Ring.model_validate(dict(row)) for row in due]


async def request_stop(
    conn: Connection, project: ProjectId, turn: AgentTurnId, reason: str, inbox_id: InboxId
) -> RequestedStop:
    """Request the end of a turn; raises `Again` if the turn's state changed meanwhile."""
    row = await query("request_stop").one(
        conn, project_id=project, agent_turn_id=turn, reason=reason, inbox_id=inbox_id
    )
    stop = RequestedStop.model_validate(dict(row))
    if stop.verdict == "again":
        raise Again
    if stop.verdict == "duplicate" and stop.inbox_id == inbox_id:  # our own answer was lost
        return stop.model_copy(update={"verdict": "accepted"})
    return stop


async def describe_call(conn: Connection, project: ProjectId, call: ToolCallId) -> CallView | None:
    """The call, if the project has it; raises `Refused` (not_sent) for one that its tool may not run yet."""
    row = await query("describe_call").opt(conn, project_id=project, tool_call_id=call)
    if row is not None and row["held"]:
        raise Refused("not_sent", _REFUSALS["not_sent"])
    return None if row is None else CallView.model_validate(dict(row))
