"""One question as a person may decide it: what is offered, and what was typed as arguments of `decide`. Pure.

What is shown is what the digest names; a call of which that is not so is offered to nobody. An edit and an answer are
checked here to show errors field by field; the bridge checks them again, and its word counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from pydantic import JsonValue

from turnstile.gateway.console.people.schema_form import (
    ALL,
    AnswerForm,
    Field,
    SchemaForm,
    answer_form,
    arguments_form,
)
from turnstile.gateway.schema_slots import shown_json
from turnstile.ledger.people.interrupt_views import InterruptContext
from turnstile.schema.access import Principal, Right
from turnstile.schema.base import JsonObject
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.errors import BadRequest
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import InterruptReason, InterruptStatus
from turnstile.schema.tools import ToolOptions, ToolRow, options_of

CHANGED: Final = frozenset({"already_decided", "expired", "withdrawn", "digest_mismatch", "form_changed"})
"""Codes of a decision that came too late: what is so now is shown."""


@dataclass(frozen=True, slots=True)
class Typed:
    """What a person sent: the decision, what they saw, and what they typed by field."""

    decision: Decision
    digest: str | None
    made_of: str
    note: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotMade:
    """Why what was typed is no decision."""

    code: str
    faults: dict[str, str]
    status: int = HTTPStatus.UNPROCESSABLE_ENTITY


@dataclass(frozen=True, slots=True)
class Offer:
    """A question, and what this session may make of it."""

    view: InterruptView
    context: InterruptContext
    reader: str
    """The principal of the session."""
    refusal: str
    """The code of why this session may not decide: `role`, `own_request`, `own_words`, `not_shown`, `closed`."""
    edit: SchemaForm | None
    """None if the call may not be edited, or its tool is gone."""
    answer: AnswerForm | None
    """None if no answer is allowed."""
    sees_added: bool
    """Whether this session sees what the tool's options add."""

    @property
    def is_open(self) -> bool:
        """Whether anybody may still decide."""
        return self.view.status is InterruptStatus.OPEN

    @property
    def is_question(self) -> bool:
        """Whether it is a question, and not a call to be approved."""
        return self.view.reason is InterruptReason.INPUT_REQUIRED

    @property
    def arguments_text(self) -> str | None:
        """The exact arguments as JSON, with what would not be seen written as escapes; None if they are gone."""
        return None if self.view.arguments is None else shown_json(self.view.arguments)

    @property
    def before_text(self) -> str | None:
        """The arguments before a person edited them."""
        before = self.context.arguments_before(with_added=self.sees_added)
        return None if before is None else shown_json(before)

    @property
    def answer_text(self) -> str | None:
        """What a person answered."""
        match self.context.answer:
            case {"value": str() as text}:
                return text
            case None:
                return None
            case {"value": value} | value:
                return shown_json(value)

    @property
    def fixed(self) -> list[str]:
        """The arguments that an operator has fixed, which nobody can edit; none if the session does not see them."""
        return [] if self.edit is None or not self.sees_added else sorted({*self.edit.fixed, *self.edit.envs})

    def was_decided_so(self, typed: Typed) -> bool:
        """Whether this session has made this decision before; false for edits and answers."""
        same = typed.decision in (Decision.APPROVE, Decision.REJECT) and self.view.decision is typed.decision
        return same and self.view.decided_by == self.reader

    def may(self, decision: str) -> bool:
        """Whether this decision is offered here."""
        if self.refusal or Decision(decision) not in self.view.allowed_decisions:
            return False
        return self.edit is not None if decision == Decision.EDIT else True

    def edit_fields(self, typed: Typed | None, faults: Mapping[str, str]) -> list[Field]:
        """The fields of the arguments, with what was typed in them if it is of this form."""
        if self.edit is None:
            return []
        is_typed = typed is not None and typed.decision is Decision.EDIT and typed.made_of == self.edit.digest
        return self.edit.fields(typed.fields if typed is not None and is_typed else None, faults if is_typed else None)

    def answer_fields(self, typed: Typed | None, faults: Mapping[str, str]) -> list[Field]:
        """The fields of the answer, with what was typed in them."""
        if self.answer is None:
            return []
        is_typed = typed is not None and typed.decision is Decision.RESPOND
        return self.answer.fields(
            typed.fields if typed is not None and is_typed else None, faults if is_typed else None
        )

    def read(self, typed: Typed) -> JsonObject | NotMade:
        """The arguments of `decide` without the question's id, or why there are none."""
        if self.refusal:
            return NotMade(self.refusal, {})
        if typed.digest != self.view.action_digest:
            return NotMade("digest_mismatch", {})
        decision: JsonObject = {
            "decision": typed.decision,
            "action_digest": self.view.action_digest,
            "message": typed.note,
        }
        match typed.decision:
            case Decision.EDIT:
                return self._edited(typed, decision)
            case Decision.RESPOND:
                return self._answered(typed, decision)
            case Decision.APPROVE | Decision.REJECT:
                return decision

    def _edited(self, typed: Typed, decision: JsonObject) -> JsonObject | NotMade:
        if self.edit is None:
            return NotMade("decision_not_allowed", {ALL: "This call cannot be edited."})
        if typed.made_of != self.edit.digest:
            return NotMade("form_changed", {})
        reading = self.edit.read(typed.fields)
        if reading.faults or not isinstance(reading.value, dict):
            return NotMade("invalid_arguments", dict(reading.faults))
        arguments, added = self.view.arguments or {}, {*self.edit.fixed, *self.edit.envs}
        if all(_same(reading.value.get(name), arguments.get(name)) for name in {*arguments, *reading.value} - added):
            return NotMade(
                "nothing_edited", {ALL: "Nothing was changed: approve the call as it is, or change a field."}
            )
        return {**decision, "arguments": reading.value}

    def _answered(self, typed: Typed, decision: JsonObject) -> JsonObject | NotMade:
        if self.answer is None:
            return NotMade("decision_not_allowed", {ALL: "This call cannot be answered."})
        reading = self.answer.read(typed.fields)
        if reading.faults:
            return NotMade("invalid_response", dict(reading.faults))
        return {**decision, "response": reading.value}


def offer_of(view: InterruptView, context: InterruptContext, principal: Principal) -> Offer:
    """A question as this principal may decide it."""
    answers = Decision.RESPOND in view.allowed_decisions
    return Offer(
        view,
        context,
        principal.sender,
        _refusal(view, context, principal),
        _edit_form(view, context) if Decision.EDIT in view.allowed_decisions else None,
        answer_form(view.response_schema) if answers else None,
        principal.sees_added,
    )


def what_was_decided(view: InterruptView) -> str:
    """What became of a question, as the verb of a sentence."""
    match view.status, view.decision:
        case InterruptStatus.RESOLVED, Decision.APPROVE:
            return "approved"
        case InterruptStatus.RESOLVED, Decision.EDIT:
            return "approved with other arguments"
        case InterruptStatus.RESOLVED, Decision.REJECT:
            return "rejected"
        case InterruptStatus.RESOLVED, _:
            return "answered"
        case InterruptStatus.EXPIRED, _:
            return "expired"
        case InterruptStatus.WITHDRAWN, _:
            return "withdrawn"
        case InterruptStatus.OPEN, _:
            return ""


def _refusal(view: InterruptView, context: InterruptContext, principal: Principal) -> str:
    if view.status is not InterruptStatus.OPEN:
        return "closed"
    if not principal.may(Right.DECIDE):
        return "role"
    if view.requester == principal.caller.name and not view.requester_may_decide:
        return "own_request"
    if context.own_words:
        return "own_words"
    return "" if view.is_what_is_shown else "not_shown"


def _edit_form(view: InterruptView, context: InterruptContext) -> SchemaForm | None:
    row = kernel_tools().get(view.tool_name) if context.tool is None else ToolRow.model_validate(context.tool)
    if row is None or view.arguments is None:
        return None
    try:
        options = options_of(row)
    except BadRequest:
        options = ToolOptions()
    if view.arguments_left_out:  # for this form they are what the tool fills in itself
        return arguments_form(row.parameters, view.arguments, envs=options.hidden)
    fixed = frozenset(options.args.fixed) - options.envs.keys()
    return arguments_form(row.parameters, view.arguments, fixed=fixed, envs=frozenset(options.envs))


def _same(one: JsonValue, other: JsonValue) -> bool:
    return shown_json(one) == shown_json(other)
