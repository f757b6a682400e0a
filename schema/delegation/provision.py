"""`provision_agent` (protocol §12): its arguments, and the codes of its refusals, which are v1r4's.

A refusal is part of a result that was found: `{status: rejected, error_code}`.
"""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.ids import token, worker_target
from turnstile.schema.validation import faults_in
from turnstile.schema.wire.roster_requests import INSTANCE_OF

Action: TypeAlias = Literal["ensure", "create", "derive"]
"""`ensure` and `create` are one; `derive` makes an agent that belongs to another and has its profile."""

ProvisionCode: TypeAlias = Literal[
    "bad_request",
    "invalid_action",
    "missing_agent_id",
    "invalid_tags",
    "invalid_metadata",
    "missing_derived_from",
    "not_found",
    "auth_failed",
    "profile_not_found",
    "missing_profile_name",
    "missing_derived_profile_name",
    "profile_mismatch",
    "derived_agent_conflict",
    "existing_agent_profile_mutation_forbidden",
    "existing_agent_owner_mutation_forbidden",
    "existing_agent_worker_target_mutation_forbidden",
    "existing_agent_tags_mutation_forbidden",
    "agent_inactive",
]
"""The codes of v1r4; `agent_inactive` is ours, for an agent whose project is being removed."""

_BY_FIELD: dict[str, ProvisionCode] = {
    "action": "invalid_action",
    "agent_id": "missing_agent_id",
    "tags": "invalid_tags",
    "metadata": "invalid_metadata",
}


class ProvisionRefused(Exception):
    """`provision_agent` is refused; `code` is the result's `error_code`."""

    def __init__(self, code: ProvisionCode) -> None:
        super().__init__(code)
        self.code: ProvisionCode = code

    def result(self) -> JsonObject:
        """The result of the call."""
        return {"status": "rejected", "error_code": self.code}


def _blank_is_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


Name = Annotated[Annotated[str, Field(max_length=128)] | None, BeforeValidator(_blank_is_none)]


class ProvisionArguments(Strict):
    """Arguments of `provision_agent`, as v1r4 has them."""

    action: Action
    """What to do."""
    agent_id: str = Field(min_length=1, max_length=128)
    """The agent, made if it is not there."""
    profile_name: Name = None
    """Its profile by name."""
    profile_box_id: Name = None
    """Its profile by the box that holds it."""
    derived_from: Name = None
    """With `derive`, the agent whose profile it has, and to whom it belongs."""
    display_name: Annotated[Annotated[str, Field(max_length=256)] | None, BeforeValidator(_blank_is_none)] = None
    """A name for people."""
    owner_agent_id: Name = None
    """The agent that it belongs to."""
    worker_target: Name = None
    """The target of the workers that run its turns; by default the profile's."""
    active_channel_id: Name = None
    """Read and not used: an agent here is of no channel."""
    tags: list[str] | None = Field(default=None, max_length=256)
    """Its tags; by default the profile's."""
    metadata: JsonObject = Field(default_factory=dict)
    """More about it; these keys are set, others stay."""

    @model_validator(mode="after")
    def _tokens(self) -> "ProvisionArguments":
        token(self.agent_id, "agent_id")
        for name in ("derived_from", "owner_agent_id"):
            if (value := getattr(self, name)) is not None:
                token(value, name)
        if self.worker_target is not None:
            worker_target(self.worker_target, "worker_target")
        return self

    @property
    def known_tags(self) -> list[str] | None:
        """The tags without blanks."""
        return None if self.tags is None else [tag for tag in self.tags if tag.strip()]


def provision_arguments(values: JsonObject) -> ProvisionArguments:
    """The arguments of a call; raises `ProvisionRefused` with v1r4's code for the first fault in its order.

    Raises `BadRequest` for an id that is no token.
    """
    named = {**values, "metadata": values.get("metadata") or {}}
    try:
        arguments = ProvisionArguments.model_validate(named)
    except ValidationError as error:
        faults = {str(fault.path[0]) for fault in faults_in(error, ProvisionArguments) if fault.path}
        codes: list[ProvisionCode] = [code for name, code in _BY_FIELD.items() if name in faults]
        raise ProvisionRefused(codes[0] if codes else "bad_request") from None
    if INSTANCE_OF in arguments.metadata:
        raise ProvisionRefused("invalid_metadata")
    if arguments.action == "derive" and arguments.derived_from is None:
        raise ProvisionRefused("missing_derived_from")
    return arguments
