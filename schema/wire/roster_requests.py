"""Requests and replies of the operators' verbs on the roster (protocol §6): agents, profiles and tools."""

from datetime import datetime

from pydantic import Field, field_validator

from turnstile.schema.base import AgentToken, JsonObject, Reply, Strict, Tolerant
from turnstile.schema.ids import AgentId, AgentTurnId, BoxId
from turnstile.schema.profiles import Profile
from turnstile.schema.states import AgentStatus
from turnstile.schema.tools import ToolDefinition, ToolRow

INSTANCE_OF = "instance_of"
"""The key of an agent's metadata that only the kernel sets: the profile of which the agent is an instance."""


class AgentRequest(Strict):
    """Arguments of `agent.pause`, `agent.resume` and `agent.retire`."""

    agent_id: AgentToken
    """The agent of the project."""


class AgentStatusReply(Reply):
    """Reply to `agent.pause`, `agent.resume` and `agent.retire`."""

    agent_id: AgentId | None = None
    """The agent."""
    agent_status: AgentStatus | None = None
    """Its status now."""
    duplicate: bool = False
    """Whether it had this status before: then nothing was written."""


class AgentPutRequest(AgentRequest):
    """Arguments of `agent.put`. What is left out stays as it is; of a new agent it is empty."""

    profile_name: str = Field(min_length=1, max_length=128)
    """A profile of the project."""
    worker_target: str | None = Field(default=None, min_length=1, max_length=128)
    """The target of the workers that run its turns; of a new agent by default the profile's."""
    display_name: str | None = Field(default=None, max_length=256)
    """A name for people."""
    tags: list[str] | None = Field(default=None, max_length=256)
    """Tags for people."""
    metadata: JsonObject | None = None
    """More about it; these keys are set, others stay."""
    only_new: bool = False
    """Whether to refuse an agent that is there (`agent_exists`) instead of changing it."""

    @field_validator("metadata")
    @classmethod
    def _not_the_kernels(cls, value: JsonObject | None) -> JsonObject | None:
        if value is not None and INSTANCE_OF in value:
            raise ValueError(f"{INSTANCE_OF} is set by the kernel alone")
        return value


class AgentPutReply(Reply):
    """Reply to `agent.put`."""

    agent_id: AgentId | None = None
    """The agent."""
    worker_target: str | None = None
    """Its worker target."""
    created: bool = False
    """Whether it is new."""
    duplicate: bool = False
    """Whether it was just so before: then nothing was written."""


class ListRequest(Strict):
    """Arguments of `agent.list`, `profile.list` and `tool.list`."""

    after: str | None = Field(default=None, min_length=1, max_length=256)
    """Only those that follow this id or name: `next` of the reply before."""
    limit: int = Field(default=100, ge=1, le=1000)
    """At most this many."""


class AgentLine(Tolerant):
    """An agent in a list."""

    agent_id: AgentId
    """The agent."""
    worker_target: str
    """The target of the workers that run its turns."""
    status: str
    """`active`, `paused`, `retired`, `dormant` or `inactive`."""
    display_name: str | None
    """A name for people."""
    profile_name: str | None
    """Its profile."""
    head_status: str
    """Where its turn in hand stands; `idle` without one."""
    active_agent_turn_id: AgentTurnId | None
    """Its turn in hand."""
    turn_epoch: int
    """The fencing number of its last lease."""
    queued: int
    """The number of its queued turns."""


class AgentListReply(Reply):
    """Reply to `agent.list`."""

    agents: tuple[AgentLine, ...] = ()
    """The agents by id."""
    next: str | None = None
    """`after` of the next request; null if there are no more."""


class ProfilePutRequest(Strict):
    """Arguments of `profile.put`."""

    profile: Profile
    """The profile; one of the same name is replaced."""


class ProfilePutReply(Reply):
    """Reply to `profile.put`."""

    name: str | None = None
    """The profile."""
    profile_box_id: BoxId | None = None
    """The box that has its card."""
    created: bool = False
    """Whether it is new."""
    agents: int = 0
    """The number of agents that have it from their next turn on."""
    warnings: tuple[str, ...] = ()
    """A sentence for each name in it that is not known yet, and for a budget or price that lets no turn run."""


class ProfileLine(Tolerant):
    """A profile in a list."""

    name: str
    """The profile."""
    profile_box_id: BoxId
    """The box that has its card."""
    worker_target: str
    """The target that its new agents get."""
    tags: list[str]
    """Tags for people."""
    updated_at: datetime
    """When it was put."""
    agents: int
    """The number of its agents."""


class ProfileListReply(Reply):
    """Reply to `profile.list`."""

    profiles: tuple[ProfileLine, ...] = ()
    """The profiles by name."""
    next: str | None = None
    """`after` of the next request; null if there are no more."""


class ToolPutRequest(Strict):
    """Arguments of `tool.put`."""

    tool: ToolDefinition
    """The tool; one of the same name is replaced."""


class ToolPutReply(Reply):
    """Reply to `tool.put`."""

    tool_name: str | None = None
    """The tool."""
    created: bool = False
    """Whether it is new."""


class ToolListReply(Reply):
    """Reply to `tool.list`."""

    tools: tuple[ToolRow, ...] = ()
    """The tools by name."""
    next: str | None = None
    """`after` of the next request; null if there are no more."""


class ToolRemoveRequest(Strict):
    """Arguments of `tool.remove`."""

    tool_name: str = Field(min_length=1, max_length=256)
    """The tool."""


class ToolRemoveReply(Reply):
    """Reply to `tool.remove`."""

    tool_name: str | None = None
    """The tool that was removed."""
