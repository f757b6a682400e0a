"""UI actions (protocol §7.10): what a UI asks for, what its turn keeps of that, and what the UI is told. Pure."""

import hashlib
import json
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from turnstile.schema.base import JsonObject, Strict, Tolerant
from turnstile.schema.ids import AgentId, CardId, token
from turnstile.schema.states import ActionStatus, TurnStatus

FAILED = "the tool did not succeed: its result says why"


class ActionRef(Tolerant):
    """What the inbox row of an action's turn keeps, under `ui_action`: enough to tell the UI of its end."""

    action_id: str
    message_id: str | None = None
    tool_name: str


class UiAction(Strict):
    """Payload of `cmd.sys.ui.action`; `agent_id` may come as a header instead (protocol §5)."""

    action_id: str = Field(min_length=1, max_length=256)
    """The UI's own name for the action; every ack repeats it."""
    agent_id: AgentId
    """The agent in whose name the tool is called; the header `CG-Agent-Id` may say it instead."""
    tool_name: str = Field(min_length=1, max_length=128)
    """A tool of the project whose options say `ui_allowed`."""
    args: JsonObject
    """Its arguments, checked against its schema before there is a turn."""
    metadata: JsonObject = Field(default_factory=dict)
    """Kept for audit; no part of what tells a repeat from a conflict."""
    message_id: str | None = Field(default=None, min_length=1, max_length=256)
    """By which a repeat is known; without it, `action_id`."""
    parent_step_id: str | None = None
    """The step in which the user was offered the action."""

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
    """As the action had it."""
    agent_id: AgentId
    """The agent in whose name the tool is called."""
    status: ActionStatus
    """What became of it."""
    message_id: str | None = None
    """As the action had it."""
    tool_result_card_id: CardId | None = None
    """The tool's result, once there is one."""
    error_code: str | None = None
    """Why it was refused or has failed, for programs."""
    error: str | None = None
    """The same for people."""


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
