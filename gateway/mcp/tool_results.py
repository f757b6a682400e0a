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
    asked = sorted(questions)
    told: JsonObject = {"turn_id": turn, "status": "waiting_for_person" if asked else "running"}
    if asked:
        told["interrupt_ids"] = list(asked)
    return _result(told)


def ended(view: TurnView, output: Output | None) -> CallToolResult:
    """A turn that is over."""
    status = TurnStatus(view.status)
    told: JsonObject = {"turn_id": view.agent_turn_id, "status": status}
    if output is not None:
        value = output.data if output.text is None else output.text
        fields = TurnResult(agent_turn_id=view.agent_turn_id, status=status, value=value).fields
        told |= {"fields": fields} if fields else {"value": value}
        if output.partial:
            told["partial"] = True
    if view.error_code is not None:
        told |= {"error_code": view.error_code, "error": (view.error or "")[:_ERROR_LENGTH]}
    text = None if output is None or status not in _DELIVERED else output.text
    return _result(told, text, is_error=status not in _DELIVERED)


def refused(error: TurnstileError, view: TurnView | None = None) -> CallToolResult:
    """Why nothing was done; of a turn, why a decision about it was not taken."""
    problem = problem_of(error)
    told: JsonObject = {"status": "refused", "error_code": problem.code, "error": problem.detail}
    if problem.retry_after_seconds is not None:
        told["error"] = f"{problem.detail} (again in {amount(problem.retry_after_seconds)} s)"
    if view is not None:
        told["turn_id"] = view.agent_turn_id
    return _result(told, is_error=True)


def _result(told: JsonObject, text: str | None = None, *, is_error: bool = False) -> CallToolResult:
    shown = json.dumps(told, ensure_ascii=False) if text is None else text
    return CallToolResult(content=[TextContent(text=shown)], structured_content=told, is_error=is_error)
