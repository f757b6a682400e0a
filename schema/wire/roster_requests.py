"""Requests and replies of the operators' verbs on the roster (protocol §6): agents, profiles and tools."""

from pydantic import field_validator

from turnstile.schema.base import Strict
from turnstile.schema.ids import AgentId, token
from turnstile.schema.states import AgentStatus
from turnstile.schema.wire.inbox import Reply


class AgentRequest(Strict):
    """Arguments of `agent.pause`, `agent.resume` and `agent.retire`."""

    agent_id: AgentId
    """The agent of the project."""

    @field_validator("agent_id")
    @classmethod
    def _agent_token(cls, value: AgentId) -> AgentId:
        return AgentId(token(value, "agent_id"))


class AgentStatusReply(Reply):
    """Reply to `agent.pause`, `agent.resume` and `agent.retire`."""

    agent_id: AgentId | None = None
    """The agent."""
    agent_status: AgentStatus | None = None
    """Its status now."""
    duplicate: bool = False
    """Whether it had this status before: then nothing was written."""
