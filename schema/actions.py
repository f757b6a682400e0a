"""UI actions (protocol §7.10): what a UI asks for, what its turn keeps of that, and what the UI is told. Pure."""

import hashlib
import json
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from schema.base import JsonObject, Strict, Tolerant
from schema.ids import AgentId, CardId, token
from schema.states import ActionStatus, TurnStatus

FAILED = "the tool did not succeed: its result says why"


class ActionRef(Tolerant):
    """What the inbox row of an action's turn keeps, under `ui_action`: enough to tell the UI of its end."""

    action_id: str
    message_id: str | None = None
    tool_name: str


class UiAction(Strict):
    """Payload of `cmd.sys.ui.action`; `agent_id` may come as a header instead (protocol §5)."""

    action_id: str = Field(min_length=1, max_length=256)
    agent_id: AgentId
    tool_name: str = Field(min_length=1, max_length=128)
    args: JsonObject
    metadata: JsonObject = Field(default_factory=dict)
    message_id: str | None = Field(default=None, min_length=1, max_length=256)
    parent_step_id: str | None = None

    @field_validator("agent_id")
    @classmethod
    def _agent_token(cls, value: AgentId) -> AgentId:
        return AgentId(token(value, "agent_id"))

    @property
    def correlation_id(self) -> str:
        """By which a repeat is known."""
        return self.message_id or self.action_id

    @property
    def ref(self) -> ActionRef:
        """What its turn keeps of it."""
        return ActionRef(action_id=self.action_id, message_id=self.message_id, tool_name=self.tool_name)

    def digest(self) -> str:
        """A fingerprint of what is asked, whatever its `metadata` says: the same correlation with another conflicts."""
        text = json.dumps(self.model_dump(exclude={"metadata"}, exclude_none=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def text_bytes(self) -> int:
        """Bytes of its arguments as JSON, which `TEXT_LIMIT_BYTES` bounds."""
        return len(json.dumps(self.args, ensure_ascii=False).encode("utf-8", "surrogatepass"))


class ActionAck(Tolerant):
    """Payload of `evt.sys.ui.action_ack`: `accepted`, `busy` or `rejected` at once, then `done` or `rejected`."""

    action_id: str
    agent_id: AgentId
    status: ActionStatus
    message_id: str | None = None
    tool_result_card_id: CardId | None = None
    error_code: str | None = None
    error: str | None = None


def final_ack(
    action: ActionRef,
    agent: AgentId,
    status: TurnStatus,
    tool_result: CardId | None,
    error_code: str | None,
    error: str | None,
) -> ActionAck:
    """What the UI is told of its turn's outcome."""
    well = status is TurnStatus.SUCCESS
    return ActionAck(
        action_id=action.action_id,
        agent_id=agent,
        status=ActionStatus.DONE if well else ActionStatus.REJECTED,
        message_id=action.message_id,
        tool_result_card_id=tool_result,
        error_code=None if well else error_code or status.value,
        error=None if well else error or FAILED,
    )


def _loaded(value: object) -> object:
    """What a row holds, as text or an object; a stranger's that cannot be read is no action."""
    try:
        match value:
            case str():
                return ActionRef.model_validate_json(value)
            case dict():
                return ActionRef.model_validate(value)
            case _:
                return value
    except ValidationError:
        return None


StoredAction = Annotated[ActionRef | None, BeforeValidator(_loaded)]
"""`payload.ui_action` of a row; null for every other turn."""
