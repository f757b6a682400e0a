"""Calls that turns wait for, and their answer by hand.

A report by hand is the verb `report`, asked with the session's token as its sender: it counts as the tool's, once.
"""

from typing import Any, Literal

from pydantic import Field, JsonValue
from starlette.responses import Response

from turnstile.gateway.console.formats import part
from turnstile.gateway.console.page import Console, NoForm, Page, Visit
from turnstile.gateway.console.rendering import render, see_other
from turnstile.gateway.console.templating import CONSOLE
from turnstile.gateway.http.endpoints import NoQuery
from turnstile.gateway.http.problems import Problem, problem_of
from turnstile.gateway.v1.cursors import cursor_of, place_of
from turnstile.ledger.access.calls_out import CallFile, WaitsFor, get_call_out, list_calls_out
from turnstile.ledger.access.pages import PageCursor
from turnstile.schema import verbs
from turnstile.schema.access import Right
from turnstile.schema.base import AgentToken, JsonObject, Strict
from turnstile.schema.cards import ToolCallContent, ToolResultContent, names_or_none, own_arguments, read_content
from turnstile.schema.errors import BadRequest, Refused, TurnstileError
from turnstile.schema.ids import AgentId, ToolCallId
from turnstile.schema.json_reading import read_json_text

CALLS = f"{CONSOLE}/calls"
_PAGE = 100


class CallsQuery(Strict):
    """Which calls."""

    waits_for: WaitsFor | None = None
    """Only those that wait so."""
    agent: AgentToken | None = None
    """Only those of this agent."""
    tool: str | None = Field(default=None, min_length=1, max_length=256)
    """Only of this tool."""
    cursor: str | None = Field(default=None, min_length=1, max_length=512)
    """Only those that follow."""


class ReportForm(Strict):
    """What the call's turn shall hear."""

    status: Literal["success", "failed", "canceled", "partial"]
    kind: Literal["text", "json"] = "text"
    """How `result` is meant."""
    result: str = ""
    message: str = Field(default="", max_length=4096)
    """Why it did not succeed; the model reads it."""


def pages(_: Console) -> tuple[Page, ...]:
    """The pages."""
    one = f"{CALLS}/{{tool_call_id}}"
    return (
        Page(name="calls", path=CALLS, handler=show_calls, query=CallsQuery),
        Page(name="call", path=one, handler=show_call),
        Page(
            name="report_call",
            path=f"{one}/report",
            method="POST",
            right=Right.OPERATE,
            handler=report_call,
            form=ReportForm,
        ),
    )


async def show_calls(visit: Visit[CallsQuery, NoForm]) -> Response:
    """A page of calls that wait, the oldest first."""
    query, principal = visit.query, visit.principal
    calls = await visit.console.pool.run(
        lambda conn: list_calls_out(
            conn,
            principal.project_id,
            channel=principal.channel_id,
            agent=None if query.agent is None else AgentId(query.agent),
            tool=query.tool,
            waits_for=query.waits_for,
            after=place_of(query.cursor),
            row_limit=_PAGE + 1,
        )
    )
    page = calls[:_PAGE]
    cursor = cursor_of(PageCursor(page[-1].created_at, page[-1].tool_call_id)) if len(calls) > _PAGE else None
    count = calls[0].found if calls else 0
    return render(visit, "fleet/calls.html", calls=page, wanted=query, cursor=cursor, count=count)


async def show_call(visit: Visit[NoQuery, NoForm]) -> Response:
    """A call with its arguments, its answer, and who gave it."""
    return _shown(visit, await _seen(visit))


async def report_call(visit: Visit[NoQuery, ReportForm]) -> Response:
    """Answer a call in its tool's place; what was typed stays on the page if it is refused."""
    call = await _seen(visit)
    asking, headers = visit.console.asking, visit.headers
    try:
        payload = _payload(call.tool_call_id, visit.form)
        channel = asking.channel(visit.principal, call.channel_id)
        reply = await asking.ask(visit.principal, channel, verbs.REPORT, payload, headers)
        if reply.duplicate:
            raise Refused("already_reported", "the call has been answered in the meantime; the first answer counts")
    except TurnstileError as error:
        return _shown(visit, await _seen(visit), visit.form, problem_of(error))
    return see_other(f"{CALLS}/{part(call.tool_call_id)}", "reported")


def _shown(
    visit: Visit[Any, Any], call: CallFile, form: ReportForm | None = None, problem: Problem | None = None
) -> Response:
    """The call's page; with what was typed, and why it was refused."""
    content = read_content(call.call) if isinstance(call.call, dict) else None
    if isinstance(content, ToolCallContent) and not visit.principal.sees_added:
        arguments = own_arguments(content.arguments, names_or_none(call.added))
        content = content.model_copy(update={"arguments": arguments})
    answer = read_content(call.result) if isinstance(call.result, dict) else None
    return render(
        visit,
        "fleet/call.html",
        200 if problem is None else problem.status,
        call=call,
        asked=content if isinstance(content, ToolCallContent) else None,
        answer=answer if isinstance(answer, ToolResultContent) else None,
        form=form,
        problem=problem,
    )


def _payload(call: ToolCallId, form: ReportForm) -> JsonObject:
    payload: JsonObject = {"tool_call_id": call, "status": form.status}
    if form.status in ("success", "partial") or form.result.strip():
        payload["result"] = _result(form)
    if form.status != "success" and form.message.strip():
        payload["error"] = {"code": f"tool_{form.status}", "message": form.message.strip()}
    return payload


def _result(form: ReportForm) -> JsonValue:
    if form.kind == "text":
        return form.result
    try:
        return read_json_text(form.result)
    except BadRequest as error:
        raise BadRequest(f"the result is not valid JSON ({error}): correct it, or send it as text") from None


async def _seen(visit: Visit[NoQuery, NoForm] | Visit[NoQuery, ReportForm]) -> CallFile:
    """The call of the address; raises `Refused` (unknown_call)."""
    principal, call = visit.principal, ToolCallId(visit.path["tool_call_id"])
    file = await visit.console.pool.run(
        lambda conn: get_call_out(conn, principal.project_id, call, channel=principal.channel_id)
    )
    if file is None:
        raise Refused("unknown_call", "the project has no such call, or retention has removed it")
    return file
