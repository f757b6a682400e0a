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
_HANDLES = "A turn's id comes with each answer of a tool that asks an agent."
_OWN: Final[Sequence[tuple[Right, Tool]]] = (
    (
        Right.READ,
        Tool(
            name=TURN_GET,
            title="Look at a turn",
            description=f"Tells where a turn stands, and what it came to; waits for its end if asked to. {_HANDLES}",
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
            description=f"Stops a turn and those below it that are waited for. {_HANDLES}",
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
    own = [tool for right, tool in _OWN if principal.may(right)] if cursor is None else []
    if not principal.may(Right.ASK):
        return ListToolsResult(tools=own)
    after = None if cursor is None else _after(cursor)
    project = principal.project_id
    found = await pool.run(lambda conn: page_addressees(conn, project, after=after, row_limit=PAGE + 1))
    shown = found[:PAGE]
    named = [(tool_name(_named(each)), each) for each in shown]
    tools = [_tool(name, each) for name, each in named if name is not None]
    return ListToolsResult(tools=[*own, *tools], next_cursor=_named(shown[-1]) if len(found) > PAGE else None)


def _named(found: AddresseeLine) -> str:
    return PROFILE + found.name if found.is_profile else found.name


def _after(cursor: str) -> Addressee:
    if not 0 < len(cursor) <= TARGET_LIMIT or not cursor.isprintable():
        raise MCPError(INVALID_PARAMS, "cursor: no page had this one")
    name = cursor.removeprefix(PROFILE)
    return Addressee.model_construct(name=name, is_profile=cursor.startswith(PROFILE))


def _tool(name: str, found: AddresseeLine) -> Tool:
    if found.is_profile:
        about = f"Asks an instance of the profile {_quoted(found.name)}"
    else:
        of = "" if found.profile_name is None else f", whose profile is {_quoted(found.profile_name)}"
        about = f"Asks the agent {_quoted(found.name)}{of}"
    return Tool(
        name=name,
        title=None if found.title is None else _plain(found.title),
        description=f"{about}, and waits for the answer. A long one is fetched with {TURN_GET}.",
        input_schema=ASK_SCHEMA,
        output_schema=ANSWER_SCHEMA,
        annotations=ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )


def _plain(text: str) -> str:
    shown = text if is_plain(text) else json.dumps(text)[1:-1]
    return " ".join(shown.split())[:_SHOWN]


def _quoted(text: str) -> str:
    """A name as a JSON string, which ends where it ends."""
    return json.dumps(text[:_SHOWN], ensure_ascii=not is_plain(text))
