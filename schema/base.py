"""The two bases of all models on wires and rows: strict for what strangers write, tolerant between our own versions."""

from pydantic import BaseModel, ConfigDict, JsonValue


class Strict(BaseModel):
    """Frozen, and refuses fields it does not know: for what clients and configuration files write."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tolerant(BaseModel):
    """Frozen, and ignores fields it does not know: where older and newer workers meet."""

    model_config = ConfigDict(frozen=True, extra="ignore")


JsonObject = dict[str, JsonValue]
