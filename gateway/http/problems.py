"""Problems by RFC 9457, with the kernel's codes (protocol §6, §14).

A problem says what was wrong and what to do. It holds no stack trace, no address of a server and nothing of what
another project has: an unexpected exception is logged, and answered as `internal_error`.
"""

from collections.abc import Mapping
from http import HTTPStatus

from pydantic import Field

from turnstile.schema.base import Tolerant
from turnstile.schema.errors import BadRequest, Limited, Refused, ServerUnavailable, TurnstileError
from turnstile.schema.wire.limits import MADE_LIMITS, SIZE_LIMITS

PROBLEM_TYPE = "application/problem+json"
_STATUS: Mapping[str, int] = {
    "unauthenticated": 401,
    "forbidden": 403,
    "origin_not_allowed": 403,
    "form_expired": 403,
    "needs_https": 403,
    "bad_request": 400,
    "push_url_refused": 400,
    "not_found": 404,
    "model_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "not_yours": 403,
    "profile_not_allowed": 403,
    "model_not_allowed": 403,
    "budget_exceeded": 402,
    "correlation_conflict": 409,
    "ambiguous": 409,
    "wrong_event_id": 409,
    "link_used": 410,
    "body_too_large": 413,
    "file_too_large": 413,
    "content_mismatch": 400,
    "key_conflict": 409,
    "files_unavailable": 503,
    "file_unavailable": 503,
    "unsupported_media_type": 415,
    "host_not_allowed": 421,
    "read_too_costly": 422,
    "overloaded": 503,
    "server_unavailable": 503,
    "internal_error": 500,
}
_BUSY = frozenset(
    {
        "rate_limited",
        "queue_full",
        "project_full",
        "instances_full",
        "threads_full",
        "too_many_streams",
        "too_many_steers",
        "uploads_full",
        "files_full",
    }
    | MADE_LIMITS
)


class Problem(Tolerant):
    """Why a request was not done."""

    type: str = Field(examples=["urn:turnstile:problem:unknown_turn"])
    """A URN that ends in the code."""
    title: str
    """The HTTP status in words."""
    status: int
    """The HTTP status."""
    code: str = Field(examples=["unknown_turn"])
    """The reason as a stable code."""
    detail: str
    """The reason, for people."""
    param: str | None = None
    """The field or parameter at fault, if it is one."""
    retry_after_seconds: float | None = None
    """When the same request may be accepted, if that is known."""


class Unauthenticated(TurnstileError):
    """The request has no valid token."""

    code: str = "unauthenticated"


class BadField(BadRequest):
    """A field or a parameter is not as it must be."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class Unsupported(BadField):
    """A field or a value that OpenAI's API knows and the gateway does not support."""

    code: str = "unsupported_parameter"


class UnknownModel(BadField):
    """The project has no such agent, or profile with instances; OpenAI's clients know it by its code."""

    code: str = "model_not_found"


class Forbidden(TurnstileError):
    """The token's role or channel does not allow it."""

    code: str = "forbidden"


def status_of(error: TurnstileError) -> int:
    """The HTTP status for an error."""
    if (known := _STATUS.get(error.code)) is not None:
        return known
    if isinstance(error, Limited) or error.code in _BUSY:
        return 429
    if error.code in SIZE_LIMITS:
        return 413
    if isinstance(error, BadRequest):
        return 400
    if error.code.startswith("unknown_"):
        return 404
    return 409 if isinstance(error, Refused) else 500


def problem_of(error: TurnstileError, status: int | None = None) -> Problem:
    """The problem of an error; one that is not the caller's fault has no more than its code."""
    status = status_of(error) if status is None else status
    detail = str(error)
    if isinstance(error, ServerUnavailable):
        detail = "a server that the gateway needs does not answer, or cannot handle this request now; try again"
    elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
        detail = "the gateway failed; its log has the reason"
    return Problem(
        type=f"urn:turnstile:problem:{error.code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=error.code,
        detail=detail[:2000],
        param=error.param if isinstance(error, BadField) else None,
        retry_after_seconds=error.retry_after if isinstance(error, Limited) else None,
    )


def headers_of(problem: Problem) -> dict[str, str]:
    """The headers that go with a problem."""
    headers = {"content-type": PROBLEM_TYPE, "cache-control": "no-store"}
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if problem.retry_after_seconds is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_seconds)))
    elif problem.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = "1"
    return headers
