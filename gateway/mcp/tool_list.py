"""`tools/list`: whom a token may ask, and what is done with a turn's handle (protocol §17.2).

Agents that take turns and profiles with instances, a page at a time. What operators named is quoted as data: bounded,
without what nobody sees.
"""

import json
from collections.abc import Sequence
from typing import Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, ListToolsResult, Tool, ToolAnnotations

from turnstile.gateway.addressed import PROFILE, TARGET_LIMIT
from turnstile.gateway.mcp.call_arguments import ANSWER_SCHEMA, ASK_SCHEMA, TURN_GET_SCHEMA, TURN_STOP_SCHEMA
from turnstile.gateway.mcp.tool_names import TURN_GET, TURN_STOP, tool_name
from turnstile.gateway.schema_slots import is_plain
from turnstile.ledger.access.addressees import Addressee, AddresseeLine, page_addressees
from turnstile.ledger.pool import Pool
from turnstile.schema.access import Principal, Right

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
        input_schema=ASK_SCHEMA,
        output_schema=ANSWER_SCHEMA,
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )


def _plain(text: str) -> str:
    quoted = text if is_plain(text) else json.dumps(text)[1:-1]
    return " ".join(quoted.split())[:_SHOWN]


def _quoted(text: str) -> str:
    """A name as a JSON string, which ends where it ends."""
    return json.dumps(text[:_SHOWN], ensure_ascii=not is_plain(text))
