"""The base classes of models: `Strict` for input from outside, `Tolerant` between versions, and a field type."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, JsonValue

from turnstile.schema.ids import AgentId, token


class Strict(BaseModel):
    """Frozen; refuses unknown fields. For requests of clients and configuration files."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Tolerant(BaseModel):
    """Frozen; ignores unknown fields. For data that older and newer workers exchange."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


JsonObject = dict[str, JsonValue]


def _agent_token(value: AgentId) -> AgentId:
    return AgentId(token(value, "agent_id"))


AgentToken = Annotated[AgentId, AfterValidator(_agent_token)]
"""An agent's id from outside, which must be a token of a subject."""
