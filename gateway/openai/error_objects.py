"""OpenAI's error objects, made of the problems that the rest of the gateway answers (protocol §14.4)."""

from http import HTTPStatus

from pydantic import BaseModel
from starlette.responses import Response

from turnstile.gateway.http.problems import Problem, headers_of
from turnstile.schema.api import Turn

PREFIX = "/openai/"
_PASSING = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


CONTEXT_LENGTH = "context_length_exceeded"
"""OpenAI's code for what does not fit into a model's context."""
_TOO_LONG = "context_window_exceeded"


class ErrorObject(BaseModel):
    """What went wrong, in the words of OpenAI's clients."""

    message: str
    """The reason, for people."""
    type: str
    """The kind of error, which the status says, too."""
    param: str | None = None
    """The field at fault."""
    code: str | None = None
    """The kernel's code."""


class ErrorAnswer(BaseModel):
    """The body of a response that refuses."""

    error: ErrorObject


def error_object(problem: Problem) -> ErrorObject:
    """The object for a problem."""
    return ErrorObject(message=problem.detail, type=_type_of(problem.status), param=problem.param, code=problem.code)


def code_of(turn: Turn) -> str:
    """Why a turn delivered nothing of its own, as OpenAI's clients know it."""
    code = turn.error_code or turn.status
    return CONTEXT_LENGTH if code == _TOO_LONG else code


def error_response(problem: Problem, *, over: bool = False) -> Response:
    """The response for a problem, with the headers of the problem itself.

    Clients repeat 408, 409, 429 and 5xx unasked. So what the kernel refuses is 422 here instead of 409; and OpenAI's
    own get a header not to repeat what is of no use, or may have been done (`over`): a repeat could run an agent twice.
    """
    if problem.status == HTTPStatus.CONFLICT:
        problem = problem.model_copy(update={"status": int(HTTPStatus.UNPROCESSABLE_ENTITY)})
    headers = {**headers_of(problem), "content-type": "application/json"}
    if over or problem.status not in _PASSING:
        headers["x-should-retry"] = "false"
    return Response(ErrorAnswer(error=error_object(problem)).model_dump_json(), problem.status, headers)


def _type_of(status: int) -> str:
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return "authentication_error"
        case HTTPStatus.FORBIDDEN:
            return "permission_error"
        case HTTPStatus.TOO_MANY_REQUESTS:
            return "rate_limit_error"
        case _ if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return "server_error"
        case _:
            return "invalid_request_error"
