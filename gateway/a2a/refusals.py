"""What is refused before a request of A2A is read, as JSON-RPC. Needs no package of A2A's (protocol §17.3). Pure."""

import json
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from turnstile.gateway.http.problems import Problem, headers_of
from turnstile.schema.base import JsonObject

PREFIX: Final = "/a2a/"
CARD: Final = "/.well-known/agent-card.json"
REFUSED: Final = -32000
INTERNAL: Final = -32603
_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"

RequestId = str | int | None


def is_of_rpc(path: str) -> bool:
    """Whether requests of JSON-RPC are sent to this path."""
    return path.startswith(PREFIX) and not path.endswith(CARD)


def refusal(problem: Problem, request_id: RequestId = None) -> Response:
    """The response for a problem, with the problem's status."""
    headers = {**headers_of(problem), "content-type": "application/json"}
    return Response(error_text(request_id, problem_object(problem)), problem.status, headers)


def problem_object(problem: Problem) -> JsonObject:
    """The error object of JSON-RPC for a problem: its code is the reason."""
    code = INTERNAL if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR else REFUSED
    info: JsonObject = {"@type": _INFO, "reason": problem.code.upper(), "domain": "turnstile", "metadata": {}}
    return {"code": code, "message": problem.detail, "data": [info]}


def error_text(request_id: RequestId, error: JsonObject) -> str:
    """A response of JSON-RPC that has an error."""
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error})
