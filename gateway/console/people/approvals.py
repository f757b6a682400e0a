"""Approvals: what turns ask people, one question with all that is to be known of it, and its decision (protocol §13).

A decision names the digest of the call as it was on the page. What has changed since (somebody has decided, the time is
over, the tool is another) is shown with what was typed, and nothing is overwritten: one statement of the ledger says
which decision counts. After a decision the next open question follows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import ConfigDict, Field
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, Page, Visit
from turnstile.gateway.console.people.conversations import address
from turnstile.gateway.console.people.deciding import CHANGED, NotMade, Offer, Typed, offer_of, what_was_decided
from turnstile.gateway.console.people.schema_form import ALL
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.schema_slots import shown_json
from turnstile.gateway.v1.turn_handlers import seen_channel
from turnstile.ledger.people.interrupt_views import (
    get_interrupt,
    get_interrupt_context,
    list_call_arguments,
    list_interrupts,
)
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import JsonObject, Strict
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, AgentTurnId, InterruptId
from turnstile.schema.people.approvals import Decision
from turnstile.schema.people.interrupts import Interrupt, InterruptStatus

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
class Line:
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
        lines = [Line(interrupt, _preview(arguments.get(interrupt.interrupt_id))) for interrupt in page]
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
