"""The server of `/mcp` as the SDK has it: its two methods, and what it says of itself (protocol §17.2).

The SDK negotiates versions, checks what is asked and shapes what is answered for each of them. Its own sessions,
transports and spans are not used.
"""

from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams, ListToolsResult, PaginatedRequestParams

from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker
from turnstile.gateway.mcp.tool_calls import Answer, ToolCalls
from turnstile.gateway.mcp.tool_list import list_tools
from turnstile.runtime.release import release
from turnstile.schema.errors import TurnstileError

_ABOUT: Final = (
    "Each tool runs one agent, which works on its own and may take long. A call that is not over after wait_seconds "
    "answers with status running and a turn_id: use turn_get to wait for it, and turn_stop to stop it."
)
Context = ServerRequestContext[Any]
"""Each request brings its own `Asker` as what the SDK calls the lifespan's."""


def mcp_server(kernel: Kernel, calls: ToolCalls) -> Server[Any]:
    """The server."""

    async def on_list(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        asker: Asker = context.lifespan_context
        try:
            return await list_tools(kernel.pool, asker.principal, None if params is None else params.cursor)
        except TurnstileError as error:
            problem = problem_of(error)
            raise MCPError(INTERNAL_ERROR, problem.detail, {"code": problem.code}) from None

    async def on_call(context: Context, params: CallToolRequestParams) -> Answer:
        return await calls.call(context.lifespan_context, params)

    server: Server[Any] = Server(
        "turnstile",
        version=release(),
        title="Turnstile",
        instructions=_ABOUT,
        on_list_tools=on_list,
        on_call_tool=on_call,
        get_tool_input_schema=lambda _: None,
    )
    server.middleware.clear()  # spans with what was asked
    return server
