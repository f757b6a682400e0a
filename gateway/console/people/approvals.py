"""Approvals: what turns ask people, one question with all that is to be known of it, and its decision (protocol §13).

A decision names the digest of the call as it was on the page. What has changed since (somebody has decided, the time is
over, the tool is another) is shown with what was typed, and nothing is overwritten: one statement of the ledger says
which decision counts. After a decision the next open question follows. A call whose digest does not name what is shown
is offered to nobody. An edit and an answer are checked here to tell what is wrong field by field; the bridge checks
them again, and its word counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import urlencode

from pydantic import ConfigDict, Field, JsonValue
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.people.conversations import address
from turnstile.gateway.console.people.schema_form import (
    ALL,
    AnswerForm,
    SchemaForm,
    answer_form,
    arguments_form,
)
from turnstile.gateway.console.people.schema_form import (
    Field as FormField,
)
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.schema_slots import shown_json
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.people.interrupt_views import (
    InterruptContext,
    get_interrupt,
    get_interrupt_context,
    list_call_arguments,
    list_interrupts,
)
from turnstile.schema import verbs
from turnstile.schema.access import Principal, Right
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.delegation.definitions import kernel_tools
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupt_requests import InterruptView
from turnstile.schema.people.interrupts import Interrupt, InterruptReason, InterruptStatus
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

    def edit_fields(self, typed: Typed | None, faults: Mapping[str, str]) -> list[FormField]:
        """The fields of the arguments, with what was typed in them if it is of this form."""
        if self.edit is None:
            return []
        is_typed = typed is not None and typed.decision is Decision.EDIT and typed.made_of == self.edit.digest
        return self.edit.fields(typed.fields if typed is not None and is_typed else None, faults if is_typed else None)

    def answer_fields(self, typed: Typed | None, faults: Mapping[str, str]) -> list[FormField]:
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


LIST = "/console/approvals"
_TABS = (
    ("Open", "open"),
    ("Decided", "resolved"),
    ("Expired", "expired"),
    ("Withdrawn", "withdrawn"),
    ("All", "all"),
)
_PAGE = 50
_PREVIEW = 160
_NEIGHBOURS = 100
_TOLD = {
    Decision.APPROVE: "approved",
    Decision.EDIT: "edited",
    Decision.REJECT: "rejected",
    Decision.RESPOND: "answered",
}


class ApprovalsQuery(Strict):
    """Which questions."""

    status: Literal["open", "resolved", "expired", "withdrawn", "all"] = "open"
    agent_id: str | None = Field(default=None, max_length=128)
    channel_id: str | None = Field(default=None, max_length=128)
    agent_turn_id: str | None = Field(default=None, max_length=128)
    cursor: str | None = Field(default=None, min_length=1, max_length=160)


class ApprovalQuery(Strict):
    """Where to go after the decision."""

    then: Literal["next", "chat"] = "next"


class DecisionForm(Strict):
    """A decision, and what was typed in the fields that the question's schema has made."""

    model_config = ConfigDict(extra="allow")

    decision: Decision
    digest: str = Field(default="", max_length=128)
    """Of the call as it was on the page; empty if it had none."""
    made_of: str = Field(default="", max_length=128)
    """Of the schema that the fields were made of."""
    note: str = Field(default="", max_length=4096)
    then: Literal["next", "chat"] = "next"

    @property
    def typed(self) -> Typed:
        """What was typed, by field; raises `BadRequest` for one that is there twice."""
        sent = self.model_extra or {}
        fields = {name: value for name, value in sent.items() if isinstance(value, str)}
        if len(fields) < len(sent):
            raise BadRequest("a field was sent twice")
        return Typed(self.decision, self.digest or None, self.made_of, self.note, fields)


@dataclass(frozen=True, slots=True)
class ApprovalLine:
    """A question in the list."""

    interrupt: Interrupt
    preview: str
    """The beginning of its arguments as JSON in one line."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a question is among the open ones."""

    place: int | None
    count: int
    before: InterruptId | None
    after: InterruptId | None

    @property
    def more(self) -> bool:
        """Whether there may be more than were counted."""
        return self.count >= _NEIGHBOURS


@dataclass(frozen=True, slots=True)
class Approvals:
    """The handlers."""

    console: Console

    async def list(self, visit: Visit[ApprovalsQuery, object]) -> Response:
        """A page of questions."""
        query, principal = visit.query, visit.principal
        interrupts = await self.console.pool.run(
            lambda conn: list_interrupts(
                conn,
                principal.project_id,
                channel=seen_channel(principal, query.channel_id),
                agent=None if query.agent_id is None else AgentId(query.agent_id),
                turn=None if query.agent_turn_id is None else AgentTurnId(query.agent_turn_id),
                status=None if query.status == "all" else InterruptStatus(query.status),
                after=None if query.cursor is None else InterruptId(query.cursor),
                row_limit=_PAGE + 1,
            )
        )
        page = interrupts[:_PAGE]
        arguments = await self.console.pool.run(
            lambda conn: list_call_arguments(conn, principal.project_id, page, with_added=principal.sees_added)
        )
        older = None
        if len(interrupts) > len(page):
            parameters = query.model_dump(exclude_none=True, exclude={"status"}) | {"cursor": page[-1].interrupt_id}
            older = _list(query.status, parameters)
        lines = [ApprovalLine(interrupt, _preview(arguments.get(interrupt.interrupt_id))) for interrupt in page]
        filters = {name: value for name, value in query.model_dump().items() if value and name.endswith("_id")}
        tabs = [(label, _list(status, filters), status == query.status) for label, status in _TABS]
        return render(
            visit,
            "people/approvals.html",
            lines=lines,
            older=older,
            status_shown=query.status,
            tabs=tabs,
            filters=filters,
            unfiltered=_list(query.status, {}),
            first_page=query.cursor is None,
        )

    async def one(self, visit: Visit[ApprovalQuery, object]) -> Response:
        """A question with its call, and the forms that decide it."""
        return await self._page(visit, await self._offer(visit), then=visit.query.then)

    async def decide(self, visit: Visit[object, DecisionForm]) -> Response:
        """Decide, once; an error is shown with what was typed."""
        offer, form, typed = await self._offer(visit), visit.form, visit.form.typed
        decision = offer.read(typed)
        if offer.was_decided_so(typed):  # a form that was sent twice
            return see_other(_after(offer, form.then), _TOLD[form.decision])
        if not isinstance(decision, dict):
            return await self._page(visit, offer, typed, decision, then=form.then)
        payload: JsonObject = {**decision, "interrupt_id": offer.view.interrupt_id}
        try:
            reply = await self.console.asking.ask(
                visit.principal, offer.view.channel_id, verbs.DECIDE, payload, visit.headers
            )
        except TurnstileError as error:
            problem = problem_of(error)
            why = NotMade(problem.code, {ALL: problem.detail}, problem.status)
            return await self._page(visit, await self._offer(visit), typed, why, then=form.then)
        notice = "tool_changed" if reply.tool_changed else _TOLD[form.decision]
        return see_other(_after(offer, form.then), notice)

    async def _offer(self, visit: Visit[Any, Any]) -> Offer:
        """The question as the session sees it; raises `Refused` (unknown_interrupt)."""
        principal, named = visit.principal, InterruptId(visit.path["interrupt_id"])
        project, channel, pool = principal.project_id, principal.channel_id, self.console.pool
        view = await pool.run(
            lambda conn: get_interrupt(conn, project, named, channel=channel, with_added=principal.sees_added)
        )
        reader = principal.sender
        context = await pool.run(lambda conn: get_interrupt_context(conn, project, named, reader, channel=channel))
        if view is None or context is None:
            raise Refused("unknown_interrupt", "the project has no such interrupt")
        return offer_of(view, context, principal)

    async def _page(
        self,
        visit: Visit[Any, Any],
        offer: Offer,
        typed: Typed | None = None,
        not_made: NotMade | None = None,
        *,
        then: str,
    ) -> Response:
        status: int = HTTPStatus.OK
        if not_made is not None:
            changed = not_made.code in CHANGED or not offer.is_open
            status = HTTPStatus.CONFLICT if changed else not_made.status
        return render(
            visit,
            "people/approval.html",
            status,
            offer=offer,
            view=offer.view,
            context=offer.context,
            around=await self._neighbours(visit, offer.view.interrupt_id),
            typed=typed,
            code="" if not_made is None else not_made.code,
            faults={} if not_made is None else not_made.faults,
            decided=what_was_decided(offer.view),
            conversation=conversation_address(offer),
            then=then,
        )

    async def _neighbours(self, visit: Visit[Any, Any], named: InterruptId) -> Neighbours:
        ids = await self._open(visit, _NEIGHBOURS)
        if named not in ids:  # decided: the next older one follows, then the newest
            older = await self._open(visit, 1, after=named)
            return Neighbours(None, len(ids), None, next(iter(older or ids), None))
        place = ids.index(named)
        before = ids[place - 1] if place else None
        return Neighbours(place + 1, len(ids), before, ids[place + 1] if place + 1 < len(ids) else None)

    async def _open(
        self, visit: Visit[Any, Any], most: int, after: InterruptId | None = None
    ) -> tuple[InterruptId, ...]:
        principal = visit.principal
        view = await self.console.pool.run(
            lambda conn: list_interrupts(
                conn,
                principal.project_id,
                channel=principal.channel_id,
                status=InterruptStatus.OPEN,
                after=after,
                row_limit=most,
            )
        )
        return tuple(question.interrupt_id for question in view)


def _after(offer: Offer, then: str) -> str:
    """Where a decision leads: the chat that it came from, or what was decided. Never to another open question: a key
    that was pressed twice would decide that one unseen."""
    if then == "chat" and (address := conversation_address(offer)) is not None:
        return f"{address}#end"
    return f"{LIST}/{part(offer.view.interrupt_id)}"


def conversation_address(offer: Offer) -> str | None:
    """The page of the conversation that the turn is in; None for a turn in none."""
    name = offer.context.conversation_id
    if name is None:
        return None
    return address(offer.view.agent_id, name, offer.view.channel_id)


def _list(status: str, filters: Mapping[str, object]) -> str:
    """The list of questions with this status and of these filters."""
    return f"{LIST}?{urlencode({'status': status, **filters})}"


def _preview(arguments: JsonObject | None) -> str:
    if arguments is None:
        return ""
    text = " ".join(shown_json(arguments).split())
    return text if len(text) <= _PREVIEW else f"{text[: _PREVIEW - 2]} …"


def pages(console: Console) -> tuple[Page, ...]:
    """The pages of this area."""
    handlers = Approvals(console)
    one = f"{LIST}/{{interrupt_id}}"
    return (
        Page(name="approvals", path=LIST, handler=handlers.list, query=ApprovalsQuery),
        Page(name="approval", path=one, handler=handlers.one, query=ApprovalQuery),
        Page(
            name="decide",
            path=one,
            method="POST",
            right=Right.DECIDE,
            handler=handlers.decide,
            form=DecisionForm,
        ),
    )
