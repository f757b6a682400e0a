"""The server of `/mcp` as the SDK has it: its two methods, and what it says of itself (protocol §17.2).

The SDK negotiates versions, checks what is asked and shapes what is answered for each of them. Its own sessions,
transports and spans are not used.
"""

import json
from collections.abc import Sequence
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)

from turnstile.gateway.addressed import PROFILE, TARGET_LIMIT
from turnstile.gateway.http.problems import problem_of
from turnstile.gateway.kernel import Kernel
from turnstile.gateway.mcp.asker import Asker
from turnstile.gateway.mcp.call_arguments import (
    ANSWER_SCHEMA,
    ASK_SCHEMA,
    TURN_GET_SCHEMA,
    TURN_STOP_SCHEMA,
    TYPED_ASK_SCHEMA,
    answer_schema,
)
from turnstile.gateway.mcp.tool_calls import Answer, ToolCalls
from turnstile.gateway.mcp.tool_names import TURN_GET, TURN_STOP, tool_name
from turnstile.gateway.schema_slots import is_plain
from turnstile.ledger.access.addressees import Addressee, AddresseeLine, page_addressees
from turnstile.ledger.pool import Pool
from turnstile.runtime.release import release
from turnstile.schema.access import Principal, Right
from turnstile.schema.errors import TurnstileError

PAGE: Final = 100
_SHOWN = 200
_HANDLES = "Each answer of a tool that runs an agent has the turn's id."
_OWN: Final[Sequence[tuple[Right, Tool]]] = (
    (
        Right.READ,
        Tool(
            name=TURN_GET,
            title="Look at a turn",
            description=f"Returns a turn's status and its answer; waits for the turn to end if requested. {_HANDLES}",
            input_schema=TURN_GET_SCHEMA,
            output_schema=ANSWER_SCHEMA,
            annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False),
        ),
    ),
    (
        Right.ASK,
        Tool(
            name=TURN_STOP,
            title="Stop a turn",
            description=f"Stops a turn and the turns below it that it waits for. {_HANDLES}",
            input_schema=TURN_STOP_SCHEMA,
            output_schema=ANSWER_SCHEMA,
            annotations=ToolAnnotations(
                read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
            ),
        ),
    ),
)


async def list_tools(pool: Pool, principal: Principal, cursor: str | None) -> ListToolsResult:
    """A page of tools; raises `MCPError` for a cursor that no page had."""
    own_tools = [tool for right, tool in _OWN if principal.may(right)] if cursor is None else []
    if not principal.may(Right.ASK):
        return ListToolsResult(tools=own_tools)
    after = None if cursor is None else _after(cursor)
    project = principal.project_id
    lines = await pool.run(lambda conn: page_addressees(conn, project, after=after, row_limit=PAGE + 1))
    page = lines[:PAGE]
    named = [(tool_name(_named(line)), line) for line in page]
    tools = [_tool(name, line) for name, line in named if name is not None]
    return ListToolsResult(tools=[*own_tools, *tools], next_cursor=_named(page[-1]) if len(lines) > PAGE else None)


def _named(line: AddresseeLine) -> str:
    return PROFILE + line.name if line.is_profile else line.name


def _after(cursor: str) -> Addressee:
    if not 0 < len(cursor) <= TARGET_LIMIT or not cursor.isprintable():
        raise MCPError(INVALID_PARAMS, "cursor: unknown; use the cursor of an earlier page")
    name = cursor.removeprefix(PROFILE)
    return Addressee.model_construct(name=name, is_profile=cursor.startswith(PROFILE))


def _tool(name: str, line: AddresseeLine) -> Tool:
    if line.is_profile:
        about = f"Asks an instance of the profile {_quoted(line.name)}"
    else:
        of = "" if line.profile_name is None else f", whose profile is {_quoted(line.profile_name)}"
        about = f"Asks the agent {_quoted(line.name)}{of}"
    return Tool(
        name=name,
        title=None if line.title is None else _plain(line.title),
        description=f"{about}, and waits for the answer. If it takes long, fetch it with {TURN_GET}.",
        input_schema=TYPED_ASK_SCHEMA if line.output_schema else ASK_SCHEMA,
        output_schema=answer_schema(line.output_schema),
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )


def _plain(text: str) -> str:
    quoted = text if is_plain(text) else json.dumps(text)[1:-1]
    return " ".join(quoted.split())[:_SHOWN]


def _quoted(text: str) -> str:
    """A name as a JSON string, which ends where it ends."""
    return json.dumps(text[:_SHOWN], ensure_ascii=not is_plain(text))


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
