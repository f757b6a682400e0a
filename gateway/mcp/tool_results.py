"""Turns as results of tools (protocol §17.2). Pure.

A turn that failed, or that somebody stopped, is an error of the tool, which the client's model reads; so is a refusal.
The text is what the agent answered, or all of the result as JSON where there is no such text.
"""

import json
from collections.abc import Iterable

from mcp_types import CallToolResult, TextContent

from turnstile.gateway.http.problems import problem_of
from turnstile.schema.amounts import amount
from turnstile.schema.api import Output
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import TurnstileError
from turnstile.schema.ids import AgentTurnId, InterruptId
from turnstile.schema.states import TurnStatus
from turnstile.schema.wire.descriptions import TurnView
from turnstile.sdk.turn import TurnResult

_DELIVERED = frozenset({TurnStatus.SUCCESS, TurnStatus.PARTIAL})
_ERROR_LENGTH = 2000


def going_on(turn: AgentTurnId, questions: Iterable[InterruptId] = ()) -> CallToolResult:
    """A turn that is not over: its handle, and the open questions to people that it waits for."""
    interrupts = sorted(questions)
    answer: JsonObject = {"turn_id": turn, "status": "waiting_for_person" if interrupts else "running"}
    if interrupts:
        answer["interrupt_ids"] = list(interrupts)
    return _result(answer)


def ended(view: TurnView, output: Output | None) -> CallToolResult:
    """A turn that is over."""
    status = TurnStatus(view.status)
    answer: JsonObject = {"turn_id": view.agent_turn_id, "status": status}
    if output is not None:
        value = output.data if output.text is None else output.text
        fields = TurnResult(agent_turn_id=view.agent_turn_id, status=status, value=value).fields
        answer |= {"fields": fields} if fields else {"value": value}
        if output.partial:
            answer["partial"] = True
    if view.error_code is not None:
        answer |= {"error_code": view.error_code, "error": (view.error or "")[:_ERROR_LENGTH]}
    text = None if output is None or status not in _DELIVERED else output.text
    return _result(answer, text, is_error=status not in _DELIVERED)


def refused(error: TurnstileError, view: TurnView | None = None) -> CallToolResult:
    """Why nothing was done; of a turn, why a decision about it was not taken."""
    problem = problem_of(error)
    answer: JsonObject = {"status": "refused", "error_code": problem.code, "error": problem.detail}
    if problem.retry_after_seconds is not None:
        answer["error"] = f"{problem.detail} (again in {amount(problem.retry_after_seconds)} s)"
    if view is not None:
        answer["turn_id"] = view.agent_turn_id
    return _result(answer, is_error=True)


def _result(answer: JsonObject, text: str | None = None, *, is_error: bool = False) -> CallToolResult:
    shown_text = json.dumps(answer, ensure_ascii=False) if text is None else text
    return CallToolResult(content=[TextContent(text=shown_text)], structured_content=answer, is_error=is_error)
