"""UI actions (protocol §7.10): the command, the part that its turn stores, and the acks. Pure."""

import hashlib
import json
from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationError

from turnstile.schema.base import AgentToken, JsonObject, Strict, Tolerant
from turnstile.schema.ids import AgentId, CardId
from turnstile.schema.states import ActionStatus, TurnStatus

FAILED = "the tool did not succeed: its result says why"


class ActionRef(Tolerant):
    """The part of an action that its turn's inbox row stores under `ui_action`, to build the final ack."""

    action_id: str
    message_id: str | None = None
    tool_name: str


class UiAction(Strict):
    """Payload of `cmd.sys.ui.action`; a header may have the `agent_id` instead (protocol §5)."""

    action_id: str = Field(min_length=1, max_length=256)
    """The UI's own name for the action; every ack repeats it."""
    agent_id: AgentToken
    """The agent in whose name the tool is called; the header `CG-Agent-Id` may have it instead."""
    tool_name: str = Field(min_length=1, max_length=128)
    """A tool of the project whose options say `ui_allowed`."""
    args: JsonObject
    """Its arguments, checked against its schema before there is a turn."""
    metadata: JsonObject = Field(default_factory=dict)
    """Stored for audit; a repeat may differ in it."""
    message_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The id that identifies repeats; by default `action_id`."""
    parent_step_id: str | None = None
    """The step in which the user was offered the action."""

    @property
    def correlation_id(self) -> str:
        """The id that identifies repeats."""
        return self.message_id or self.action_id

    @property
    def ref(self) -> ActionRef:
        """The part that its turn stores."""
        return ActionRef(action_id=self.action_id, message_id=self.message_id, tool_name=self.tool_name)

    def digest(self) -> str:
        """A fingerprint without `metadata`; the same correlation with a different one is a conflict."""
        text = json.dumps(self.model_dump(exclude={"metadata"}, exclude_none=True), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def text_bytes(self) -> int:
        """The bytes of its arguments as JSON, limited by `TEXT_LIMIT_BYTES`."""
        return len(json.dumps(self.args, ensure_ascii=False).encode("utf-8", "surrogatepass"))


class ActionAck(Tolerant):
    """Payload of `evt.sys.ui.action_ack`: `accepted`, `busy` or `rejected` at once, then `done` or `rejected`."""

    action_id: str
    """The action's `action_id`."""
    agent_id: AgentId
    """The agent in whose name the tool is called."""
    status: ActionStatus
    """The status of the action."""
    message_id: str | None = None
    """The action's `message_id`."""
    tool_result_card_id: CardId | None = None
    """The tool's result, once there is one."""
    error_code: str | None = None
    """Why it was refused or has failed, as a stable code."""
    error: str | None = None
    """Why it was refused or has failed, for people."""


def final_ack(
    action: ActionRef,
    agent: AgentId,
    status: TurnStatus,
    tool_result: CardId | None,
    error_code: str | None,
    error: str | None,
) -> ActionAck:
    """The final ack of an action from its turn's outcome."""
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
    """Parse the action in a row, text or object; None if it does not parse, as other writers may store anything."""
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
