"""What callers ask of boxes, and hear: `box_fork` and `box_replace` (protocol §6)."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from turnstile.schema.base import Strict, Tolerant
from turnstile.schema.ids import AgentId, BoxId, box_id, token
from turnstile.schema.wire.inbox import Reply


class BoxForkRequest(Strict):
    """Arguments of `box_fork`."""

    box_id: BoxId
    """The box (uuid) whose list is copied, as it is now; a turn in hand may be writing it."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request: repeated for the same box it answers the same new box."""

    @field_validator("box_id")
    @classmethod
    def _box_uuid(cls, value: BoxId) -> BoxId:
        return box_id(value, "box_id")


class BoxForkReply(Reply):
    """Answer to `box_fork`."""

    box_id: BoxId | None = None
    """The new box."""
    duplicate: bool = False
    """The same request was made before: this is its box, and nothing was written."""


class BoxReplaceRequest(Strict):
    """Arguments of `box_replace`: what is left out stays as it is; one box at least is named."""

    agent_id: AgentId
    """Whose boxes: an agent of the project."""
    memory_context_box_id: BoxId | None = None
    """The box (uuid) that a turn reads which is asked without instruction and without a box; null: none any more."""
    last_output_box_id: BoxId | None = None
    """The box (uuid) that stands for the agent's last output, until a turn of it ends."""

    @field_validator("agent_id")
    @classmethod
    def _agent_token(cls, value: AgentId) -> AgentId:
        return AgentId(token(value, "agent_id"))

    @field_validator("memory_context_box_id", "last_output_box_id")
    @classmethod
    def _box_uuid(cls, value: BoxId | None) -> BoxId | None:
        return value and box_id(value, "box id")

    @model_validator(mode="after")
    def _names_a_box(self) -> Self:
        if "memory_context_box_id" not in self.model_fields_set and self.last_output_box_id is None:
            raise ValueError("one of memory_context_box_id and last_output_box_id is needed")
        return self


class AgentBoxes(Tolerant):
    """The boxes that an agent's pointers name."""

    memory_context_box_id: BoxId | None = None
    """The agent's memory."""
    last_output_box_id: BoxId | None = None
    """The output box of its last turn, or what was put in its place."""


class BoxReplaceReply(Reply, AgentBoxes):
    """Answer to `box_replace`: both boxes as they are now."""
