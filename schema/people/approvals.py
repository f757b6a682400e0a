"""Which calls wait for a person's approval: `interrupt_on` of profiles and of tool rows (protocol §13.2). Pure.

A rule that cannot be read or evaluated asks: nothing goes out because a policy was broken. Where profile and tool row
both have a rule for a tool, each of them may ask, and of both the stricter fields count.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.parameters import checks

EXPIRES_AFTER_SECONDS = 7 * 86_400.0
"""How long an interrupt is open, unless its policy says otherwise."""
MOST_SECONDS = 366 * 86_400.0
"""How long one may be open at most."""


class Decision(StrEnum):
    """What a person may make of a call that waits."""

    APPROVE = "approve"
    """Send it as it is."""
    EDIT = "edit"
    """Send it with other arguments."""
    REJECT = "reject"
    """Send nothing: it failed, for this reason."""
    RESPOND = "respond"
    """Send nothing: this is its result."""


def _condition(value: JsonObject) -> JsonObject:
    if annotations := checks(value).annotations:
        raise ValueError(f"{min(annotations)} cannot be evaluated here, so that every call would ask: write it without")
    return value


class Approval(Strict):
    """How a person is asked about a call of a tool."""

    allowed_decisions: tuple[Decision, ...] = Field(default=tuple(Decision), min_length=1)
    """What may be decided: `approve`, `edit`, `reject`, `respond`."""
    description: str | None = Field(default=None, min_length=1, max_length=4096)
    """What the person is asked, in place of a sentence that names the tool."""
    expires_after_seconds: float = Field(default=EXPIRES_AFTER_SECONDS, ge=1, le=MOST_SECONDS)
    """How long a decision is waited for."""
    on_expiry: Literal["reject"] = "reject"
    """What becomes of the call then."""
    requester_may_decide: bool = False
    """Whether who asked for the turn may decide, too."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.allowed_decisions)) < len(self.allowed_decisions):
            raise ValueError("allowed_decisions names each decision once")
        return self

    def beside(self, other: "Approval") -> "Approval":
        """Both at once: of each field the stricter. A call that neither allows to pass can still be rejected."""
        both = tuple(d for d in self.allowed_decisions if d in other.allowed_decisions)
        texts = dict.fromkeys(text for text in (self.description, other.description) if text is not None)
        return Approval.model_construct(
            allowed_decisions=both or (Decision.REJECT,),
            description="\n".join(texts) or None,
            expires_after_seconds=min(self.expires_after_seconds, other.expires_after_seconds),
            on_expiry="reject",
            requester_may_decide=self.requester_may_decide and other.requester_may_decide,
        )


class ApprovalRule(Approval):
    """When a call of a tool waits for a person, and how the person is asked."""

    when: Annotated[JsonObject, AfterValidator(_condition)] | None = None
    """A JSON schema that the arguments must match for the call to wait; without it each call waits."""

    def asks(self, arguments: JsonObject) -> bool:
        """Whether a call with these arguments waits; true also if that cannot be decided."""
        if self.when is None:
            return True
        try:
            return checks(self.when).fault(arguments) is None
        except Exception:  # noqa: BLE001 -- strangers wrote the schema, and what cannot be evaluated asks
            return True

    def with_rule(self, other: "ApprovalRule") -> "ApprovalRule":
        """Both rules as one: either asks, and of each field the stricter counts."""
        when: JsonObject | None = None
        if self.when is not None and other.when is not None:
            when = {"anyOf": [self.when, other.when]}
        return ApprovalRule.model_construct(**self.beside(other).model_dump(), when=when)


def _spelled_out(value: object) -> object:
    return {} if value is True else value


InterruptRule = Annotated[
    ApprovalRule,
    BeforeValidator(_spelled_out, json_schema_input_type=Literal[True] | ApprovalRule),
]
"""A rule as it is written: `true`, or an object."""


def rules_of(*written: Mapping[str, ApprovalRule]) -> dict[str, ApprovalRule]:
    """The rules of several profiles, by tool: where some have a rule for one, any of them asks."""
    by_tool: dict[str, ApprovalRule] = {}
    for tool, rule in (item for rules in written for item in rules.items()):
        by_tool[tool] = by_tool[tool].with_rule(rule) if tool in by_tool else rule
    return by_tool


def approval(rules: tuple[ApprovalRule | None, ...], arguments: JsonObject) -> Approval | None:
    """How a person is asked about a call with these arguments; None if no rule asks."""
    known = [rule for rule in rules if rule is not None]
    if not any(r.asks(arguments) for r in known):
        return None
    first, *others = known
    strictest: Approval = first
    for other in others:
        strictest = strictest.beside(other)
    return strictest
