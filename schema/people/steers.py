"""Steers: what somebody says to a turn while it runs (protocol §6, steer). Pure.

Requests, replies and events; where a steer stands is part of what `describe` answers. The text is on a card of the
steer's id, and in no event.
"""

import hashlib
from datetime import datetime
from typing import Final

from pydantic import Field

from turnstile.schema.base import IdOf, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentTurnId, SteerId, StepId
from turnstile.schema.states import SteerPriority, SteerStatus

MOST_WAITING: Final = 100
"""How many steers of one turn may wait for its next step."""


class SteerRequest(Strict):
    """Arguments of `steer`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn: queued, running or asleep."""
    text: str = Field(min_length=1)
    """What its model shall read next, as the user's words."""
    priority: SteerPriority = SteerPriority.ASAP
    """`asap`: with the turn's next step. `when_idle`: when the turn would end, which then takes another step."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat with the same content returns the same steer."""

    def digest(self) -> str:
        """A fingerprint of what is said; the same correlation with a different one is a conflict."""
        return hashlib.sha256(self.model_dump_json(exclude={"correlation_id"}).encode()).hexdigest()

    def text_bytes(self) -> int:
        """The bytes of UTF-8 text, limited by `TEXT_LIMIT_BYTES`."""
        return len(self.text.encode("utf-8", "surrogatepass"))


class SteerReply(Reply):
    """Reply to `steer`: the turn's next step asks with it, unless the turn ends first."""

    agent_turn_id: AgentTurnId | None = None
    """The turn."""
    steer_id: SteerId | None = None
    """The steer; the card of this id has its text."""
    steer_status: SteerStatus | None = None
    """Where it stands: of a new one `waiting`."""
    duplicate: bool = False
    """Whether the same request was made before: then this is its steer, and nothing was written."""


class Steer(Tolerant):
    """A steer of a turn, and where it stands."""

    steer_id: SteerId
    """The steer; the card of this id has its text."""
    priority: SteerPriority
    """When it is to be read."""
    status: SteerStatus
    """`waiting`, `taken` by a step that runs, `applied` with that step's commit, or `skipped`: the turn ended first."""
    step_id: StepId | None
    """The step that asks the model with it, or has; null while it waits."""
    steered_by: str
    """The principal who said it."""
    created_at: datetime
    """When it was accepted."""
    settled_at: datetime | None
    """When it was applied or skipped."""


class SteerEvent(Tolerant):
    """Payload of `evt.agent.{agent_id}.steer`: where a steer stands now."""

    agent_turn_id: AgentTurnId
    """The turn."""
    steer_id: SteerId
    """The steer."""
    status: SteerStatus
    """Where it stands."""
    step_id: StepId | None = None
    """The step that reads it."""
