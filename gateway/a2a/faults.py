"""A2A's errors as JSON-RPC, made of the SDK's and of the kernel's (protocol §17.3).

A refusal by the kernel is an A2A error where there is one for it, else the code -32000 with the kernel's code as its
reason. Errors that are not about the request itself have their HTTP status, as the rest of the gateway has: 401, 403,
413, 415, 429, 503. All others are 200, as JSON-RPC does.
"""

from typing import Final, cast

from a2a.utils import errors
from a2a.utils.error_handlers import build_error_details
from pydantic import JsonValue
from starlette.responses import Response

from turnstile.gateway.a2a.refusals import RequestId, error_text, problem_object, refusal
from turnstile.gateway.http.problems import problem_of
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.wire.limits import SIZE_LIMITS

_LONGEST: Final = 2000
_TRANSPORT: Final = frozenset({401, 402, 403, 413, 415, 421, 429, 503})

_PARAMS: Final = SIZE_LIMITS | {
    "invalid_response",
    "invalid_arguments",
    "decision_not_allowed",
    "digest_mismatch",
    "unknown_interrupt",
    "push_url_refused",
}
"""Refusals of what a request brings."""


def error_object(error: errors.A2AError | TurnstileError) -> JsonObject:
    """The error object of JSON-RPC."""
    fault = error if isinstance(error, errors.A2AError) else _as_a2a(error)
    if isinstance(fault, errors.A2AError):
        code = errors.JSON_RPC_ERROR_CODE_MAP.get(type(fault), -32603)
        details = cast("JsonValue", build_error_details(fault))
        return {"code": code, "message": fault.message[:_LONGEST], "data": details}
    return problem_object(problem_of(fault))


def error_answer(request_id: RequestId, error: errors.A2AError | TurnstileError) -> Response:
    """The HTTP response for an error."""
    if isinstance(error, TurnstileError):
        problem = problem_of(error)
        if problem.status in _TRANSPORT:
            return refusal(problem, request_id)
    return Response(error_text(request_id, error_object(error)), media_type="application/json")


def task_not_found() -> errors.TaskNotFoundError:
    """The error for a task that is not there, or is another's."""
    return errors.TaskNotFoundError("this project has no such task")


def _as_a2a(error: TurnstileError) -> errors.A2AError | TurnstileError:
    """The A2A error for what the kernel refuses; the error itself if there is none."""
    match error.code:
        case "unknown_turn":
            return task_not_found()
        case "already_final":
            return errors.UnsupportedOperationError("the task is over: send a message without taskId")
        case "correlation_conflict":
            return errors.InvalidParamsError("message.messageId: another message had this id")
        case code if isinstance(error, BadRequest) or code == BadRequest.code or code in _PARAMS:
            return errors.InvalidParamsError(str(error)[:_LONGEST])
        case _:
            return error
