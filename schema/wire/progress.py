"""The verb `progress`: how far a tool is with a call that it runs (protocol §6, progress). Pure."""

from typing import Final

from pydantic import Field

from turnstile.schema.base import IdOf, JsonObject, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId, StepId, ToolCallId

PROGRESS_RATE: Final = 2.0
"""Events a second of one call; what comes faster is dropped."""
MESSAGE_CHARACTERS: Final = 200
"""The longest message."""


class ProgressRequest(Strict):
    """Arguments of `progress`."""

    tool_call_id: IdOf[ToolCallId] = Field(min_length=1, max_length=128)
    """The call, which waits."""
    progress: float = Field(allow_inf_nan=False)
    """How far it is: more than the last time."""
    total: float | None = Field(default=None, allow_inf_nan=False)
    """Where it will be done, if that is known."""
    message: str = Field(default="", max_length=MESSAGE_CHARACTERS)
    """What it does, for people."""

    def shown(self, tool_name: str) -> JsonObject:
        """The metadata of the `step` event, with a message of one line without control characters."""
        line = "".join(c if c.isprintable() else " " for c in self.message)
        return {
            "tool_call_id": self.tool_call_id,
            "tool_name": tool_name,
            "progress": self.progress,
            "total": self.total,
            "message": " ".join(line.split()),
        }


class CallProgress(Tolerant):
    """How far a tool is with a call, as a `step` event of phase `tool_progress` has it in its metadata."""

    agent_turn_id: AgentTurnId
    step_id: StepId
    tool_call_id: ToolCallId
    tool_name: str
    progress: float
    total: float | None = None
    message: str = ""


class ProgressReply(Reply):
    """Reply to `progress`."""

    tool_call_id: ToolCallId | None = None
    """The call."""
    published: bool = False
    """Whether an event was published; false where they come too fast."""
