"""Why a delegating call is refused (protocol §12.7): v1r4's code, and beside it a reason of ours that is narrower."""

from typing import Literal

from turnstile.schema.base import JsonObject
from turnstile.schema.cards import ToolError
from turnstile.schema.errors import TurnstileError

Code = Literal["bad_request", "not_found", "auth_failed", "internal_error"]
"""The codes that v1r4's orchestrator answers with."""

Reason = Literal[
    "invalid_arguments",
    "unknown_profile",
    "unknown_agent",
    "unknown_box",
    "missing_output_box",
    "delegation_denied",
    "unauthorized_box",
    "too_many_tasks",
    "too_many_cards",
    "duplicate_agent",
    "waits_for_itself",
    "text_too_large",
    "internal_error",
]
"""What exactly was wrong; it stands in `detail.reason`."""

_CODES: dict[Reason, Code] = {
    "unknown_profile": "not_found",
    "unknown_agent": "not_found",
    "unknown_box": "not_found",
    "delegation_denied": "auth_failed",
    "internal_error": "internal_error",
}
_MESSAGE_LIMIT = 1000


class DelegationRefused(TurnstileError):
    """The call cannot be done as it was asked for; its result says why, and nothing was made."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message[:_MESSAGE_LIMIT])
        self.reason: Reason = reason
        self.code = _CODES.get(reason, "bad_request")

    def error(self) -> ToolError:
        """The error of the call's result."""
        return ToolError(code=self.code, message=str(self))

    def result(self) -> JsonObject:
        """The result of the call, in v1r4's form; `error_detail.reason` is ours."""
        detail: JsonObject = {"reason": self.reason}
        error: JsonObject = {"code": self.code, "message": str(self), "source": "worker", "detail": detail}
        return {"error_code": self.code, "error_message": str(self), "error": error, "error_detail": detail}
