"""The request to run a turn again from one of its steps (protocol §6, rerun)."""

import hashlib
from typing import Self

from pydantic import Field, model_validator

from turnstile.schema.base import IdOf, JsonObject, Strict
from turnstile.schema.budgets.limits import BudgetLimits
from turnstile.schema.ids import AgentTurnId
from turnstile.schema.profiles import RuntimeConfig

LINE_LIMIT = 100
"""How many turns a rerun may have before it: the one that it runs again, the one that this had run again, and so on."""


_OF_ITS_CLIENT = frozenset({"client_tools", "client_tool_seconds", "client_gone", "tool_choice"})
"""Settings that a rerun has only if its request names them: nobody may be there to run such calls (protocol §19)."""


class RerunRequest(Strict):
    """Arguments of `rerun`."""

    agent_turn_id: IdOf[AgentTurnId] = Field(min_length=1, max_length=128)
    """The turn to run again. It must be over."""
    from_step: int | None = Field(default=None, ge=1, le=100_000)
    """The step, from 1, from which on it is run again; by default the one that failed, if it failed, else the first."""
    model: str | None = Field(default=None, min_length=1, max_length=256)
    """`provider/model` for the new turn: the same as `runtime_config.model`."""
    runtime_config: RuntimeConfig = RuntimeConfig()
    """Settings that replace those of the turn's enqueue, for the new turn only; null stands for the profile's."""
    budget: BudgetLimits | None = None
    """What the new turn and all below it may use; by default what the profile says."""
    correlation_id: str | None = Field(default=None, min_length=1, max_length=256)
    """The caller's own name for the request; a repeat with the same content returns the same new turn."""

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if self.model is not None and self.runtime_config.model not in (None, self.model):
            raise ValueError("either model or runtime_config.model: they name different models")
        return self

    def settings(self, before: JsonObject) -> RuntimeConfig:
        """The new turn's settings: those of the turn `before`, with what this request sets."""
        fields = self.runtime_config.model_fields_set | _OF_ITS_CLIENT
        kept = {name: value for name, value in before.items() if name not in fields}  # no dump has an empty list
        changes = self.runtime_config.model_dump(mode="json", exclude_unset=True)
        if self.model is not None:
            changes["model"] = self.model
        return RuntimeConfig.model_validate({**kept, **changes})

    def digest(self, caller: str) -> str:
        """A fingerprint of caller and fields; the same correlation with a different one is a conflict."""
        text = self.model_dump_json(exclude={"correlation_id"}, exclude_unset=True)
        return hashlib.sha256(f"rerun\0{caller}\0{text}".encode()).hexdigest()
