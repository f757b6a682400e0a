"""Problems as JSON-RPC errors, for what is refused before a request of MCP is read (protocol §17.2).

The HTTP status and headers are the problem's: 401 without a valid token, 403 for a page that may not ask, 413, 429.
"""

import json
from typing import Final

from starlette.responses import Response

from turnstile.gateway.http.problems import Problem, headers_of

PATH: Final = "/mcp"
PARSE_ERROR: Final = "not_json"
_CODES = {PARSE_ERROR: -32700, "bad_request": -32600, "method_not_allowed": -32600, "internal_error": -32603}
_OTHER = -32000


def rpc_error(problem: Problem) -> Response:
    """The response for a problem."""
    data: dict[str, object] = {"code": problem.code}
    if problem.retry_after_seconds is not None:
        data["retry_after_seconds"] = problem.retry_after_seconds
    error = {"code": _CODES.get(problem.code, _OTHER), "message": problem.detail, "data": data}
    headers = {**headers_of(problem), "content-type": "application/json"}
    return Response(json.dumps({"jsonrpc": "2.0", "id": None, "error": error}), problem.status, headers)
