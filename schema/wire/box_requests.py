"""Requests and replies of the verbs on boxes: `box_fork` and `box_replace` (protocol §6)."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from turnstile.schema.base import AgentToken, Strict, Tolerant
from turnstile.schema.ids import BoxId, box_id
from turnstile.schema.wire.inbox import Reply


class BoxForkRequest(Strict):
    """Arguments of `box_fork`."""

    box_id: BoxId
    """The box (uuid) whose list is copied as it is now, even if a turn writes it meanwhile."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat for the same box returns the same new box."""

    @field_validator("box_id")
    @classmethod
    def _box_uuid(cls, value: BoxId) -> BoxId:
        return box_id(value, "box_id")


class BoxForkReply(Reply):
    """Reply to `box_fork`."""

    box_id: BoxId | None = None
    """The new box."""
    duplicate: bool = False
    """Whether the same request was made before: then this is its box, and nothing was written."""


class BoxReplaceRequest(Strict):
    """Arguments of `box_replace`. At least one box is given; a pointer that is left out is not changed."""

    agent_id: AgentToken
    """The agent of the project whose pointers are set."""
    memory_context_box_id: BoxId | None = None
    """The box (uuid) that a turn enqueued without instruction and context box reads; null removes it."""
    last_output_box_id: BoxId | None = None
    """The box (uuid) that counts as the agent's last output until its next turn ends."""

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
    """The output box of its last turn, or the box that `box_replace` set instead."""


class BoxReplaceReply(Reply, AgentBoxes):
    """Reply to `box_replace`: both boxes as they are now."""
