"""The two base classes of models: `Strict` for input from outside, `Tolerant` between versions of Turnstile."""

from pydantic import BaseModel, ConfigDict, JsonValue


class Strict(BaseModel):
    """Frozen; refuses unknown fields. For requests of clients and configuration files."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tolerant(BaseModel):
    """Frozen; ignores unknown fields. For data that older and newer workers exchange."""

    model_config = ConfigDict(frozen=True, extra="ignore")


JsonObject = dict[str, JsonValue]
