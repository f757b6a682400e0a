"""Delegating calls of programs of v1r4: found by their card and anchor, answered by a card and an inbox row.

Only who writes to the ledger can have made such a call: no verb makes a `tool.call` card or an anchor. One round trip
each.
"""

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.rules.turn_ends import Lease
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.cards import CardMetadata, CardType, Role, ToolError, ToolResultContent
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId, CardId, ChannelId, InboxId, ProjectId, StepId, ToolCallId
from turnstile.schema.states import AfterExecution, TurnStatus
from turnstile.schema.wire.headers import ContextHeaders

AUTHOR = "sys.pmo"


class PeerCall(Tolerant):
    """A call of a program of v1r4, with its caller. An agent that is on no roster has no profile and no target."""

    project_id: ProjectId
    channel_id: ChannelId
    agent_id: AgentId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    step_id: StepId
    tool_call_id: ToolCallId
    tool_name: str
    arguments: Json[JsonObject]
    context_headers: ContextHeaders
    context_box_id: BoxId
    output_box_id: BoxId
    profile_box_id: BoxId | None
    worker_target: str | None
    answered: bool

    @property
    def waits(self) -> bool:
        """Whether it was not answered yet."""
        return not self.answered


async def find_peer_call(conn: Connection, project: ProjectId, call: ToolCallId, card: CardId) -> PeerCall | None:
    """The call whose card this is, if its program wrote an anchor for it."""
    named = {"project_id": project, "tool_call_id": call, "card_id": card}
    return await query("find_peer_call").opt_as(conn, PeerCall, **named)


async def answer_peer_call(
    conn: Connection,
    call: PeerCall,
    after_execution: AfterExecution,
    status: TurnStatus,
    result: JsonObject,
    error: ToolError | None,
) -> Lease | None:
    """Write the call's result, once; returns whom to ring for, if the caller's turn waits for it."""
    content = ToolResultContent(status=status, after_execution=after_execution, result=result, error=error)
    metadata = CardMetadata(
        type=CardType.TOOL_RESULT,
        role=Role.TOOL,
        author_id=AUTHOR,
        function_name=call.tool_name,
        step_id=call.step_id or None,
    )
    row = await query("answer_peer_call").opt(
        conn,
        project_id=call.project_id,
        tool_call_id=call.tool_call_id,
        status=status,
        after_execution=after_execution,
        content=content.model_dump_json(),
        metadata=metadata.model_dump_json(exclude_none=True),
    )
    if row is None or not row["in_hand"] or call.worker_target is None:
        return None
    return Lease.model_validate({**call.model_dump(), "inbox_id": InboxId(row["inbox_id"])})
