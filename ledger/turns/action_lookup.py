"""Looks up a UI action for the bridge: the tool that it names, and its turn if there is one (protocol §7.10).

Only reads, in one round trip; `intake.enqueue` makes the turn.
"""

from pydantic import Json

from turnstile.ledger.queries import Connection, query
from turnstile.schema.base import JsonObject, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, CardId, ChannelId, ProjectId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.headers import ContextHeaders
from turnstile.schema.wire.ui_actions import ActionAck, UiAction, final_ack


class ActionTurn(Tolerant):
    """The turn that was enqueued under an action's correlation, and its outcome if it has one."""

    agent_id: AgentId
    channel_id: ChannelId
    agent_turn_id: AgentTurnId
    turn_epoch: int
    request_digest: str | None
    context_headers: ContextHeaders
    status: TurnStatus | None
    tool_result_card_id: CardId | None
    error_code: str | None
    error: str | None

    def final_ack(self, action: UiAction) -> ActionAck | None:
        """The final ack of the turn's outcome; None while it has none."""
        if self.status is None:
            return None
        return final_ack(action.ref, self.agent_id, self.status, self.tool_result_card_id, self.error_code, self.error)


class _Tool(Tolerant):
    tool: Json[JsonObject] | None


async def find_action(
    conn: Connection, project: ProjectId, action: UiAction
) -> tuple[JsonObject | None, ActionTurn | None]:
    """The row of the action's tool and the turn under its correlation; each is None if the project has none."""
    row = dict(
        await query("find_action").one(
            conn, project_id=project, tool_name=action.tool_name, correlation_id=action.correlation_id
        )
    )
    turn = None if row["agent_turn_id"] is None else ActionTurn.model_validate(row)
    return _Tool.model_validate(row).tool, turn
