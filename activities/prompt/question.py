"""The question of one step to a model, and of whom it is."""

from dataclasses import dataclass

from turnstile.runtime.ports import ModelMessage
from turnstile.schema.base import JsonObject
from turnstile.schema.ids import AgentTurnId, BoxId, StepId
from turnstile.schema.profiles import LlmConfig
from turnstile.schema.wire.events import Address


@dataclass(frozen=True, slots=True)
class Question:
    """The request of one step, the same for all its attempts."""

    turn: AgentTurnId
    step_id: StepId
    step: int
    config: LlmConfig
    messages: tuple[ModelMessage, ...]
    tools: tuple[JsonObject, ...]
    address: Address
    agent_name: str = ""
    """The profile by whose name people know the agent."""
    box: BoxId | None = None
    """The turn's output box."""
    heard: bool = True
    """Whether the answer is of the turn: streamed on, and kept where the turn is stopped in its midst."""
