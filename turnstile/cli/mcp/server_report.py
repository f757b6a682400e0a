"""`turnstile mcp list` and `test`: how the servers stand, and what they answer."""

import json
import os
import time
from pathlib import Path

import mcp_types as types
from pydantic import JsonValue, TypeAdapter, ValidationError

from turnstile.cli.mcp.server_changes import entry_of, file_of, listing_of, rows_of
from turnstile.cli.output import clean
from turnstile.cli.session import Session
from turnstile.schema.base import JsonObject
from turnstile.schema.errors import BadRequest, TurnstileError
from turnstile.schema.tools import ToolRow
from turnstile.sdk.mcp.mcp_connection import McpUnavailable, connected
from turnstile.sdk.mcp.mcp_results import result_of
from turnstile.sdk.mcp.mcp_server import McpServer, row_name, tool_key
from turnstile.sdk.tools.answer import ToolFailed

_OBJECT = TypeAdapter[JsonObject](JsonObject)


async def list_servers(session: Session, servers: Path | None, *, check: bool) -> None:
    """`turnstile mcp list`."""
    rows = await rows_of(session)
    lines: list[JsonObject] = []
    for name, entry in file_of(session, servers).read().items():
        lines += await _lines(session, name, entry, rows, check=check)
    if session.out.as_json:
        session.out.document([*lines])
    elif not lines:
        session.out.remark("no MCP servers: `turnstile mcp add` adds one")
    else:
        columns = ["server", "tool", "state", "about"]
        table = [[clean(str(line.get(column) or "")) for column in columns] for line in lines]
        session.out.table(f"tools of MCP servers in {session.project}", columns, table, cut="about")


async def _lines(
    session: Session, name: str, entry: McpServer, rows: dict[str, ToolRow], *, check: bool
) -> list[JsonObject]:
    pins = entry.pins.get(session.project, {})
    where = entry.url or " ".join(entry.command)
    if not check:
        return [_line(name, tool, "accepted", where) for tool in pins] or [_line(name, "", "nothing accepted", where)]
    try:
        listing = await listing_of(session, name, entry)
    except TurnstileError as error:
        return [_line(name, "", "not there", str(error))]
    lines: list[JsonObject] = []
    for tool in sorted({*pins, *listing.tools}):
        remote = listing.tools.get(tool)
        about = "" if remote is None else remote.description.splitlines()[0]
        if remote is not None and remote.called != tool:
            about = f"{remote.called} at the server: {about}"
        if remote is None:
            state = "gone"
        elif not entry.allows(tool):
            state = "not allowed"
        elif tool not in pins:
            state = "new"
        elif pins[tool] != remote.digest:
            state = "changed"
        else:
            state = "accepted" if _has_row(rows, name, tool, pins[tool]) else "row differs"
        lines.append(_line(name, tool, state, about))
    return [*lines, *(_line(name, tool, "left out", why) for tool, why in listing.left_out.items())]


def _line(server: str, tool: str, state: str, about: str) -> JsonObject:
    return {"server": server, "tool": tool, "state": state, "about": about}


def _has_row(rows: dict[str, ToolRow], server: str, tool: str, digest: str) -> bool:
    row = rows.get(row_name(server, tool))
    return row is not None and row.options.get("mcp") == {"server": server, "tool": tool, "digest": digest}


async def test_server(session: Session, servers: Path | None, name: str, tool: str | None, arguments: str) -> None:
    """`turnstile mcp test`."""
    entry = entry_of(file_of(session, servers), name)
    try:
        values = _OBJECT.validate_json(arguments)
    except ValidationError:
        raise BadRequest("the arguments are a JSON object") from None
    began = time.monotonic()
    try:
        async with connected(name, entry, os.environ) as connection:
            met = time.monotonic()
            listing = await connection.listing()
            listed = time.monotonic()
            document: JsonObject = {
                "server": name,
                "protocol": connection.protocol,
                "connect_seconds": round(met - began, 3),
                "list_seconds": round(listed - met, 3),
                "tools": [*listing.tools],
                "left_out": {**listing.left_out},
            }
            if tool is not None:
                tool = tool_key(name, tool)
                if tool not in listing.tools:
                    raise BadRequest(f"{name} has no tool {tool[:64]!a} that can be used")
                remote = listing.tools[tool]
                answer = await connection.call(remote.called, values, meta={}, ask=_nobody, progress=_unheard)
                document["result"] = result_of(entry, remote, answer)
                document["call_seconds"] = round(time.monotonic() - listed, 3)
    except McpUnavailable as error:
        if error.said:
            session.out.remark(f"{name} said:\n{clean(error.said)}")
        raise
    session.out.result(document, "\n".join(f"{key}: {_shown(value)}" for key, value in document.items()))


def _shown(value: JsonValue) -> str:
    return clean(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=True)


async def _nobody(params: types.ElicitRequestParams) -> types.ElicitResult:
    raise ToolFailed(
        "no_answer",
        f"the server has a question for a person, and `mcp test` cannot ask anybody: {params.message[:200]}",
    )


async def _unheard(progress: float, total: float | None, message: str | None) -> None:
    pass
