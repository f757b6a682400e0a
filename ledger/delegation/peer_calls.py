"""Delegating calls of programs of v1r4: found by their card and anchor, answered by a card and an inbox row.

Only who writes to the ledger can have made such a call: no verb makes a `tool.call` card or an anchor. One round trip
each. Between the two it is a `ParentCall` like those of turns.
"""

from turnstile.ledger.queries import Connection, query
from turnstile.ledger.trees.batches import ParentCall
from turnstile.rules.turn_ends import Lease
from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ToolError, ToolResultContent
from turnstile.schema.ids import CardId, InboxId, ProjectId, ToolCallId
from turnstile.schema.states import AfterExecution, TurnStatus

AUTHOR = "sys.pmo"


async def find_peer_call(conn: Connection, project: ProjectId, call: ToolCallId, card: CardId) -> ParentCall | None:
    """The call whose card this is, if its program wrote an anchor for it; its `peer_card_id` says so."""
    named = {"project_id": project, "tool_call_id": call, "card_id": card}
    return await query("find_peer_call").opt_as(conn, ParentCall, **named)


async def answer_peer_call(
    conn: Connection,
    call: ParentCall,
    after_execution: AfterExecution,
    status: TurnStatus,
    result: JsonObject,
    error: ToolError | None,
) -> Lease | None:
    """Write the call's result, once; returns whom to ring for, if the caller's turn waits for it."""
    content = ToolResultContent(status=status, after_execution=after_execution, result=result, error=error)
    row = await query("answer_peer_call").opt(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        card_id=call.peer_card_id,
        author=AUTHOR,
        content=content.model_dump_json(),
    )
    if row is None or not row["in_hand"] or not call.worker_target:
        return None
    return Lease.model_validate({**call.model_dump(), "inbox_id": InboxId(row["inbox_id"])})
