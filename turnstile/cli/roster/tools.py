"""`turnstile tool`: put, list and remove."""

# ruff: noqa: PLC0415 -- heavy imports wait until a command runs, so that --help is fast

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turnstile.cli.command import command

if TYPE_CHECKING:
    from pydantic import JsonValue

    from turnstile.cli.session import Session

app = typer.Typer()


@command(app, "put", project=True)
async def put(
    session: "Session",
    files: Annotated[list[Path], typer.Argument(help="YAML files, one tool each.", metavar="FILE...")],
) -> None:
    """Store tools from YAML files. Agents whose profile allows a tool can call it from their next turn on."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.roster_requests import ToolPutRequest
    from turnstile.settings.yaml_files import read_tool

    tools = [read_tool(file) for file in files]
    stored: list[JsonValue] = []
    async with session.bridge() as client:
        await session.await_bridge(client)
        for tool in tools:
            created = (await client.call(verbs.TOOL_PUT, ToolPutRequest(tool=tool))).created
            stored.append({"tool_name": tool.tool_name, "created": created, "target_subject": tool.target_subject})
            if not session.out.as_json:
                verb = "added" if created else "replaced"
                session.out.line(f"tool {tool.tool_name} {verb}, called on {tool.target_subject}")
    if session.out.as_json:
        session.out.document(stored)


@command(app, "list", project=True)
async def show(session: "Session") -> None:
    """List the project's tools."""
    from turnstile.schema import verbs

    rows = await session.listed(verbs.TOOL_LIST, lambda reply: (reply.tools, reply.next))
    session.out.records(
        f"tools of {session.project}",
        rows,
        {
            "name": lambda row: row.tool_name,
            "after execution": lambda row: row.after_execution,
            "subject": lambda row: row.target_subject,
            "description": lambda row: (row.description or "").split("\n", 1)[0][:60],
        },
    )


@command(app, "remove", project=True)
async def remove(
    session: "Session", tool: Annotated[str, typer.Argument(help="The tool's name.", metavar="NAME")]
) -> None:
    """Remove a tool. Turns that have begun can still call it."""
    from turnstile.schema import verbs
    from turnstile.schema.wire.roster_requests import ToolRemoveRequest
    from turnstile.sdk.requests import parse_request

    await session.change(verbs.TOOL_REMOVE, parse_request(ToolRemoveRequest, {"tool_name": tool}))
    session.out.result({"tool_name": tool, "removed": True}, f"tool {tool} removed from {session.project}")
